<?php
/**
 * What the page does on which a customer waits for an order, with phpredis. The
 * browser asks it, with the token that SECKILL.BUY returned, again and again.
 *
 *   php examples/php/result.php [host] [port] [token] [milliseconds]
 *
 * Prints what to show, as soon as it is decided, or after so many milliseconds,
 * 5000 by default. Meanwhile this process waits and does nothing else: where more
 * customers wait than PHP-FPM has workers, let them hear of it by
 * results_subscribe.php, or ask without BLOCK.
 */
declare(strict_types=1);

[, $host, $port, $token, $wait] = $argv + ['', '127.0.0.1', '6380', '-', '5000'];

$redis = new Redis();
$redis->connect($host, (int) $port, 2.0);
$redis->setOption(Redis::OPT_READ_TIMEOUT, (int) $wait / 1000 + 5); // longer than RESULT waits

$reply = $redis->rawCommand('SECKILL.RESULT', $token, 'BLOCK', $wait);
if ($reply === false) { // how phpredis hands over "-ERR ...": the command was wrong
    throw new LogicException((string) $redis->getLastError());
}
[, $word, , $orderId, $reason] = $reply;
echo match ($word) {
    'PENDING' => "your order is being worked on\n", // 408: ask again
    'CONFIRMED' => "your order is $orderId\n",
    'CANCELLED' => "your reservation was cancelled: $reason\n",
    'EXPIRED' => "your reservation has expired\n",
    'NO_RESERVATION', 'NO_SALE' => "there is no such reservation\n",
    'BUSY' => "we can't tell now\n", // 503: ask again
};
