-- Hands pending orders to a worker: first those that another one took and has
-- neither settled nor given a sign of life for some time, then new ones.
--
-- KEYS  1 sale, 2 orders, 3 queue
-- ARGV  1 consumer, 2 most orders to hand out, 3 idle milliseconds after which
--       an order is taken over, 4 milliseconds that the worker will wait if there
--       is none, 0 when it won't, 5 sale_id
-- Returns {'NO_SALE'}, {'STALE'}, or {'FOUND', then for each order: token, user, qty,
-- created_at, which delivery this is, 1 for the first}
--
-- A script because what is handed out must be pending at that moment, and to
-- take over and to read new ones in one round trip. An answer that gets lost
-- loses nothing: its orders are taken over later. And because a worker that
-- waits must be known before the next order comes: buy.lua tells it.

-- One call looks at so many entries of the pending list, for orders to take
-- over, and at so many new ones. The next call goes on from there.
local SCAN = 1000

local consumer, wanted, idle = ARGV[1], tonumber(ARGV[2]), ARGV[3]
if redis.call('EXISTS', KEYS[1]) == 0 then
    return {'NO_SALE'}
end
if redis.call('HGET', KEYS[1], 'sale_id') ~= ARGV[5] then
    return {'STALE'}
end

local now = now_ms()
local answer = {'FOUND'}
local found = 0
local function hand_out(entry, delivery)
    local fields = {}
    for i = 1, #entry[2], 2 do
        fields[entry[2][i]] = entry[2][i + 1]
    end
    local record = redis.call('HGET', KEYS[2], string.sub(fields.token or '', -24))
    local order = record and unpack_order(record)
    if not order then
        return -- damage: it stays where it is, for AUDIT to name
    end
    if order.state == 'P' and order.deadline > 0 and now >= order.deadline then
        return -- nobody can confirm it any more: it stays for sweep.lua
    end
    if order.state ~= 'P' then
        -- Settled: whoever settled it had no right to remove the entry, or
        -- somebody put it back.
        redis.call('XACK', KEYS[3], 'workers', entry[1])
        redis.call('XDEL', KEYS[3], entry[1])
        return
    end
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3] = fields.token, fields.user, tonumber(fields.qty)
    answer[n + 4], answer[n + 5] = tonumber(string.match(entry[1], '^%d+')), delivery
    found = found + 1
end

local from = redis.call('HGET', KEYS[1], 'takeover') or '0-0'

-- The group is made again if somebody removed it: workers that stop are worse
-- than orders that come twice.
local group = attempt('XPENDING', KEYS[3], 'workers')
if group then
    if string.sub(group.err, 1, 7) ~= 'NOGROUP' then
        return group
    end
    local refused = attempt('XGROUP', 'CREATE', KEYS[3], 'workers', '0', 'MKSTREAM')
    if refused then
        return refused
    end
end

local at, scanned = from, 0
repeat
    -- XAUTOCLAIM looks at ten times as many entries as it may return.
    local most = wanted - found
    local reply = redis.call('XAUTOCLAIM', KEYS[3], 'workers', consumer, idle, at, 'COUNT', most)
    for _, entry in ipairs(reply[2]) do
        if entry then -- before Redis 7, false is one that is no longer in the stream
            local pending = redis.call('XPENDING', KEYS[3], 'workers', entry[1], entry[1], 1)
            hand_out(entry, pending[1][4])
        end
    end
    at, scanned = reply[1], scanned + most * 10
until at == '0-0' or found >= wanted or scanned >= SCAN
if at ~= from then
    redis.call('HSET', KEYS[1], 'takeover', at)
end

scanned = 0
while found < wanted and scanned < SCAN do
    local reply = redis.call('XREADGROUP', 'GROUP', 'workers', consumer, 'COUNT', wanted - found, 'STREAMS', KEYS[3], '>')
    if not reply then
        break
    end
    for _, entry in ipairs(reply[1][2]) do
        hand_out(entry, 1)
        scanned = scanned + 1
    end
end
local patience = tonumber(ARGV[4])
if found == 0 and patience > 0 then
    local wanted_until = tonumber(redis.call('HGET', KEYS[1], 'wanted') or 0) or 0
    local refused = attempt('HSET', KEYS[1], 'wanted', string.format('%.0f', math.max(wanted_until, now + patience)))
    if refused then
        return refused
    end
end
return answer
