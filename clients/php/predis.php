<?php
/**
 * What applications do with Predis.
 *
 *   php predis.php HOST PORT NAME [custom]
 *
 * NAME starts the worker's keys. What any Redis can do comes first and prints the
 * same everywhere; custom adds the sidecar's own commands. Ends with 0 only if
 * all was as it should be.
 */
declare(strict_types=1);

require __DIR__ . '/common.php';
require 'Predis/autoload.php';

use Predis\Client;
use Predis\Command\RawCommand;
use Predis\Command\ScriptCommand;
use Predis\Response\ServerException;
use Predis\Transaction\AbortedMultiExecException;

[, $host, $port, $name] = $argv;

/** INCRBY as a script: Predis sends EVALSHA, and EVAL when Redis hasn't got it. */
class AddCommand extends ScriptCommand
{
    public function getKeysCount(): int
    {
        return 1;
    }

    public function getScript(): string
    {
        return script($GLOBALS['name']);
    }
}

$partner = meanwhile(function () use ($name) {
    $redis = open();
    partner(fn (...$args) => $redis->executeRaw($args), $name);
});
$redis = open();
connection($redis, $name);
pipeline($redis, $name);
transaction($redis, open(), $name);
blocking($redis, $name);
messages($redis, $name);
scripts($redis, $name);
saw('partner', $partner(), 0);
if (isset($argv[4])) {
    custom($redis, $name);
}

function open(): Client
{
    global $host, $port;
    $parameters = ['host' => $host, 'port' => (int) $port, 'read_write_timeout' => PATIENCE_SECONDS];
    if ($authority = getenv('TLS_CA')) {
        $parameters += ['scheme' => 'tls', 'ssl' => ['cafile' => $authority, 'peer_name' => 'localhost']];
    }
    return new Client($parameters);
}

function connection(Client $redis, string $name): void
{
    saw('ping', (string) $redis->ping(), 'PONG');
    saw('name', [(string) $redis->client('SETNAME', $name), $redis->client('GETNAME') === $name], ['OK', true]);
    saw('database 2', [(string) $redis->select(2), (string) $redis->set("$name:two", '2'), $redis->get("$name:two")], ['OK', 'OK', '2']);
    saw('database 0', [(string) $redis->select(0), $redis->get("$name:two")], ['OK', null]);
    $reply = $redis->executeRaw(['FT.SEARCH', 'x'], $error);
    saw('unknown command', [$error, str_starts_with($reply, "ERR unknown command 'FT.SEARCH'")], [true, true]);
}

function pipeline(Client $redis, string $name): void
{
    $replies = $redis->pipeline(function ($pipe) use ($name) {
        for ($i = 0; $i < 100; $i++) {
            $pipe->set("$name:p$i", "v$i");
            $pipe->get("$name:p$i");
        }
        $pipe->incr("$name:count");
        $pipe->mget(["$name:p7", "$name:none"]);
    });
    $want = [];
    for ($i = 0; $i < 100; $i++) {
        array_push($want, 'OK', "v$i");
    }
    saw('pipeline', array_map('strval', array_slice($replies, 0, 200)) === $want, true);
    saw('end of the pipeline', array_slice($replies, 200), [1, ['v7', null]]);
}

