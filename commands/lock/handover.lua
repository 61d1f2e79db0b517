-- The usual release, which comes first in the source of release.lua: of an exclusive
-- lock that was taken through a sidecar, to the next who wants it exclusively, with
-- no other sidecar that would have to go first. A lock that many want goes round
-- by this alone, so it makes as few calls as can be, and stands before hold.lua,
-- whose functions it would only make in vain. Where anything is not as usual it
-- leaves all as it is, and what follows decides.
--
-- KEYS, ARGV and what it returns are those of release.lua. Numbers that it has read
-- stay text: to turn one of sixteen digits into a number costs as much as a call.

if ARGV[3] == '0' and ARGV[9] ~= '' and ARGV[11] == 'exclusive' then
  local SPARE_MS = 5 -- as in hold.lua
  local lock, record, counter, line, turn = KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6]
  local token, me, waiters, first, ttl = ARGV[1], ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1', ARGV[10]

  local at = redis.pcall('MGET', lock, turn, counter)
  if at[1] == token and not at[2] and at[3] then
    local r = redis.call('HMGET', record, 'token', 'mode', 'depth', 'fence', 'acquired_at', 'ttl_ms')
    local known = r[1] == token and r[2] == 'exclusive' and tonumber(r[3]) <= tonumber(ARGV[2])
    local head = known and redis.call('ZRANGE', line, 0, 1)
    -- More who wait here stay in line; those of other sidecars wait until this
    -- one has gone first as often as it may.
    local lined = head and (head[1] == me or head[2] == me)
    if head and (lined or waiters <= 1) and (first or not head[2] and (lined or not head[1])) then
      local time = redis.call('TIME')
      local fence = time[1] .. string.sub('00000' .. time[2], -6)
      -- The first write is one that a full Redis doesn't refuse; then it refuses none.
      -- It also shows that the record has not lapsed since it was read.
      if #fence == #at[3] and fence > at[3] and redis.call('PEXPIRE', record, ttl + SPARE_MS) == 1 then
        local since = string.sub(fence, 1, -4)
        redis.call('HSET', record, 'token', ARGV[9], 'wakes', ARGV[14], 'fence', fence, 'depth', 1, 'ttl_ms', ttl, 'acquired_at', since)
        redis.call('SET', counter, fence)
        redis.call('SET', lock, ARGV[9], 'PX', ttl)
        if waiters <= 1 and lined then redis.call('ZREM', line, me) end
        return {'RELEASED', r[4], 0, 0, math.max(since - r[5], 0), r[6], fence}
      end
    end
  end
end

