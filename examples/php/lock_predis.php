<?php
/**
 * A lock around work that two workers must not do at once, with Predis.
 *
 *   php examples/php/lock_predis.php [host] [port]
 *
 * Every LOCK.* command answers [code, word, token, fence, ttl_ms, depth].
 */
declare(strict_types=1);

require 'Predis/autoload.php'; // Debian's php-predis; with Composer: vendor/autoload.php

use Predis\Client;

[, $host, $port] = $argv + ['', '127.0.0.1', '6380'];

$redis = new Client(['host' => $host, 'port' => (int) $port]); // the sidecar; everything else stays as it was

$name = 'settlement-' . bin2hex(random_bytes(4));

// Ten seconds: longer than the work takes, and as long as others wait when this
// process dies in the middle of it. If another has the lock now, wait for it, three
// seconds at the most: who came first gets it first, and nobody polls.
[, , $token, $fence] = answer(200, 'ACQUIRED', $redis->executeRaw(['LOCK.ACQUIRE', $name, '10000', 'WAIT', '3000']));
try {
    // Another worker that doesn't wait is told that the lock is busy, and for how
    // long; one that waits in vain is told so.
    [, , , , $left] = answer(409, 'BUSY', $redis->executeRaw(['LOCK.ACQUIRE', $name, '10000']));
    check($left > 0 && $left <= 10000, 'what the holder has left');
    answer(408, 'TIMEOUT', $redis->executeRaw(['LOCK.ACQUIRE', $name, '10000', 'WAIT', '20']));

    // So is old code that locks with a plain SET: both use the same key.
    check($redis->set("lock:$name", 'other', 'PX', 10000, 'NX') === null, 'SET NX is refused');

    work($name, $fence);

    // Before a part that takes longer: 410 EXPIRED or 403 NOT_OWNER here would
    // mean that the lock is lost, and the work must stop.
    answer(200, 'RENEWED', $redis->executeRaw(['LOCK.RENEW', $name, $token, '30000']));
} finally {
    // Only the holder's token gives the lock back; had it lapsed and been taken
    // by another meanwhile, this would be 403 NOT_OWNER and change nothing.
    $released = $redis->executeRaw(['LOCK.RELEASE', $name, $token]);
}
answer(200, 'RELEASED', $released);

// The next holder has a larger fence, and the old token is worth nothing.
[, , $next, $nextFence] = answer(200, 'ACQUIRED', $redis->executeRaw(['LOCK.ACQUIRE', $name, '10000']));
check($nextFence > $fence, 'fences grow');
answer(403, 'NOT_OWNER', $redis->executeRaw(['LOCK.RELEASE', $name, $token]));
answer(200, 'HELD', $redis->executeRaw(['LOCK.CHECK', $name, $next]));

// With a token of one's own, such as a job's id, the lock can be taken once
// more by the same holder, and is free after as many releases.
answer(200, 'REENTERED', $redis->executeRaw(['LOCK.ACQUIRE', $name, '10000', 'TOKEN', $next]));
[, , , , , $depth] = answer(200, 'RELEASED', $redis->executeRaw(['LOCK.RELEASE', $name, $next]));
check($depth === 1, 'still held once');
[, , , , , $depth] = answer(200, 'RELEASED', $redis->executeRaw(['LOCK.RELEASE', $name, $next]));
check($depth === 0, 'free');
answer(410, 'EXPIRED', $redis->executeRaw(['LOCK.CHECK', $name, $next]));

// Misuse, and only misuse, is an error: executeRaw sets its second argument and
// returns the message.
$message = $redis->executeRaw(['LOCK.ACQUIRE', $name, '0'], $error);
check($error && str_starts_with($message, 'ERR syntax error: ttl_ms'), (string) $message);

echo "ok\n";

/**
 * A process can stall for longer than its TTL without noticing. The fence lets
 * the database refuse such a late writer: each row remembers the largest fence
 * that wrote it, and the statement changes no row when a later holder was there.
 */
function work(string $name, int $fence): void
{
    echo "UPDATE settlements SET state = 'done', fence = $fence WHERE name = '$name' AND fence <= $fence\n";
}

/** Returns the reply when it is the expected one; ends the program otherwise. */
function answer(int $code, string $word, mixed $reply): array
{
    check(is_array($reply) && $reply[0] === $code && $reply[1] === $word, "want $code $word, got " . json_encode($reply));
    return $reply;
}

function check(bool $holds, string $what): void
{
    if (!$holds) {
        fwrite(STDERR, "not as expected: $what\n");
        exit(1);
    }
}
