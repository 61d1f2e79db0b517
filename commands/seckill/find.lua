-- Finds a user's reservations that hold units.
--
-- KEYS  1 sale, 2 buyers, 3 orders
-- ARGV  1 user, 2 most reservations to look at
-- Returns {'NO_SALE'}, or {'FOUND', then token ids, the latest first}
--
-- A script because each reservation tells which one was before it. Writes
-- nothing.

if redis.call('EXISTS', KEYS[1]) == 0 then
    return {'NO_SALE'}
end
local answer, now = {'FOUND'}, now_ms()
local _, id = unpack_buyer(redis.call('HGET', KEYS[2], ARGV[1]) or '')
for _ = 1, tonumber(ARGV[2]) do
    local record = id and id ~= '' and redis.call('HGET', KEYS[3], id)
    local order = record and unpack_order(record)
    if not order then
        break
    end
    local state = state_at(order, now)
    if state == 'P' or state == 'C' then
        answer[#answer + 1] = id
    end
    id = order.prev
end
return answer
