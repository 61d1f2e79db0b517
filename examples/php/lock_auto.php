<?php
/**
 * Locks for work that takes longer than a TTL should be, with phpredis.
 *
 *   php examples/php/lock_auto.php [host] [port]
 *
 * With AUTO the sidecar renews the lock for as long as this connection lives, but
 * never longer than MAXHOLD, and releases it at the end of the connection: when the
 * process dies, the next one has the lock at once.
 */
declare(strict_types=1);

[, $host, $port] = $argv + ['', '127.0.0.1', '6380'];

$redis = new Redis();
$redis->pconnect($host, (int) $port, 2.0); // the sidecar; everything else stays as it was

$name = 'export-' . bin2hex(random_bytes(4));

// A short TTL: it counts only when this machine dies, sidecar and all.
[, , $token, $fence] = answer(200, 'ACQUIRED', lock('ACQUIRE', $name, '300', 'WAIT', '3000', 'AUTO', 'MAXHOLD', '60000'));
try {
    usleep(700_000); // work that takes longer than the TTL

    // Before what can't be undone: is the lock still ours? 410 EXPIRED or 403
    // NOT_OWNER would mean that it could not be kept.
    answer(200, 'HELD', lock('CHECK', $name, $token));
    save($name, $fence);
} finally {
    $released = lock('RELEASE', $name, $token);
}
answer(200, 'RELEASED', $released);

// Two locks at once, all or none, whatever order others take them in: for moving
// something from one account to another. One token is for both.
[, , $token] = answer(200, 'ACQUIRED', lock('MACQUIRE', '10000', '2', "$name:from", "$name:to", 'WAIT', '3000'));
answer(200, 'RELEASED', lock('RELEASE', "$name:from", $token));
answer(200, 'RELEASED', lock('RELEASE', "$name:to", $token));

// No more than two at a time, of however many workers: a partner's API allows that.
[, , $first] = answer(200, 'ACQUIRED', lock('ACQUIRE', "$name:api", '10000', 'PERMITS', '2'));
[, , $second] = answer(200, 'ACQUIRED', lock('ACQUIRE', "$name:api", '10000', 'PERMITS', '2'));
answer(409, 'BUSY', lock('ACQUIRE', "$name:api", '10000', 'PERMITS', '2'));
answer(200, 'RELEASED', lock('RELEASE', "$name:api", $first));
answer(200, 'RELEASED', lock('RELEASE', "$name:api", $second));

// Many may read while nobody writes.
[, , $reader] = answer(200, 'ACQUIRED', lock('ACQUIRE', "$name:prices", '10000', 'SHARED', 'AUTO'));
[, , $other] = answer(200, 'ACQUIRED', lock('ACQUIRE', "$name:prices", '10000', 'SHARED'));
answer(409, 'BUSY', lock('ACQUIRE', "$name:prices", '10000'));
answer(200, 'RELEASED', lock('RELEASE', "$name:prices", $other));

// A persistent connection outlives its request. What an earlier request left behind,
// because it died, is freed by RESET; do that first in each request.
$redis->rawCommand('RESET');
[, , $writer] = answer(200, 'ACQUIRED', lock('ACQUIRE', "$name:prices", '10000'));
answer(200, 'RELEASED', lock('RELEASE', "$name:prices", $writer));

echo "ok\n";

/** Sends a LOCK.* command; the reply is [code, word, token, fence, ttl_ms, depth]. */
function lock(string $command, string ...$arguments): mixed
{
    global $redis;
    return $redis->rawCommand("LOCK.$command", ...$arguments);
}

/**
 * A process can stall for longer than its lock lasts without noticing. The fence
 * lets the database refuse such a late writer: when the statement changes no row, a
 * later holder was there, and this one must give up.
 */
function save(string $name, int $fence): void
{
    $sql = "UPDATE exports SET state = 'done', fence = :fence WHERE name = :name AND fence <= :fence";
    // $statement = $pdo->prepare($sql);
    // $statement->execute(['name' => $name, 'fence' => $fence]);
    // if ($statement->rowCount() === 0) { throw new RuntimeException('somebody else has the lock by now'); }
    echo "$sql -- with fence $fence\n";
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
