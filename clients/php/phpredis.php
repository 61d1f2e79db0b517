<?php
/**
 * What applications do with phpredis.
 *
 *   php phpredis.php connect|pconnect HOST PORT NAME [custom]
 *
 * With TLS where the environment has TLS_CA, the file of the authority. NAME starts
 * the worker's keys. What any Redis can do comes first and prints the
 * same everywhere; custom adds the sidecar's own commands. Ends with 0 only if
 * all was as it should be.
 */
declare(strict_types=1);

require __DIR__ . '/common.php';

[, $way, $host, $port, $name] = $argv;

$partner = meanwhile(function () use ($name) {
    $redis = open('partner');
    partner(fn (...$args) => $redis->rawCommand(...$args), $name);
});
$redis = open('main');
connection($redis, $name);
pipeline($redis, $name);
transaction($redis, open('other'), $name);
blocking($redis, $name);
messages($redis, $name);
scripts($redis, $name);
saw('partner', $partner(), 0);

unset($redis);
saw('a connection opened anew has its name', open('main')->client('getname') === $name, $way === 'pconnect');
if (isset($argv[5])) {
    custom(open('main'), $name);
}

/** Opens a connection; with pconnect it is the one that was last used under this id. */
function open(string $id): Redis
{
    global $way, $host, $port;
    $redis = new Redis();
    $authority = getenv('TLS_CA');
    if ($authority) {
        $trust = ['stream' => ['cafile' => $authority, 'peer_name' => 'localhost']];
        $redis->$way("tls://$host", (int) $port, PATIENCE_SECONDS, $id, 0, PATIENCE_SECONDS, $trust);
    } else {
        $redis->$way($host, (int) $port, PATIENCE_SECONDS, $id);
    }
    $redis->setOption(Redis::OPT_READ_TIMEOUT, PATIENCE_SECONDS);
    return $redis;
}

function connection(Redis $redis, string $name): void
{
    saw('ping', $redis->ping(), true);
    saw('name', [$redis->client('setname', $name), $redis->client('getname') === $name], [true, true]);
    saw('database 2', [$redis->select(2), $redis->set("$name:two", '2'), $redis->get("$name:two")], [true, true, '2']);
    saw('database 0', [$redis->select(0), $redis->get("$name:two")], [true, false]);
    saw('unknown command', [$redis->rawCommand('FT.SEARCH', 'x'), str_starts_with($redis->getLastError(), "ERR unknown command 'FT.SEARCH'")], [false, true]);
    $redis->clearLastError();
}

function pipeline(Redis $redis, string $name): void
{
    $pipe = $redis->pipeline();
    for ($i = 0; $i < 100; $i++) {
        $pipe->set("$name:p$i", "v$i")->get("$name:p$i");
    }
    $pipe->incr("$name:count")->lPush("$name:count", 'x')->mGet(["$name:p7", "$name:none"]);
    $replies = $pipe->exec();
    $want = [];
    for ($i = 0; $i < 100; $i++) {
        array_push($want, true, "v$i");
    }
    saw('pipeline', array_slice($replies, 0, 200) === $want, true);
    saw('end of the pipeline', array_slice($replies, 200), [1, false, ['v7', false]]);
    $redis->clearLastError();
}

function transaction(Redis $redis, Redis $other, string $name): void
{
    saw('multi', $redis->multi()->set("$name:t", 'a')->incr("$name:n")->get("$name:t")->exec(), [true, 1, 'a']);
    $redis->watch("$name:t");
    saw('other', $other->set("$name:t", 'b'), true);
    saw('conflict', $redis->multi()->set("$name:t", 'c')->exec(), false);
    saw('the other won', $redis->get("$name:t"), 'b');
    $redis->watch("$name:t");
    saw('no conflict', $redis->multi()->set("$name:t", 'd')->exec(), [true]);
    $redis->watch("$name:t");
    $redis->unwatch();
    $other->set("$name:t", 'e');
    saw('unwatched', $redis->multi()->get("$name:t")->exec(), ['e']);
    $redis->multi()->set("$name:t", 'f');
    saw('discard', [$redis->discard(), $redis->get("$name:t")], [true, 'e']);
    // In one write: MULTI, the commands, EXEC.
    saw('pipelined multi', $redis->pipeline()->multi()->incr("$name:n")->incr("$name:n")->exec()->get("$name:n")->exec(), [[2, 3], '3']);
}

