-- Takes a sidecar whose clients don't wait any more out of the line, and gives its
-- turn to the next.
--
-- KEYS  the six of the lock
-- ARGV  1 the sidecar   2 prefix of the channels   3 name of the lock
--
-- Returns 1 if it was its turn, else 0.
--
-- A script, because the turn may be passed on only by who has it.

local me, channel, name = ARGV[1], ARGV[2], ARGV[3]
redis.call('ZREM', line, me)
if redis.call('GET', turn) ~= me then return 0 end
redis.call('DEL', turn)
pass(channel, name)
return 1
