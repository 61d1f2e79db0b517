-- Makes purchases of one shard, one after the other: for each, the stock, the
-- user's mark, the order record and the queue entry, or nothing. Before them it
-- takes in units that other shards have sent.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue; of a sale with a rate, then the
--       rate key of each purchase's user
-- ARGV  1 sale_id, 2 what the tokens of this shard begin with, 3 channel of events,
--       4 event that tells of new orders, 5 '1' to write something in any case,
--       6 '1' when these purchases were asked for before, and their rate was counted,
--       7 number of deliveries, and for each: shard that sent, its number, units;
--       then for each purchase (at most 500): user, qty, request id or '', token id
--       (see token.go)
-- Returns for each purchase: outcome, token id or '', units left where the stock
-- was looked at, else 0, time.
--   RESERVED      done; time: pay by, 0 for no limit
--   REPLAYED      this request was reserved before: its token id; time as above
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
-- A delivery is taken in when its number is the next of its sender, so one that
-- comes twice, or late, counts once. "In any case" is for who waits for replicas:
-- WAIT covers what the connection has written.
--
-- Nothing can stop it half-way. Reads have shown that each hash is one. The first
-- two writes show the right to use both commands that write, and that the queue
-- is there; the first does no harm alone, and the second is the first purchase's.

local FIXED, PER_DELIVERY, PER_PURCHASE = 7, 3, 4

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
    local number, units = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    if number == tonumber(redis.call('HGET', KEYS[1], field) or 0) + 1 then
        local refused = begin()
        if refused then
            return refused
        end
        sale.available, sale.received = sale.available + units, sale.received + units
        redis.call('HSET', KEYS[1], field, number, 'available', sale.available, 'received', sale.received)
    end
end
if count == 0 then
    return answers
end

-- What is known of the users: units held and latest reservation; and of the request
-- ids of those who have reserved before.
local users, ids, units_of, latest_of, requested = {}, {}, {}, {}, {}
for i = 1, count do
    local at = first + (i - 1) * PER_PURCHASE
    users[i], ids[i] = ARGV[at + 1], ARGV[at + 4]
end
for i, mark in ipairs(redis.call('HMGET', KEYS[2], unpack(users))) do
    local units, latest = 0, ''
    if mark then
        units, latest = unpack_buyer(mark)
        if not units then
            return redis.error_reply('ERR damaged sale: the mark of a buyer is unreadable, SECKILL.AUDIT names all damage')
        end
        if ARGV[first + (i - 1) * PER_PURCHASE + 3] ~= '' then
            requested[#requested + 1] = ids[i]
        end
    end
    units_of[users[i]], latest_of[users[i]] = units, latest
end
local pay_by = {} -- of the reservations that are there under a request id, or made here
if #requested > 0 then
    for i, record in ipairs(redis.call('HMGET', KEYS[3], unpack(requested))) do
        if record then
            local state, _, _, deadline = split_order(record)
            if not state then
                return redis.error_reply('ERR damaged sale: an order record is unreadable, SECKILL.AUDIT names all damage')
            end
            pay_by[requested[i]] = deadline
        end
    end
end

-- The latest reservation of a user that holds units, from the latest one
-- backwards. Of someone who reserves and cancels without end, it looks at so
-- many.
local made = {} -- token ids
local function holding(latest)
    local id = latest
    for _ = 1, 100 do
        if id == '' or made[id] then
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
-- doesn't count.
local wait_of = {} -- by purchase
if sale.rate_count > 0 and ARGV[6] ~= '1' and not closed and not waiting then
    for i = 1, count do
        if not pay_by[ids[i]] then
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

local available, bought, records, changed = sale.available, 0, {}, {}
for i = 1, count do
    local at, id, user = first + (i - 1) * PER_PURCHASE, ids[i], users[i]
    local qty, units = tonumber(ARGV[at + 2]), units_of[user]
    if pay_by[id] then
        answer('REPLAYED', id, available, pay_by[id])
    elseif closed then
        answer('CLOSED', '', 0, 0)
    elseif waiting then
        answer('NOT_OPEN', '', 0, sale.open_at)
    elseif wait_of[i] then
        answer('RATE_LIMITED', '', 0, wait_of[i])
    elseif sale.limit > 0 and units + qty > sale.limit then
        answer('LIMIT', holding(latest_of[user]), available, 0)
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
        local deadline = sale.pay_ttl > 0 and tonumber(string.match(entry, '^%d+')) + sale.pay_ttl or 0
        records[2 * bought + 1] = id
        records[2 * bought + 2] = pack_pending(ARGV[at + 2], entry, deadline, latest_of[user], user, ARGV[at + 3])
        bought = bought + 1
        made[id], pay_by[id], changed[user] = true, deadline, true
        units_of[user], latest_of[user] = units + qty, id
        available, sale.pending = available - qty, sale.pending + qty
        answer('RESERVED', id, available, deadline)
    end
end
if bought > 0 then
    local marks, n = {}, 0
    for user in pairs(changed) do
        marks[n + 1], marks[n + 2] = user, digits(units_of[user]) .. ':' .. latest_of[user]
        n = n + 2
    end
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
