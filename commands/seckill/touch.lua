-- Writes something that changes nothing, for who waits until replicas have a shard.
--
-- KEYS  1 sale
-- ARGV  1 sale_id
-- Returns 1, and 0 when there is no such sale
--
-- A script so that a sale that isn't there isn't made.

if redis.call('HGET', KEYS[1], 'sale_id') ~= ARGV[1] then
    return 0
end
return attempt('HSET', KEYS[1], 'sale_id', ARGV[1]) or 1
