<?php
/**
 * What a worker does: take reserved orders, write them to the shop's database,
 * confirm or cancel them. With phpredis.
 *
 *   php examples/php/worker.php [host] [port] [sku] [consumer] [seconds]
 *
 * Prints a line per order: token, order id (- for a cancelled one). Ends when no order has come for so
 * many seconds, 1 by default; with 0 it stays. Any number of workers may run, each
 * under a name of its own.
 */
declare(strict_types=1);

[, $host, $port, $sku, $consumer, $seconds] = $argv + ['', '127.0.0.1', '6380', 'iphone', 'worker-' . getmypid(), '1'];
$block = $seconds > 0 ? 1000 * (int) $seconds : 5000;

$redis = new Redis();
$connect = function () use ($redis, $host, $port, $block): void {
    $redis->connect($host, (int) $port, 2.0);
    // Longer than PULL waits: else phpredis gives up, and takes the late reply for that of
    // the next command. (Predis: read_write_timeout.)
    $redis->setOption(Redis::OPT_READ_TIMEOUT, $block / 1000 + 5);
};

for (;;) {
    try {
        if (!$redis->isConnected()) { // at first, and after a loss
            $connect();
        }
        $reply = $redis->rawCommand('SECKILL.PULL', $sku, $consumer, 'COUNT', '10', 'BLOCK', (string) $block);
        if ($reply === false) { // how phpredis hands over "-ERR ...": the command was wrong
            throw new LogicException((string) $redis->getLastError());
        }
        [$code, $n] = $reply;
        if ($code === 404) {
            fwrite(STDERR, "there is no sale of $sku\n");
            exit(1);
        }
        if ($code === 200 && $n === 0 && $seconds > 0) {
            exit(0);
        }
        foreach (array_slice($reply, 2) as [$token, $user, $qty, $createdAt, $delivery]) {
            settle($redis, $token, $user, $qty);
        }
        if ($code !== 200) { // 202 UNCERTAIN, 503 BUSY
            sleep(1);
        }
    } catch (RedisException $e) {
        if (preg_match('/^[A-Z]+ /', $e->getMessage())) { // Redis refuses: NOAUTH, NOPERM
            throw $e;
        }
        fwrite(STDERR, "{$e->getMessage()}\n");
        $redis->close();
        sleep(1); // what was under way is handed out again
    }
}

/** Works one order off. It may come a second time, if it isn't settled in time. */
function settle(Redis $redis, string $token, string $user, int $qty): void
{
    $orderId = createOrder($token, $user, $qty);
    $reply = $orderId === null
        ? $redis->rawCommand('SECKILL.CANCEL', $token, 'we do not deliver there')
        : $redis->rawCommand('SECKILL.CONFIRM', $token, $orderId);
    if ($reply === false) { // how phpredis hands over "-ERR ...": the command was wrong
        throw new LogicException((string) $redis->getLastError());
    }
    [$code, $word] = $reply;
    switch ($code) {
        case 200: // CONFIRMED, CANCELLED, or REPLAYED: it was so before
            echo "$token\t", $orderId ?? '-', "\n";
            break;
        case 409: // CANCELLED by the customer meanwhile, or CONFIRMED with another order id
        case 410: // EXPIRED: PAYTTL is over, the units are on sale again
        case 404: // the sale was dropped
            fwrite(STDERR, "$token: $word" . ($orderId === null ? '' : ", undo $orderId") . "\n");
            break;
        case 202: // UNCERTAIN
        case 503: // BUSY: in both cases the order is handed out again later
            fwrite(STDERR, "$token: $word\n");
            break;
    }
}

/**
 * Your code. It may be called twice for one token, so it must find the order that
 * it made before: a unique key on the token does that. Here the order id comes
 * from the token. null: there can't be an order.
 */
function createOrder(string $token, string $user, int $qty): ?string
{
    return $user === 'nobody' ? null : 'order-' . substr($token, -24);
}
