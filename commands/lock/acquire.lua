-- Takes a free lock, or takes it once more for the token that holds it already.
--
-- KEYS  1 the lock   2 its companion record   3 the fence counter of the slot
-- ARGV  1 token      2 TTL in milliseconds
--
-- Returns {outcome, fence, ttl_ms, depth}:
--   ACQUIRED    the lock was free and is the token's now, depth 1
--   REENTERED   the token held it: depth is one more, the TTL is the longer one
--               of what was left and what is asked now
--   BUSY        another token holds it; ttl_ms is what that one has left
--   NO_TTL      a string without a TTL stands at the key: no lock of ours, and
--               nobody to wait for, since it never lapses
--   WRONG_TYPE  something that isn't a string stands at the key
--
-- A script, because the fence has to be drawn in the moment in which the lock
-- is granted: drawn before or after it, two holders could carry their numbers
-- in the wrong order. The lock is also the last thing written, so that whatever
-- fails before it leaves the lock free.

local lock, record, counter = KEYS[1], KEYS[2], KEYS[3]
local token, ttl = ARGV[1], tonumber(ARGV[2])

local left = redis.call('PTTL', lock)
local fence, depth, since

if left ~= -2 then
  if redis.call('TYPE', lock).ok ~= 'string' then return {'WRONG_TYPE', 0, 0, 0} end
  if left == -1 then return {'NO_TTL', 0, 0, 0} end
  if redis.call('GET', lock) ~= token then return {'BUSY', 0, math.max(left, 1), 0} end

  ttl = math.max(left, ttl)
  depth = 2
  local known = redis.call('HMGET', record, 'token', 'fence', 'depth', 'acquired_at')
  if known[1] == token then
    fence, depth, since = known[2], known[3] + 1, known[4]
  end
end

-- A new hold, or one that other code took with a plain SET: it gets its number
-- now. The clock makes numbers grow when the counter is lost; the counter makes
-- them grow when the clock steps back.
local drawn = not fence
if drawn then
  local time = redis.call('TIME')
  local micros = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('GET', counter) or 0) or 0
  fence = string.format('%.0f', math.max(last + 1, micros))
  since = string.format('%.0f', math.floor(micros / 1000))
end

redis.call('HSET', record, 'token', token, 'fence', fence, 'depth', depth or 1,
  'ttl_ms', ttl, 'acquired_at', since)
redis.call('PEXPIRE', record, ttl)
if drawn then redis.call('SET', counter, fence) end
redis.call('SET', lock, token, 'PX', ttl)

return {depth and 'REENTERED' or 'ACQUIRED', tonumber(fence), ttl, depth or 1}
