-- What the scripts of a lock have in common; each of them begins with this.
--
-- KEYS come in sixes, one six for each lock:
--   1 the lock   2 its record   3 the fence counter of the slot   4 its shares
--   5 the line   6 the turn
-- keys.go says what they hold.

local lock, record, counter, shares, line, turn

-- use makes the i-th lock, from 0, the one that the functions below speak of.
local function use(i)
  local k = 6 * i
  lock, record, counter, shares, line, turn = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4], KEYS[k + 5], KEYS[k + 6]
end
use(0)

local TURN_MS = 50       -- how long a sidecar whose turn it is has the lock to itself
local LINE_MS = 10000    -- how long the line outlives what its sidecars wait for
local SPARE_MS = 5       -- how long what is known of a lock outlives it, so that it is never gone before

local function whole(n) return string.format('%.0f', n) end

local micros
-- now is the time of this script in microseconds.
local function now()
  if not micros then
    local time = redis.call('TIME')
    micros = time[1] * 1000000 + time[2]
  end
  return micros
end
local function now_ms() return math.floor(now() / 1000) end

-- read tells what stands at the lock's key:
--   left    milliseconds until it lapses, -1 never, -2 the lock is free
--   wrong   it isn't a string
--   value   the string
--   known   the record belongs to it: it was taken through a sidecar
--   mode    exclusive, shared or permits
--   wakes   whoever gives it back will wake who waits
--   latest  the fence of its latest hold, where it is known
--   mine    the token holds it; then left is what the token has left, and
--           fence, depth, since, ttl are those of its hold where it is known
local function read(token)
  local s = {left = redis.call('PTTL', lock)}
  if s.left == -2 then return s end
  s.value = redis.pcall('GET', lock)
  if type(s.value) == 'table' then
    if not string.find(s.value.err, '^WRONGTYPE') then error(s.value.err) end
    s.wrong = true
    return s
  end
  local r = redis.call('HMGET', record, 'token', 'mode', 'wakes', 'fence', 'depth', 'acquired_at', 'ttl_ms')
  s.known = r[1] == s.value
  s.mode = s.known and r[2] or 'exclusive'
  s.wakes = s.known and r[3] == '1'
  s.latest = s.known and r[4]
  if s.mode == 'exclusive' then
    s.mine = s.value == token
    if s.known then s.fence, s.depth, s.since, s.ttl = r[4], tonumber(r[5]), r[6], r[7] end
    return s
  end
  local share = redis.call('HGET', record, '=' .. token)
  local lapse = share and tonumber(redis.call('ZSCORE', shares, token) or 0)
  if lapse and lapse > now_ms() then
    s.mine, s.left = true, lapse - now_ms()
    local fence, depth, since, ttl = string.match(share, '(%d+) (%d+) (%d+) (%d+)')
    s.fence, s.depth, s.since, s.ttl = fence, tonumber(depth), since, ttl
  end
  return s
end

-- live counts the shares that have not lapsed.
local function live() return redis.call('ZCOUNT', shares, '(' .. whole(now_ms()), '+inf') end

-- open reports whether a lock with the state s, not held by the one who wants it,
-- has room for a hold as wanted.
local function open(s, want)
  if s.left == -2 then return true end
  if want.mode == 'exclusive' or not s.known or s.mode ~= want.mode then return false end
  return want.mode == 'shared' or live() < want.most
end

