-- Moves one shard of a sale from one state of its life to the next:
-- CREATING → SELLING ⇄ DROPPING → REMOVING.
--
-- KEYS  1 sale
-- ARGV  1 sale_id, 2 state from which it moves, '' for any, 3 state wanted,
--       4 '1' to drop in any case, 5 channel of events, 6 event that tells of the sale
-- Returns {outcome, units pending}
--   MOVED    done, or it was so
--   OPEN     the shard isn't dropped, since it sells
--   PENDING  the shard isn't dropped, since reservations are pending
--   CREATING, SELLING, DROPPING, REMOVING  the state that it is in instead
--   NO_SALE, STALE
--
-- A script because a shard is dropped only in the moment in which it is closed
-- and has nothing pending; in DROPPING it sells no more. From REMOVING, which only
-- shard 0 comes to, nothing leads back.
--
-- The first write, except when a sale is created, deletes nothing and is one that
-- a full Redis allows: dropping sales is how it gets room.

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then -- or a key of another type, which is none
    return {'NO_SALE', 0}
end
local fields = redis.call('HMGET', KEYS[1], 'sale_id', 'state', 'pending', 'close_at')
if fields[1] ~= ARGV[1] then
    return {'STALE', 0}
end
local state, from, wanted = fields[2] or '', ARGV[2], ARGV[3]
local pending = tonumber(fields[3] or 0) or 0
if state == wanted or (state == 'REMOVING' and wanted == 'DROPPING') then
    return {'MOVED', pending}
end
if from ~= '' and from ~= state then
    return {state, pending}
end
if wanted == 'DROPPING' and ARGV[4] ~= '1' then
    local close_at = tonumber(fields[4] or 0) or 0
    if close_at == 0 or close_at > now_ms() then
        return {'OPEN', pending}
    end
    if pending > 0 then
        return {'PENDING', pending}
    end
end
local refused = from ~= 'CREATING' and attempt('HDEL', KEYS[1], '') or attempt('HSET', KEYS[1], 'state', wanted)
if refused then
    return refused
end
publish(ARGV[5], ARGV[6])
return {'MOVED', pending}
