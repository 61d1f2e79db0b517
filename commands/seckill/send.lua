-- Takes units off one shard, for another one that ran dry, and adds them in the
-- same step to what it has sent there: the sender's journal. The units are in
-- transit until buy.lua takes them in there.
--
-- KEYS  1 sale
-- ARGV  1 sale_id, 2 receiving shard, 3 units that have ever arrived there from this
--       one, as far as is known, 4 units wanted, 0 to send none, 5 '1' to write
--       something in any case
-- Returns {outcome, units ever sent there, units of these that are in transit}
--   SENT    units were taken off
--   MOVING  nothing was taken off, since units are in transit
--   EMPTY   nothing was taken off, since nothing is left here, or wanted
--   NO_SALE, STALE
--
-- A script because of what is read and what is written together. As long as units
-- are in transit between two shards no more leave, so that many who ask at the
-- same time don't empty the sender.
--
-- More can have arrived than were sent: when this shard has lost its last writes,
-- since a replica took over that didn't have them. The units that left are then
-- here again; they are taken off once more, as far as they are still here.

local sale, damage = read_sale(KEYS[1])
if damage then
    return damage
end
if not sale then
    return {'NO_SALE', 0, 0}
end
if sale.sale_id ~= ARGV[1] then
    return {'STALE', 0, 0}
end
local field = 'to:' .. ARGV[2]
local total = tonumber(redis.call('HGET', KEYS[1], field) or 0)
if not total then
    return redis.error_reply("ERR damaged sale: its field '" .. field .. "' is unreadable, SECKILL.AUDIT names all damage")
end
local arrived, wanted, units = tonumber(ARGV[3]), tonumber(ARGV[4]), 0
if arrived > total then
    units = math.min(sale.available, arrived - total)
elseif arrived == total and wanted > 0 then
    -- Half of what is here, so that a shard that runs dry again and again comes a
    -- few times only; more if so much is wanted.
    units = math.min(sale.available, math.max(wanted, math.ceil(sale.available / 2)))
end
if units == 0 then
    local refused = ARGV[5] == '1' and attempt('HSET', KEYS[1], 'sale_id', sale.sale_id)
    return refused or {total > arrived and 'MOVING' or 'EMPTY', total, math.max(total - arrived, 0)}
end
local refused = attempt('HSET', KEYS[1], 'version', sale.version + 1, field, total + units,
    'available', sale.available - units, 'sent', sale.sent + units)
if refused then
    return refused
end
return {'SENT', total + units, math.max(total + units - arrived, 0)}
