<?php
/**
 * A page of a shop: what one request does, with the connection that its PHP-FPM
 * worker keeps. It goes on when as many requests as there are workers run at the
 * same time, so each is in a worker of its own.
 */
declare(strict_types=1);

header('Content-Type: text/plain');
parse_str($_SERVER['QUERY_STRING'], $query);
['port' => $port, 'user' => $user, 'workers' => $workers, 'round' => $round] = $query;

$redis = new Redis();
$redis->pconnect('127.0.0.1', (int) $port, 20);
$redis->setOption(Redis::OPT_READ_TIMEOUT, 20);

$redis->incr("round:$round");
for ($end = microtime(true) + 20; $redis->get("round:$round") < $workers; usleep(5000)) {
    if (microtime(true) > $end) {
        exit('the others never came');
    }
}

$redis->setex("session:$user", 600, "data of $user");
[$session, $visits] = $redis->pipeline()->get("session:$user")->incr("visits:$user")->exec();
$hits = $redis->incr('hits');
if ($session !== "data of $user" || $visits < 1 || $hits < 1) {
    exit("another's data: $session");
}
if (isset($query['custom'])) {
    [, , $token] = $redis->rawCommand('LOCK.ACQUIRE', "cart:$user", '10000');
    [, $word] = $redis->rawCommand('SECKILL.BUY', 'iphone', $user, 'ID', "cart-$user");
    [, $released] = $redis->rawCommand('LOCK.RELEASE', "cart:$user", $token);
    exit("$word $released " . getmypid());
}
exit('OK ' . getmypid());
