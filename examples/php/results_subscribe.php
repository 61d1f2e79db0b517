<?php
/**
 * Hears what becomes of all reservations, with phpredis: what a server does that
 * tells browsers, by server-sent events or WebSocket.
 *
 *   php examples/php/results_subscribe.php [host] [port] [seconds]
 *
 * Prints a line per reservation that is confirmed, cancelled or expires: token,
 * status, order id. Ends when none was for so many seconds, 1 by default; with 0 it
 * stays.
 *
 * Who isn't subscribed at that moment misses it. So: subscribe first, then ask
 * SECKILL.RESULT once for each token that somebody waits for, then listen.
 */
declare(strict_types=1);

[, $host, $port, $seconds] = $argv + ['', '127.0.0.1', '6380', '1'];

$redis = new Redis();
$redis->connect($host, (int) $port, 2.0);
$redis->setOption(Redis::OPT_READ_TIMEOUT, $seconds > 0 ? (int) $seconds : -1);

$channel = 'seckill:results'; // SECKILL.INFO names it: it begins with seckill.prefix
try {
    $redis->subscribe([$channel], function (Redis $redis, string $channel, string $message): void {
        ['type' => $type, 'data' => $result] = json_decode($message, true, flags: JSON_THROW_ON_ERROR);
        if ($type === 'seckill_result') {
            echo "$result[token]\t$result[status]\t$result[order_id]\n";
        }
    });
} catch (RedisException $e) {
    if ($seconds > 0) {
        exit(0); // nothing came
    }
    throw $e; // the connection is lost, and with it what was published since
}
