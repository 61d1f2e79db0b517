-- Reads one shard's configuration and counters.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- Returns {} for no sale, else {sale_id, version, stock, restocked, available,
-- received, sent, pending, confirmed, cancelled, expired, users that ever bought,
-- reservations ever made, entries in the queue}
--
-- A script because the numbers must be of one moment. Writes nothing.

local sale, damage = read_sale(KEYS[1])
if damage then
    return damage
end
if not sale then
    return {}
end
return {sale.sale_id, sale.version, sale.stock, sale.restocked, sale.available, sale.received, sale.sent,
    sale.pending, sale.confirmed, sale.cancelled, sale.expired,
    redis.call('HLEN', KEYS[2]), redis.call('HLEN', KEYS[3]), redis.call('XLEN', KEYS[4])}
