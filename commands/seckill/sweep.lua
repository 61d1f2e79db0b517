-- Lets pending reservations expire whose deadline has passed.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- ARGV  1 what the tokens of this shard begin with, 2 most reservations to look at,
--       3 channel of results, 4 channel of events, 5 event that tells of stock
--       that came back, 6 '-' to begin with the oldest, or where to go on
-- Returns {reservations expired, milliseconds until it is worth to come again,
-- where to go on}; 0 milliseconds: there may be more to do; -1: this sale's
-- reservations don't expire
--
-- A script because of expiry and CONFIRM exactly one may win. All reservations
-- of a sale have the same time to pay, so the queue, which holds the pending
-- ones in the order in which they were made, holds them by deadline too.
--
-- Nothing can stop it half-way: as in settle.lua, the first writes show the right
-- to use the three commands that write, and the first of all is one that deletes
-- nothing and that a full Redis allows.

local sale, damage = read_sale(KEYS[1])
if damage then
    return damage
end
if not sale or sale.pay_ttl == 0 then
    return {0, -1, '-'}
end
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[3])

local now, most = now_ms(), tonumber(ARGV[2])
local was_empty, expired, seen, from = sale.available == 0, 0, 0, ARGV[6]
local wait = sale.pay_ttl
-- A queue that changes underneath is walked by ids, in small parts.
while seen < most do
    local entries = redis.call('XRANGE', KEYS[4], from, '+', 'COUNT', math.min(100, most - seen))
    if #entries == 0 then
        break
    end
    for _, entry in ipairs(entries) do
        local deadline = tonumber(string.match(entry[1], '^%d+')) + sale.pay_ttl
        if deadline > now then
            wait = math.min(wait, deadline - now)
            seen = -1
            break
        end
        seen, from = seen + 1, '(' .. entry[1]
        local id
        for i = 1, #entry[2], 2 do
            if entry[2][i] == 'token' then
                id = string.sub(entry[2][i + 1], -24)
            end
        end
        local record = id and redis.call('HGET', KEYS[3], id)
        local order = record and unpack_order(record)
        -- Anything else is damage, for AUDIT to name, or pull.lua's to remove.
        if order and order.state == 'P' and order.entry == entry[1] and order.qty <= sale.pending and order.deadline <= now then
            if expired == 0 then
                local refused = attempt('XDEL', KEYS[4], '0-0')
                if refused then
                    return refused
                end
                redis.call('HSET', KEYS[1], 'version', sale.version) -- as it is
            end
            give_back(KEYS, sale, id, order, 'E', '')
            publish(ARGV[3], expired_message(ARGV[1] .. id))
            expired = expired + 1
        end
    end
    if seen < 0 then
        break
    end
end
if expired > 0 and was_empty then
    publish(ARGV[4], ARGV[5])
end
return {expired, seen >= most and 0 or wait, from}