-- opens_in is how many milliseconds it takes at most until a lock that isn't open
-- will be.
local function opens_in(s, want)
  if want.mode == 'permits' and s.mode == 'permits' then
    local first = redis.call('ZRANGEBYSCORE', shares, '(' .. whole(now_ms()), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if first then return math.max(tonumber(first) - now_ms(), 1) end
  end
  return math.max(redis.call('PTTL', lock), 1)
end

-- draw returns a fence that is larger than any drawn in the slot before. The clock
-- makes fences grow when the counter is lost; the counter makes them grow when the
-- clock steps back.
local function draw()
  local last = tonumber(redis.call('GET', counter) or 0) or 0
  return math.max(last + 1, now())
end

-- write_share writes what is known of one hold of a lock that several share, and
-- lets the lock live as long as the longest of them.
local function write_share(token, fence, depth, since, ttl)
  local lapse = math.max(now_ms() + ttl, tonumber(redis.call('ZSCORE', shares, token) or 0))
  redis.call('HSET', record, '=' .. token, fence .. ' ' .. depth .. ' ' .. since .. ' ' .. whole(ttl))
  redis.call('ZADD', shares, whole(lapse), token)
end

-- lengthen gives all keys of a shared lock the life of its longest share.
local function lengthen(value)
  local last = redis.call('ZRANGE', shares, -1, -1, 'WITHSCORES')[2]
  local ttl = math.max(tonumber(last) - now_ms(), 1)
  redis.call('PEXPIRE', record, whole(ttl + SPARE_MS))
  redis.call('PEXPIRE', shares, whole(ttl + SPARE_MS))
  redis.call('SET', lock, value, 'PX', whole(ttl))
end

-- write makes the fields all that the record has, but for one that the hold joins. What
-- is left of a lock that lapsed just now, or that other code deleted, is dropped
-- only then: the first write must be one that a full Redis refuses.
local function write(fields, joins)
  local new = redis.call('HSET', record, unpack(fields))
  if joins or new == #fields / 2 then return end
  redis.call('DEL', record)
  redis.call('HSET', record, unpack(fields))
end

-- take gives a lock that is open, with the state s, to want.token, and returns the
-- fence: the one given, or a new one. The lock is the last thing written, so that
-- whatever fails before it leaves the lock free. The first write is one that a
-- full Redis refuses, before anything has changed.
local function take(want, s, depth, fence)
  fence = whole(fence or draw())
  local since = whole(now_ms())
  local exclusive = want.mode == 'exclusive'
  local joins = not exclusive and s.left ~= -2
  local value = exclusive and want.token or joins and s.value or want.marker
  local wakes = want.wakes == '1' and (not joins or s.wakes) and '1' or '0'
  write({'token', value, 'mode', want.mode, 'wakes', wakes, 'fence', fence, 'depth', depth, 'ttl_ms', whole(want.ttl),
    'acquired_at', since}, joins)
  redis.call('SET', counter, fence)
  if exclusive then
    redis.call('PEXPIRE', record, whole(want.ttl + SPARE_MS))
    redis.call('SET', lock, value, 'PX', whole(want.ttl))
    return fence
  end
  if joins then
    local lapsed = redis.call('ZRANGEBYSCORE', shares, '-inf', whole(now_ms()), 'LIMIT', 0, 100)
    for _, gone in ipairs(lapsed) do
      redis.call('HDEL', record, '=' .. gone)
      redis.call('ZREM', shares, gone)
    end
  else
    redis.call('DEL', shares)
  end
  write_share(want.token, fence, depth, since, want.ttl)
  lengthen(value)
  return fence
end

-- tell sends a message to a sidecar, and returns what PUBLISH does. In a cluster it comes
-- once from each master; by the time in it the sidecar knows that it is the same.
local function tell(channel, sidecar, kind, name)
  return redis.pcall('PUBLISH', channel .. sidecar, kind .. whole(now()) .. ' ' .. name)
end

-- pass gives the turn to the first sidecar of the line that hears of it, and tells
-- the one behind it to look whether the turn is used. It returns who has the turn
-- now, nil for nobody. Whoever has the right to publish nothing gives the turn to
-- the first, which will find out by looking.
local function pass(channel, name)
  for _ = 1, 100 do
    local first = redis.call('ZRANGE', line, 0, 0)[1]
    if not first then return nil end
    redis.call('ZREM', line, first)
    local heard = tell(channel, first, 'T', name)
    if type(heard) == 'table' or heard > 0 then
      redis.call('SET', turn, first, 'PX', TURN_MS)
      local second = redis.call('ZRANGE', line, 0, 0)[1]
      if second then tell(channel, second, 'S', name) end
      return first
    end
  end
end

-- room_for_more gives the turn to the next sidecar when a lock was taken that may have
-- room for one more. One that is first in line itself needs no message.
local function room_for_more(want, me, channel, name)
  if want.mode == 'exclusive' or redis.call('GET', turn) then return end
  if redis.call('ZRANGE', line, 0, 0)[1] ~= me then pass(channel, name) end
end

-- held_up is how many milliseconds a sidecar has to let others go first at a lock
-- that is open; 0: it may take it. me is '' for one that doesn't wait in line.
local function held_up(me, channel, name)
  if redis.call('EXISTS', turn, line) == 0 then return 0 end
  local whose = redis.call('GET', turn)
  if not whose then
    local first = redis.call('ZRANGE', line, 0, 0)[1]
    if not first or first == me then return 0 end
    whose = pass(channel, name)
    if not whose then return 0 end
  end
  if whose == me then return 0 end
  return math.max(redis.call('PTTL', turn), 1)
end

-- join puts a sidecar at the end of the line, or back to its front if it was its
-- turn. wait is how long it may be that nothing happens.
local function join(me, wait)
  local front = redis.call('GET', turn) == me
  if front then redis.call('DEL', turn) end
  if not redis.call('ZSCORE', line, me) then
    local edge = redis.call('ZRANGE', line, front and 0 or -1, front and 0 or -1, 'WITHSCORES')[2] or 0
    redis.call('ZADD', line, whole(edge + (front and -1 or 1)), me)
  end
  if redis.call('PTTL', line) < wait + LINE_MS then redis.call('PEXPIRE', line, whole(wait + LINE_MS)) end
end

-- served takes a sidecar that had its turn out of the line, and puts it to its end
-- if others of its clients still wait.
local function served(me, others, wait)
  if redis.call('GET', turn) == me then redis.call('DEL', turn) end
  redis.call('ZREM', line, me)
  if others then join(me, wait) end
end

