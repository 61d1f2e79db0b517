// What applications do with node-redis.
//
//   node noderedis.js 2|3 HOST PORT NAME [custom]
//
// The first argument is the version of RESP. NAME starts the worker's keys. What
// any Redis can do comes first and prints the same everywhere; custom adds the
// sidecar's own commands. Ends with 0 only if all was as it should be.
import { BasicClientSideCache, createClient, createClientPool, defineScript, WatchError } from "redis";
import { blocked, crowd, fail, host, more, name, port, protocol, raised, saleAndLock, saw, script, until, workers } from "./common.js";

const opened = [];

const options = {
  RESP: Number(protocol),
  socket: { host, port: Number(port), reconnectStrategy: false },
  scripts: {
    add: defineScript({
      SCRIPT: script,
      NUMBER_OF_KEYS: 1,
      parseCommand(parser, key, delta) {
        parser.pushKey(key);
        parser.push(String(delta));
      },
      transformReply: (reply) => reply,
    }),
  },
};

async function open(more = {}) {
  const redis = createClient({ ...options, ...more });
  redis.on("error", (e) => fail(e.message));
  opened.push(redis);
  return redis.connect();
}

async function connection(redis) {
  saw("ping", await redis.ping(), "PONG");
  const other = await open({ database: 2, name });
  saw("name", (await other.clientGetName()) === name, true);
  saw("database 2", [await other.set(`${name}:two`, "2"), await other.get(`${name}:two`)], ["OK", "2"]);
  saw("database 0", await redis.get(`${name}:two`), null);
  saw("unknown command", (await raised(redis.sendCommand(["FT.SEARCH", "x"]))).startsWith("ERR unknown command 'FT.SEARCH'"), true);
}

async function pipeline(redis) {
  // Commands that aren't waited for travel together.
  const replies = await Promise.all(Array.from({ length: 100 }, (_, i) => [redis.set(`${name}:p${i}`, `v${i}`), redis.get(`${name}:p${i}`)]).flat());
  saw("pipeline", replies.every((reply, i) => reply === (i % 2 ? `v${(i - 1) / 2}` : "OK")), true);
  saw("explicit pipeline", await redis.multi().incr(`${name}:count`).mGet([`${name}:p7`, `${name}:none`]).execAsPipeline(), [1, ["v7", null]]);
}

async function transaction(redis, other) {
  const key = `${name}:t`;
  saw("multi", await redis.multi().set(key, "a").incr(`${name}:n`).get(key).exec(), ["OK", 1, "a"]);
  await redis.watch(key);
  await other.set(key, "b");
  const conflict = await redis.multi().set(key, "c").exec().catch((e) => e);
  saw("conflict", conflict instanceof WatchError, true);
  saw("the other won", await redis.get(key), "b");
  await redis.watch(key);
  saw("no conflict", await redis.multi().set(key, "d").exec(), ["OK"]);
  await redis.watch(key);
  await redis.unwatch();
  await other.set(key, "e");
  saw("unwatched", await redis.multi().get(key).exec(), ["e"]);
}

async function blocking(redis, other) {
  saw("blocking pop in vain", await redis.blPop(`${name}:nothing`, 0.05), null);
  const named = await open({ name });
  const waiting = named.blPop(`${name}:queue`, 0);
  await until(async () => blocked(await other.sendCommand(["CLIENT", "LIST"])));
  await other.rPush(`${name}:queue`, "pushed");
  saw("blocking pop", (await waiting).element, "pushed");
  // Sent behind a command that blocks, answered behind it.
  const [popped, value] = [named.blPop(`${name}:queue`, 0), named.get(`${name}:t`)];
  await other.rPush(`${name}:queue`, "moved");
  saw("behind it", [(await popped).element, await value], ["moved", "e"]);
}

async function messages(other) {
  const redis = await open();
  const got = [];
  let stopped;
  const done = new Promise((resolve) => (stopped = resolve));
  await redis.subscribe(`${name}:news`, (message) => {
    got.push(message);
    if (message === "stop") stopped();
  });
  await redis.pSubscribe(`${name}:p*`, fail);
  for (const message of ["one", "two\r\n", "stop"]) await other.publish(`${name}:news`, message);
  await done;
  saw("messages", got, ["one", "two\r\n", "stop"]);
  // RESP3 lets a subscriber send anything.
  if (protocol === "3") saw("while subscribed", await redis.get(`${name}:t`), "e");
  await redis.unsubscribe(`${name}:news`);
  await redis.pUnsubscribe(`${name}:p*`);
  saw("after them", String(await redis.get(`${name}:t`)), "e"); // over RESP2 a Buffer
}

async function scripts(redis) {
  saw("not loaded", (await raised(redis.evalSha(options.scripts.add.SHA1, { keys: [`${name}:s`], arguments: ["5"] }))).startsWith("NOSCRIPT"), true);
  saw("with the fallback", await redis.add(`${name}:s`, 5), 5);
  saw("evalsha", await redis.add(`${name}:s`, 5), 10);
}

// cached reads from memory until Redis says that the value is another.
async function cached(other) {
  const cache = new BasicClientSideCache({ maxEntries: 100, evictPolicy: "LRU" });
  const redis = await open({ clientSideCache: cache });
  const key = `${name}:t`;
  saw("two reads", [await redis.get(key), await redis.get(key)], ["e", "e"]);
  saw("hits and misses", [cache.stats().hitCount, cache.stats().missCount], [1, 1]);
  await other.set(key, "f");
  await until(async () => (await redis.get(key)) === "f");
  saw("another value", await redis.get(key), "f");
}

async function optimists(redis) {
  const pool = createClientPool(options, { minimum: 0, maximum: workers });
  pool.on("error", (e) => fail(e.message));
  await pool.connect();
  const attempt = () =>
    pool.execute(async (client) => {
      await client.watch(`${name}:counter`);
      const n = Number(await client.get(`${name}:counter`));
      try {
        await client.multi().set(`${name}:counter`, String(n + 1)).exec();
        return true;
      } catch (e) {
        if (e instanceof WatchError) return false;
        throw e;
      }
    });
  const own = async (worker, value) => {
    await pool.set(`${name}:w${worker}`, value);
    return pool.get(`${name}:w${worker}`);
  };
  await crowd(attempt, own, () => redis.get(`${name}:counter`));
  await pool.close();
}

async function custom(redis) {
  await saleAndLock((...args) => redis.sendCommand(args));

  const replies = await redis.multi().addCommand(["SECKILL.CREATE", `${name}:watch`, "3"]).set(`${name}:x`, "1")
    .addCommand(["SECKILL.BUY", `${name}:watch`, "alice"]).get(`${name}:x`).execAsPipeline();
  saw("in a pipeline", replies.map((reply) => (Array.isArray(reply) ? reply[1] : reply)), ["CREATED", "OK", "RESERVED", "1"]);

  const refused = await raised(redis.multi().set(`${name}:x`, "2").addCommand(["SECKILL.BUY", `${name}:watch`, "carol"]).exec());
  saw("in a transaction", refused.startsWith("ERR ") || refused.startsWith("EXECABORT "), true);
  saw("undone", await redis.get(`${name}:x`), "1");
}

const [main, second] = [await open(), await open()];
await connection(main);
await pipeline(main);
await transaction(main, second);
await blocking(main, second);
await messages(second);
await scripts(main);
if (protocol === "3") await cached(second);
await optimists(main);
if (more) await custom(main);
await Promise.all(opened.map((redis) => redis.close()));
