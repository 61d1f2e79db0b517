-- Takes several locks, exclusively: all of them or none.
--
-- KEYS  six for each lock
-- ARGV  1 token   2 TTL in milliseconds
--       3 '1' when whoever gives the locks back will wake who waits, else '0'
--       4 prefix of the channels   5 what the fence is no less than
--       6 and more: the names of the locks
--
-- Returns {outcome, fence, ttl_ms, depth, blind} as acquire.lua does:
--   ACQUIRED    all are the token's now, with one fence, larger than any earlier
--               one of each of them. Those that the token held already it holds
--               with this fence and TTL, and once: nobody else knows it
--   BUSY, NO_TTL, WRONG_TYPE  of a lock that is in the way; nothing was taken
--
-- A script, because others could take one of the locks between two commands.

local want = {token = ARGV[1], ttl = tonumber(ARGV[2]), mode = 'exclusive', wakes = ARGV[3]}
local channel = ARGV[4]

local states, fence, wait, blind = {}, tonumber(ARGV[5]), 0, 0
for i = 0, #KEYS / 6 - 1 do
  use(i)
  local s = read(want.token)
  if s.wrong then return {'WRONG_TYPE', 0, 0, 0, 0} end
  if s.left == -1 then return {'NO_TTL', 0, 0, 0, 0} end
  if not s.mine then
    if open(s, want) then
      wait = math.max(wait, held_up('', channel, ARGV[6 + i]))
    else
      wait = math.max(wait, opens_in(s, want))
      if not s.wakes then blind = 1 end
    end
  end
  states[i] = s
  fence = math.max(fence, draw())
end
if wait > 0 then return {'BUSY', 0, wait, 0, blind} end

for i = 0, #KEYS / 6 - 1 do
  use(i)
  take(want, states[i], 1, fence)
end
return {'ACQUIRED', fence, want.ttl, 1, 0}
