package seckill

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/localcache"
)

// State says whether a sale sells.
type State string

const (
	// NotYet: the sale doesn't sell yet.
	NotYet State = "NOT_OPEN"
	// Opened: purchases are accepted.
	Opened State = "OPEN"
	// Ended: the sale doesn't sell any more.
	Ended State = "CLOSED"
	// Damaged: a counter is missing or unreadable, nothing is sold. Audit says
	// what is wrong.
	Damaged State = "DAMAGED"
)

// stateAt is the state of a sale with this window at a time, in Unix milliseconds.
func stateAt(now, openAt, closeAt int64) State {
	switch {
	case closeAt > 0 && now >= closeAt:
		return Ended
	case now < openAt:
		return NotYet
	default:
		return Opened
	}
}

// Info is what a sale is and how it stands. Unless said otherwise, numbers
// count units. Those of several shards aren't read in one moment, but each
// shard's are, so that stock + restocked = available + in transit + pending +
// confirmed, with an in transit that can be off while units move.
type Info struct {
	Sale
	State       State
	CreatedAt   int64 // Unix milliseconds
	Restocked   int64 // added since it was created, less those taken away
	Available   int64
	InTransit   int64 // on their way between shards
	Pending     int64
	Confirmed   int64
	Cancelled   int64    // given back by cancelled reservations, in all
	Expired     int64    // given back by reservations that weren't paid in time, in all
	Buyers      int64    // users who ever reserved
	Orders      int64    // reservations ever made
	QueueLength int64    // pending orders, delivered or not
	Queues      []string // keys of the streams, one per shard
}

// shardInfo is what info.lua says of a shard.
type shardInfo struct {
	id                                                       string
	version, stock, restocked, available, received, sent     int64
	pending, confirmed, cancelled, expired, users, n, queued int64
}

// Info reads how a sale stands; found is false when there is none.
func (s *Store) Info(ctx context.Context, sku string) (info Info, found bool, err error) {
	shown, err := s.lookAt(ctx, sku)
	if err != nil {
		return Info{}, false, unlessAbsent(err)
	}
	if ending(shown.state) {
		return Info{}, false, nil
	}
	if shown.state == creating {
		if err := s.finishCreation(ctx, shown.plan); err != nil {
			return Info{}, false, unlessAbsent(err)
		}
	}
	info = Info{Sale: shown.Sale, CreatedAt: shown.createdAt, State: stateAt(shown.redisNow, shown.OpenAt, shown.CloseAt)}
	for shard := range shown.Shards {
		at, err := s.shardInfo(ctx, sku, shown.known(), shard)
		if err != nil {
			return Info{}, false, unlessAbsent(err)
		}
		info.Restocked += at.restocked
		info.Available += at.available
		info.InTransit += at.sent - at.received
		info.Pending += at.pending
		info.Confirmed += at.confirmed
		info.Cancelled += at.cancelled
		info.Expired += at.expired
		info.Buyers += at.users
		info.Orders += at.n
		info.QueueLength += at.queued
		info.Queues = append(info.Queues, s.keys(sku, shardTag(sku, shard, shown.Shards)).queue)
	}
	return info, true, nil
}

// shardInfo reads a shard's counters; errNoSale when it isn't there.
func (s *Store) shardInfo(ctx context.Context, sku string, known localcache.Sale, shard int) (shardInfo, error) {
	r := read(infoScript.Run(ctx, s.rdb, s.keys(sku, shardTag(sku, shard, known.Shards)).all()))
	if !r.more() {
		if r.err != nil {
			return shardInfo{}, r.err
		}
		return shardInfo{}, errNoSale
	}
	return shardInfo{
		id: r.text(), version: r.number(), stock: r.number(), restocked: r.number(), available: r.number(),
		received: r.number(), sent: r.number(), pending: r.number(), confirmed: r.number(), cancelled: r.number(),
		expired: r.number(), users: r.number(), n: r.number(), queued: r.number(),
	}, r.err
}

// ListMax is how many sales List returns at most.
const ListMax = 10_000

