-- Reads a part of one shard's order records, as HSCAN does: each record that is
-- there throughout comes at least once.
--
-- KEYS  1 sale, 2 orders
-- ARGV  1 cursor, 2 records to look at, about
-- Returns {'NO_SALE'}, or {'FOUND', next cursor, then for each order: token id,
-- user, qty, state, created_at, pay by, order id, reason}
--
-- A script because the format of the records is known to scripts only. Writes
-- nothing.

if redis.call('EXISTS', KEYS[1]) == 0 then
    return {'NO_SALE'}
end
local page = redis.call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])
local answer, now = {'FOUND', page[1]}, now_ms()
for i = 1, #page[2], 2 do
    local order = unpack_order(page[2][i + 1])
    if order then
        local n = #answer
        answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = page[2][i], order.user, order.qty, state_at(order, now)
        answer[n + 5], answer[n + 6] = tonumber(string.match(order.entry, '^%d+')), order.deadline
        answer[n + 7], answer[n + 8] = order.order_id, order.reason
    end
end
return answer
