// What applications do with ioredis.
//
//   node ioredis.js 2|3 HOST PORT NAME [custom]
//
// The first argument is the version of RESP. NAME starts the worker's keys. What
// any Redis can do comes first and prints the same everywhere; custom adds the
// sidecar's own commands. Ends with 0 only if all was as it should be.
import Redis from "ioredis";
import { blocked, crowd, fail, host, more, name, port, protocol, raised, saleAndLock, saw, script, until, workers } from "./common.js";

const opened = [];

// open makes a client that never sends a command twice.
function open(options = {}) {
  const redis = new Redis({ host, port: Number(port), protocol: Number(protocol), maxRetriesPerRequest: 0, retryStrategy: null, ...options });
  redis.on("error", (e) => fail(e.message));
  opened.push(redis);
  return redis;
}

async function connection(redis) {
  saw("ping", await redis.ping(), "PONG");
  saw("ready check", (await redis.info()).includes("redis_version:"), true);
  const other = open({ db: 2, connectionName: name });
  saw("name", (await other.client("GETNAME")) === name, true);
  saw("database 2", [await other.set(`${name}:two`, "2"), await other.get(`${name}:two`)], ["OK", "2"]);
  saw("database 0", await redis.get(`${name}:two`), null);
  saw("unknown command", (await raised(redis.call("FT.SEARCH", "x"))).startsWith("ERR unknown command 'FT.SEARCH'"), true);
}

async function pipeline(redis) {
  const pipe = redis.pipeline();
  const want = [];
  for (let i = 0; i < 100; i++) {
    pipe.set(`${name}:p${i}`, `v${i}`).get(`${name}:p${i}`);
    want.push([null, "OK"], [null, `v${i}`]);
  }
  const replies = await pipe.incr(`${name}:count`).mget(`${name}:p7`, `${name}:none`).exec();
  saw("pipeline", JSON.stringify(replies.slice(0, 200)) === JSON.stringify(want), true);
  saw("end of the pipeline", replies.slice(200), [[null, 1], [null, ["v7", null]]]);
}

async function transaction(redis, other) {
  const key = `${name}:t`;
  saw("multi", await redis.multi().set(key, "a").incr(`${name}:n`).get(key).exec(), [[null, "OK"], [null, 1], [null, "a"]]);
  await redis.watch(key);
  await other.set(key, "b");
  saw("conflict", await redis.multi().set(key, "c").exec(), null);
  saw("the other won", await redis.get(key), "b");
  await redis.watch(key);
  saw("no conflict", await redis.multi().set(key, "d").exec(), [[null, "OK"]]);
  await redis.watch(key);
  await redis.unwatch();
  await other.set(key, "e");
  saw("unwatched", await redis.multi().get(key).exec(), [[null, "e"]]);
  saw("one by one", [await redis.multi({ pipeline: false }), await redis.incr(`${name}:n`), await redis.exec()], ["OK", "QUEUED", [[null, 2]]]);
}

async function blocking(redis, other) {
  saw("blocking pop in vain", await redis.blpop(`${name}:nothing`, 0.05), null);
  const named = open({ connectionName: name });
  const waiting = named.blpop(`${name}:queue`, 0);
  await until(async () => blocked(await other.client("LIST")));
  await other.rpush(`${name}:queue`, "pushed");
  saw("blocking pop", (await waiting)[1], "pushed");
  // Sent behind a command that blocks, answered behind it.
  const [popped, value] = [named.blpop(`${name}:queue`, 0), named.get(`${name}:t`)];
  await other.rpush(`${name}:queue`, "moved");
  saw("behind it", [(await popped)[1], await value], ["moved", "e"]);
}

async function messages(other) {
  const redis = open();
  const got = [];
  const done = new Promise((resolve) => {
    redis.on("message", (channel, message) => {
      got.push(message);
      if (message === "stop") resolve();
    });
  });
  saw("subscribed", [await redis.subscribe(`${name}:news`), await redis.psubscribe(`${name}:p*`)], [1, 2]);
  for (const message of ["one", "two\r\n", "stop"]) await other.publish(`${name}:news`, message);
  await done;
  saw("messages", got, ["one", "two\r\n", "stop"]);
  saw("unsubscribed", [await redis.unsubscribe(`${name}:news`), await redis.punsubscribe(`${name}:p*`)], [1, 0]);
  saw("after them", await redis.get(`${name}:t`), "e");
}

async function scripts(redis) {
  redis.defineCommand("add", { numberOfKeys: 1, lua: script });
  const sha = await open().script("LOAD", `${script}x`);
  saw("not loaded", (await raised(redis.evalsha(sha.replace(/./g, "f"), 1, `${name}:s`, 5))).startsWith("NOSCRIPT"), true);
  saw("with the fallback", await redis.add(`${name}:s`, 5), 5);
  saw("evalsha", await redis.add(`${name}:s`, 5), 10);
  saw("loaded elsewhere", await redis.evalsha(sha, 1, `${name}:s`, 5), 15);
}

async function optimists(redis) {
  const clients = Array.from({ length: workers }, () => open());
  const attempt = async (worker) => {
    const client = clients[worker];
    await client.watch(`${name}:counter`);
    const n = Number(await client.get(`${name}:counter`));
    return (await client.multi().set(`${name}:counter`, n + 1).exec()) !== null;
  };
  const own = async (worker, value) => {
    await clients[worker].set(`${name}:w${worker}`, value);
    return clients[worker].get(`${name}:w${worker}`);
  };
  await crowd(attempt, own, () => redis.get(`${name}:counter`));
}

async function custom(redis) {
  await saleAndLock((...args) => redis.call(...args));

  const replies = await redis.pipeline().call("SECKILL.CREATE", `${name}:watch`, 3).set(`${name}:x`, "1")
    .call("SECKILL.BUY", `${name}:watch`, "alice").get(`${name}:x`).exec();
  saw("in a pipeline", replies.map(([, reply]) => (Array.isArray(reply) ? reply[1] : reply)), ["CREATED", "OK", "RESERVED", "1"]);

  const refused = await raised(redis.multi().set(`${name}:x`, "2").call("SECKILL.BUY", `${name}:watch`, "carol").exec());
  saw("in a transaction", refused.startsWith("EXECABORT "), true);
  saw("undone", await redis.get(`${name}:x`), "1");
}

const [main, second] = [open(), open()];
await connection(main);
await pipeline(main);
await transaction(main, second);
await blocking(main, second);
await messages(second);
await scripts(main);
await optimists(main);
if (more) await custom(main);
await Promise.all(opened.map((redis) => redis.quit()));
