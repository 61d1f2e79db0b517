-- Tells what is known of a lock, whoever holds it. Changes nothing.
--
-- KEYS  the six of the lock
--
-- Returns {state, mode, fence, ttl_ms, depth, holders, acquired_at, set_ttl_ms,
-- sidecars}. state is FREE, HELD, FOREIGN (other code took it: mode, fence, depth
-- and acquired_at aren't known), NO_TTL or WRONG_TYPE. holders is how many hold
-- it, depth how often if that is one. sidecars is how many have clients that wait.
--
-- A script, because the keys must be read in the same moment.

local s = read('')
local sidecars = redis.call('ZCARD', line)
if redis.call('EXISTS', turn) == 1 then sidecars = sidecars + 1 end
if s.left == -2 then return {'FREE', '', 0, 0, 0, 0, 0, 0, sidecars} end
if s.wrong then return {'WRONG_TYPE', '', 0, 0, 0, 0, 0, 0, sidecars} end
if not s.known then
  return {s.left == -1 and 'NO_TTL' or 'FOREIGN', '', 0, math.max(s.left, 0), 0, 1, 0, 0, sidecars}
end
local r = redis.call('HMGET', record, 'fence', 'depth', 'acquired_at', 'ttl_ms')
local holders = s.mode == 'exclusive' and 1 or live()
return {s.left == -1 and 'NO_TTL' or 'HELD', s.mode, tonumber(r[1]), math.max(s.left, 0), s.mode == 'exclusive' and tonumber(r[2]) or 0,
  holders, tonumber(r[3]), tonumber(r[4]), sidecars}
