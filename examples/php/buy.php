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
$users = array_slice($argv, 4) ?: ['alice'];

$redis = new Redis();
$redis->connect($host, (int) $port, 2.0);

foreach ($users as $user) {
    // One id for one wish to buy, for instance from a hidden field of the form:
    // asking again with it never takes a second unit.
    [$code, $word, $token] = buy($redis, $sku, $user, "checkout-$user");
    echo "$user\t$code\t$word\t$token\n";
}

/**
 * Asks until there is a definite answer, at most ten times.
 *
 * @return array{int, string, string, int, int} code, word, token, units left, pay-by time
 */
function buy(Redis $redis, string $sku, string $user, string $requestId): array
{
    for ($attempt = 1; ; $attempt++) {
        try {
            $reply = $redis->rawCommand('SECKILL.BUY', $sku, $user, 'ID', $requestId);
            if ($reply === false) { // how phpredis hands over "-ERR ...": the command was wrong
                throw new LogicException((string) $redis->getLastError());
            }
            $definite = match ($reply[0]) {
                200 => true,             // RESERVED, or REPLAYED: it was reserved before, here is the same token
                4001, 4002 => true,      // SOLD_OUT; LIMIT: the user has what one user may have
                404 => true,             // NO_SALE: nothing of this SKU is for sale
                202, 503 => false,       // UNCERTAIN: nobody knows; BUSY: not executed
            };
        } catch (RedisException $e) {    // the connection broke: as uncertain as 202
            [$definite, $reply] = [false, [202, 'UNCERTAIN', '', 0, 0]];
        }
        if ($definite || $attempt === 10) {
            return $reply;
        }
        usleep(50_000 * $attempt);
    }
}
