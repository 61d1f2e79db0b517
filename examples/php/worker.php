<?php
/**
 * What a worker does: take reserved orders, write them to the shop's database,
 * confirm them. With phpredis.
 *
 *   php examples/php/worker.php [host] [port] [sku] [consumer]
 *
 * Prints a line per order: token, order id. Ends when no order is waiting; a
 * worker that is to stay would sleep for a moment and go on.
 */
declare(strict_types=1);

[, $host, $port, $sku, $consumer] = $argv + ['', '127.0.0.1', '6380', 'iphone', 'worker-' . getmypid()];

$redis = new Redis();
$redis->connect($host, (int) $port, 2.0);

while ($orders = pull($redis, $sku, $consumer, 10)) {
    foreach ($orders as [$token, $user, $qty, $createdAt, $delivery]) {
        $orderId = createOrder($token, $user, $qty);
        [$code, $word] = $redis->rawCommand('SECKILL.CONFIRM', $token, $orderId);
        switch ($code) {
            case 200: // CONFIRMED, or REPLAYED: it was, with this order id
                echo "$token\t$orderId\n";
                break;
            case 409: // CANCELLED by the customer meanwhile, or CONFIRMED with another order id
            case 404: // the sale is gone
                fwrite(STDERR, "$token: $word, undo $orderId\n");
                break;
            case 202: // UNCERTAIN
            case 503: // BUSY: in both cases the order is delivered again later
                fwrite(STDERR, "$token: $word\n");
                break;
        }
    }
}

/**
 * Returns up to $count orders, each [token, user, qty, created_at, delivery].
 * An order that another worker took and didn't settle in time is among them,
 * with a delivery above 1.
 */
function pull(Redis $redis, string $sku, string $consumer, int $count): array
{
    $reply = $redis->rawCommand('SECKILL.PULL', $sku, $consumer, 'COUNT', (string) $count);
    if ($reply === false || $reply[0] !== 200) {
        throw new RuntimeException('PULL: ' . ($reply[0] ?? $redis->getLastError()));
    }
    return array_slice($reply, 2);
}

/**
 * Your code. It may be called twice for one token (delivery above 1), so it must
 * find the order that it made before: a unique key on the token does that. Here
 * the order id comes from the token.
 */
function createOrder(string $token, string $user, int $qty): string
{
    return 'order-' . substr($token, -24);
}
