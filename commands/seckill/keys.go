package seckill

import "seckill-proxy/sharding"

// DefaultPrefix is what all keys and the channel begin with when Options names
// nothing else.
const DefaultPrefix = "seckill:"

// workersGroup is the consumer group of the order streams.
const workersGroup = "workers"

// Keys. A sale has four keys per shard, all in the shard's slot:
//
//	<prefix>{<tag>}:<kind>:<sku>
//
// where tag is sharding.Tag of that slot, so that any bytes may be in the SKU.
// One more key, for all sales, and a channel have no tag. None of the keys has
// a TTL: they live until the sale is dropped.
//
//	<prefix>{<tag>}:sale:<sku>    hash, what the sale is and its counters:
//	    stock       units that the sale was created with
//	    restocked   units added since, less those taken away
//	    available   units on sale
//	    pending     units reserved and not settled
//	    confirmed   units of confirmed reservations
//	    cancelled   units that cancelled reservations gave back, in all
//	    orders      reservations ever made
//	    limit       units that one user may hold, 0 for no limit
//	    shards      shards of the sale
//	    shard       which of them this is, from 0
//	    created_at  Unix milliseconds
//	    version     grows with every change of the counters
//	    secret      random, what token ids are derived from (see token.go)
//	    takeover    where the stream's pending list is searched next for
//	                entries of dead workers; absent means at its start
//	<prefix>{<tag>}:buyers:<sku>  hash, user → "<units held>:<token id of the
//	    latest reservation>"; a user who holds nothing any more stays, with 0
//	<prefix>{<tag>}:orders:<sku>  hash, token id → order record (records.lua)
//	<prefix>{<tag>}:queue:<sku>   stream with the consumer group "workers", one
//	    entry per pending reservation, gone when it is settled: token, user, qty
//
//	<prefix>sales                 sorted set of all SKUs, all with score 0 and so
//	    in the order of their bytes. A SKU enters before its sale exists, so it
//	    may name a sale that never came to be
//	<prefix>results               channel, one JSON message per settled order:
//	    {"type":"seckill_result","data":{"token":…,"status":…,"order_id":…}}
//	    with status CONFIRMED or CANCELLED. Bytes of an order id that aren't
//	    UTF-8 arrive as U+FFFD. What a user without the right to this channel
//	    settles isn't published
type keys struct {
	sale, buyers, orders, queue string
}

// keys returns the keys of a SKU in the shard whose slot has this tag.
func (s *Store) keys(sku, tag string) keys {
	key := func(kind string) string { return s.prefix + "{" + tag + "}:" + kind + ":" + sku }
	return keys{sale: key("sale"), buyers: key("buyers"), orders: key("orders"), queue: key("queue")}
}

// all lists the keys in the order in which most scripts take them.
func (k keys) all() []string { return []string{k.sale, k.buyers, k.orders, k.queue} }

func (s *Store) indexKey() string { return s.prefix + "sales" }

// ResultsChannel is the name of the channel on which settled orders are
// published.
func (s *Store) ResultsChannel() string { return s.prefix + "results" }

// shardTag returns the hash tag of one shard of a sale.
func shardTag(sku string, shard, shards int) string {
	return sharding.Tag(sharding.ShardSlot(sku, shard, shards))
}
