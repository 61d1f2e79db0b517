-- Computes one shard's totals from its records and compares: with the counters,
-- with the marks of the buyers, with the queue.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- ARGV  1 what the tokens of this shard begin with, 2 most differences to name
-- Returns {} for no sale, else
--   {counters: stock, restocked, available, pending, confirmed, cancelled, orders,
--    records:  pending, confirmed, cancelled, orders, users with a mark, queue entries,
--    differences in all, then for each one named: what, expected, found}
-- Where a difference is something missing or something too much, expected and
-- found are 1 and 0 or 0 and 1.
--
-- A script because both sides must be of one moment. Writes nothing. It reads
-- everything that the sale has: Redis serves nobody else meanwhile.

local prefix, most = ARGV[1], tonumber(ARGV[2])

local total, named = 0, {}
local function differ(what, expected, found)
    total = total + 1
    if total <= most then
        local n = #named
        named[n + 1], named[n + 2], named[n + 3] = what, expected, found
    end
end
local function compare(what, expected, found)
    if expected ~= found then
        differ(what, expected, found)
    end
end

local present = {}
for i, wanted in ipairs({'hash', 'hash', 'hash', 'stream'}) do
    local kind = redis.call('TYPE', KEYS[i]).ok
    present[i] = kind == wanted
    if not present[i] and kind ~= 'none' then
        differ('key ' .. KEYS[i] .. ' is a ' .. kind .. ' and not a ' .. wanted, 0, 1)
    end
end
local entries = present[4] and redis.call('XRANGE', KEYS[4], '-', '+') or {}
-- An empty queue alone is what a CREATE without the right to go on leaves.
if total == 0 and not (present[1] or present[2] or present[3]) and #entries == 0 then
    return {}
end

-- The counters. One that can't be read counts as 0 in the totals and is named.
local sale = {}
if present[1] then
    local values = redis.call('HMGET', KEYS[1], 'secret', unpack(COUNTERS))
    sale.secret = values[1]
    if not sale.secret then
        differ("field 'secret' of the sale", 1, 0)
    end
    for i, name in ipairs(COUNTERS) do
        local value = values[i + 1]
        local readable = value and string.find(value, '^%d+$')
        sale[name] = readable and tonumber(value) or 0
        if not readable then
            differ("readable field '" .. name .. "' of the sale", 1, 0)
        end
    end
else
    differ('key ' .. KEYS[1], 1, 0)
    for _, name in ipairs(COUNTERS) do
        sale[name] = 0
    end
end
if not present[4] then
    differ('key ' .. KEYS[4], 1, 0)
elseif attempt('XPENDING', KEYS[4], 'workers') then
    differ("consumer group 'workers' of " .. KEYS[4], 1, 0)
end

-- The order records, and what they say about each user.
local units, count = {P = 0, C = 0, X = 0, E = 0}, 0
local orders, users = {}, {}
local records = present[3] and redis.call('HGETALL', KEYS[3]) or {}
for i = 1, #records, 2 do
    local id, order = records[i], unpack_order(records[i + 1])
    count = count + 1
    if not order then
        differ('readable record of order ' .. prefix .. id, 1, 0)
    else
        orders[id] = order
        units[order.state] = units[order.state] + order.qty
        local user = users[order.user] or {units = 0, orders = 0}
        users[order.user] = user
        user.orders = user.orders + 1
        if order.state == 'P' or order.state == 'C' then
            user.units = user.units + order.qty
        end
        if order.request ~= '' and sale.secret and request_token_id(sale.secret, order.user, order.request) ~= id then
            differ('request id of order ' .. prefix .. id, 1, 0)
        end
    end
end

-- The marks of the buyers. The reservations of a user form a chain from the
-- latest one backwards.
local marks = present[2] and redis.call('HGETALL', KEYS[2]) or {}
for i = 1, #marks, 2 do
    local name = marks[i]
    local held, latest = unpack_buyer(marks[i + 1])
    local user = users[name]
    if not held then
        differ('readable mark of user ' .. name, 1, 0)
    elseif not user then
        differ('orders of user ' .. name, 1, 0)
    else
        compare('units held by user ' .. name, user.units, held)
        if sale.limit > 0 and user.units > sale.limit then
            differ('units of user ' .. name .. ' above the limit', sale.limit, user.units)
        end
        local length, id = 0, latest
        while length <= user.orders and orders[id] and orders[id].user == name do
            length, id = length + 1, orders[id].prev
        end
        compare('orders of user ' .. name .. ' that follow from the latest', user.orders, length)
    end
    if user then
        user.marked = true
    end
end
for name, user in pairs(users) do
    if not user.marked then
        differ('mark of user ' .. name, 1, 0)
    end
end
if count > 0 and not present[2] then
    differ('key ' .. KEYS[2], 1, 0)
end
if not present[3] and (sale.orders > 0 or #marks > 0 or #entries > 0) then
    differ('key ' .. KEYS[3], 1, 0)
end

-- The queue: one entry for each pending order, none else.
for _, entry in ipairs(entries) do
    local fields = {}
    for i = 1, #entry[2], 2 do
        fields[entry[2][i]] = entry[2][i + 1]
    end
    local id = string.sub(fields.token or '', -24)
    local order = orders[id]
    if order and order.state == 'P' and order.entry == entry[1] and fields.token == prefix .. id and
        fields.user == order.user and fields.qty == tostring(order.qty) then
        order.queued = true
    else
        differ('queue entry ' .. entry[1] .. ' without its pending order', 0, 1)
    end
end
for id, order in pairs(orders) do
    if order.state == 'P' and not order.queued then
        differ('queue entry of pending order ' .. prefix .. id, 1, 0)
    end
end

-- Both sides of the equation.
if present[1] then
    local stocked = sale.stock + sale.restocked
    compare("counter 'pending'", units.P, sale.pending)
    compare("counter 'confirmed'", units.C, sale.confirmed)
    compare("counter 'cancelled'", units.X, sale.cancelled)
    compare("counter 'orders'", count, sale.orders)
    compare("counter 'available'", stocked - units.P - units.C, sale.available)
    compare('available + pending + confirmed', stocked, sale.available + sale.pending + sale.confirmed)
end

local answer = {sale.stock, sale.restocked, sale.available, sale.pending, sale.confirmed, sale.cancelled, sale.orders,
    units.P, units.C, units.X, count, #marks / 2, #entries, total}
for _, value in ipairs(named) do
    answer[#answer + 1] = value
end
return answer