// Listed is one sale of a list.
type Listed struct {
	SKU   string
	State State
	Left  int64 // units on sale
}

// named is a name in the index.
type named struct {
	sku    string
	shards int
}

// index reads the names of the sales, ListMax at most, those with few shards
// first, and the time in Unix milliseconds.
func (s *Store) index(ctx context.Context) (names []named, now int64, err error) {
	r := read(indexScript.Run(ctx, s.rdb, []string{s.indexKey()}, ListMax))
	now, r.values = r.number(), r.list()
	for r.more() {
		sku := r.text()
		shards, _ := strconv.ParseFloat(r.text(), 64)
		names = append(names, named{sku, min(max(int(shards), 1), MaxShards)})
	}
	return names, now, beforehand(r.err)
}

// List returns the sales, ListMax at most, in the order of their SKUs' bytes.
func (s *Store) List(ctx context.Context) ([]Listed, error) {
	s.Start()
	names, now, err := s.index(ctx)
	if err != nil {
		return nil, err
	}
	var list []Listed
	const perTrip = 500 // shards whose counters are read in one round trip, and those of one sale more
	for len(names) > 0 {
		n, shards := 0, 0
		for n < len(names) && shards < perTrip {
			shards += names[n].shards
			n++
		}
		if list, err = s.appendListed(ctx, list, names[:n], now); err != nil {
			return nil, plainFailure("list", err)
		}
		names = names[n:]
	}
	slices.SortFunc(list, func(a, b Listed) int { return strings.Compare(a.SKU, b.SKU) })
	return list, nil
}

// appendListed adds those that there are. The number of shards that a sale itself
// says is right.
func (s *Store) appendListed(ctx context.Context, list []Listed, names []named, now int64) ([]Listed, error) {
	pipe := s.rdb.Pipeline()
	reads := make([][]*redis.SliceCmd, len(names))
	for i, name := range names {
		for shard := range name.shards {
			key := s.keys(name.sku, shardTag(name.sku, shard, name.shards)).sale
			reads[i] = append(reads[i], pipe.HMGet(ctx, key, "available", "stock", "state", "open_at", "close_at", "shards"))
		}
	}
	_, _ = pipe.Exec(ctx) // each read has its error
	for _, shards := range reads {
		for _, shard := range shards {
			if err := shard.Err(); err != nil && !isWrongType(err) {
				return nil, err
			}
		}
	}
	var again []named
	for i, shards := range reads {
		if shards[0].Err() != nil {
			list = append(list, Listed{SKU: names[i].sku, State: Damaged})
			continue
		}
		first := shards[0].Val()
		state, _ := first[2].(string)
		if ending(state) || state == creating || first[0] == nil && first[1] == nil {
			continue // going, gone, or its creation ended half-way
		}
		if n, wrong := listedNumber(first[5]); wrong == nil && 1 <= n && n <= MaxShards && int(n) != len(shards) {
			again = append(again, named{names[i].sku, int(n)})
			continue
		}
		openAt, wrongOpen := listedNumber(first[3])
		closeAt, wrongClose := listedNumber(first[4])
		listed := Listed{SKU: names[i].sku, State: stateAt(now, openAt, closeAt)}
		damaged := errors.Join(wrongOpen, wrongClose)
		for _, shard := range shards {
			if shard.Err() != nil {
				damaged = errors.Join(damaged, shard.Err())
				continue
			}
			left, wrong := listedNumber(shard.Val()[0])
			listed.Left += left
			damaged = errors.Join(damaged, wrong)
		}
		if damaged != nil {
			listed.State, listed.Left = Damaged, 0
		}
		list = append(list, listed)
	}
	if len(again) > 0 {
		return s.appendListed(ctx, list, again, now)
	}
	return list, nil
}

// isWrongType reports that a key of another type stands where a sale should.
func isWrongType(err error) bool { return redis.HasErrorPrefix(err, "WRONGTYPE") }

// listedNumber reads a counter.
func listedNumber(value any) (int64, error) {
	text, _ := value.(string)
	n, err := strconv.ParseUint(text, 10, 53)
	return int64(n), err
}
