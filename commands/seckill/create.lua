-- Creates one shard of a sale, unless it is there.
--
-- KEYS  1 sale, 2 buyers, 3 orders, 4 queue
-- ARGV  1 stock, 2 limit, 3 shards, 4 shard, 5 secret
-- Returns {'CREATED' or 'EXISTS', shards}
--
-- A script because "unless it is there" and the creation must be one step, and
-- because a sale without its stream must never be seen.

if redis.call('EXISTS', KEYS[1]) == 1 then
    return {'EXISTS', tonumber(redis.call('HGET', KEYS[1], 'shards') or 0)}
end
if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 or redis.call('XLEN', KEYS[4]) > 0 then
    return redis.error_reply('ERR damaged sale: its hash is gone and its orders are still there, ' ..
        'SECKILL.AUDIT names all damage')
end

-- A stream without a sale, all that can be left if the right for the second
-- write is missing, is taken for no sale, and used by the next CREATE.
local refused = attempt('XGROUP', 'CREATE', KEYS[4], 'workers', '0', 'MKSTREAM')
if refused and string.sub(refused.err, 1, 9) ~= 'BUSYGROUP' then
    return refused
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1],
    'stock', ARGV[1], 'restocked', 0, 'available', ARGV[1], 'pending', 0, 'confirmed', 0, 'cancelled', 0,
    'orders', 0, 'limit', ARGV[2], 'shards', ARGV[3], 'shard', ARGV[4],
    'created_at', time[1] * 1000 + math.floor(time[2] / 1000), 'version', 1, 'secret', ARGV[5])
return {'CREATED', tonumber(ARGV[3])}
