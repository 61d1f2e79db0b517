<?php
/**
 * The life of a flash sale with phpredis: create, buy, buy again after a lost
 * reply, work off the orders, cancel, ask for the result, restock, close, drop.
 *
 *   php examples/php/flash_sale.php [host] [port]
 *
 * Every SECKILL.* command answers with an array that starts with a code and a
 * word, so "no" is never false, nil or an exception.
 */
declare(strict_types=1);

[, $host, $port] = $argv + ['', '127.0.0.1', '6380'];

$redis = new Redis();
$redis->connect($host, (int) $port, 2.0); // the sidecar; everything else stays as it was

$sku = 'iphone-' . bin2hex(random_bytes(4));

// Two units, and each user may hold one (LIMIT 1 is the default).
answer(200, 'CREATED', $redis->rawCommand('SECKILL.CREATE', $sku, '2', 'LIMIT', '1'));
answer(409, 'EXISTS', $redis->rawCommand('SECKILL.CREATE', $sku, '500')); // never loaded twice

// ID makes it safe to ask again: the reply got lost, the button was clicked twice.
[, , $alice] = answer(200, 'RESERVED', $redis->rawCommand('SECKILL.BUY', $sku, 'alice', 'ID', 'cart-1'));
[, , $again] = answer(200, 'REPLAYED', $redis->rawCommand('SECKILL.BUY', $sku, 'alice', 'ID', 'cart-1'));
check($again === $alice, 'the same request is the same reservation');

// Another request of hers is over the limit; the answer has the token she holds.
[, , $held] = answer(4002, 'LIMIT', $redis->rawCommand('SECKILL.BUY', $sku, 'alice', 'ID', 'cart-2'));
check($held === $alice, 'LIMIT names the reservation');

[, , $bob] = answer(200, 'RESERVED', $redis->rawCommand('SECKILL.BUY', $sku, 'bob', 'ID', 'cart-3'));
answer(4001, 'SOLD_OUT', $redis->rawCommand('SECKILL.BUY', $sku, 'carol', 'ID', 'cart-4'));

// A worker takes the orders and confirms what it has written to the database.
$pulled = $redis->rawCommand('SECKILL.PULL', $sku, 'worker-1', 'COUNT', '10');
check($pulled[0] === 200 && $pulled[1] === 2, 'two orders are waiting');
foreach (array_slice($pulled, 2) as [$token, $user, $qty, $createdAt, $delivery]) {
    check($qty === 1 && $delivery === 1, 'one unit, delivered for the first time');
    if ($user === 'alice') {
        answer(200, 'CONFIRMED', $redis->rawCommand('SECKILL.CONFIRM', $token, 'order-1001'));
    }
}
answer(200, 'REPLAYED', $redis->rawCommand('SECKILL.CONFIRM', $alice, 'order-1001'));

// Bob changes his mind: his unit is on sale again, and he may buy again.
answer(200, 'CANCELLED', $redis->rawCommand('SECKILL.CANCEL', $bob, 'changed his mind'));
answer(409, 'CANCELLED', $redis->rawCommand('SECKILL.CONFIRM', $bob, 'order-1002')); // too late: what stands is said
answer(200, 'RESERVED', $redis->rawCommand('SECKILL.BUY', $sku, 'carol', 'ID', 'cart-5'));

// What a page shows to a customer who waits.
[, , , $orderId] = answer(200, 'CONFIRMED', $redis->rawCommand('SECKILL.RESULT', $alice));
[, , , , $reason] = answer(200, 'CANCELLED', $redis->rawCommand('SECKILL.RESULT', $bob));
check($orderId === 'order-1001' && $reason === 'changed his mind', 'results');

// Fifty more units come; the id makes it safe to ask again.
[, , $left] = answer(200, 'RESTOCKED', $redis->rawCommand('SECKILL.RESTOCK', $sku, '50', 'ID', 'delivery-1'));
[, , $again] = answer(200, 'REPLAYED', $redis->rawCommand('SECKILL.RESTOCK', $sku, '50', 'ID', 'delivery-1'));
check($left === 50 && $again === 50, 'fifty units, once');

// The end. Carol's order is neither confirmed nor cancelled, so it takes FORCE.
answer(200, 'CLOSED', $redis->rawCommand('SECKILL.CLOSE', $sku));
answer(4003, 'CLOSED', $redis->rawCommand('SECKILL.BUY', $sku, 'dave', 'ID', 'cart-6'));
answer(409, 'PENDING', $redis->rawCommand('SECKILL.DROP', $sku));
answer(200, 'DROPPED', $redis->rawCommand('SECKILL.DROP', $sku, 'FORCE'));
answer(404, 'NO_SALE', $redis->rawCommand('SECKILL.RESULT', $alice));

// Who doesn't pay within PAYTTL, 50 ms here, loses the reservation.
answer(200, 'CREATED', $redis->rawCommand('SECKILL.CREATE', $sku, '1', 'PAYTTL', '50'));
[, , $erin] = answer(200, 'RESERVED', $redis->rawCommand('SECKILL.BUY', $sku, 'erin', 'ID', 'cart-7'));
answer(200, 'EXPIRED', $redis->rawCommand('SECKILL.RESULT', $erin, 'BLOCK', '5000')); // waits until then
answer(410, 'EXPIRED', $redis->rawCommand('SECKILL.CONFIRM', $erin, 'order-1003'));
answer(200, 'RESERVED', $redis->rawCommand('SECKILL.BUY', $sku, 'frank', 'ID', 'cart-8'));
answer(200, 'DROPPED', $redis->rawCommand('SECKILL.DROP', $sku, 'FORCE'));

// Misuse, and only misuse, is an error, which phpredis turns into false.
check($redis->rawCommand('SECKILL.BUY', $sku) === false, 'a missing argument');
check(str_starts_with($redis->getLastError(), 'ERR wrong number of arguments'), (string) $redis->getLastError());

echo "ok\n";

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
