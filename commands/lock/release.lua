-- Gives back one level of a lock, and the lock itself with the last one.
--
-- KEYS  1 the lock   2 its companion record
-- ARGV  1 token
--
-- Returns {outcome, fence, ttl_ms, depth}:
--   RELEASED    depth is what is left: 0 when the lock is free now (ttl_ms 0)
--   NOT_OWNER   another token holds it, which has ttl_ms left (0: it never lapses)
--   EXPIRED     there is no lock
--   WRONG_TYPE  something that isn't a string stands at the key
--
-- A script, because a lock may be deleted only by who holds it: between a GET
-- that says so and a DEL, it could lapse and be taken by another.

local lock, record = KEYS[1], KEYS[2]
local token = ARGV[1]

local left = redis.call('PTTL', lock)
if left == -2 then return {'EXPIRED', 0, 0, 0} end
if redis.call('TYPE', lock).ok ~= 'string' then return {'WRONG_TYPE', 0, 0, 0} end
if redis.call('GET', lock) ~= token then return {'NOT_OWNER', 0, math.max(left, 0), 0} end

local fence, depth = 0, 1
local known = redis.call('HMGET', record, 'token', 'fence', 'depth')
if known[1] == token then fence, depth = tonumber(known[2]), tonumber(known[3]) end

if depth > 1 then
  -- Redis refuses an HSET when it is full, unless the script has written
  -- already. This HDEL changes nothing and is never refused, so a lock can be
  -- given back on a full Redis too.
  redis.call('HDEL', record, '')
  redis.call('HSET', record, 'depth', depth - 1)
  return {'RELEASED', fence, math.max(left, 0), depth - 1}
end

redis.call('DEL', lock, record)
return {'RELEASED', fence, 0, 0}
