-- Reads a reservation.
--
-- KEYS  1 sale, 2 orders
-- ARGV  1 token id
-- Returns {'FOUND', state, order id, reason}, or {'NO_SALE' or 'NO_RESERVATION', '', '', ''}
--
-- A script because sale and record are looked at together, and because the
-- format of the record is known to scripts only. Writes nothing.

if redis.call('EXISTS', KEYS[1]) == 0 then
    return {'NO_SALE', '', '', ''}
end
local record = redis.call('HGET', KEYS[2], ARGV[1])
if not record then
    return {'NO_RESERVATION', '', '', ''}
end
local order = unpack_order(record)
if not order then
    return redis.error_reply('ERR damaged sale: the order record is unreadable, SECKILL.AUDIT names all damage')
end
return {'FOUND', state_at(order, now_ms()), order.order_id, order.reason}
