"""The life of a flash sale with redis-py: create, buy, retry, confirm, cancel.

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
alice, left, _ = expect(r.execute_command("SECKILL.BUY", sku, "alice", "ID", "cart-1"), 200, "RESERVED")
again, *_ = expect(r.execute_command("SECKILL.BUY", sku, "alice", "ID", "cart-1"), 200, "REPLAYED")
assert (left, again) == (1, alice)
bob, *_ = expect(r.execute_command("SECKILL.BUY", sku, "bob", "ID", "cart-2"), 200, "RESERVED")
expect(r.execute_command("SECKILL.BUY", sku, "carol", "ID", "cart-3"), 4001, "SOLD_OUT")

# A worker takes the orders, confirms the first and cancels the other.
code, n, *orders = r.execute_command("SECKILL.PULL", sku, "worker-1", "COUNT", 10)
assert (code, n) == (200, 2)
assert [[token, user] for token, user, *_ in orders] == [[alice, "alice"], [bob, "bob"]]
expect(r.execute_command("SECKILL.CONFIRM", alice, "order-1001"), 200, "CONFIRMED")
expect(r.execute_command("SECKILL.CANCEL", bob, "address unknown"), 200, "CANCELLED")

assert expect(r.execute_command("SECKILL.RESULT", alice), 200, "CONFIRMED") == [alice, "order-1001", ""]
assert expect(r.execute_command("SECKILL.RESULT", bob), 200, "CANCELLED") == [bob, "", "address unknown"]
expect(r.execute_command("SECKILL.BUY", sku, "carol", "ID", "cart-4"), 200, "RESERVED")

try:
    r.execute_command("SECKILL.BUY", sku)
except redis.exceptions.ResponseError as misuse:
    assert "wrong number of arguments" in str(misuse), misuse
else:
    sys.exit("not as expected: a missing argument was accepted")
print("ok")
