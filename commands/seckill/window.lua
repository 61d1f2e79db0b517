-- Opens or closes one shard of a sale.
--
-- KEYS  1 sale
-- ARGV  1 sale_id, 2 'OPEN' to open now, 'CLOSE' to close now, or 'SET' to take
--       over what shard 0 has: 3 its number, 4 open_at, 5 close_at;
--       6 channel of events, 7 event that tells of the sale
-- Returns {outcome, number, open_at, close_at}: OK, NO_SALE or STALE
--
-- A script because the times are Redis's, and because of several that open and
-- close, all shards must end with what was decided last: shard 0 numbers the
-- decisions, the others take over none that is older than theirs.
--
-- CLOSE keeps a close_at that is still to come as planned_close, and OPEN brings it
-- back; one that has passed is forgotten.
--
-- The first write deletes nothing, and is one that a full Redis allows: a sale can
-- be closed then, too.

local fields = redis.call('HMGET', KEYS[1], 'sale_id', 'window', 'open_at', 'close_at', 'state', 'planned_close')
if not fields[1] or fields[5] == 'DROPPING' or fields[5] == 'REMOVING' then
    return {'NO_SALE', 0, 0, 0}
end
if fields[1] ~= ARGV[1] then
    return {'STALE', 0, 0, 0}
end
local number, open_at, close_at = tonumber(fields[2] or 0), tonumber(fields[3] or 0), tonumber(fields[4] or 0)
local now, planned_close = now_ms(), nil
if ARGV[2] == 'SET' then
    if tonumber(ARGV[3]) <= number then
        return {'OK', number, open_at, close_at}
    end
    number, open_at, close_at = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
elseif ARGV[2] == 'OPEN' then
    number, open_at = number + 1, math.min(open_at, now)
    if close_at <= now then
        local planned = tonumber(fields[6] or 0)
        close_at = planned > now and planned or 0
    end
else
    number = number + 1
    if close_at == 0 or close_at > now then
        planned_close, close_at = close_at, now
    end
end
local refused = attempt('HDEL', KEYS[1], '') or attempt('HSET', KEYS[1], 'window', number, 'open_at', string.format('%.0f', open_at),
    'close_at', string.format('%.0f', close_at))
if refused then
    return refused
end
if planned_close then
    redis.call('HSET', KEYS[1], 'planned_close', string.format('%.0f', planned_close))
end
publish(ARGV[6], ARGV[7])
return {'OK', number, open_at, close_at}
