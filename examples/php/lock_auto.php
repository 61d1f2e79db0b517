<?php
/**
 * A lock for work of which nobody knows how long it takes, with phpredis.
 *
 *   php examples/php/lock_auto.php [host] [port]
 *
 * With AUTO the sidecar renews the lock for as long as this connection lives, but
 * no longer than MAXHOLD, and releases it at the end of the connection: when this
 * process dies, the next one has the lock at once.
 */
declare(strict_types=1);

[, $host, $port] = $argv + ['', '127.0.0.1', '6380'];

$redis = new Redis();
// A connection of pconnect outlives its request. RESET frees what an earlier request
// left behind on it because it died; AUTH and SELECT are forgotten with it, and so
// belong here, after it. With connect none of this is needed.
$redis->pconnect($host, (int) $port, 2.0);
$redis->rawCommand('RESET');

$name = 'export-' . bin2hex(random_bytes(4));

// The TTL counts only when the sidecar dies too: so it can be short. MAXHOLD counts
// when this process hangs, or its request dies on a connection that stays.
[$code, $word, $token, $fence] = $redis->rawCommand('LOCK.ACQUIRE', $name, '300', 'WAIT', '3000', 'AUTO', 'MAXHOLD', '60000');
if ($code !== 200) { // 408 TIMEOUT: another has it
    exit("$code $word\n");
}
try {
    usleep(700_000); // work, for longer than the TTL

    // Before what can't be undone: is it still ours? Redis may have been away for
    // longer than the TTL, or MAXHOLD be over. Between this answer and the next line
    // it can still be lost: fence.php shows what helps against that.
    [$code, $word] = $redis->rawCommand('LOCK.CHECK', $name, $token);
    if ($code !== 200) { // 410 EXPIRED, 403 NOT_OWNER
        throw new RuntimeException("the lock is lost: $code $word");
    }
    echo "exported, with fence $fence\n";
} finally {
    $redis->rawCommand('LOCK.RELEASE', $name, $token);
}

// A request that dies here leaves its lock to the connection …
[$code, , $token] = $redis->rawCommand('LOCK.ACQUIRE', $name, '300', 'AUTO', 'MAXHOLD', '60000');
usleep(700_000);
[$code, $word] = $redis->rawCommand('LOCK.CHECK', $name, $token);
echo "$code $word\n"; // 200 HELD
// … and the next request on it begins with RESET.
$redis->rawCommand('RESET');
[$code, $word] = $redis->rawCommand('LOCK.CHECK', $name, $token);
echo "$code $word\n"; // 410 EXPIRED: it is free
