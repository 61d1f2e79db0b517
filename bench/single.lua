-- One purchase, as a shop would write it that wants the same records and the same
-- answers, and no more: what the sidecar's purchases are compared with.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- ARGV  1 what tokens begin with, 2 user, 3 qty, 4 request id
-- Returns {outcome, token id, units left}

local sale = redis.call('HMGET', KEYS[1], 'available', 'pending', 'orders', 'limit', 'version', 'secret')
local available, limit = tonumber(sale[1]), tonumber(sale[4])
local user, qty, request = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local id = string.sub(redis.sha1hex(sale[6] .. #user .. ':' .. user .. request), 1, 24)
if redis.call('HEXISTS', KEYS[3], id) == 1 then
    return {'REPLAYED', id, available}
end
local mark = redis.call('HGET', KEYS[2], user)
local units, latest = 0, ''
if mark then
    units, latest = string.match(mark, '^(%d+):(%x+)$')
end
if limit > 0 and units + qty > limit then
    return {'LIMIT', latest, available}
end
if qty > available then
    return {'SOLD_OUT', '', available}
end
local entry = redis.call('XADD', KEYS[4], 'NOMKSTREAM', '*', 'token', ARGV[1] .. id, 'user', user, 'qty', qty)
redis.call('HSET', KEYS[3], id, 'P,' .. qty .. ',' .. entry .. ',0,' .. #latest .. ',' .. #user .. ',' .. #request ..
    ',0,0:' .. latest .. user .. request)
redis.call('HSET', KEYS[2], user, (units + qty) .. ':' .. id)
redis.call('HSET', KEYS[1], 'available', available - qty, 'pending', sale[2] + qty, 'orders', sale[3] + 1,
    'version', sale[5] + 1)
return {'RESERVED', id, available - qty}
