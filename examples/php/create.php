<?php
/**
 * What a back office does: create a sale with all its options, and show it. With
 * phpredis.
 *
 *   php examples/php/create.php [host] [port] [sku] [stock]
 *
 * Prints what there is then, a field a line.
 */
declare(strict_types=1);

[, $host, $port, $sku, $stock] = $argv + ['', '127.0.0.1', '6380', 'camera', '5000'];

$redis = new Redis();
$redis->connect($host, (int) $port, 2.0);

// Points in time are Unix milliseconds by Redis's clock, whatever this machine's says.
[$seconds] = $redis->time();
$opens = ((int) $seconds + 3600) * 1000;

$create = ['SECKILL.CREATE', $sku, $stock,
    'LIMIT', '2',                // units that one user may hold, 1 by default
    'OPEN', (string) $opens,     // sells from then on, at once by default,
    'CLOSE', (string) ($opens + 7_200_000), // until then, for ever by default
    'PAYTTL', '900000',          // who hasn't paid within 15 minutes loses the reservation
    'SHARDS', '4',               // the stock lies in four parts, which helps in a cluster
    'RATE', '5', '1000',         // a user may ask five times a second
];
for ($attempt = 1; ; $attempt++) {
    $reply = $redis->rawCommand(...$create);
    if ($reply === false) { // how phpredis hands over "-ERR ...": the command was wrong
        throw new LogicException((string) $redis->getLastError());
    }
    if (!in_array($reply[0], [202, 503], true) || $attempt === 10) {
        break;
    }
    usleep(100_000 * $attempt); // UNCERTAIN or BUSY: creating again does no harm
}
[$code, $word] = $reply;
fwrite(STDERR, match ($word) {
    'CREATED' => "$sku is there\n",
    'EXISTS' => "$sku was there before and stays as it is\n", // or begun by the call that was UNCERTAIN
    'UNCERTAIN', 'BUSY' => "Redis can't be reached now\n",
});
if (!in_array($code, [200, 409], true)) {
    exit(1);
}

[$code, , $flat] = $redis->rawCommand('SECKILL.INFO', $sku);
if ($code !== 200) {
    exit(1);
}
// Over RESP2 a map comes as field, value, field, value …
foreach (array_column(array_chunk($flat, 2), 1, 0) as $field => $value) {
    echo "$field\t", is_array($value) ? implode(' ', $value) : $value, "\n";
}
