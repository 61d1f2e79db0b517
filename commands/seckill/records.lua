-- What the scripts of this folder share: how a sale's counters and an order
-- record are read and written. Stands in front of each of them.

-- Fields that every sale has, each a decimal integer that isn't negative.
local COUNTERS = {'stock', 'received', 'sent', 'available', 'pending', 'confirmed', 'cancelled', 'expired',
                  'orders', 'limit', 'open_at', 'close_at', 'pay_ttl', 'rate_count', 'rate_window', 'version'}

-- Returns the fields as numbers, and restocked, which may be negative, with
-- state, sale_id and secret as they are. nil for a sale that isn't there; nil and
-- an error reply for one that misses something, since a counter that can't be
-- read isn't 0.
local function read_sale(key)
    local values = redis.call('HMGET', key, 'state', 'sale_id', 'secret', 'restocked', 'wanted', unpack(COUNTERS))
    local sale = {state = values[1], sale_id = values[2], secret = values[3],
                  restocked = tonumber(values[4] or ''), wanted = tonumber(values[5] or 0) or 0}
    local found, broken
    local function check(name, value, pattern)
        found = found or value
        if not (value and string.find(value, pattern)) then
            broken = broken or name
        end
    end
    check('state', values[1], '.')
    check('sale_id', values[2], '.')
    check('secret', values[3], '.')
    check('restocked', values[4], '^%-?%d+$')
    for i, name in ipairs(COUNTERS) do
        check(name, values[i + 5], '^%d+$')
        sale[name] = tonumber(values[i + 5] or '')
    end
    if not found then
        return nil
    end
    if broken then
        return nil, redis.error_reply("ERR damaged sale: its field '" .. broken ..
            "' is missing or unreadable, SECKILL.AUDIT names all damage")
    end
    return sale
end

-- The time of this Redis, in Unix milliseconds.
local function now_ms()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- An order record is one string, numbers first and then binary strings by their
-- lengths:
--
--   <state>,<qty>,<stream entry id>,<deadline>,<5 lengths>:<prev><user><request><order_id><reason>
--
-- state     P pending, C confirmed, X cancelled, E expired
-- entry id  of its stream entry; its milliseconds are when it was reserved
-- deadline  Unix milliseconds to pay by, 0 for none
-- prev      token id of the same user's reservation before this one, or ''
local function pack_order(o)
    return o.state .. ',' .. o.qty .. ',' .. o.entry .. ',' .. o.deadline .. ',' ..
        #o.prev .. ',' .. #o.user .. ',' .. #o.request .. ',' .. #o.order_id .. ',' .. #o.reason .. ':' ..
        o.prev .. o.user .. o.request .. o.order_id .. o.reason
end

-- A number as text. Formatting one costs as much as ten look-ups, and in one
-- call the same few come again and again.
local formatted = {}
local function digits(n)
    local text = formatted[n]
    if not text then
        text = string.format('%.0f', n)
        formatted[n] = text
    end
    return text
end

-- The same for a new reservation, from its parts: what most records begin as. qty
-- may be a string.
local function pack_pending(qty, entry, deadline, prev, user, request)
    return 'P,' .. qty .. ',' .. entry .. ',' .. digits(deadline) .. ',' .. digits(#prev) .. ',' .. digits(#user) .. ',' ..
        digits(#request) .. ',0,0:' .. prev .. user .. request
end

-- Returns state, qty, entry, deadline, prev, user, request, order id and reason;
-- nothing for what isn't an order record.
local function split_order(record)
    local state, qty, entry, deadline, prev, user, request, order_id, reason, at = string.match(record,
        '^([PCXE]),(%d+),(%d+%-%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+):()')
    if not state then
        return
    end
    local user_at = at + prev
    local request_at = user_at + user
    local order_id_at = request_at + request
    local reason_at = order_id_at + order_id
    if #record + 1 ~= reason_at + reason then
        return
    end
    return state, tonumber(qty), entry, tonumber(deadline),
        string.sub(record, at, user_at - 1), string.sub(record, user_at, request_at - 1),
        string.sub(record, request_at, order_id_at - 1), string.sub(record, order_id_at, reason_at - 1),
        string.sub(record, reason_at)
end

-- The same as a table, nil for what isn't an order record.
local function unpack_order(record)
    local o = {}
    o.state, o.qty, o.entry, o.deadline, o.prev, o.user, o.request, o.order_id, o.reason = split_order(record)
    return o.state and o
end

-- The state of a reservation for who asks: one whose deadline has passed can't be
-- confirmed any more, also before it is swept and its units are back.
local function state_at(order, now)
    if order.state == 'P' and order.deadline > 0 and now >= order.deadline then
        return 'E'
    end
    return order.state
end

-- A user's mark: units held, token id of the latest reservation. nil for what
-- isn't one.
local function unpack_buyer(mark)
    local units, latest = string.match(mark, '^(%d+):(%x+)$')
    return tonumber(units), latest
end

-- Runs a command and returns the error that it answered, nil when it went well.
-- For the first write of a script: a refusal (no right, memory full, replica)
-- is then returned as Redis worded it, by every version of Redis.
local function attempt(...)
    local reply = redis.pcall(...)
    if type(reply) == 'table' and reply.err then
        return reply
    end
end

-- Ends a pending reservation without a sale, as cancelled (X, for a reason) or
-- expired (E): its units are for sale again and the user may buy again. The
-- caller has shown that it may write. Changes order and sale, which the caller
-- must not save again.
local function give_back(keys, sale, id, order, state, reason)
    order.state, order.reason = state, reason
    redis.call('XACK', keys[4], 'workers', order.entry)
    redis.call('XDEL', keys[4], order.entry)
    redis.call('HSET', keys[3], id, pack_order(order))
    local total = state == 'X' and 'cancelled' or 'expired'
    sale.pending, sale.available = sale.pending - order.qty, sale.available + order.qty
    sale[total], sale.version = sale[total] + order.qty, sale.version + 1
    redis.call('HSET', keys[1], 'pending', sale.pending, 'available', sale.available, total, sale[total],
        'version', sale.version)
    -- A mark that is lost or too small is damage, for AUDIT to name; the units
    -- go back all the same.
    local units, latest = unpack_buyer(redis.call('HGET', keys[2], order.user) or '')
    if units and units >= order.qty then
        redis.call('HSET', keys[2], order.user, (units - order.qty) .. ':' .. latest)
    end
end

-- Publishes, and is allowed to fail: a user may lack the right to the channel.
local function publish(channel, message)
    redis.pcall('PUBLISH', channel, message)
end

-- What subscribers of the results channel are told of a reservation that
-- expired. A token has only characters that JSON takes as they are.
local function expired_message(token)
    return '{"type":"seckill_result","data":{"token":"' .. token .. '","status":"EXPIRED","order_id":""}}'
end
