-- Settles a pending reservation: confirms it, or cancels it and gives back its
-- units and the user's allowance. One whose deadline has passed expires instead.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- ARGV  1 token id, 2 'C' to confirm or 'X' to cancel, 3 order id or reason,
--       4 channel of results, 5 message to publish there when it is settled,
--       6 channel of events, 7 event that tells of stock that came back,
--       8 what the tokens of this shard begin with, 9 '1' to write something in any
--       case
-- Returns {outcome, state that stands, order id that stands}
--   SETTLED         done
--   REPLAYED        it was so already, with the same order id
--   CONFLICT        it stands otherwise
--   EXPIRED         it has expired, now or before
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
local id, wanted = ARGV[1], ARGV[2]
local record = redis.call('HGET', KEYS[3], id)
if not record then
    return {'NO_RESERVATION', '', ''}
end
local order = unpack_order(record)
if not order or (order.state == 'P' and order.qty > sale.pending) then
    return redis.error_reply("ERR damaged sale: the order record or the counter 'pending' is wrong, " ..
        'SECKILL.AUDIT names all damage')
end
if order.state ~= 'P' and ARGV[9] == '1' then
    local refused = attempt('XDEL', KEYS[4], '0-0') or attempt('HSET', KEYS[1], 'sale_id', sale.sale_id)
    if refused then
        return refused
    end
end
if order.state == 'E' then
    return {'EXPIRED', 'E', ''}
end
if order.state ~= 'P' then
    local same = order.state == wanted and (order.state ~= 'C' or order.order_id == ARGV[3])
    return {same and 'REPLAYED' or 'CONFLICT', order.state, order.order_id}
end
redis.call('HLEN', KEYS[2]) -- shows a key of another type before anything is written

local refused = attempt('XDEL', KEYS[4], '0-0')
if refused then
    return refused
end
redis.call('HSET', KEYS[1], 'version', sale.version) -- as it is: units on sale change below
redis.call('XACK', KEYS[4], 'workers', order.entry)

local late = order.deadline > 0 and now_ms() >= order.deadline
local was_empty = sale.available == 0
if wanted == 'C' and not late then
    redis.call('XDEL', KEYS[4], order.entry)
    order.state, order.order_id = 'C', ARGV[3]
    redis.call('HSET', KEYS[3], id, pack_order(order))
    redis.call('HSET', KEYS[1], 'pending', sale.pending - order.qty, 'confirmed', sale.confirmed + order.qty)
    publish(ARGV[4], ARGV[5])
    return {'SETTLED', 'C', order.order_id}
end
give_back(KEYS, sale, id, order, late and 'E' or 'X', late and '' or ARGV[3])
publish(ARGV[4], late and expired_message(ARGV[8] .. id) or ARGV[5])
if was_empty then
    publish(ARGV[6], ARGV[7])
end
return {late and 'EXPIRED' or 'SETTLED', order.state, ''}
