package sharding

import "hash/fnv"

// ShardSlot returns the slot of one shard of a sale, shard in 0 to shards-1.
// The shards of a SKU lie evenly spaced around the slot range, starting at a
// slot that comes from all bytes of the SKU (braces mean nothing here), so that
// n shards meet n masters that own equal parts of it, and small sales don't all
// begin on the same master. It panics when shard is out of range.
func ShardSlot(sku string, shard, shards int) int {
	if shard < 0 || shard >= shards {
		panic("sharding: no such shard")
	}
	return (int(crc16(sku)) + shard*Slots/shards) % Slots
}

// HomeShard returns the shard, 0 to shards-1, that all purchases of a user go
// to, which keeps the user's limit and request ids exact. It depends on nothing
// but its arguments: all sidecars, now and after an upgrade, agree on it.
func HomeShard(user string, shards int) int {
	h := fnv.New64a()
	h.Write([]byte(user)) // never fails, says hash.Hash
	return int(h.Sum64() % uint64(shards))
}

// IsTag reports whether tag is what Tag returns for some slot.
func IsTag(tag string) bool {
	return tag != "" && Tag(Slot(tag)) == tag
}
