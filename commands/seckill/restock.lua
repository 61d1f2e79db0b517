-- Adds units to shard 0 of a sale, or takes some of those that are there away.
--
-- KEYS  1 sale, 2 restocks
-- ARGV  1 sale_id, 2 units, negative to take away, 3 request id or '',
--       4 channel of events, 5 event that tells of stock that came back, 6 '1' to
--       write something when it is REPLAYED, too
-- Returns {outcome, units left in this shard}
--   RESTOCKED     done
--   REPLAYED      this request was carried out before
--   INSUFFICIENT  fewer are left here than should be taken away
--   CONFLICT      the request id was used before, for another number of units
--   TOO_MANY      the sale would have more units than a sale may have
--   NO_SALE, STALE
--
-- A script because the request id and the change must be one step.

local MOST = 1000000000000

local sale, damage = read_sale(KEYS[1])
if damage then
    return damage
end
if not sale then
    return {'NO_SALE', 0}
end
if sale.sale_id ~= ARGV[1] then
    return {'STALE', 0}
end
local delta, request = tonumber(ARGV[2]), ARGV[3]
local before = request ~= '' and redis.call('HGET', KEYS[2], request)
if before and tonumber(before) == delta then
    local refused = ARGV[6] == '1' and attempt('HSET', KEYS[1], 'sale_id', sale.sale_id)
    return refused or {'REPLAYED', sale.available}
end
if before then
    return {'CONFLICT', sale.available}
end
if sale.available + delta < 0 then
    return {'INSUFFICIENT', sale.available}
end
-- What was added and taken away in all is counted here, in shard 0.
local total = tonumber(redis.call('HGET', KEYS[1], 'total') or '') or sale.stock
if total + sale.restocked + delta > MOST then
    return {'TOO_MANY', sale.available}
end
local refused = attempt('HSET', KEYS[1], 'version', sale.version + 1)
if refused then
    return refused
end
if request ~= '' then
    redis.call('HSET', KEYS[2], request, delta)
end
redis.call('HSET', KEYS[1], 'restocked', sale.restocked + delta, 'available', sale.available + delta)
if delta > 0 and sale.available == 0 then
    publish(ARGV[4], ARGV[5])
end
return {'RESTOCKED', sale.available + delta}
