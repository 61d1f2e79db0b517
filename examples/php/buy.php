<?php
/**
 * What a checkout page does: reserve one unit for a user, with phpredis.
 *
 *   php examples/php/buy.php [host] [port] [sku] [user ...]
 *
 * Prints a line per user: user, code, word, token.
 */
declare(strict_types=1);

[, $host, $port, $sku] = $argv + ['', '127.0.0.1', '6380', 'iphone'];
$users = array_slice($argv, 4) ?: ['erin'];

$redis = new Redis();
$connect = fn () => $redis->connect($host, (int) $port, 2.0); // AUTH and SELECT, if you use them, belong here too

foreach ($users as $user) {
    // One id for one wish to buy, for instance from a hidden field of the form:
    // asking again with it never takes a second unit.
    [$code, $word, $token] = ask($redis, $connect, 'SECKILL.BUY', $sku, $user, 'ID', "checkout-$user");
    if ($word === 'REPLAYED') {
        // Reserved by an earlier try, and maybe settled since: PENDING, CONFIRMED
        // or CANCELLED. Who cancelled and wants to buy again needs a new id.
        [$code, $word] = ask($redis, $connect, 'SECKILL.RESULT', $token);
    }
    echo "$user\t$code\t$word\t$token\n";
}

/**
 * Asks until there is a definite answer, at most ten times. That is safe with
 * SECKILL.BUY and an ID, and with all that only reads.
 *
 * @return array<int, int|string> the reply: a code, a word, and what the command adds
 */
function ask(Redis $redis, callable $connect, string ...$command): array
{
    for ($attempt = 1; ; $attempt++) {
        try {
            if (!$redis->isConnected()) { // at first, and after a loss
                $connect();
            }
            $reply = $redis->rawCommand(...$command);
            if ($reply === false) { // how phpredis hands over "-ERR ...": the command was wrong
                throw new LogicException((string) $redis->getLastError());
            }
        } catch (RedisException $e) {
            if (preg_match('/^[A-Z]+ /', $e->getMessage())) { // Redis refuses: NOAUTH, NOPERM
                throw $e;
            }
            error_log("$command[0], attempt $attempt: {$e->getMessage()}");
            $redis->close(); // phpredis doesn't always know that the connection broke
            $reply = [202, 'UNCERTAIN', '', 0, 0];
        }
        $definite = match ($reply[0]) {
            202, 503 => false, // UNCERTAIN: nobody knows; BUSY: not executed
            default => true,
        };
        if ($definite || $attempt === 10) {
            return $reply;
        }
        usleep(50_000 * $attempt);
    }
}
