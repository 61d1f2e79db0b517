"""The life of a flash sale with redis-py: create, buy, retry, confirm, cancel, wait, restock, drop; and a lock.

    python3 examples/python/flash_sale.py [host] [port]

Every SECKILL.* command answers with a list that starts with a code and a word.
Misuse, and only misuse, raises redis.exceptions.ResponseError.
"""

import secrets
import sys

import redis


def expect(reply, code, word):
    """Returns the rest of the reply when it starts as expected."""
    if reply[:2] != [code, word]:
        sys.exit(f"not as expected: want {code} {word}, got {reply}")
    return reply[2:]


host, port = (sys.argv[1:] + ["127.0.0.1", "6380"][len(sys.argv) - 1 :])[:2]
r = redis.Redis(host=host, port=int(port), decode_responses=True)
sku = "iphone-" + secrets.token_hex(4)

expect(r.execute_command("SECKILL.CREATE", sku, 2, "LIMIT", 1), 200, "CREATED")

# ID makes it safe to ask again: the same request is the same reservation.
alice, _, _ = expect(r.execute_command("SECKILL.BUY", sku, "alice", "ID", "cart-1"), 200, "RESERVED")
again, *_ = expect(r.execute_command("SECKILL.BUY", sku, "alice", "ID", "cart-1"), 200, "REPLAYED")
assert again == alice
bob, *_ = expect(r.execute_command("SECKILL.BUY", sku, "bob", "ID", "cart-2"), 200, "RESERVED")
expect(r.execute_command("SECKILL.BUY", sku, "carol", "ID", "cart-3"), 4001, "SOLD_OUT")

# A worker takes the orders, confirms the first and cancels the other.
code, n, *orders = r.execute_command("SECKILL.PULL", sku, "worker-1", "COUNT", 10)
assert (code, n) == (200, 2)
assert sorted([token, user] for token, user, *_ in orders) == sorted([[alice, "alice"], [bob, "bob"]])
expect(r.execute_command("SECKILL.CONFIRM", alice, "order-1001"), 200, "CONFIRMED")
expect(r.execute_command("SECKILL.CANCEL", bob, "address unknown"), 200, "CANCELLED")

assert expect(r.execute_command("SECKILL.RESULT", alice), 200, "CONFIRMED") == [alice, "order-1001", ""]
assert expect(r.execute_command("SECKILL.RESULT", bob), 200, "CANCELLED") == [bob, "", "address unknown"]
expect(r.execute_command("SECKILL.BUY", sku, "carol", "ID", "cart-4"), 200, "RESERVED")

# More units come, and the sale ends. Carol's order is still pending: it takes FORCE.
assert expect(r.execute_command("SECKILL.RESTOCK", sku, 50, "ID", "delivery-1"), 200, "RESTOCKED") == [50]
expect(r.execute_command("SECKILL.CLOSE", sku), 200, "CLOSED")
expect(r.execute_command("SECKILL.BUY", sku, "dave", "ID", "cart-5"), 4003, "CLOSED")
expect(r.execute_command("SECKILL.DROP", sku), 409, "PENDING")
expect(r.execute_command("SECKILL.DROP", sku, "FORCE"), 200, "DROPPED")

# Who doesn't pay within PAYTTL, 50 ms here, loses the reservation. RESULT waits until
# then; a socket_timeout of the client would have to be longer than BLOCK.
expect(r.execute_command("SECKILL.CREATE", sku, 1, "PAYTTL", 50), 200, "CREATED")
erin, *_ = expect(r.execute_command("SECKILL.BUY", sku, "erin", "ID", "cart-6"), 200, "RESERVED")
expect(r.execute_command("SECKILL.RESULT", erin, "BLOCK", 5000), 200, "EXPIRED")
expect(r.execute_command("SECKILL.BUY", sku, "frank", "ID", "cart-7"), 200, "RESERVED")
expect(r.execute_command("SECKILL.DROP", sku, "FORCE"), 200, "DROPPED")

# A lock, waited for up to three seconds. AUTO would keep it for as long as the connection
# lives that asked for it: with that, use a client of its own with
# single_connection_client=True, and not any connection of a pool.
name = "settlement-" + sku
lock, fence, *_ = expect(r.execute_command("LOCK.ACQUIRE", name, 10000, "WAIT", 3000), 200, "ACQUIRED")
try:
    expect(r.execute_command("LOCK.ACQUIRE", name, 10000), 409, "BUSY")
finally:
    expect(r.execute_command("LOCK.RELEASE", name, lock), 200, "RELEASED")

try:
    r.execute_command("SECKILL.BUY", sku)
except redis.exceptions.ResponseError as misuse:
    assert "wrong number of arguments" in str(misuse), misuse
else:
    sys.exit("not as expected: a missing argument was accepted")
print("ok")
