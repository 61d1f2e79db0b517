-- Reads what there is of one shard, as it is, for an audit.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- ARGV  1 most reservations
-- Returns {type of each key, 1 if the queue has its group and else 0, number of
-- reservations, all of the sale's fields and values}, and unless there are more
-- reservations than that, behind it {all of buyers}, {all of orders}, {all entries
-- of the queue}
--
-- A script because all must be of one moment. It only reads, and leaves to others
-- what it means: Redis serves nobody else meanwhile. Writes nothing.

local answer = {}
for i, key in ipairs(KEYS) do
    answer[i] = redis.call('TYPE', key).ok
end
local function is(i, kind)
    return answer[i] == kind
end
answer[5] = is(4, 'stream') and not attempt('XPENDING', KEYS[4], 'workers') and 1 or 0
answer[6] = is(3, 'hash') and redis.call('HLEN', KEYS[3]) or 0
answer[7] = is(1, 'hash') and redis.call('HGETALL', KEYS[1]) or {}
if answer[6] <= tonumber(ARGV[1]) then
    answer[8] = is(2, 'hash') and redis.call('HGETALL', KEYS[2]) or {}
    answer[9] = is(3, 'hash') and redis.call('HGETALL', KEYS[3]) or {}
    answer[10] = is(4, 'stream') and redis.call('XRANGE', KEYS[4], '-', '+') or {}
end
return answer
