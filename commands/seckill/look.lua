-- Reads fields of a sale, and the clock of the server that has it: whether a sale
-- is open is a matter of that clock.
--
-- KEYS  1 sale
-- ARGV  fields
-- Returns {Unix milliseconds, value of each field, false for one that isn't there}
--
-- A script because only that goes to the server that has the key, wherever it is in
-- a cluster, for both. Writes nothing.

local values = redis.pcall('HMGET', KEYS[1], unpack(ARGV))
return values.err and values or {now_ms(), values}
