-- Removes one shard of a sale that is being dropped.
--
-- KEYS  1 sale, then all other keys of the shard
-- ARGV  1 sale_id; '' to remove what has lost its sale
-- Returns {how many keys were removed}
--
-- A script because a sidecar that comes late must not remove the shard of a sale
-- that was created since. It needs no right that state.lua hasn't shown, but UNLINK.

local id = ''
if redis.call('TYPE', KEYS[1]).ok == 'hash' then -- a key of another type is of no sale
    id = redis.call('HMGET', KEYS[1], 'sale_id')[1] or ''
end
if id ~= ARGV[1] then
    return {0}
end
return {redis.call('UNLINK', unpack(KEYS))}
