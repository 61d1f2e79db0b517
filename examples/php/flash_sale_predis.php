<?php
/**
 * The life of a flash sale with Predis: create, buy, buy again after a lost
 * reply, work off the orders, cancel, ask for the result, restock, close, drop.
 *
 *   php examples/php/flash_sale_predis.php [host] [port]
 *
 * Every SECKILL.* command answers with an array that starts with a code and a
 * word, so "no" is never false, nil or an exception.
 */
declare(strict_types=1);

require 'Predis/autoload.php'; // Debian's php-predis; with Composer: vendor/autoload.php

[, $host, $port] = $argv + ['', '127.0.0.1', '6380'];

$redis = new Predis\Client(['host' => $host, 'port' => (int) $port]); // the sidecar; everything else stays as it was

$sku = 'iphone-' . bin2hex(random_bytes(4));

// Two units, and each user may hold one (LIMIT 1 is the default).
answer(200, 'CREATED', $redis->executeRaw(['SECKILL.CREATE', $sku, '2', 'LIMIT', '1']));
answer(409, 'EXISTS', $redis->executeRaw(['SECKILL.CREATE', $sku, '500'])); // never loaded twice

// ID makes it safe to ask again: the reply got lost, the button was clicked twice.
[, , $alice] = answer(200, 'RESERVED', $redis->executeRaw(['SECKILL.BUY', $sku, 'alice', 'ID', 'cart-1']));
[, , $again] = answer(200, 'REPLAYED', $redis->executeRaw(['SECKILL.BUY', $sku, 'alice', 'ID', 'cart-1']));
check($again === $alice, 'the same request is the same reservation');

// Another request of hers is over the limit; the answer has the token she holds.
[, , $held] = answer(4002, 'LIMIT', $redis->executeRaw(['SECKILL.BUY', $sku, 'alice', 'ID', 'cart-2']));
check($held === $alice, 'LIMIT names the reservation');

[, , $bob] = answer(200, 'RESERVED', $redis->executeRaw(['SECKILL.BUY', $sku, 'bob', 'ID', 'cart-3']));
answer(4001, 'SOLD_OUT', $redis->executeRaw(['SECKILL.BUY', $sku, 'carol', 'ID', 'cart-4']));

// A worker takes the orders and confirms what it has written to the database.
$pulled = $redis->executeRaw(['SECKILL.PULL', $sku, 'worker-1', 'COUNT', '10']);
check($pulled[0] === 200 && $pulled[1] === 2, 'two orders are waiting');
foreach (array_slice($pulled, 2) as [$token, $user, $qty, $createdAt, $delivery]) {
    check($qty === 1 && $delivery === 1, 'one unit, delivered for the first time');
    if ($user === 'alice') {
        answer(200, 'CONFIRMED', $redis->executeRaw(['SECKILL.CONFIRM', $token, 'order-1001']));
    }
}
answer(200, 'REPLAYED', $redis->executeRaw(['SECKILL.CONFIRM', $alice, 'order-1001']));

// Bob changes his mind: his unit is on sale again, and he may buy again.
answer(200, 'CANCELLED', $redis->executeRaw(['SECKILL.CANCEL', $bob, 'changed his mind']));
answer(409, 'CANCELLED', $redis->executeRaw(['SECKILL.CONFIRM', $bob, 'order-1002'])); // too late: what stands is said
answer(200, 'RESERVED', $redis->executeRaw(['SECKILL.BUY', $sku, 'carol', 'ID', 'cart-5']));

// What a page shows to a customer who waits.
[, , , $orderId] = answer(200, 'CONFIRMED', $redis->executeRaw(['SECKILL.RESULT', $alice]));
[, , , , $reason] = answer(200, 'CANCELLED', $redis->executeRaw(['SECKILL.RESULT', $bob]));
check($orderId === 'order-1001' && $reason === 'changed his mind', 'results');

// Fifty more units come; the id makes it safe to ask again.
[, , $left] = answer(200, 'RESTOCKED', $redis->executeRaw(['SECKILL.RESTOCK', $sku, '50', 'ID', 'delivery-1']));
[, , $again] = answer(200, 'REPLAYED', $redis->executeRaw(['SECKILL.RESTOCK', $sku, '50', 'ID', 'delivery-1']));
check($left === 50 && $again === 50, 'fifty units, once');

// The end. Carol's order is neither confirmed nor cancelled, so it takes FORCE.
answer(200, 'CLOSED', $redis->executeRaw(['SECKILL.CLOSE', $sku]));
answer(4003, 'CLOSED', $redis->executeRaw(['SECKILL.BUY', $sku, 'dave', 'ID', 'cart-6']));
answer(409, 'PENDING', $redis->executeRaw(['SECKILL.DROP', $sku]));
answer(200, 'DROPPED', $redis->executeRaw(['SECKILL.DROP', $sku, 'FORCE']));
answer(404, 'NO_SALE', $redis->executeRaw(['SECKILL.RESULT', $alice]));

// Who doesn't pay within PAYTTL, 50 ms here, loses the reservation.
answer(200, 'CREATED', $redis->executeRaw(['SECKILL.CREATE', $sku, '1', 'PAYTTL', '50']));
[, , $erin] = answer(200, 'RESERVED', $redis->executeRaw(['SECKILL.BUY', $sku, 'erin', 'ID', 'cart-7']));
answer(200, 'EXPIRED', $redis->executeRaw(['SECKILL.RESULT', $erin, 'BLOCK', '5000'])); // waits until then
answer(410, 'EXPIRED', $redis->executeRaw(['SECKILL.CONFIRM', $erin, 'order-1003']));
answer(200, 'RESERVED', $redis->executeRaw(['SECKILL.BUY', $sku, 'frank', 'ID', 'cart-8']));
answer(200, 'DROPPED', $redis->executeRaw(['SECKILL.DROP', $sku, 'FORCE']));

// Misuse, and only misuse, is an error: executeRaw sets its second argument and
// returns the message.
$message = $redis->executeRaw(['SECKILL.BUY', $sku], $error);
check($error && str_starts_with($message, 'ERR wrong number of arguments'), (string) $message);

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
