-- Settles a pending reservation: confirms it, or cancels it and gives back its
-- units and the user's allowance.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- ARGV  1 token id, 2 'C' to confirm or 'X' to cancel, 3 order id or reason,
--       4 channel, 5 message to publish there when it is settled
-- Returns {outcome, state that stands, order id that stands}
--   SETTLED         done
--   REPLAYED        it was so already, with the same order id
--   CONFLICT        it stands otherwise
--   NO_SALE, NO_RESERVATION
--
-- A script because of two that settle the same reservation exactly one may win,
-- and since record, counters, mark and queue entry change in one step.
--
-- Nothing can stop it half-way: the first four writes show the right to use the
-- three commands that write. The first deletes nothing. It isn't one of the
-- commands that a full Redis refuses, so settling, which takes no memory to
-- speak of, works there too.

local sale, damage = read_sale(KEYS[1])
if damage then
    return damage
end
if not sale then
    return {'NO_SALE', '', ''}
end
local record = redis.call('HGET', KEYS[3], ARGV[1])
if not record then
    return {'NO_RESERVATION', '', ''}
end
local order = unpack_order(record)
if not order or (order.state == 'P' and order.qty > sale.pending) then
    return redis.error_reply("ERR damaged sale: the order record or the counter 'pending' is wrong, " ..
        'SECKILL.AUDIT names all damage')
end
if order.state ~= 'P' then
    local same = order.state == ARGV[2] and (order.state ~= 'C' or order.order_id == ARGV[3])
    return {same and 'REPLAYED' or 'CONFLICT', order.state, order.order_id}
end
local mark = redis.call('HGET', KEYS[2], order.user)

local refused = attempt('XDEL', KEYS[4], '0-0')
if refused then
    return refused
end
redis.call('HSET', KEYS[1], 'version', sale.version + 1)
redis.call('XACK', KEYS[4], 'workers', order.entry)
redis.call('XDEL', KEYS[4], order.entry)

order.state = ARGV[2]
if order.state == 'C' then
    order.order_id = ARGV[3]
    redis.call('HSET', KEYS[3], ARGV[1], pack_order(order))
    redis.call('HSET', KEYS[1], 'pending', sale.pending - order.qty, 'confirmed', sale.confirmed + order.qty)
else
    order.reason = ARGV[3]
    redis.call('HSET', KEYS[3], ARGV[1], pack_order(order))
    redis.call('HSET', KEYS[1], 'pending', sale.pending - order.qty, 'available', sale.available + order.qty,
        'cancelled', sale.cancelled + order.qty)
    -- A mark that is lost or too small is damage, for AUDIT to name; the units
    -- go back all the same.
    local units, latest = unpack_buyer(mark or '')
    if units and units >= order.qty then
        redis.call('HSET', KEYS[2], order.user, (units - order.qty) .. ':' .. latest)
    end
end
-- Last, and allowed to fail: a user may lack the right to the channel.
redis.pcall('PUBLISH', ARGV[4], ARGV[5])
return {'SETTLED', order.state, order.order_id}
