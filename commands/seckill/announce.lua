-- Tells other sidecars that what they know of a sale is no longer so.
--
-- KEYS  1 sale, which needn't be there
-- ARGV  1 channel of events, 2 event that tells of the sale
-- Returns 1
--
-- A script because so it is published by the server that has the sale, which is
-- where others listen for that in a cluster.

publish(ARGV[1], ARGV[2])
return 1
