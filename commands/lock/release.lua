-- Gives back a level of a lock, and the lock itself with the last one; whoever is
-- next then gets it in the same call if it waits in the same sidecar, else its
-- sidecar gets the turn.
--
-- KEYS  the six of the lock
-- ARGV  1 token   2 levels to give back, at least 1
--       3 '1' to take the lock from whoever holds it
--       4 the sidecar   5 how many clients of it wait
--       6 '1' when it may go first though other sidecars wait
--       7 prefix of the channels   8 name of the lock
--       9 to 14 who is next: as 1 to 6 of acquire.lua; 9 is '' when nobody is
--
-- Returns {outcome, fence, ttl_ms, depth, held_ms, held_ttl_ms, next_fence}:
--   RELEASED    depth is what is left: 0 when the hold has ended (ttl_ms 0). Then
--               held_ms is how long it was held, 0 if that isn't known, and
--               held_ttl_ms the TTL that it had last
--   NOT_OWNER   another token holds it, which has ttl_ms left (0: it never lapses)
--   EXPIRED     there is no lock
--   WRONG_TYPE  something that isn't a string stands at the key
-- next_fence is not 0 when who is next has the lock now, with that fence.
--
-- A script, because a lock may be deleted only by who holds it: between a GET
-- that says so and a DEL, it could lapse and be taken by another.

local token, levels, force = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local me, waiters, first, channel, name = ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7], ARGV[8]
local want = {token = ARGV[9], ttl = tonumber(ARGV[10]), mode = ARGV[11], most = tonumber(ARGV[12]), marker = ARGV[13], wakes = ARGV[14]}

local s = read(token)
if s.wrong then return {'WRONG_TYPE', 0, 0, 0, 0, 0, 0} end
if s.left ~= -2 and not s.mine and not force then return {'NOT_OWNER', 0, math.max(s.left, 0), 0, 0, 0, 0} end

local answer = {'EXPIRED', 0, 0, 0, 0, 0, 0}
if s.left ~= -2 then
  local depth = force and 0 or math.max((s.depth or 1) - levels, 0)
  local fence = tonumber(s.mine and s.fence or force and s.latest or 0)
  if depth > 0 then
    -- Redis refuses an HSET when it is full, unless the script has written
    -- already. This HDEL changes nothing and is never refused, so a lock can be
    -- given back on a full Redis too.
    redis.call('HDEL', record, '')
    if s.mode == 'exclusive' then
      redis.call('HSET', record, 'depth', depth)
    else
      redis.call('HSET', record, '=' .. token, s.fence .. ' ' .. depth .. ' ' .. s.since .. ' ' .. s.ttl)
    end
    return {'RELEASED', fence, math.max(s.left, 0), depth, 0, 0, 0}
  end
  local held = s.since and math.max(now_ms() - tonumber(s.since), 0) or 0
  answer = {'RELEASED', fence, 0, 0, held, tonumber(s.ttl or 0), 0}
  if s.mode ~= 'exclusive' and not force then
    redis.call('ZREM', shares, token)
    redis.call('HDEL', record, '=' .. token)
  end
  if s.mode ~= 'exclusive' and not force and live() > 0 then
    lengthen(s.value)
  else
    redis.call('DEL', lock, record, shares)
    s = {left = -2}
  end
end

-- Who is next?
if waiters == 0 then redis.call('ZREM', line, me) end
local after = s.left == -2 and s or read(want.token)
if want.token == '' or after.mine or not open(after, want) then
  if (after.left == -2 or after.known and after.mode ~= 'exclusive') and not redis.call('GET', turn) then pass(channel, name) end
  return answer
end
local head = redis.call('ZRANGE', line, 0, 1)
local rival = redis.call('GET', turn)
if rival == me then
  redis.call('DEL', turn)
  rival = false
end
if not rival and not first and (head[1] and head[1] ~= me or head[2]) then
  redis.call('ZREM', line, me)
  rival = pass(channel, name)
  head = {}
end
if rival then
  join(me, TURN_MS)
else
  answer[7] = tonumber(take(want, after, 1))
  if waiters <= 1 then
    redis.call('ZREM', line, me)
  elseif head[1] ~= me and head[2] ~= me then
    join(me, want.ttl)
  end
  room_for_more(want, me, channel, name)
end
return answer
