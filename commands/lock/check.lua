-- Tells whether a token holds a lock. Changes nothing.
--
-- KEYS  the six of the lock
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

local s = read(ARGV[1])
if s.left == -2 then return {'EXPIRED', 0, 0, 0} end
if s.wrong then return {'WRONG_TYPE', 0, 0, 0} end
if not s.mine then return {'NOT_OWNER', 0, math.max(s.left, 0), 0} end
local fence, depth = tonumber(s.fence or 0), s.depth or 1
if s.left == -1 then return {'NO_TTL', fence, 0, depth} end
return {'HELD', fence, math.max(s.left, 1), depth}
