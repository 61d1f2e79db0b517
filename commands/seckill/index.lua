-- Lists the names of sales, those with few shards first.
--
-- KEYS  1 index
-- ARGV  1 most names
-- Returns {Unix milliseconds, {name, shards, name, shards, …}}
--
-- A script as look.lua is. Writes nothing.

local names = redis.pcall('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
return names.err and names or {now_ms(), names}
