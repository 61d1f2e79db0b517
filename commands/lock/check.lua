-- Tells whether a token holds a lock. Changes nothing.
--
-- KEYS  1 the lock   2 its companion record
-- ARGV  1 token
--
-- Returns {outcome, fence, ttl_ms, depth}:
--   HELD        the token holds it, for ttl_ms more
--   NOT_OWNER   another token holds it, which has ttl_ms left (0: it never lapses)
--   EXPIRED     there is no lock
--   NO_TTL      the token stands at the key, but without a TTL: it never lapses
--   WRONG_TYPE  something that isn't a string stands at the key
--
-- A script, because the lock and its record must be read in the same moment, or
-- one holder's TTL could be told with another's fence.

local lock, record = KEYS[1], KEYS[2]
local token = ARGV[1]

local left = redis.call('PTTL', lock)
if left == -2 then return {'EXPIRED', 0, 0, 0} end
if redis.call('TYPE', lock).ok ~= 'string' then return {'WRONG_TYPE', 0, 0, 0} end
if redis.call('GET', lock) ~= token then return {'NOT_OWNER', 0, math.max(left, 0), 0} end

local fence, depth = 0, 1
local known = redis.call('HMGET', record, 'token', 'fence', 'depth')
if known[1] == token then fence, depth = tonumber(known[2]), tonumber(known[3]) end

if left == -1 then return {'NO_TTL', fence, 0, depth} end
return {'HELD', fence, math.max(left, 1), depth}
