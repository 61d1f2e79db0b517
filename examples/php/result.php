<?php
/**
 * What the page does on which a customer waits for an order, with phpredis. The
 * browser asks it once a second, say, with the token that SECKILL.BUY returned.
 *
 *   php examples/php/result.php [host] [port] [token]
 *
 * Prints what to show.
 */
declare(strict_types=1);

[, $host, $port, $token] = $argv + ['', '127.0.0.1', '6380', '-'];

$redis = new Redis();
$redis->connect($host, (int) $port, 2.0);

$reply = $redis->rawCommand('SECKILL.RESULT', $token);
if ($reply === false) { // how phpredis hands over "-ERR ...": the command was wrong
    throw new LogicException((string) $redis->getLastError());
}
[, $word, , $orderId, $reason] = $reply;
echo match ($word) {
    'PENDING' => "your order is being worked on\n",
    'CONFIRMED' => "your order is $orderId\n",
    'CANCELLED' => "your reservation was cancelled: $reason\n",
    'NO_RESERVATION', 'NO_SALE' => "there is no such reservation\n",
    'BUSY' => "we can't tell now\n", // the browser asks again
};
