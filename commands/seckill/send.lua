-- Takes units off one shard, for another one that ran dry, and writes down in
-- the same step to whom and how many: the sender's journal. The units are in
-- transit until buy.lua takes them in there.
--
-- KEYS  1 sale
-- ARGV  1 sale_id, 2 receiving shard, 3 number of the last delivery that it has
--       taken in from this one, 4 units wanted
-- Returns {outcome, number of the delivery, units}
--   SENT    these units are in transit under this number; when the delivery
--           before is still under way it is that one, and nothing is taken off
--   EMPTY   nothing is left here
--   NO_SALE, STALE
--
-- A script because of what is read and what is written together. There is one
-- delivery at a time between two shards: the next one begins when the receiver
-- is known to have the last, which is what makes a number enough to tell a
-- delivery that comes twice.

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
local number, units = string.match(redis.call('HGET', KEYS[1], field) or '0:0', '^(%d+):(%d+)$')
if not number then
    return redis.error_reply("ERR damaged sale: its field '" .. field .. "' is unreadable, SECKILL.AUDIT names all damage")
end
if tonumber(number) > tonumber(ARGV[3]) then
    return {'SENT', tonumber(number), tonumber(units)}
end

-- Half of what is here, so that a shard that runs dry again and again comes a
-- few times only; more if so much is wanted.
units = math.min(sale.available, math.max(tonumber(ARGV[4]), math.ceil(sale.available / 2)))
if units == 0 then
    return {'EMPTY', tonumber(number), 0}
end
local refused = attempt('HSET', KEYS[1], 'version', sale.version + 1, field, (number + 1) .. ':' .. units,
    'available', sale.available - units, 'sent', sale.sent + units)
if refused then
    return refused
end
return {'SENT', number + 1, units}
