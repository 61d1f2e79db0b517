package seckill

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
	"seckill-proxy/sharding"
)

// lineups is where purchases wait for the script call of their shard. Of one
// shard one call is under way at a time, and carries what has gathered during
// the one before it; a purchase that finds none under way goes at once. This is
// the combining of requests behind one server (Oyama, Taura, Yonezawa 1999;
// "flat combining", Hendler et al. 2010), and what databases call group commit.
type lineups struct {
	serve   func(lane, []*order) // answers each
	options Options
	running *sync.WaitGroup

	mu      sync.Mutex
	lanes   map[lane]*lineup // with a call under way
	waiting map[string]int   // orders, by SKU
	total   int              // orders waiting
}

// lane is what purchases must have in common to travel together.
type lane struct {
	sku    string
	shard  int
	shards int
	sync   int // replicas; who waits for them holds up nobody else
}

func (l lane) tag() string { return shardTag(l.sku, l.shard, l.shards) }

// lineup is the orders that wait for the call that is under way.
type lineup struct{ waiting []*order }

// order is a purchase on its way.
type order struct {
	Purchase
	known localcache.Sale // what the purchase was directed by
	since time.Time       // zero for the one that didn't wait
	done  chan struct{}   // has an element when answered

	receipt Receipt
	err     error
}

// orders are those that nobody uses: a purchase needs one, with its channel, only
// for as long as it lasts.
var orders = sync.Pool{New: func() any { return &order{done: make(chan struct{}, 1)} }}

func newLineups(serve func(lane, []*order), options Options, running *sync.WaitGroup) *lineups {
	return &lineups{
		serve: serve, options: options, running: running,
		lanes: make(map[lane]*lineup), waiting: make(map[string]int),
	}
}

// buy lets a purchase be served and returns its answer. It waits for as long as
// Options.QueueWait and two calls.
func (l *lineups) buy(p Purchase, known localcache.Sale) (Receipt, error) {
	at := lane{sku: p.SKU, shard: sharding.HomeShard(p.User, known.Shards), shards: known.Shards, sync: p.Sync}
	o := orders.Get().(*order)
	o.Purchase, o.known = p, known
	defer o.recycle()

	l.mu.Lock()
	line, busy := l.lanes[at]
	if !busy {
		line = &lineup{}
		l.lanes[at] = line
		l.mu.Unlock()
		l.call(at, []*order{o})
		l.next(at, line)
		return o.receipt, o.err
	}
	if l.total >= l.options.QueuesMax || l.waiting[p.SKU] >= l.options.QueueMax {
		l.mu.Unlock()
		l.options.Observer.Shed()
		return Receipt{}, fmt.Errorf("seckill buy: %w: %w", script.ErrNotExecuted, ErrBusy)
	}
	o.since = time.Now()
	line.waiting = append(line.waiting, o)
	l.waiting[p.SKU]++
	l.total++
	l.mu.Unlock()
	l.options.Observer.Queued(1)
	<-o.done
	return o.receipt, o.err
}

// recycle gives back an order whose answer was taken.
func (o *order) recycle() {
	*o = order{done: o.done}
	orders.Put(o)
}

// next is called when a call has ended: whoever waits is served by a goroutine of
// their own, so that the one whose call it was can go.
func (l *lineups) next(at lane, line *lineup) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(line.waiting) == 0 {
		delete(l.lanes, at)
		return
	}
	l.running.Go(func() {
		for batch := l.take(at, line); len(batch) > 0; batch = l.take(at, line) {
			l.serveWaiting(at, batch)
		}
	})
}

// take returns the orders for one call, none when nobody waits any more.
func (l *lineups) take(at lane, line *lineup) []*order {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(line.waiting), l.options.BatchMax)
	if n == 0 {
		delete(l.lanes, at)
		return nil
	}
	batch := line.waiting[:n:n]
	if line.waiting = line.waiting[n:]; len(line.waiting) == 0 {
		line.waiting = nil
	}
	l.total -= n
	l.options.Observer.Queued(-n)
	if l.waiting[at.sku] -= n; l.waiting[at.sku] == 0 {
		delete(l.waiting, at.sku)
	}
	return batch
}

// serveWaiting serves orders that have waited, but for those that waited for too
// long: their clients have given up, and those behind them shouldn't.
func (l *lineups) serveWaiting(at lane, batch []*order) {
	now, inTime := time.Now(), make([]*order, 0, len(batch))
	for _, o := range batch {
		if now.Sub(o.since) <= l.options.QueueWait {
			inTime = append(inTime, o)
			continue
		}
		l.options.Observer.Shed()
		o.err = fmt.Errorf("seckill buy: %w: %w", script.ErrNotExecuted, ErrBusy)
	}
	if len(inTime) > 0 {
		l.call(at, inTime)
	}
	for _, o := range batch {
		o.done <- struct{}{} // from here on it is its purchase's alone
	}
}

// call serves orders. One that panics costs them an error, and those behind them
// nothing: they would wait for ever for a call that has no end.
func (l *lineups) call(at lane, orders []*order) {
	defer func() {
		if p := recover(); p != nil {
			l.options.Log.Error("purchases panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			fail(orders, fmt.Errorf("seckill buy: %w: internal error", script.ErrUncertain))
		}
	}()
	l.serve(at, orders)
}
