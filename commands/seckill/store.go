// Package seckill is the flash sale: stock that is never sold twice, one step
// per purchase, reservations that are confirmed or cancelled exactly once, and
// the queue that hands them to workers. All state is in Redis (keys.go says
// where), all decisions are made there by scripts; a Store only asks.
//
// # Errors
//
// An operation that was answered, with a yes or a no, has no error: the answer
// is in its result. An error wraps script.ErrNotExecuted when nothing was
// changed, script.ErrUncertain when that is unknown, or it is a redis.Error
// that concerns the caller: missing rights, a key of another type, a sale whose
// counters are missing or unreadable (never taken for 0).
package seckill

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

// Options of a Store. A zero field means its default.
type Options struct {
	// Prefix begins all keys and the channel, DefaultPrefix by default. It must
	// not contain braces: they would move the keys out of their shard's slot.
	Prefix string
	// TakeoverAfter is how long an order may lie with a worker, neither
	// confirmed nor cancelled, until PULL gives it to another. Whole
	// milliseconds, DefaultTakeoverAfter by default.
	TakeoverAfter time.Duration
}

// DefaultTakeoverAfter is long enough for an ordinary worker to settle an order.
const DefaultTakeoverAfter = 30 * time.Second

// shardsPerSale is the number of shards that a sale is created with.
const shardsPerSale = 1

// Store is the sales of one database, reached with the rights of one user. It
// is safe for concurrent use.
type Store struct {
	rdb           redis.UniversalClient
	prefix        string
	takeoverAfter time.Duration
}

// New makes a Store on a client that has MaxRetries -1 (no purchase may be sent
// twice), which stays the caller's to close.
func New(rdb redis.UniversalClient, opts Options) *Store {
	if opts.Prefix == "" {
		opts.Prefix = DefaultPrefix
	}
	if opts.TakeoverAfter == 0 {
		opts.TakeoverAfter = DefaultTakeoverAfter
	}
	return &Store{rdb: rdb, prefix: opts.Prefix, takeoverAfter: opts.TakeoverAfter}
}

// Sale is what a sale is created with.
type Sale struct {
	SKU   string
	Stock int64 // units
	Limit int64 // units that one user may hold, 0 for no limit
}

// Created is the answer to Create.
type Created struct {
	Exists bool  // the sale was there before and wasn't touched
	Shards int64 // of the sale that there is now
}

// Create creates a sale and puts it on sale, unless there is one of this SKU.
func (s *Store) Create(ctx context.Context, sale Sale) (Created, error) {
	// The index comes first: a crash in between leaves a name without a sale,
	// which List leaves out, and not a sale that nobody finds.
	err := s.rdb.ZAdd(ctx, s.indexKey(), redis.Z{Member: sale.SKU}).Err()
	if err != nil {
		return Created{}, plainFailure("index", err)
	}
	keys := s.keys(sale.SKU, shardTag(sale.SKU, 0, shardsPerSale))
	const shard, secretBytes = 0, 16
	r := read(createScript.Run(ctx, s.rdb, keys.all(),
		sale.Stock, sale.Limit, shardsPerSale, shard, randomHex(secretBytes)))
	created := Created{Exists: r.text() == "EXISTS", Shards: r.number()}
	return created, r.err
}

// State says whether a sale sells.
type State string

const (
	// Open: purchases are accepted.
	Open State = "OPEN"
	// Damaged: a counter is missing or unreadable, nothing is sold. Audit says
	// what is wrong.
	Damaged State = "DAMAGED"
)

// Info is what a sale is and how it stands. Unless said otherwise, numbers
// count units.
type Info struct {
	State       State
	Stock       int64 // the sale was created with
	Restocked   int64 // added since, less those taken away
	Available   int64
	Pending     int64
	Confirmed   int64
	Cancelled   int64 // given back by cancelled reservations, in all
	Limit       int64 // per user, 0 for none
	Shards      int64
	CreatedAt   int64    // Unix milliseconds, of Redis's clock
	Buyers      int64    // users who ever reserved
	Orders      int64    // reservations ever made
	QueueLength int64    // pending orders, delivered or not
	Queues      []string // keys of the streams, one per shard
}

// Info reads how a sale stands; found is false when there is none.
func (s *Store) Info(ctx context.Context, sku string) (info Info, found bool, err error) {
	keys := s.keys(sku, shardTag(sku, 0, shardsPerSale))
	r := read(infoScript.Run(ctx, s.rdb, keys.all()))
	if !r.more() {
		return Info{}, false, r.err
	}
	info = Info{
		State: Open,
		Stock: r.number(), Restocked: r.number(), Available: r.number(), Pending: r.number(),
		Confirmed: r.number(), Cancelled: r.number(), Limit: r.number(),
		Shards: r.number(), CreatedAt: r.number(),
		Buyers: r.number(), Orders: r.number(), QueueLength: r.number(),
		Queues: []string{keys.queue},
	}
	return info, true, r.err
}

// ListMax is how many sales List returns at most.
const ListMax = 10_000

// Listed is one sale of a list.
type Listed struct {
	SKU   string
	State State
	Left  int64 // units on sale
}

// List returns the sales in the order of their SKUs' bytes, the first ListMax
// of them.
func (s *Store) List(ctx context.Context) ([]Listed, error) {
	skus, err := s.rdb.ZRange(ctx, s.indexKey(), 0, ListMax-1).Result()
	if err != nil {
		return nil, plainFailure("list", err)
	}
	var list []Listed
	const perTrip = 500 // sales whose counters are read in one round trip
	for len(skus) > 0 {
		n := min(len(skus), perTrip)
		if list, err = s.appendListed(ctx, list, skus[:n]); err != nil {
			return nil, plainFailure("list", err)
		}
		skus = skus[n:]
	}
	return list, nil
}

// appendListed adds those of the SKUs that have a sale.
func (s *Store) appendListed(ctx context.Context, list []Listed, skus []string) ([]Listed, error) {
	pipe := s.rdb.Pipeline()
	reads := make([]*redis.SliceCmd, len(skus))
	for i, sku := range skus {
		keys := s.keys(sku, shardTag(sku, 0, shardsPerSale))
		reads[i] = pipe.HMGet(ctx, keys.sale, "available", "stock")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	for i, read := range reads {
		available, stock := read.Val()[0], read.Val()[1]
		if available == nil && stock == nil {
			continue // in the index only: its creation ended half-way, or it is gone
		}
		text, _ := available.(string)
		left, err := strconv.ParseUint(text, 10, 53)
		state := Open
		if err != nil {
			state, left = Damaged, 0
		}
		list = append(list, Listed{SKU: skus[i], State: state, Left: int64(left)})
	}
	return list, nil
}

// plainFailure is the error of a command that isn't a script and, failing, has
// changed nothing that counts.
func plainFailure(what string, err error) error {
	var answered redis.Error
	if errors.As(err, &answered) && !script.Refused(err) {
		return err
	}
	return fmt.Errorf("seckill %s: %w: %w", what, script.ErrNotExecuted, err)
}
