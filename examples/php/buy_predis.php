<?php
/**
 * What a checkout page does: reserve one unit for a user, with Predis.
 *
 *   php examples/php/buy_predis.php [host] [port] [sku] [user ...]
 *
 * Prints a line per user: user, what to tell them, word, token.
 */
declare(strict_types=1);

require 'Predis/autoload.php'; // Debian's php-predis; with Composer: vendor/autoload.php

use Predis\Client;
use Predis\Connection\ConnectionException;

[, $host, $port, $sku] = $argv + ['', '127.0.0.1', '6380', 'iphone'];
$users = array_slice($argv, 4) ?: ['frank'];

$redis = new Client(['host' => $host, 'port' => (int) $port]);

foreach ($users as $user) {
    // One id for one wish to buy, for instance from a hidden field of the form:
    // asking again with it never takes a second unit.
    [, $word, $token, $left, $at] = ask($redis, 'SECKILL.BUY', $sku, $user, 'ID', "checkout-$user");
    if ($word === 'REPLAYED') {
        // Reserved by an earlier try, and maybe settled since. Who cancelled and
        // wants to buy again needs a new id.
        [, $word] = ask($redis, 'SECKILL.RESULT', $token);
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
function ask(Client $redis, string ...$command): array
{
    for ($attempt = 1; ; $attempt++) {
        try {
            $reply = $redis->executeRaw($command, $error);
            if ($error) { // "-ERR ...": the command was wrong; or Redis refuses: NOAUTH, NOPERM
                throw new LogicException($reply);
            }
        } catch (ConnectionException $e) { // Predis connects again by itself
            error_log("$command[0], attempt $attempt: {$e->getMessage()}");
            $reply = [202, 'UNCERTAIN', '', 0, 0]; // the connection broke
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
