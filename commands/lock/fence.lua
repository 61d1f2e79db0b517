-- Raises the fence of holds to the one that they have on most of several servers, or
-- in the last of several slots.
--
-- KEYS  six for each lock
-- ARGV  1 token   2 fence
--
-- Returns {outcome, fence, ttl_ms, depth} as check.lua does: HELD when the token
-- holds all of the locks, whose fences and whose counter are no less than the one
-- given now; else of the first that it doesn't hold. The counter is raised in any
-- case.
--
-- A script, because the counter may only grow.

local token, fence = ARGV[1], tonumber(ARGV[2])
if tonumber(redis.call('GET', counter) or 0) < fence then redis.call('SET', counter, whole(fence)) end
local answer
for i = 0, #KEYS / 6 - 1 do
  use(i)
  local s = read(token)
  if s.left == -2 then return {'EXPIRED', 0, 0, 0} end
  if s.wrong then return {'WRONG_TYPE', 0, 0, 0} end
  if not s.mine or not s.known then return {'NOT_OWNER', 0, math.max(s.left, 0), 0} end
  if tonumber(s.fence) < fence then
    redis.call('HSET', record, 'fence', whole(fence))
    if s.mode ~= 'exclusive' then
      redis.call('HSET', record, '=' .. token, whole(fence) .. ' ' .. s.depth .. ' ' .. s.since .. ' ' .. s.ttl)
    end
  end
  answer = {'HELD', fence, math.max(s.left, 0), s.depth}
end
return answer
