<?php
/**
 * What a checkout page does: reserve one unit for a user, with phpredis.
 *
 *   php examples/php/buy.php [host] [port] [sku] [user ...]
 *
 * Prints a line per user: user, what to tell them, word, token.
 */
declare(strict_types=1);

[, $host, $port, $sku] = $argv + ['', '127.0.0.1', '6380', 'iphone'];
$users = array_slice($argv, 4) ?: ['erin'];

$redis = new Redis();
$connect = fn () => $redis->connect($host, (int) $port, 2.0); // AUTH and SELECT, if you use them, belong here too

foreach ($users as $user) {
    // One id for one wish to buy, for instance from a hidden field of the form:
    // asking again with it never takes a second unit.
    [, $word, $token, $left, $at] = ask($redis, $connect, 'SECKILL.BUY', $sku, $user, 'ID', "checkout-$user");
    if ($word === 'REPLAYED') {
        // Reserved by an earlier try, and maybe settled since. Who cancelled and
        // wants to buy again needs a new id.
        [, $word] = ask($redis, $connect, 'SECKILL.RESULT', $token);
    }
    $tell = match ($word) {
        'RESERVED' => $at > 0 ? 'yours, if you pay by ' . date(DATE_ATOM, intdiv($at, 1000)) : 'yours',
        'PENDING' => 'yours already, not paid yet',
        'CONFIRMED' => 'bought and paid before',
        'CANCELLED', 'EXPIRED' => 'given back before',
        'SOLD_OUT' => $left > 0 ? "only $left left" : 'sold out',
        'LIMIT' => $token !== '' ? 'you have yours already' : 'more than one user may have',
        'NOT_OPEN' => 'opens at ' . date(DATE_ATOM, intdiv($at, 1000)),
        'CLOSED' => 'the sale is over',
        'RATE_LIMITED' => "too fast, try again in $at ms",
        'NO_SALE', 'NO_RESERVATION' => 'no such sale',
        'UNCERTAIN', 'BUSY' => 'too busy, try again', // with the same id
    };
    echo "$user\t$tell\t$word\t$token\n";
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
            $redis->close(); // phpredis goes on with a broken connection, and takes late replies for the next ones
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
