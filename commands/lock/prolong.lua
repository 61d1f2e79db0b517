-- Makes one key of an exclusive lock live longer, for as long as the token holds it.
--
-- KEYS  the lock, or its record
-- ARGV  1 token   2 TTL in milliseconds   3 '1' for the record
--
-- Returns {outcome, 0, ttl_ms, 0}: RENEWED when the key lives for ttl_ms at least
-- now, NOT_OWNER when it isn't the token's.
--
-- A script, for the same reason as renew.lua, and with one key: while a slot of a
-- cluster moves, Redis refuses one that has several and finds one of them missing.

local token, ttl = ARGV[1], tonumber(ARGV[2])
local held
if ARGV[3] == '1' then held = redis.call('HGET', KEYS[1], 'token') else held = redis.call('GET', KEYS[1]) end
if held ~= token then return {'NOT_OWNER', 0, 0, 0} end
if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {'RENEWED', 0, ttl, 0}