function blocking(Redis $redis, string $name): void
{
    saw('blocking pop in vain', $redis->blPop(["$name:nothing"], 1), []);
    saw('blocking pop', $redis->blPop(["$name:queue"], PATIENCE_SECONDS)[1], 'pushed');
    $redis->rPush("$name:queue", 'moved');
    saw('blocking move', $redis->brpoplpush("$name:queue", "$name:done", PATIENCE_SECONDS), 'moved');
}

function messages(Redis $redis, string $name): void
{
    $got = [];
    $subscriber = open('subscriber');
    try {
        $subscriber->subscribe(["$name:news"], function (Redis $redis, string $channel, string $message) use (&$got) {
            $got[] = $message;
            if ($message === 'stop') {
                $redis->close(); // the only way out of this loop
            }
        });
    } catch (RedisException $e) {
        saw('end of the subscription', $e->getMessage(), 'Connection closed');
    }
    saw('messages', $got, ['one', "two\r\n", 'stop']);

    saw('subscribe', $redis->rawCommand('SUBSCRIBE', 'a')[2], 1);
    saw('unsubscribe', $redis->rawCommand('UNSUBSCRIBE', 'a')[2], 0);
    saw('after that', $redis->get("$name:t"), 'e');
}

function scripts(Redis $redis, string $name): void
{
    $script = script($name);
    $sha = sha1($script);
    saw('not loaded', [$redis->evalSha($sha, ["$name:s", 5], 1), str_starts_with($redis->getLastError(), 'NOSCRIPT ')], [false, true]);
    $redis->clearLastError();
    saw('eval', $redis->eval($script, ["$name:s", 5], 1), 5);
    saw('evalsha', $redis->evalSha($sha, ["$name:s", 5], 1), 10);
    saw('loaded', $redis->script('exists', $sha), [1]);
}

function custom(Redis $redis, string $name): void
{
    echo "custom commands\n";
    sale_and_lock(fn (...$args) => $redis->rawCommand(...$args), $name);

    $replies = $redis->pipeline()
        ->rawCommand('SECKILL.CREATE', "$name:watch", '3')
        ->set("$name:x", '1')
        ->rawCommand('SECKILL.BUY', "$name:watch", 'alice')
        ->rawCommand('SECKILL.BUY', "$name:watch", 'bob')
        ->get("$name:x")
        ->exec();
    saw('in a pipeline', [$replies[0][1], $replies[1], $replies[2][1], $replies[3][1], $replies[4]], ['CREATED', true, 'RESERVED', 'RESERVED', '1']);

    saw('misuse', [$redis->rawCommand('SECKILL.BUY'), $redis->getLastError()], [false, "ERR wrong number of arguments for 'seckill.buy' command"]);
    $redis->clearLastError();

    // phpredis's own multi() loses its place when Redis refuses a command.
    saw('multi', [$redis->rawCommand('MULTI'), $redis->rawCommand('SET', "$name:x", '2')], [true, true]);
    saw('refused', $redis->rawCommand('SECKILL.BUY', "$name:watch", 'carol'), false);
    try {
        saw('exec', $redis->rawCommand('EXEC'), 'an exception');
    } catch (RedisException $e) {
        saw('exec', $e->getMessage(), 'EXECABORT Transaction discarded because of previous errors.');
    }
    saw('undone', $redis->get("$name:x"), '1');
    $redis->clearLastError();
    saw('nothing was bought', $redis->rawCommand('SECKILL.BUY', "$name:watch", 'carol')[3], 0);

    // On a connection that watches, and so has one to Redis for itself.
    $redis->watch("$name:x");
    saw('while watching', $redis->rawCommand('SECKILL.BUY', "$name:watch", 'dave')[1], 'SOLD_OUT');
    saw('watched', $redis->multi()->get("$name:x")->exec(), ['1']);
}
