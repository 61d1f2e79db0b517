-- Reads one shard's configuration and counters.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- Returns {} for no sale, else {stock, restocked, available, pending, confirmed,
-- cancelled, limit, shards, created_at, users that ever bought, reservations
-- ever made, entries in the queue}
--
-- A script because the numbers must be of one moment. Writes nothing.

local sale, damage = read_sale(KEYS[1])
if damage then
    return damage
end
if not sale then
    return {}
end
local fixed = redis.call('HMGET', KEYS[1], 'shards', 'created_at')
return {sale.stock, sale.restocked, sale.available, sale.pending, sale.confirmed, sale.cancelled, sale.limit,
    tonumber(fixed[1] or 0), tonumber(fixed[2] or 0),
    redis.call('HLEN', KEYS[2]), redis.call('HLEN', KEYS[3]), redis.call('XLEN', KEYS[4])}
