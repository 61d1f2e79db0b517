-- Makes purchases of one shard, one after the other: for each, the stock, the
-- user's mark, the order record and the queue entry, or nothing. Before them it
-- takes in units that other shards have sent.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue; of a sale with a rate, then the
--       rate key of each purchase's user
-- ARGV  1 sale_id, 2 what the tokens of this shard begin with, 3 channel of events,
--       4 event that tells of new orders, 5 '1' to write something in any case,
--       6 '1' when these purchases were asked for before, and their rate was counted,
--       7 number of deliveries, and for each: shard that sent, units that it has sent
--       here in all;
--       then for each purchase (at most 500): user, qty, request id or '', token id
--       (see token.go), which nobody else's purchase has
-- Returns for each purchase that was made (RESERVED): the units left, an integer, and
-- in a sale with a pay_ttl the time to pay by; for any other: outcome, token id or '',
-- units left where the stock was looked at, else 0, time.
--   REPLAYED      this token id was reserved before; time: pay by, 0 for no limit
--   NOT_OPEN      time: opens
--   CLOSED
--   RATE_LIMITED  the user asked too often; time: milliseconds to wait
--   LIMIT         the user may not hold so many: token id of the latest
--                 reservation that still holds units, '' for none
--   SOLD_OUT      fewer than qty units are left in this shard
--   NO_SALE       there is no such sale, or part of it was lost
--   STALE         there is one, with another sale_id
--
-- A script because window, rate, limit, request id, deduction, record and queue
-- entry are one step; a list because a call costs more than a purchase.
--
-- Of a delivery counts what goes beyond all that has come from its sender, so one
-- that comes twice, or late, counts once. "In any case" is for who waits for
-- replicas: WAIT covers what the connection has written.
--
-- Nothing can stop it half-way. Reads have shown that each hash is one. The first
-- two writes show the right to use both commands that write, and that the queue
-- is there; the first does no harm alone, and the second is the first purchase's.

local FIXED, PER_DELIVERY, PER_PURCHASE = 7, 2, 4

