<?php
// A shop's own lock: SET NX EX, and a script that compares and deletes.
// Usage: php foreign.php phpredis|predis port rounds
[, $library, $port, $rounds] = $argv;

const RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

if ($library === 'phpredis') {
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) $port);
    $acquire = fn (string $token) => $redis->set('lock:x', $token, ['nx', 'ex' => 60]) === true;
    $release = fn (string $token) => $redis->eval(RELEASE, ['lock:x', $token], 1);
} else {
    require 'Predis/Autoloader.php';
    Predis\Autoloader::register();
    $redis = new Predis\Client(['host' => '127.0.0.1', 'port' => (int) $port]);
    $acquire = fn (string $token) => $redis->set('lock:x', $token, 'EX', 60, 'NX') !== null;
    $release = fn (string $token) => $redis->eval(RELEASE, 1, 'lock:x', $token);
}

for ($i = 0; $i < $rounds; $i++) {
    $token = bin2hex(random_bytes(16));
    while (!$acquire($token)) {
        usleep(1000);
    }
    $inside = $redis->incr('inside');
    $redis->set('count', (int) $redis->get('count') + 1);
    $redis->decr('inside');
    if ($inside !== 1 || $release($token) !== 1) {
        fwrite(STDERR, "$library: $inside inside, or not released\n");
        exit(1);
    }
}
