-- Sets the TTL of a lock that the token holds: longer or shorter, as asked.
--
-- KEYS  1 the lock   2 its companion record
-- ARGV  1 token      2 TTL in milliseconds
--
-- Returns {outcome, fence, ttl_ms, depth}:
--   RENEWED     the lock lapses ttl_ms from now
--   NOT_OWNER   another token holds it, which has ttl_ms left (0: it never lapses)
--   EXPIRED     there is no lock, and this makes none
--   WRONG_TYPE  something that isn't a string stands at the key
--
-- A script, because between a GET that says who holds the lock and a PEXPIRE, it
-- could lapse and be taken by another, whose TTL would be set then. Its first
-- write is a PEXPIRE, which a full Redis doesn't refuse: a lock can be kept there.

local lock, record = KEYS[1], KEYS[2]
local token, ttl = ARGV[1], tonumber(ARGV[2])

local left = redis.call('PTTL', lock)
if left == -2 then return {'EXPIRED', 0, 0, 0} end
if redis.call('TYPE', lock).ok ~= 'string' then return {'WRONG_TYPE', 0, 0, 0} end
if redis.call('GET', lock) ~= token then return {'NOT_OWNER', 0, math.max(left, 0), 0} end

redis.call('PEXPIRE', lock, ttl)

local fence, depth = 0, 1
local known = redis.call('HMGET', record, 'token', 'fence', 'depth')
if known[1] == token then
  fence, depth = tonumber(known[2]), tonumber(known[3])
  redis.call('PEXPIRE', record, ttl)
  redis.call('HSET', record, 'ttl_ms', ttl)
end
return {'RENEWED', fence, ttl, depth}
