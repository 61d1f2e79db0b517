<?php
/**
 * All that locks can do, with phpredis; lock.php is what a program needs most.
 *
 *   php examples/php/lock_modes.php [host] [port]
 */
declare(strict_types=1);

[, $host, $port] = $argv + ['', '127.0.0.1', '6380'];

$redis = new Redis();
$redis->connect($host, (int) $port, 2.0);

$name = 'stocktaking-' . bin2hex(random_bytes(4));

// Who has it, for how long, and since when; tokens are never told.
[, , $token, $fence] = answer(200, 'ACQUIRED', lock('ACQUIRE', $name, '10000'));
[, , , , $left] = answer(409, 'BUSY', lock('ACQUIRE', $name, '10000'));
check($left > 0 && $left <= 10000, 'what the holder has left');
answer(408, 'TIMEOUT', lock('ACQUIRE', $name, '10000', 'WAIT', '20'));
[, , $flat] = answer(200, 'INFO', lock('INFO', $name));
$info = array_column(array_chunk($flat, 2), 1, 0); // over RESP2 a map comes as field, value, …
check($info['state'] === 'HELD' && $info['mode'] === 'exclusive', 'INFO');

// Old code that locks with a plain SET is refused as well: both use the same key.
check($redis->set("lock:$name", 'other', ['nx', 'px' => 10000]) === false, 'SET NX is refused');

// Only the holder's token renews and releases.
answer(200, 'RENEWED', lock('RENEW', $name, $token, '30000'));
answer(403, 'NOT_OWNER', lock('RENEW', $name, 'a guess', '30000'));
answer(403, 'NOT_OWNER', lock('RELEASE', $name, 'a guess'));
answer(200, 'HELD', lock('CHECK', $name, $token));
answer(200, 'RELEASED', lock('RELEASE', $name, $token));
answer(410, 'EXPIRED', lock('CHECK', $name, $token));

// With a token of one's own, such as a job's id, the lock can be taken once more by
// the same holder, and is free after as many releases.
[, , , $next] = answer(200, 'ACQUIRED', lock('ACQUIRE', $name, '10000', 'TOKEN', 'job-7'));
check($next > $fence, 'fences grow');
answer(200, 'REENTERED', lock('ACQUIRE', $name, '10000', 'TOKEN', 'job-7'));
[, , , , , $depth] = answer(200, 'RELEASED', lock('RELEASE', $name, 'job-7'));
check($depth === 1, 'still held once');
[, , , , , $depth] = answer(200, 'RELEASED', lock('RELEASE', $name, 'job-7'));
check($depth === 0, 'free');

// Several locks, all or none, whatever order others take them in: to move something
// from one account to another. One token is for both.
[, , $token] = answer(200, 'ACQUIRED', lock('MACQUIRE', '10000', '2', "$name:from", "$name:to", 'WAIT', '3000'));
answer(200, 'RELEASED', lock('RELEASE', "$name:from", $token));
answer(200, 'RELEASED', lock('RELEASE', "$name:to", $token));

// Many may read while nobody writes.
[, , $reader] = answer(200, 'ACQUIRED', lock('ACQUIRE', "$name:prices", '10000', 'SHARED'));
[, , $another] = answer(200, 'ACQUIRED', lock('ACQUIRE', "$name:prices", '10000', 'SHARED'));
answer(409, 'BUSY', lock('ACQUIRE', "$name:prices", '10000'));
answer(200, 'RELEASED', lock('RELEASE', "$name:prices", $reader));
answer(200, 'RELEASED', lock('RELEASE', "$name:prices", $another));

// No more than two at a time, of however many workers: a partner's API allows that.
[, , $first] = answer(200, 'ACQUIRED', lock('ACQUIRE', "$name:api", '10000', 'PERMITS', '2'));
answer(200, 'ACQUIRED', lock('ACQUIRE', "$name:api", '10000', 'PERMITS', '2'));
answer(409, 'BUSY', lock('ACQUIRE', "$name:api", '10000', 'PERMITS', '2'));
answer(200, 'RELEASED', lock('RELEASE', "$name:api", $first));

// For people, when something is wrong: the holder isn't told.
answer(200, 'RELEASED', lock('FORCE', "$name:api"));

// Misuse, and only misuse, is an error, which phpredis turns into false.
check(lock('ACQUIRE', $name, '0') === false, 'a TTL of 0');
check(str_starts_with($redis->getLastError(), 'ERR syntax error: ttl_ms'), (string) $redis->getLastError());

echo "ok\n";

/** Sends a LOCK.* command. */
function lock(string $command, string ...$arguments): mixed
{
    global $redis;
    return $redis->rawCommand("LOCK.$command", ...$arguments);
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
