-- Computes one shard's totals from its records and compares: with the counters,
-- with the marks of the buyers, with the queue.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- ARGV  1 what the tokens of this shard begin with, 2 most differences to name,
--       3 most reservations to read: of more, only the counters are compared
-- Returns {} for no sale, else
--   {sale_id, version,
--    counters: stock, restocked, received, sent, available, pending, confirmed,
--              cancelled, expired, orders,
--    records:  pending, confirmed, cancelled, expired, orders, users with a mark,
--              queue entries,
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
-- What differs is named in two parts, put together only where it does.
local function compare(what, whose, expected, found)
    if expected ~= found then
        differ(what .. whose, expected, found)
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
local queued = present[4] and redis.call('XLEN', KEYS[4]) or 0
-- An empty queue alone is what a CREATE without the right to go on leaves.
if total == 0 and not (present[1] or present[2] or present[3]) and queued == 0 then
    return {}
end

-- The counters. One that can't be read counts as 0 in the totals and is named.
local sale = {}
if present[1] then
    local values = redis.call('HMGET', KEYS[1], 'state', 'sale_id', 'secret', 'restocked', unpack(COUNTERS))
    sale.sale_id, sale.secret = values[2], values[3]
    for i, name in ipairs({'state', 'sale_id', 'secret'}) do
        if not values[i] then
            differ("field '" .. name .. "' of the sale", 1, 0)
        end
    end
    local function number(name, value, pattern)
        local readable = value and string.find(value, pattern)
        sale[name] = readable and tonumber(value) or 0
        if not readable then
            differ("readable field '" .. name .. "' of the sale", 1, 0)
        end
    end
    number('restocked', values[4], '^%-?%d+$')
    for i, name in ipairs(COUNTERS) do
        number(name, values[i + 4], '^%d+$')
    end
else
    differ('key ' .. KEYS[1], 1, 0)
    sale.restocked = 0
    for _, name in ipairs(COUNTERS) do
        sale[name] = 0
    end
end
if not present[4] then
    differ('key ' .. KEYS[4], 1, 0)
elseif attempt('XPENDING', KEYS[4], 'workers') then
    differ("consumer group 'workers' of " .. KEYS[4], 1, 0)
end

local stocked = sale.stock + sale.restocked + sale.received - sale.sent
local function answer(units, orders, users, entries)
    if present[1] then
        compare('available + pending + confirmed', '', stocked, sale.available + sale.pending + sale.confirmed)
    end
    local values = {sale.sale_id or '', sale.version, sale.stock, sale.restocked, sale.received, sale.sent,
        sale.available, sale.pending, sale.confirmed, sale.cancelled, sale.expired, sale.orders,
        units.P, units.C, units.X, units.E, orders, users, entries, total}
    for _, value in ipairs(named) do
        values[#values + 1] = value
    end
    return values
end
local units, count = {P = 0, C = 0, X = 0, E = 0}, 0
if present[3] and redis.call('HLEN', KEYS[3]) > tonumber(ARGV[3]) then
    return answer(units, 0, 0, 0)
end

-- The order records, and what they say about each user. There may be millions,
-- so a table per record would be too much.
local user_of, prev_of = {}, {}       -- by token id
local waiting, qty_of = {}, {}        -- token id and qty of pending orders, by entry id
local units_of, orders_of = {}, {}    -- by user
local records = present[3] and redis.call('HGETALL', KEYS[3]) or {}
for i = 1, #records, 2 do
    local id = records[i]
    local state, qty, entry, deadline, prev, user, request = split_order(records[i + 1])
    count = count + 1
    if not state then
        differ('readable record of order ' .. prefix .. id, 1, 0)
    else
        units[state] = units[state] + qty
        user_of[id], prev_of[id] = user, prev
        orders_of[user] = (orders_of[user] or 0) + 1
        units_of[user] = (units_of[user] or 0) + ((state == 'P' or state == 'C') and qty or 0)
        if present[1] and deadline ~= (sale.pay_ttl > 0 and tonumber(string.match(entry, '^%d+')) + sale.pay_ttl or 0) then
            differ('deadline of order ' .. prefix .. id, 1, 0)
        end
        if state == 'P' then
            if waiting[entry] then
                differ('queue entry of pending order ' .. prefix .. waiting[entry], 1, 0)
            end
            waiting[entry], qty_of[entry] = id, qty
        end
        if request ~= '' and sale.secret and request_token_id(sale.secret, user, request) ~= id then
            differ('request id of order ' .. prefix .. id, 1, 0)
        end
    end
end
records = nil

-- The marks of the buyers. The reservations of a user form a chain from the
-- latest one backwards.
local marks = present[2] and redis.call('HGETALL', KEYS[2]) or {}
for i = 1, #marks, 2 do
    local user = marks[i]
    local held, latest = unpack_buyer(marks[i + 1])
    if not held then
        differ('readable mark of user ' .. user, 1, 0)
    elseif not orders_of[user] then
        differ('orders of user ' .. user, 1, 0)
    else
        compare('units held by user ', user, units_of[user], held)
        if sale.limit > 0 and units_of[user] > sale.limit then
            differ('units above the limit held by user ' .. user, sale.limit, units_of[user])
        end
        local length, id = 0, latest
        while length <= orders_of[user] and user_of[id] == user do
            length, id = length + 1, prev_of[id]
        end
        compare('orders, from the latest backwards, of user ', user, orders_of[user], length)
    end
    orders_of[user] = nil
end
for user in pairs(orders_of) do
    differ('mark of user ' .. user, 1, 0)
end
if count > 0 and not present[2] then
    differ('key ' .. KEYS[2], 1, 0)
end
if not present[3] and (sale.orders > 0 or #marks > 0 or queued > 0) then
    differ('key ' .. KEYS[3], 1, 0)
end

-- The queue: one entry for each pending order, none else. Read in parts, since
-- each entry becomes several tables.
local from = '-'
while present[4] do
    local entries = redis.call('XRANGE', KEYS[4], from, '+', 'COUNT', 1000)
    if #entries == 0 then
        break
    end
    for _, entry in ipairs(entries) do
        local at, fields = entry[1], entry[2]
        local id = waiting[at]
        if id and fields[1] == 'token' and fields[2] == prefix .. id and fields[3] == 'user' and
            fields[4] == user_of[id] and fields[5] == 'qty' and tonumber(fields[6]) == qty_of[at] and not fields[7] then
            waiting[at] = nil
        else
            differ('queue entry ' .. at .. ' without its pending order', 0, 1)
        end
    end
    from = '(' .. entries[#entries][1]
end
for _, id in pairs(waiting) do
    differ('queue entry of pending order ' .. prefix .. id, 1, 0)
end

-- Both sides of the equation.
if present[1] then
    compare('counter ', "'pending'", units.P, sale.pending)
    compare('counter ', "'confirmed'", units.C, sale.confirmed)
    compare('counter ', "'cancelled'", units.X, sale.cancelled)
    compare('counter ', "'expired'", units.E, sale.expired)
    compare('counter ', "'orders'", count, sale.orders)
    compare('counter ', "'available'", stocked - units.P - units.C, sale.available)
end
return answer(units, count, #marks / 2, queued)
