-- What the scripts of this folder share: how a sale's counters and an order
-- record are read and written. Stands in front of each of them.

-- Counters that every sale has, each a decimal integer that isn't negative.
local COUNTERS = {'stock', 'restocked', 'available', 'pending', 'confirmed', 'cancelled',
                  'orders', 'limit', 'version'}

-- Returns the counters as numbers, and the secret: nil for a sale that isn't
-- there; nil and an error reply for one that misses something, since a counter
-- that can't be read isn't 0.
local function read_sale(key)
    local values = redis.call('HMGET', key, 'secret', unpack(COUNTERS))
    local sale, broken, found = {secret = values[1]}, nil, values[1]
    for i, name in ipairs(COUNTERS) do
        local value = values[i + 1]
        found = found or value
        if value and string.find(value, '^%d+$') then
            sale[name] = tonumber(value)
        else
            broken = broken or name
        end
    end
    if not found then
        return nil
    end
    if not sale.secret then
        broken = broken or 'secret'
    end
    if broken then
        return nil, redis.error_reply("ERR damaged sale: its field '" .. broken ..
            "' is missing or unreadable, SECKILL.AUDIT names all damage")
    end
    return sale
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

-- A user's mark: units held, token id of the latest reservation. nil for what
-- isn't one.
local function unpack_buyer(mark)
    local units, latest = string.match(mark, '^(%d+):(%x+)$')
    return tonumber(units), latest
end

-- The token id of a purchase that has a request id: the same request has the
-- same id, and who doesn't know the secret can't guess it.
local function request_token_id(secret, user, request)
    return string.sub(redis.sha1hex(secret .. #user .. ':' .. user .. request), 1, 24)
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
