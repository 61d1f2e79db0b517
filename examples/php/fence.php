<?php
/**
 * What the fence is for, with phpredis and PDO: a process can stall for longer than
 * its lock lasts, by a full disk or a sleeping machine, and not know it. The
 * database refuses such a late writer.
 *
 *   php examples/php/fence.php [host] [port]
 *
 * Without PDO's SQLite driver it prints the statements instead.
 */
declare(strict_types=1);

[, $host, $port] = $argv + ['', '127.0.0.1', '6380'];

$redis = new Redis();
$redis->connect($host, (int) $port, 2.0);
$redis->setOption(Redis::OPT_READ_TIMEOUT, 10);

$database = null;
if (extension_loaded('pdo_sqlite')) {
    $database = new PDO('sqlite::memory:');
    $database->exec('CREATE TABLE settlements (id INTEGER PRIMARY KEY, state TEXT, fence INTEGER NOT NULL DEFAULT 0)'); // in MySQL: BIGINT
    $database->exec("INSERT INTO settlements (id, state) VALUES (7, 'open')");
}

$name = 'settlement-' . bin2hex(random_bytes(4));
[, , , $fence] = $redis->rawCommand('LOCK.ACQUIRE', $name, '50');

// The first one stalls. Its lock lapses, and the next one, who waits, has it, with a
// larger fence: fences of a name only grow.
[, , $token, $nextFence] = $redis->rawCommand('LOCK.ACQUIRE', $name, '10000', 'WAIT', '5000');
echo $nextFence > $fence ? "the fence has grown\n" : "never\n";

settle($database, 7, 'by the second', $nextFence);
settle($database, 7, 'by the first', $fence);
$redis->rawCommand('LOCK.RELEASE', $name, $token);

/** Writes, unless a later holder of the lock was there before. */
function settle(?PDO $database, int $id, string $state, int $fence): void
{
    $sql = 'UPDATE settlements SET state = ?, fence = ? WHERE id = ? AND fence <= ?';
    if ($database === null) {
        echo "$sql -- '$state', $fence, $id, $fence\n";
        return;
    }
    $statement = $database->prepare($sql);
    $statement->execute([$state, $fence, $id, $fence]);
    // MySQL counts rows that change; with PDO::MYSQL_ATTR_FOUND_ROWS, those that match.
    echo $state, $statement->rowCount() === 1 ? ": written\n" : ": too late\n";
}
