// What the scripts for the Node.js clients share.

export const [, , protocol, host, port, name, more] = process.argv;

// Who waits for longer than this has lost a reply.
const patienceMs = 20_000;

// Nothing else ends a program whose client waits for ever.
setTimeout(() => fail("waited in vain"), patienceMs).unref();

export function fail(message) {
  console.error(message);
  process.exit(1);
}

// saw prints what was seen, and ends the program unless it is what was to be seen.
export function saw(what, got, want) {
  const [seen, wanted] = [got, want].map((v) => JSON.stringify(v));
  console.log(`${what}: ${seen}`);
  if (seen !== wanted) fail(`${what}: got ${seen}, want ${wanted}`);
}

// until waits until a condition holds that nothing announces.
export async function until(holds) {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 2));
}

// raised returns the message of the error that a promise is rejected with, "" for none.
export async function raised(promise) {
  try {
    await promise;
    return "";
  } catch (e) {
    return e.message;
  }
}

// blocked reports whether CLIENT LIST has a client of our name that blocks.
export const blocked = (list) => list.split("\n").some((line) => line.includes(` name=${name} `) && line.includes(" cmd=blpop "));

export const script = `return redis.call('INCRBY', KEYS[1], ARGV[1]) -- ${name}`;

// How many clients are in a crowd.
export const workers = 8;

// crowd has many clients count with WATCH, each sure to get its own replies.
// attempt(worker) counts once, and resolves to false when another was faster.
export async function crowd(attempt, own, counted) {
  const times = 5;
  const work = async (worker) => {
    for (let i = 0; i < times; ) {
      if (await attempt(worker)) i++;
      const value = `${worker}/${i}`;
      if ((await own(worker, value)) !== value) return false;
    }
    return true;
  };
  const all = await Promise.all(Array.from({ length: workers }, (_, worker) => work(worker)));
  saw("own replies", all.every(Boolean), true);
  saw("counted", await counted(), String(times * workers));
}

// saleAndLock takes a function that sends a command and returns its reply.
export async function saleAndLock(ask) {
  console.log("custom commands");
  const sku = `${name}:iphone`;
  saw("create", await ask("SECKILL.CREATE", sku, "1"), [200, "CREATED", sku, 1]);
  const [code, word, token, left, at] = await ask("SECKILL.BUY", sku, "alice", "ID", "cart-1");
  saw("buy", [code, word, left, at], [200, "RESERVED", 0, 0]);
  const again = await ask("SECKILL.BUY", sku, "alice", "ID", "cart-1");
  saw("buy again", [again[1], again[2] === token], ["REPLAYED", true]);
  saw("sold out", await ask("SECKILL.BUY", sku, "bob"), [4001, "SOLD_OUT", "", 0, 0]);
  saw("confirm", (await ask("SECKILL.CONFIRM", token, "order-1")).slice(0, 2), [200, "CONFIRMED"]);

  const lock = await ask("LOCK.ACQUIRE", name, "60000");
  saw("lock", lock.slice(0, 2), [200, "ACQUIRED"]);
  saw("lock is busy", (await ask("LOCK.ACQUIRE", name, "60000")).slice(0, 3), [409, "BUSY", ""]);
  saw("release", (await ask("LOCK.RELEASE", name, lock[2])).slice(0, 2), [200, "RELEASED"]);

  // Sent without waiting for replies, so in one pipeline, with others' commands.
  saw("few", (await ask("SECKILL.CREATE", `${name}:few`, "7"))[1], "CREATED");
  const buys = Array.from({ length: 20 }, (_, i) => ask("SECKILL.BUY", `${name}:few`, `user-${i}`));
  const echoes = Array.from({ length: 20 }, (_, i) => ask("ECHO", String(i)));
  const words = (await Promise.all(buys)).map((reply) => reply[1]);
  saw("few in a pipeline", ["RESERVED", "SOLD_OUT"].map((w) => words.filter((x) => x === w).length), [7, 13]);
  saw("replies behind them", (await Promise.all(echoes)).every((reply, i) => String(reply) === String(i)), true);
  saw("misuse", await raised(ask("SECKILL.BUY")), "ERR wrong number of arguments for 'seckill.buy' command");

  // Of a sale that all workers share; who gets a unit is for the test to count.
  console.log("shared:", (await ask("SECKILL.BUY", "shared", name))[1]);
}
