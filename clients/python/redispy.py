"""What applications do with redis-py.

    python3 redispy.py HOST PORT NAME [custom]

NAME starts the worker's keys. What any Redis can do comes first and prints the
same everywhere; custom adds the sidecar's own commands. Ends with 0 only if all
was as it should be.
"""

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import redis

# A client that waits for longer than this has lost its reply.
PATIENCE_SECONDS = 20

# Threads at the same time, and how often each counts.
WORKERS, TIMES = 8, 5

host, port, name, *more = sys.argv[1:]


def connect(**options):
    return redis.Redis(host, int(port), socket_timeout=PATIENCE_SECONDS, decode_responses=True, **options)


def saw(what, got, want):
    """Prints what was seen, and ends the program unless it is what was to be seen."""
    print(f"{what}: {json.dumps(got)}")
    if got != want:
        sys.exit(f"{what}: got {got!r}, want {want!r}")


def until(holds):
    """Waits until a condition holds that nothing announces."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.002)


def raised(kind, action, *args):
    """The message of the exception that an action raises, "" for none."""
    try:
        action(*args)
    except kind as e:
        return str(e)
    return ""


def connection():
    with connect().client() as r:  # one connection, not a pool
        saw("ping", r.ping(), True)
        saw("name", [r.client_setname(name), r.client_getname() == name], [True, True])
        saw("database 2", [r.select(2), r.set(f"{name}:two", "2"), r.get(f"{name}:two")], [True, True, "2"])
        saw("database 0", [r.select(0), r.get(f"{name}:two")], [True, None])
        message = raised(redis.ResponseError, r.execute_command, "FT.SEARCH", "x")
        saw("unknown command", message.startswith("unknown command 'FT.SEARCH'"), True)


def pipeline(r):
    pipe = r.pipeline(transaction=False)
    want = []
    for i in range(100):
        pipe.set(f"{name}:p{i}", f"v{i}").get(f"{name}:p{i}")
        want += [True, f"v{i}"]
    pipe.incr(f"{name}:count").mget(f"{name}:p7", f"{name}:none")
    replies = pipe.execute()
    saw("pipeline", replies[:200] == want, True)
    saw("end of the pipeline", replies[200:], [1, ["v7", None]])


def transaction(r, other):
    key = f"{name}:t"
    saw("multi", r.pipeline().set(key, "a").incr(f"{name}:n").get(key).execute(), [True, 1, "a"])
    with r.pipeline() as tx:
        tx.watch(key)
        old = tx.get(key)
        other.set(key, "b")
        tx.multi()
        tx.set(key, old + "c")
        saw("conflict", raised(redis.WatchError, tx.execute) != "", True)
        saw("the other won", r.get(key), "b")

        tx.watch(key)
        tx.multi()
        tx.set(key, "c")
        saw("no conflict", tx.execute(), [True])

        tx.watch(key)
        tx.unwatch()
        other.set(key, "d")
        tx.multi()
        tx.get(key)
        saw("unwatched", tx.execute(), ["d"])


def blocking(r, other):
    saw("blocking pop in vain", r.blpop(f"{name}:nothing", 0.05), None)
    with connect(client_name=name) as named:
        popped = []
        waiter = threading.Thread(target=lambda: popped.append(named.blpop(f"{name}:queue", PATIENCE_SECONDS)))
        waiter.start()
        until(lambda: any(c["name"] == name and c["cmd"] == "blpop" for c in other.client_list()))
        other.rpush(f"{name}:queue", "pushed")
        waiter.join()
        saw("blocking pop", popped[0][1], "pushed")
    r.rpush(f"{name}:queue", "moved")
    saw("blocking move", r.brpoplpush(f"{name}:queue", f"{name}:done", PATIENCE_SECONDS), "moved")


def messages(r, other):
    channel = f"{name}:news"
    with r.pubsub() as p:
        p.subscribe(channel)
        p.psubscribe(f"{name}:n*")
        saw("subscribed", [p.get_message(timeout=PATIENCE_SECONDS)["data"] for _ in range(2)], [1, 2])
        saw("receivers", [other.publish(channel, m) for m in ("one", "two\r\n")], [2, 2])
        got = [p.get_message(timeout=PATIENCE_SECONDS) for _ in range(4)]
        saw("messages", [[m["type"], m["data"]] for m in got],
            [["message", "one"], ["pmessage", "one"], ["message", "two\r\n"], ["pmessage", "two\r\n"]])
        p.unsubscribe()
        p.punsubscribe()
        saw("unsubscribed", [p.get_message(timeout=PATIENCE_SECONDS)["data"] for _ in range(2)], [1, 0])
    saw("after them", r.get(f"{name}:t"), "d")


def script(r):
    add = r.register_script(f"return redis.call('INCRBY', KEYS[1], ARGV[1]) -- {name}")
    saw("not loaded", raised(redis.exceptions.NoScriptError, r.evalsha, add.sha, 1, f"{name}:s", 5) != "", True)
    saw("with the fallback", add([f"{name}:s"], [5]), 5)
    saw("evalsha", r.evalsha(add.sha, 1, f"{name}:s", 5), 10)
    saw("loaded", r.script_exists(add.sha), [True])


def crowd(r):
    """Threads that share one pool: optimistic counting, and everybody's own replies."""

    def work(worker):
        own = f"{name}:w{worker}"
        for i in range(TIMES):
            r.transaction(lambda tx: increment(tx), f"{name}:counter")
            value = f"{worker}/{i}"
            if r.set(own, value) is not True or r.get(own) != value:
                return False
        return True

    def increment(tx):
        n = int(tx.get(f"{name}:counter") or 0)
        tx.multi()
        tx.set(f"{name}:counter", n + 1)

    with ThreadPoolExecutor(WORKERS) as pool:
        saw("own replies", all(pool.map(work, range(WORKERS))), True)
    saw("counted", r.get(f"{name}:counter"), str(TIMES * WORKERS))


