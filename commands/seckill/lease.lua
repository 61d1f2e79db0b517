-- Takes or keeps the lease on looking after a sale.
--
-- KEYS  1 keeper
-- ARGV  1 who asks, 2 milliseconds
-- Returns {1 when who asks has it now, 0 when not}
--
-- A script because only who has the lease may lengthen it. Two that look after
-- one sale do no harm; the lease saves the work.

local keeper = redis.call('GET', KEYS[1])
if keeper and keeper ~= ARGV[1] then
    return {0}
end
return attempt('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) or {1}
