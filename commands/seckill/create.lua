-- Creates one shard of a sale, unless it is there.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- ARGV  1 state, 2 sale_id, 3 secret, 4 shard, 5 shards, 6 stock of this shard,
--       7 total stock, 8 limit, 9 open_at, 10 close_at, 11 pay_ttl, 12 rate_count,
--       13 rate_window, 14 sale_id of another sale whose shard may be replaced, ''
--       for none
-- Returns {'CREATED' or 'EXISTS', sale_id and state of what is there now}
--
-- A script because "unless it is there" and the creation must be one step, and
-- because a sale without its stream must never be seen.
--
-- A shard of a sale that isn't there any more is what a sidecar left that went on
-- creating it while it was dropped. Which sale is there only shard 0 tells, so the
-- caller has looked; and in case another one has come since, it says which sale it
-- took for gone. A shard that was sold from is never replaced.

local there = redis.call('HMGET', KEYS[1], 'sale_id', 'state', 'orders')
local replace = there[1] and there[1] == ARGV[14] and there[3] == '0'
if redis.call('EXISTS', KEYS[1]) == 1 and not replace then
    return {'EXISTS', there[1] or '', there[2] or ''}
end
if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 or redis.call('XLEN', KEYS[4]) > 0 then
    return redis.error_reply('ERR damaged sale: its hash is gone and its orders are still there; ' ..
        'SECKILL.AUDIT names all damage, SECKILL.DROP with FORCE removes it')
end

-- A stream without a sale, all that can be left if the right for the second
-- write is missing, is taken for no sale, and used by the next CREATE.
local refused = attempt('XGROUP', 'CREATE', KEYS[4], 'workers', '0', 'MKSTREAM')
if refused and string.sub(refused.err, 1, 9) ~= 'BUSYGROUP' then
    return refused
end
if replace then
    redis.call('UNLINK', KEYS[1]) -- with its journal
end
redis.call('HSET', KEYS[1],
    'state', ARGV[1], 'sale_id', ARGV[2], 'secret', ARGV[3], 'shard', ARGV[4], 'shards', ARGV[5],
    'stock', ARGV[6], 'total', ARGV[7], 'limit', ARGV[8], 'open_at', ARGV[9], 'close_at', ARGV[10],
    'pay_ttl', ARGV[11], 'rate_count', ARGV[12], 'rate_window', ARGV[13], 'available', ARGV[6],
    'created_at', now_ms(), 'version', 1, 'window', 0, 'restocked', 0, 'received', 0, 'sent', 0,
    'pending', 0, 'confirmed', 0, 'cancelled', 0, 'expired', 0, 'orders', 0)
return {'CREATED', ARGV[2], ARGV[1]}
