<?php
/**
 * A lock around work that two processes must not do at once, with phpredis.
 *
 *   php examples/php/lock.php [host] [port] [name]
 *
 * Every LOCK.* command that takes or gives back a lock answers
 * [code, word, token, fence, ttl_ms, depth].
 */
declare(strict_types=1);

[, $host, $port, $name] = $argv + ['', '127.0.0.1', '6380', 'settlement'];

$redis = new Redis();
$redis->connect($host, (int) $port, 2.0); // the sidecar; everything else stays as it was
$redis->setOption(Redis::OPT_READ_TIMEOUT, 10); // longer than WAIT

try {
    $done = withLock($redis, $name, 10_000, 3_000, function (int $fence): string {
        return "settled, with fence $fence"; // the work; fence.php shows what the fence is for
    });
    echo "$done\n";
} catch (LockTimeout) {
    echo "another process settles already\n";
}

/**
 * Does the work while the lock is held. $ttl, in milliseconds, is longer than the
 * work takes, and as long as others wait when this process dies in the middle of
 * it. $wait is how long to wait for the lock: who came first gets it first, and
 * nobody polls.
 *
 * @throws LockTimeout when another holds the lock for all that time
 */
function withLock(Redis $redis, string $name, int $ttl, int $wait, callable $work): mixed
{
    $reply = $redis->rawCommand('LOCK.ACQUIRE', $name, (string) $ttl, 'WAIT', (string) $wait);
    if ($reply === false) { // how phpredis hands over "-ERR ...": the command was wrong
        throw new LogicException((string) $redis->getLastError());
    }
    [$code, $word, $token, $fence] = $reply;
    if ($code === 408) {
        throw new LockTimeout($name);
    }
    try {
        if ($code !== 200) { // 202 UNCERTAIN: it may be ours; 503 BUSY: Redis is down
            throw new RuntimeException("LOCK.ACQUIRE $name: $code $word");
        }
        return $work($fence);
    } finally {
        if ($token !== '') {
            // Gives back this lock and no other's: had it lapsed and been taken by
            // another, this would be 403 NOT_OWNER and change nothing.
            $redis->rawCommand('LOCK.RELEASE', $name, $token);
        }
    }
}

class LockTimeout extends RuntimeException
{
}