local first = FIXED + PER_DELIVERY * tonumber(ARGV[7])
local count = (#ARGV - first) / PER_PURCHASE
local answers, answered = {}, 0
local function answer(outcome, id, left, time)
    answers[answered + 1], answers[answered + 2], answers[answered + 3], answers[answered + 4] = outcome, id, left, time
    answered = answered + 4
end
local function all(outcome)
    answered = 0
    for _ = 1, count do
        answer(outcome, '', 0, 0)
    end
    return answers
end

local sale, damage = read_sale(KEYS[1])
if damage then
    return damage
end
-- HLEN is asked in any case, since it also shows a key of another type.
local marked, recorded = redis.call('HLEN', KEYS[2]), redis.call('HLEN', KEYS[3])
if not sale or sale.state == 'DROPPING' or sale.state == 'REMOVING' or (sale.orders > 0 and (marked == 0 or recorded == 0)) then
    return all('NO_SALE')
end
if sale.sale_id ~= ARGV[1] then
    return all('STALE')
end
local now = now_ms()

-- The first write.
local begun = false
local function begin()
    if not begun then
        begun = true
        return attempt('HSET', KEYS[1], 'version', sale.version + 1)
    end
end

for at = FIXED + 1, first, PER_DELIVERY do
    local field = 'from:' .. ARGV[at]
    local total = tonumber(ARGV[at + 1])
    local units = total - tonumber(redis.call('HGET', KEYS[1], field) or 0)
    if units > 0 then
        local refused = begin()
        if refused then
            return refused
        end
        sale.available, sale.received = sale.available + units, sale.received + units
        redis.call('HSET', KEYS[1], field, total, 'available', sale.available, 'received', sale.received)
    end
end
if count == 0 then
    return answers
end

-- The marks of the users who have bought before, and what stands under the ids that
-- are asked for: only theirs can.
local users, ids, mark_of, taken = {}, {}, {}, {}
for i = 1, count do
    local at = first + (i - 1) * PER_PURCHASE
    users[i], ids[i] = ARGV[at + 1], ARGV[at + 4]
end
for i, mark in ipairs(redis.call('HMGET', KEYS[2], unpack(users))) do
    if mark then
        if not unpack_buyer(mark) then
            return redis.error_reply('ERR damaged sale: the mark of a buyer is unreadable, SECKILL.AUDIT names all damage')
        end
        mark_of[users[i]] = mark
        taken[#taken + 1] = ids[i]
    end
end
local pay_by = {} -- of the reservations that are there under an id, or made here
if #taken > 0 then
    for i, record in ipairs(redis.call('HMGET', KEYS[3], unpack(taken))) do
        if record then
            local state, _, _, deadline = split_order(record)
            if not state then
                return redis.error_reply('ERR damaged sale: an order record is unreadable, SECKILL.AUDIT names all damage')
            end
            pay_by[taken[i]] = deadline
        end
    end
end

-- The latest reservation of a user that holds units, from the latest one
-- backwards. Of someone who reserves and cancels without end, it looks at so
-- many.
local records, bought = {}, 0 -- token id and order record of each reservation made here
local function is_new(id)
    for i = 1, 2 * bought, 2 do
        if records[i] == id then
            return true
        end
    end
end
local function holding(latest)
    local id = latest
    for _ = 1, 100 do
        if id == '' or is_new(id) then
            return id
        end
        local record = redis.call('HGET', KEYS[3], id)
        local order = record and unpack_order(record)
        if not order then
            return ''
        end
        if order.state == 'P' or order.state == 'C' then
            return id
        end
        id = order.prev
    end
    return latest
end

local closed = sale.close_at > 0 and now >= sale.close_at
local waiting = sale.open_at > now

-- Who asks too often. The count of a user is kept for one window, which begins
-- with the first purchase asked for; a request that was carried out before
-- doesn't count, and of copies that travel together one does.
local wait_of = {} -- by purchase
if sale.rate_count > 0 and ARGV[6] ~= '1' and not closed and not waiting then
    local original = {} -- by token id, which purchase
    for i = 1, count do
        local copied = original[ids[i]]
        original[ids[i]] = copied or i
        if copied then
            wait_of[i] = wait_of[copied]
        elseif not pay_by[ids[i]] then
            local key = KEYS[4 + i]
            local refused = attempt('SET', key, 0, 'PX', sale.rate_window, 'NX')
            if refused then
                return refused
            end
            if redis.call('INCR', key) > sale.rate_count then
                wait_of[i] = math.max(redis.call('PTTL', key), 1)
            end
        end
    end
end

local available, marks = sale.available, {}
for i = 1, count do
    local at, id, user = first + (i - 1) * PER_PURCHASE, ids[i], users[i]
    local qty, units, latest, deadline = tonumber(ARGV[at + 2]), 0, '', nil
    if mark_of[user] then
        units, latest = unpack_buyer(mark_of[user])
        deadline = pay_by[id]
    end
    if deadline then
        answer('REPLAYED', id, available, deadline)
    elseif closed then
        answer('CLOSED', '', 0, 0)
    elseif waiting then
        answer('NOT_OPEN', '', 0, sale.open_at)
    elseif wait_of[i] then
        answer('RATE_LIMITED', '', 0, wait_of[i])
    elseif sale.limit > 0 and units + qty > sale.limit then
        answer('LIMIT', holding(latest), available, 0)
    elseif qty > available then
        answer('SOLD_OUT', '', available, 0)
    else
        local refused = begin()
        if refused then
            return refused
        end
        local entry = redis.call('XADD', KEYS[4], 'NOMKSTREAM', '*', 'token', ARGV[2] .. id, 'user', user, 'qty', ARGV[at + 2])
        if not entry then -- the queue is lost, and nothing was bought yet
            return all('NO_SALE')
        end
        -- From the entry's own time, so that the deadlines of the queue's
        -- entries are in the queue's order, whatever the clock does.
        deadline = sale.pay_ttl > 0 and tonumber(string.match(entry, '^%d+')) + sale.pay_ttl or 0
        local mark = digits(units + qty) .. ':' .. id
        records[2 * bought + 1], records[2 * bought + 2] = id, pack_pending(ARGV[at + 2], entry, deadline, latest, user, ARGV[at + 3])
        marks[2 * bought + 1], marks[2 * bought + 2] = user, mark -- of who buys twice the last one stays
        bought = bought + 1
        mark_of[user], pay_by[id] = mark, deadline
        available, sale.pending = available - qty, sale.pending + qty
        answered = answered + 1
        answers[answered] = available
        if sale.pay_ttl > 0 then
            answered = answered + 1
            answers[answered] = deadline
        end
    end
end
if bought > 0 then
    redis.call('HSET', KEYS[3], unpack(records))
    redis.call('HSET', KEYS[2], unpack(marks))
    redis.call('HSET', KEYS[1], 'available', available, 'pending', sale.pending, 'orders', sale.orders + bought)
    if sale.wanted > now then
        redis.call('HDEL', KEYS[1], 'wanted')
        publish(ARGV[3], ARGV[4])
    end
elseif ARGV[5] == '1' and not begun then
    return attempt('HSET', KEYS[1], 'sale_id', sale.sale_id) or answers
end
return answers
