-- Sets the TTL of a lock that the token holds: longer or shorter, as asked.
--
-- KEYS  the six of the lock
-- ARGV  1 token   2 TTL in milliseconds   3 '1' to make it only longer
--       4 prefix of the channels   5 name of the lock
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

local token, ttl, longer, channel, name = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', ARGV[4], ARGV[5]

local s = read(token)
if s.left == -2 then return {'EXPIRED', 0, 0, 0} end
if s.wrong then return {'WRONG_TYPE', 0, 0, 0} end
if not s.mine then return {'NOT_OWNER', 0, math.max(s.left, 0), 0} end

if longer then ttl = math.max(ttl, s.left) end
redis.call('PEXPIRE', lock, whole(math.max(ttl, s.mode == 'exclusive' and 0 or redis.call('PTTL', lock))))
if s.mode ~= 'exclusive' then
  redis.call('ZREM', shares, token)
  write_share(token, s.fence, s.depth, s.since, ttl)
  lengthen(s.value)
elseif s.known then
  redis.call('PEXPIRE', record, whole(ttl + SPARE_MS))
  redis.call('HSET', record, 'ttl_ms', whole(ttl))
end

-- Who waits counts on the time that was left before.
if s.left > ttl then
  local first = redis.call('ZRANGE', line, 0, 0)[1]
  if first then tell(channel, first, 'T', name) end
end
return {'RENEWED', tonumber(s.fence or 0), ttl, s.depth or 1}
