-- Takes a lock if it is open and nobody else's turn, or takes it once more for the
-- token that holds it already.
--
-- KEYS  the six of the lock
-- ARGV  1 token   2 TTL in milliseconds   3 mode   4 most holders (mode permits)
--       5 what the lock's key shall hold in a shared mode
--       6 '1' when whoever gives the lock back will wake who waits, else '0'
--       7 the sidecar, if it waits in line, else ''
--       8 '1' when more of its clients wait
--       9 '1' when a call of this token before this one may have succeeded
--       10 prefix of the channels   11 name of the lock
--
-- Returns {outcome, fence, ttl_ms, depth, blind}:
--   ACQUIRED    the lock was open and is the token's now, depth 1
--   REENTERED   the token held it: depth is one more, the TTL is the longer one
--               of what was left and what is asked now
--   BUSY        others hold it or go first; it may be open in ttl_ms, or before.
--               blind is 1 when nobody will tell. The sidecar is in line now.
--   OTHER_MODE  the token holds it in another mode, with ttl_ms left
--   NO_TTL      a string without a TTL stands at the key: no lock of ours, and
--               nobody to wait for, since it never lapses
--   WRONG_TYPE  something that isn't a string stands at the key
--
-- A script, because the fence has to be drawn in the moment in which the lock
-- is granted: drawn before or after it, two holders could carry their numbers
-- in the wrong order.

local want = {token = ARGV[1], ttl = tonumber(ARGV[2]), mode = ARGV[3], most = tonumber(ARGV[4]), marker = ARGV[5], wakes = ARGV[6]}
local me, others, doubt, channel, name = ARGV[7], ARGV[8] == '1', ARGV[9] == '1', ARGV[10], ARGV[11]

local s = read(want.token)
if s.wrong then return {'WRONG_TYPE', 0, 0, 0, 0} end
if s.left == -1 then return {'NO_TTL', 0, 0, 0, 0} end

if s.mine then
  if s.mode ~= want.mode then return {'OTHER_MODE', 0, math.max(s.left, 1), 0, 0} end
  if doubt and s.known then return {'ACQUIRED', tonumber(s.fence), math.max(s.left, 1), s.depth, 0} end
  want.ttl = math.max(want.ttl, s.left)
  local depth = (s.depth or 1) + 1
  if not s.known then
    -- Other code took it with a plain SET: it gets its number now.
    return {'REENTERED', tonumber(take(want, s, depth)), want.ttl, depth, 0}
  end
  redis.call('HSET', record, 'depth', depth, 'ttl_ms', whole(want.ttl))
  if want.mode == 'exclusive' then
    redis.call('PEXPIRE', record, whole(want.ttl + SPARE_MS))
    redis.call('SET', lock, want.token, 'PX', whole(want.ttl))
  else
    write_share(want.token, s.fence, depth, s.since, want.ttl)
    lengthen(s.value)
  end
  return {'REENTERED', tonumber(s.fence), want.ttl, depth, 0}
end

local is_open = open(s, want)
local wait = is_open and held_up(me, channel, name) or 0
if is_open and wait == 0 then
  local fence = take(want, s, 1)
  if me ~= '' then served(me, others, want.ttl) end
  room_for_more(want, me, channel, name)
  return {'ACQUIRED', tonumber(fence), want.ttl, 1, 0}
end

if not is_open then wait = opens_in(s, want) end
if me ~= '' then join(me, wait) end
return {'BUSY', 0, wait, 0, (is_open or s.wakes) and 0 or 1}