def custom(r):
    print("custom commands")
    do, sku = r.execute_command, f"{name}:iphone"
    saw("create", do("SECKILL.CREATE", sku, 1), [200, "CREATED", sku, 1])
    code, word, token, left, at = do("SECKILL.BUY", sku, "alice", "ID", "cart-1")
    saw("buy", [code, word, left, at], [200, "RESERVED", 0, 0])
    saw("buy again", do("SECKILL.BUY", sku, "alice", "ID", "cart-1") == [200, "REPLAYED", token, 0, 0], True)
    saw("sold out", do("SECKILL.BUY", sku, "bob"), [4001, "SOLD_OUT", "", 0, 0])
    saw("confirm", do("SECKILL.CONFIRM", token, "order-1")[:2], [200, "CONFIRMED"])

    code, word, token, *_ = do("LOCK.ACQUIRE", name, 60000)
    saw("lock", [code, word], [200, "ACQUIRED"])
    saw("lock is busy", do("LOCK.ACQUIRE", name, 60000)[:3], [409, "BUSY", ""])
    # redis-py's own lock and ours exclude each other: it is the same key.
    saw("redis-py's lock", r.lock(f"lock:{name}", timeout=60).acquire(blocking=False), False)
    saw("release", do("LOCK.RELEASE", name, token)[:2], [200, "RELEASED"])
    theirs = r.lock(f"lock:{name}", timeout=60)
    saw("redis-py's lock", theirs.acquire(blocking=False), True)
    saw("ours is busy", do("LOCK.ACQUIRE", name, 60000)[:2], [409, "BUSY"])
    theirs.release()

    pipe = r.pipeline(transaction=False)
    pipe.execute_command("SECKILL.CREATE", f"{name}:watch", 3)
    pipe.set(f"{name}:x", "1")
    pipe.execute_command("SECKILL.BUY", f"{name}:watch", "alice")
    pipe.execute_command("SECKILL.BUY", f"{name}:watch", "bob")
    pipe.get(f"{name}:x")
    saw("in a pipeline", [x[1] if isinstance(x, list) else x for x in pipe.execute()],
        ["CREATED", True, "RESERVED", "RESERVED", "1"])

    saw("misuse", raised(redis.ResponseError, do, "SECKILL.BUY"), "wrong number of arguments for 'seckill.buy' command")
    tx = r.pipeline().set(f"{name}:x", "2")
    tx.execute_command("SECKILL.BUY", f"{name}:watch", "carol")
    saw("refused in a transaction", "SECKILL.BUY" in raised(redis.ResponseError, tx.execute), True)
    saw("undone", r.get(f"{name}:x"), "1")

    # Many threads want what is left.
    do("SECKILL.CREATE", f"{name}:few", 7)
    with ThreadPoolExecutor(WORKERS) as pool:
        words = list(pool.map(lambda i: do("SECKILL.BUY", f"{name}:few", f"user-{i}")[1], range(20)))
    saw("few", [words.count("RESERVED"), words.count("SOLD_OUT")], [7, 13])

    # Of a sale that all workers share; who gets a unit is for the test to count.
    print("shared:", do("SECKILL.BUY", "shared", name)[1])


main, second = connect(), connect()
connection()
pipeline(main)
transaction(main, second)
blocking(main, second)
messages(main, second)
script(main)
crowd(main)
if more:
    custom(main)
