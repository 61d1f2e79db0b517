-- Makes purchases of one shard, one after the other: for each, the stock, the
-- user's mark, the order record and the queue entry, or nothing.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- ARGV  1 what the tokens of this shard begin with, then for each purchase (at
--       most 500): user, qty, request id or '', token id for one without request id
-- Returns for each purchase: outcome, token id or '', units left, pay-by time.
--   RESERVED   done
--   REPLAYED   this request was reserved before: its token id
--   LIMIT      the user may not hold so many: token id of the latest
--              reservation that still holds units, '' for none
--   SOLD_OUT   fewer than qty units are left
--   NO_SALE    there is no such sale, or part of it was lost
--
-- A script because limit, request id, deduction, record and queue entry are one
-- step; a list because a call costs more than a purchase.
--
-- Nothing can stop it half-way. Reads have shown that each hash is one. The first
-- two writes show the right to use both commands that write, and that the queue
-- is there; the first does no harm alone, and the second is the first purchase's.

local FIELDS = 4

local count = (#ARGV - 1) / FIELDS
local answers = {}
local function answer(outcome, id, left, deadline)
    local n = #answers
    answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = outcome, id, left, deadline
end
local function no_sale()
    answers = {}
    for _ = 1, count do
        answer('NO_SALE', '', 0, 0)
    end
    return answers
end

local sale, damage = read_sale(KEYS[1])
if damage then
    return damage
end
-- HLEN is asked in any case, since it also shows a key of another type.
local marked, recorded = redis.call('HLEN', KEYS[2]), redis.call('HLEN', KEYS[3])
if not sale or (sale.orders > 0 and (marked == 0 or recorded == 0)) then
    return no_sale()
end

-- What is known of the users and of the request ids, read in two calls.
local purchases, users, requested = {}, {}, {}
for i = 1, count do
    local at = 1 + (i - 1) * FIELDS
    local p = {user = ARGV[at + 1], qty = tonumber(ARGV[at + 2]), request = ARGV[at + 3], id = ARGV[at + 4]}
    if p.request ~= '' then
        p.id = request_token_id(sale.secret, p.user, p.request)
        requested[#requested + 1] = p.id
    end
    purchases[i], users[i] = p, p.user
end
local buyers, orders = {}, {}
for i, mark in ipairs(redis.call('HMGET', KEYS[2], unpack(users))) do
    local units, latest = 0, ''
    if mark then
        units, latest = unpack_buyer(mark)
        if not units then
            return redis.error_reply('ERR damaged sale: the mark of a buyer is unreadable, SECKILL.AUDIT names all damage')
        end
    end
    buyers[users[i]] = {units = units, latest = latest}
end
local function remember(id, record)
    orders[id] = record and (unpack_order(record) or 'unreadable')
end
if #requested > 0 then
    for i, record in ipairs(redis.call('HMGET', KEYS[3], unpack(requested))) do
        remember(requested[i], record)
    end
end
for _, order in pairs(orders) do
    if order == 'unreadable' then
        return redis.error_reply('ERR damaged sale: an order record is unreadable, SECKILL.AUDIT names all damage')
    end
end

-- The latest reservation of a user that holds units, from the latest one
-- backwards. Of someone who reserves and cancels without end, it looks at so
-- many.
local function holding(latest)
    local id = latest
    for _ = 1, 100 do
        if id == '' then
            return ''
        end
        if orders[id] == nil then
            remember(id, redis.call('HGET', KEYS[3], id))
        end
        local order = orders[id]
        if type(order) ~= 'table' then
            return ''
        end
        if order.state == 'P' or order.state == 'C' then
            return id
        end
        id = order.prev
    end
    return latest
end

local changed, records, marks = {}, {}, {}
for _, p in ipairs(purchases) do
    local buyer = buyers[p.user]
    local before = p.request ~= '' and orders[p.id]
    if before then
        answer('REPLAYED', p.id, sale.available, before.deadline)
    elseif sale.limit > 0 and buyer.units + p.qty > sale.limit then
        answer('LIMIT', holding(buyer.latest), sale.available, 0)
    elseif p.qty > sale.available then
        answer('SOLD_OUT', '', sale.available, 0)
    else
        if #records == 0 then
            local refused = attempt('HSET', KEYS[1], 'version', sale.version + 1)
            if refused then
                return refused
            end
        end
        local entry = redis.call('XADD', KEYS[4], 'NOMKSTREAM', '*', 'token', ARGV[1] .. p.id, 'user', p.user, 'qty', p.qty)
        if not entry then -- the queue is lost, and nothing was bought yet
            return no_sale()
        end
        local order = {
            state = 'P', qty = p.qty, entry = entry, deadline = 0, prev = buyer.latest,
            user = p.user, request = p.request, order_id = '', reason = '',
        }
        orders[p.id] = order
        records[#records + 1] = p.id
        records[#records + 1] = pack_order(order)
        buyer.units, buyer.latest = buyer.units + p.qty, p.id
        changed[p.user] = buyer
        sale.available, sale.pending, sale.orders = sale.available - p.qty, sale.pending + p.qty, sale.orders + 1
        answer('RESERVED', p.id, sale.available, order.deadline)
    end
end
if #records > 0 then
    for user, buyer in pairs(changed) do
        marks[#marks + 1] = user
        marks[#marks + 1] = buyer.units .. ':' .. buyer.latest
    end
    redis.call('HSET', KEYS[3], unpack(records))
    redis.call('HSET', KEYS[2], unpack(marks))
    redis.call('HSET', KEYS[1], 'available', sale.available, 'pending', sale.pending, 'orders', sale.orders)
end
return answers
