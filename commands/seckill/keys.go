package seckill

import "seckill-proxy/sharding"

// DefaultPrefix is what all keys and channels begin with when Options names
// nothing else.
const DefaultPrefix = "seckill:"

// workersGroup is the consumer group of the order streams.
const workersGroup = "workers"

// Keys. A sale has four keys per shard, all in the shard's slot:
//
//	<prefix>{<tag>}:<kind>:<sku>
//
// where tag is sharding.Tag of that slot, so that any bytes may be in the SKU.
// They have no TTL: they live until the sale is dropped.
//
//	<prefix>{<tag>}:sale:<sku>    hash, what the sale is and its counters:
//	    state        SELLING; in shard 0 CREATING until all other shards are
//	                 there; DROPPING while it is decided whether the sale is
//	                 dropped, and in shard 0 REMOVING when it is
//	    sale_id      random, the same in all shards: a SKU that is sold again
//	                 after its sale was dropped has another one
//	    secret       random, the same in all shards: what token ids are derived
//	                 from (see token.go)
//	    shard        which shard this is, from 0
//	    shards       of the sale
//	    stock        units that this shard was created with
//	    total        units that the sale was created with
//	    restocked    units added since to this shard, less those taken away
//	    received     units that came from other shards, in all
//	    sent         units that went to other shards, in all
//	    available    units on sale
//	    pending      units reserved and not settled
//	    confirmed    units of confirmed reservations
//	    cancelled    units that cancelled reservations gave back, in all
//	    expired      units that reservations gave back which weren't paid in time
//	    orders       reservations ever made
//	    limit        units that one user may hold, 0 for no limit
//	    open_at      Unix milliseconds, 0 for always
//	    close_at     Unix milliseconds, 0 for never
//	    window       how often open_at and close_at were changed
//	    planned_close what close_at was before a CLOSE came earlier, in shard 0
//	    pay_ttl      milliseconds that a reservation stands, 0 for ever
//	    rate_count   purchases that a user may ask for
//	    rate_window  in so many milliseconds, 0 for any number
//	    created_at   Unix milliseconds
//	    version      grows with every change of available
//	    wanted       a worker waits for orders until then, Unix milliseconds
//	    takeover     where the stream's pending list is searched next for
//	                 entries of dead workers; absent means at its start
//	    to:<shard>   units that went to that shard, in all
//	    from:<shard> units that came from that shard, in all
//	<prefix>{<tag>}:buyers:<sku>  hash, user → "<units held>:<token id of the
//	    latest reservation>"; a user who holds nothing any more stays, with 0
//	<prefix>{<tag>}:orders:<sku>  hash, token id → order record (records.lua)
//	<prefix>{<tag>}:queue:<sku>   stream with the consumer group "workers", one
//	    entry per pending reservation, gone when it is settled: token, user, qty
//
// Beside shard 0, in its slot:
//
//	<prefix>{<tag>}:restocks:<sku> hash, request id of a RESTOCK → its units
//	<prefix>{<tag>}:keeper:<sku>   string, which sidecar looks after the sale;
//	    lives for seconds
//
// Beside each shard of a sale with a rate, for a user who asks:
//
//	<prefix>{<tag>}:rate:<sale_id>:<user> string, purchases asked for; lives for
//	    rate_window, also if the sale is dropped before
//
// One more key, for all sales, and two channels have no tag.
//
//	<prefix>sales                 sorted set of all SKUs with their number of
//	    shards. A SKU enters before its sale exists, so it may name a sale that
//	    never came to be
//	<prefix>results               channel, one JSON message per settled order:
//	    {"type":"seckill_result","data":{"token":…,"status":…,"order_id":…}}
//	    with status CONFIRMED, CANCELLED or EXPIRED. Bytes of an order id that
//	    aren't UTF-8 arrive as U+FFFD. What a user without the right to this
//	    channel settles isn't published
//	<prefix>events                channel, for the sidecars: what they remember
//	    of a sale is no longer so. "stock <sku>": a shard that was empty has
//	    units; "sale <sku>": it was created, dropped, opened or closed;
//	    "orders <sku>": the orders that workers wait for are there
type keys struct {
	sale, buyers, orders, queue string
}

// key returns the key of one kind of a SKU in the slot that has this tag.
func (s *Store) key(kind, sku, tag string) string {
	return s.prefix + "{" + tag + "}:" + kind + ":" + sku
}

// keys returns the keys of a SKU in the shard whose slot has this tag.
func (s *Store) keys(sku, tag string) keys {
	return keys{
		sale:   s.key("sale", sku, tag),
		buyers: s.key("buyers", sku, tag),
		orders: s.key("orders", sku, tag),
		queue:  s.key("queue", sku, tag),
	}
}

// all lists the keys in the order in which most scripts take them.
func (k keys) all() []string { return []string{k.sale, k.buyers, k.orders, k.queue} }

// rateKey counts what a user asks of a sale.
func (s *Store) rateKey(saleID, tag, user string) string { return s.key("rate", saleID+":"+user, tag) }

func (s *Store) indexKey() string { return s.prefix + "sales" }

// ResultsChannel is the name of the channel on which settled orders are
// published.
func (s *Store) ResultsChannel() string { return s.prefix + "results" }

func (s *Store) eventsChannel() string { return s.prefix + "events" }

// Kinds of events. An event is its kind, a space, and the SKU.
const (
	eventStock  = "stock"
	eventSale   = "sale"
	eventOrders = "orders"
)

func event(kind, sku string) string { return kind + " " + sku }

// MaxShards is the most shards that a sale can have.
const MaxShards = 128

// shardTag returns the hash tag of one shard of a sale.
func shardTag(sku string, shard, shards int) string {
	return sharding.Tag(sharding.ShardSlot(sku, shard, shards))
}

// firstTag returns the hash tag of shard 0, which is where a sale is looked up:
// it doesn't depend on the number of shards.
func firstTag(sku string) string { return shardTag(sku, 0, 1) }
