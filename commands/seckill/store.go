// Package seckill is the flash sale: stock that is never sold twice, one step
// per purchase, reservations that are confirmed, cancelled or expire exactly
// once, and the queue that hands them to workers. All state is in Redis (keys.go
// says where), all decisions are made there by scripts; a Store only asks, and
// remembers answers for as long as they are certain.
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
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
)

// Options of a Store. A zero field means its default.
type Options struct {
	// Prefix begins all keys and channels, DefaultPrefix by default. It must
	// not contain braces: they would move the keys out of their shard's slot.
	Prefix string
	// Shards is how many shards a sale has that is created without a number, 1
	// to MaxShards; by default one for each master of a cluster.
	Shards int
	// TakeoverAfter is how long an order may lie with a worker, neither
	// confirmed nor cancelled, until PULL gives it to another. Whole
	// milliseconds, DefaultTakeoverAfter by default.
	TakeoverAfter time.Duration

	// BatchMax is the most purchases that one script call carries, 1 to MaxBatch;
	// DefaultBatchMax by default.
	BatchMax int
	// QueueMax is the most purchases of one sale that wait for the next call, and
	// QueuesMax that of all sales; one more is refused. DefaultQueueMax and
	// DefaultQueuesMax by default.
	QueueMax, QueuesMax int
	// QueueWait is how long a purchase waits for its call to begin, and after
	// that is refused. DefaultQueueWait by default.
	QueueWait time.Duration

	// SyncReplicas is how many replicas must have a purchase that doesn't say
	// how many, a settlement, and all else that is told to have been done, 0 by
	// default; SyncTimeout how long that may take, DefaultSyncTimeout by default.
	SyncReplicas int
	SyncTimeout  time.Duration

	// Cache bounds what is remembered of sales.
	Cache localcache.Options
	// AuditEvery is how often each sale is audited, 0 for never. Of a shard with
	// more than AuditOrdersMax reservations only the counters are looked at then;
	// Audit reads it in parts.
	AuditEvery     time.Duration
	AuditOrdersMax int64

	// Observer is told what happens, nil for nobody.
	Observer Observer
	// Log hears of damage, nil for nobody.
	Log *zap.Logger
}

// MaxBatch is how many purchases one script call can carry: what Lua can unpack at
// once, and what other commands can be made to wait for.
const MaxBatch = 500

// Defaults of Options.
const (
	// DefaultTakeoverAfter is long enough for an ordinary worker to settle an
	// order.
	DefaultTakeoverAfter  = 30 * time.Second
	DefaultBatchMax       = 128
	DefaultQueueMax       = 10_000
	DefaultQueuesMax      = 50_000
	DefaultQueueWait      = 2 * time.Second
	DefaultSyncTimeout    = 100 * time.Millisecond
	DefaultAuditOrdersMax = 5_000
)

func (o Options) withDefaults() Options {
	set(&o.Prefix, DefaultPrefix)
	set(&o.TakeoverAfter, DefaultTakeoverAfter)
	set(&o.BatchMax, DefaultBatchMax)
	set(&o.QueueMax, DefaultQueueMax)
	set(&o.QueuesMax, DefaultQueuesMax)
	set(&o.QueueWait, DefaultQueueWait)
	set(&o.SyncTimeout, DefaultSyncTimeout)
	set(&o.AuditOrdersMax, DefaultAuditOrdersMax)
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// set gives a field that is zero its default.
func set[T comparable](field *T, initial T) {
	var zero T
	if *field == zero {
		*field = initial
	}
}

// Observer is told what a Store does, for metrics. Its methods must not block.
type Observer interface {
	// Queued: so many more purchases wait for their script call, or fewer.
	Queued(purchases int)
	// Batch: one script call carried so many purchases.
	Batch(purchases int)
	// Local: a purchase was answered without asking Redis.
	Local(outcome string)
	// Shed: a purchase was refused since too many wait.
	Shed()
	// Expired: so many reservations were not paid in time.
	Expired(reservations int64)
	// Transferred: so many units were brought from one shard to another.
	Transferred(units int64)
	// Audited: a sale was audited, with so many differences.
	Audited(differences int64)
}

type nobody struct{}

func (nobody) Queued(int)        {}
func (nobody) Batch(int)         {}
func (nobody) Local(string)      {}
func (nobody) Shed()             {}
func (nobody) Expired(int64)     {}
func (nobody) Transferred(int64) {}
func (nobody) Audited(int64)     {}

// Store is the sales of one database, reached with the rights of one user. It
// is safe for concurrent use.
type Store struct {
	Options
	rdb     redis.UniversalClient
	prefix  string
	cache   *localcache.Cache[Receipt]
	lookups singleflight.Group // of sales, by SKU
	lineups *lineups
	loads   loads
	news    *news
	keeper  *keeper

	started sync.Once
	ctx     context.Context // of what the Store does by itself; ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup
}

// New makes a Store on a client that has MaxRetries -1 (no purchase may be sent
// twice), which stays the caller's to close.
func New(rdb redis.UniversalClient, opts Options) *Store {
	opts = opts.withDefaults()
	s := &Store{
		Options: opts,
		rdb:     rdb,
		prefix:  opts.Prefix,
		cache:   localcache.New[Receipt](opts.Cache),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.lineups = newLineups(s.serve, opts, &s.running)
	s.news = newNews(s)
	s.keeper = newKeeper(s)
	return s
}

// Start begins what a Store does by itself: it listens for what others do, and
// looks after the sales in turn with other sidecars. The first operation on a
// sale starts it too.
func (s *Store) Start() {
	s.started.Do(func() {
		if s.ctx.Err() != nil {
			return
		}
		s.news.start()
		s.running.Go(s.keeper.run)
	})
}

// Close ends that, and waits until it has ended. Operations under way must have
// ended before.
func (s *Store) Close() {
	s.started.Do(func() {}) // no start any more
	s.stop()
	s.news.close()
	s.running.Wait()
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
