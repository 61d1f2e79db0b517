// Package localcache is what a sidecar remembers of sales, so that it finds their
// shards without asking and refuses purchases that Redis would refuse. Redis has
// the truth; what is forgotten here costs a question, no more.
//
// Two kinds of knowledge differ in what they need. A Sale says where its keys are;
// every script checks the sale's id and answers STALE, so an old one does no
// harm. A refusal given from memory is checked by nobody. So refusals are only
// given while it is proven that changes would have been heard (Heard, Event,
// Reset), and are only learned when nothing changed while Redis was asked (Mark).
//
// Time is this machine's, and only differences count (the clock must be
// monotonic, as time.Now is); what Redis's clock says is reckoned from a reading
// of it. Both clocks run at their own pace: see drift. A machine that was
// suspended, a virtual one that was moved, doesn't know that time has passed, and
// for that long trusts what it shouldn't.
package localcache

import (
	"cmp"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Options of a Cache. What is zero becomes the default.
type Options struct {
	Now func() time.Time // time.Now

	Trust     time.Duration // 1 s: for so long after Heard refusals are given
	ClockFor  time.Duration // 1 s: for so long a reading of Redis's clock is used
	AbsentFor time.Duration // 1 s: then an absent sale is asked for again; who restores a key by hand, or swaps databases, tells nobody

	FlagFor time.Duration // 1 min: then a sold-out sale that nobody asks for is forgotten

	SalesMax    int // 10,000 SKUs with a sale or a change; if more change all the time, nothing is remembered for long
	AbsentMax   int // 50,000 SKUs without a sale
	RatesMax    int // 100,000 users who were too fast, about 220 bytes each
	BuyersMax   int // 4,000,000 buyers of all sold-out sales, 8 bytes each
	ReceiptsMax int // 100,000 answers to buyers of sold-out sales
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Trust = cmp.Or(o.Trust, time.Second)
	o.ClockFor = cmp.Or(o.ClockFor, time.Second)
	o.AbsentFor = cmp.Or(o.AbsentFor, time.Second)
	o.FlagFor = cmp.Or(o.FlagFor, time.Minute)
	o.SalesMax = cmp.Or(o.SalesMax, 10_000)
	o.AbsentMax = cmp.Or(o.AbsentMax, 50_000)
	o.RatesMax = cmp.Or(o.RatesMax, 100_000)
	o.BuyersMax = cmp.Or(o.BuyersMax, 4_000_000)
	o.ReceiptsMax = cmp.Or(o.ReceiptsMax, 100_000)
	return o
}

// Cache remembers the sales of one Redis database. R is the answer to a purchase
// as its owner keeps it. It is safe for concurrent use.
type Cache[R any] struct {
	opts Options

	// One lock for all, held for a few look-ups. The LRUs are those without a
	// lock of their own.
	mu sync.Mutex
	// sequence numbers marks and changes, in one order.
	sequence uint64
	// forgotten is the latest change that may concern any SKU: a Reset, or that
	// of a SKU whose record had to go.
	forgotten uint64
	heard     time.Time

	sales    *simplelru.LRU[string, *record]
	absent   *simplelru.LRU[string, absence]
	rates    *simplelru.LRU[rateKey, rate]
	flags    *simplelru.LRU[string, *flag]
	buyers   int // in all flags
	receipts *simplelru.LRU[receiptKey, receipt[R]]
}

// record is what is remembered of a SKU.
type record struct {
	changed uint64 // the latest Event, 0 for none since the record was made
	learned uint64 // the mark under which sale was learned, 0 for no sale
	sale    Sale
	clock   reading
}

// fact is when something was learned, and of which sale.
type fact struct {
	saleID string
	mark   uint64
}

// New returns an empty Cache, which trusts nothing until Heard. It panics when a
// bound is negative.
func New[R any](opts Options) *Cache[R] {
	opts = opts.withDefaults()
	c := &Cache[R]{
		opts:     opts,
		absent:   newLRU[string, absence](opts.AbsentMax, nil),
		rates:    newLRU[rateKey, rate](opts.RatesMax, nil),
		receipts: newLRU[receiptKey, receipt[R]](opts.ReceiptsMax, nil),
	}
	c.sales = newLRU(opts.SalesMax, func(sku string, r *record) {
		c.forgotten = max(c.forgotten, r.changed)
		c.flags.Remove(sku)
	})
	// There is at most one flag for each record, so BuyersMax alone decides.
	c.flags = newLRU(opts.SalesMax, func(_ string, f *flag) { c.buyers -= len(f.buyers) })
	return c
}

func newLRU[K comparable, V any](size int, onEvict simplelru.EvictCallback[K, V]) *simplelru.LRU[K, V] {
	lru, err := simplelru.NewLRU(size, onEvict)
	if err != nil {
		panic("localcache: " + err.Error())
	}
	return lru
}

// Heard says that all changes published before until have been passed to Event.
func (c *Cache[R]) Heard(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if until.After(c.heard) {
		c.heard = until
	}
}

// Event says that something of the SKU's sale changed: stock came back, its window
// is another one, it was created or dropped. What is known against purchases
// of it is forgotten, and what is being asked at the moment isn't learned.
func (c *Cache[R]) Event(sku string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequence++
	r := c.recordOf(sku)
	r.changed = c.sequence
	c.flags.Remove(sku)
}

// Reset says that changes may have been missed: it is Event for every SKU there
// is. Refusals are given again after the next Heard.
//
// It costs little: what lost its ground is only found out when asked for. The
// flags go at once, since they are large.
func (c *Cache[R]) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequence++
	c.forgotten = c.sequence
	c.flags.Purge()
	c.heard = time.Time{}
}

// Mark is the moment before Redis was asked something about a SKU. What is
// learned from the answer holds only if nothing changed since.
type Mark struct {
	sku    string
	number uint64
	at     time.Time
}

// Mark is taken before asking. A mark can serve several answers.
func (c *Cache[R]) Mark(sku string) Mark {
	at := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequence++
	return Mark{sku: sku, number: c.sequence, at: at}
}

// holds reports whether nothing changed since the mark was taken. r is the SKU's
// record, nil for none.
func (c *Cache[R]) holds(mark uint64, r *record) bool {
	changed := c.forgotten
	if r != nil {
		changed = max(changed, r.changed)
	}
	return mark > changed
}

// stands reports whether a fact is about the sale of the record, and holds.
func (c *Cache[R]) stands(f fact, r *record) bool {
	return f.saleID == r.sale.ID && c.holds(f.mark, r)
}

// recordOf returns the record of a SKU, a new one if need be.
func (c *Cache[R]) recordOf(sku string) *record {
	r, ok := c.sales.Get(sku)
	if !ok {
		r = &record{}
		c.sales.Add(sku, r)
	}
	return r
}

// trusted reports whether changes have been heard until just now.
func (c *Cache[R]) trusted(now time.Time) bool {
	return now.Sub(c.heard) < c.opts.Trust
}