function transaction(Client $redis, Client $other, string $name): void
{
    $key = "$name:t";
    $replies = $redis->transaction(fn ($tx) => $tx->set($key, 'a')->incr("$name:n")->get($key));
    saw('multi', [(string) $replies[0], $replies[1], $replies[2]], ['OK', 1, 'a']);

    // The first attempt meets another client's write, the second doesn't.
    $attempts = 0;
    $write = function ($tx) use (&$attempts, $other, $key) {
        $old = $tx->get($key);
        if ($attempts++ === 0) {
            $other->set($key, 'b');
        }
        $tx->multi();
        $tx->set($key, $old . 'c');
    };
    try {
        $redis->transaction(['watch' => $key, 'cas' => true], $write);
        saw('conflict', 'none', 'an exception');
    } catch (AbortedMultiExecException) {
        saw('conflict', $redis->get($key), 'b');
    }
    $attempts = 0;
    saw('with a retry', (string) $redis->transaction(['watch' => $key, 'cas' => true, 'retry' => 1], $write)[0], 'OK');
    saw('attempts', [$attempts, $redis->get($key)], [2, 'bc']);

    $redis->watch($key);
    $redis->unwatch();
    $other->set($key, 'd');
    saw('unwatched', $redis->transaction(fn ($tx) => $tx->get($key)), ['d']);
    saw('pipelined multi', $redis->pipeline(['atomic' => true], fn ($pipe) => $pipe->incr("$name:n")->incr("$name:n")), [2, 3]);
}

function blocking(Client $redis, string $name): void
{
    saw('blocking pop in vain', $redis->blpop(["$name:nothing"], 0.05), null);
    saw('blocking pop', $redis->blpop(["$name:queue"], PATIENCE_SECONDS)[1], 'pushed');
    $redis->rpush("$name:queue", ['moved']);
    saw('blocking move', $redis->brpoplpush("$name:queue", "$name:done", PATIENCE_SECONDS), 'moved');
}

function messages(Client $redis, string $name): void
{
    $got = [];
    $subscription = $redis->pubSubLoop();
    $subscription->subscribe("$name:news");
    foreach ($subscription as $message) {
        if ($message->kind === 'message') {
            $got[] = $message->payload;
            if ($message->payload === 'stop') {
                $subscription->unsubscribe("$name:news");
            }
        }
    }
    saw('messages', $got, ['one', "two\r\n", 'stop']);
    saw('after them', $redis->get("$name:t"), 'd');
}

function scripts(Client $redis, string $name): void
{
    $sha = sha1(script($name));
    try {
        $redis->evalsha($sha, 1, "$name:s", '5');
        saw('not loaded', 'loaded', 'an exception');
    } catch (ServerException $e) {
        saw('not loaded', $e->getErrorType(), 'NOSCRIPT');
    }
    $redis->getProfile()->defineCommand('add', 'AddCommand');
    saw('with the fallback', $redis->add("$name:s", '5'), 5);
    saw('evalsha', $redis->evalsha($sha, 1, "$name:s", '5'), 10);
    saw('loaded', $redis->script('exists', $sha), [1]);
}

function custom(Client $redis, string $name): void
{
    echo "custom commands\n";
    sale_and_lock(fn (...$args) => $redis->executeRaw($args), $name);

    $raw = fn (...$args) => new RawCommand($args);
    $replies = $redis->pipeline(function ($pipe) use ($raw, $name) {
        $pipe->executeCommand($raw('SECKILL.CREATE', "$name:watch", '3'));
        $pipe->set("$name:y", '1');
        $pipe->executeCommand($raw('SECKILL.BUY', "$name:watch", 'alice'));
        $pipe->executeCommand($raw('SECKILL.BUY', "$name:watch", 'bob'));
        $pipe->get("$name:y");
    });
    saw('in a pipeline', [$replies[0][1], (string) $replies[1], $replies[2][1], $replies[3][1], $replies[4]], ['CREATED', 'OK', 'RESERVED', 'RESERVED', '1']);

    $message = $redis->executeRaw(['SECKILL.BUY'], $error);
    saw('misuse', [$error, $message], [true, "ERR wrong number of arguments for 'seckill.buy' command"]);

    $say = fn (...$args) => (string) $redis->executeRaw($args);
    saw('multi', [$say('MULTI'), $say('SET', "$name:x", '2')], ['OK', 'QUEUED']);
    saw('refused', str_starts_with($say('SECKILL.BUY', "$name:iphone", 'carol'), 'ERR '), true);
    saw('exec', $say('EXEC'), 'EXECABORT Transaction discarded because of previous errors.');
    saw('undone', $redis->get("$name:x"), null);
}
