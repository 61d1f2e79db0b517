<?php
/** What the scripts for the PHP clients share. */
declare(strict_types=1);

// A client that waits for longer than this has lost its reply.
const PATIENCE_SECONDS = 20;

/** Prints what was seen, and ends the program unless it is what was to be seen. */
function saw(string $what, mixed $got, mixed $want): void
{
    echo "$what: ", json_encode($got), "\n";
    if ($got !== $want) {
        fwrite(STDERR, "$what: got " . json_encode($got) . ', want ' . json_encode($want) . "\n");
        exit(1);
    }
}

/**
 * Runs $work in a process of its own, as another client at the same time. To be
 * called before the first connection: a fork shares those that are open. The
 * result waits for its end.
 */
function meanwhile(callable $work): callable
{
    $pid = pcntl_fork();
    if ($pid === 0) {
        $work();
        exit(0);
    }
    return function () use ($pid): int {
        pcntl_waitpid($pid, $status);
        return pcntl_wexitstatus($status);
    };
}

/**
 * Gives a waiting client what it waits for: an element once it blocks, messages
 * once it has subscribed.
 *
 * @param callable $ask sends a command and returns its reply
 */
function partner(callable $ask, string $name): void
{
    // The name of the connection that blocks is the client's own.
    until(fn () => preg_match("/ name=$name .* cmd=blpop /", $ask('CLIENT', 'LIST')));
    $ask('RPUSH', "$name:queue", 'pushed');
    until(fn () => $ask('PUBSUB', 'NUMSUB', "$name:news")[1] == 1);
    foreach (['one', "two\r\n", 'stop'] as $message) {
        $ask('PUBLISH', "$name:news", $message);
    }
}

/** Waits until a condition holds that nothing announces. */
function until(callable $holds): void
{
    for ($end = microtime(true) + PATIENCE_SECONDS; !$holds(); usleep(2000)) {
        if (microtime(true) > $end) {
            fwrite(STDERR, "waited in vain\n");
            exit(1);
        }
    }
}

/** A script that no other worker has loaded: INCRBY, told apart by the name. */
function script(string $name): string
{
    return "return redis.call('INCRBY', KEYS[1], ARGV[1]) -- $name";
}

/**
 * Sales and locks, for clients that hand an array over as it is.
 *
 * @param callable $ask sends a command and returns its reply
 */
function sale_and_lock(callable $ask, string $name): void
{
    $sku = "$name:iphone";
    saw('create', $ask('SECKILL.CREATE', $sku, '1'), [200, 'CREATED', $sku, 1]);
    [$code, $word, $token, $left, $at] = $ask('SECKILL.BUY', $sku, 'alice', 'ID', 'cart-1');
    saw('buy', [$code, $word, $left, $at], [200, 'RESERVED', 0, 0]);
    saw('buy again', $ask('SECKILL.BUY', $sku, 'alice', 'ID', 'cart-1') === [200, 'REPLAYED', $token, 0, 0], true);
    saw('sold out', $ask('SECKILL.BUY', $sku, 'bob'), [4001, 'SOLD_OUT', '', 0, 0]);
    saw('confirm', $ask('SECKILL.CONFIRM', $token, 'order-1') === [200, 'CONFIRMED', $token, 'order-1'], true);

    [$code, $word, $token] = $ask('LOCK.ACQUIRE', $name, '60000');
    saw('lock', [$code, $word], [200, 'ACQUIRED']);
    saw('lock is busy', array_slice($ask('LOCK.ACQUIRE', $name, '60000'), 0, 3), [409, 'BUSY', '']);
    saw('release', array_slice($ask('LOCK.RELEASE', $name, $token), 0, 2), [200, 'RELEASED']);

    // Of a sale that all workers share; who gets a unit is for the test to count.
    echo 'shared: ', $ask('SECKILL.BUY', 'shared', $name)[1], "\n";
}
