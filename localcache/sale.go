package localcache

import "time"

// Sale is what a sidecar has to know of a sale to send purchases to it. Durations
// are milliseconds, points in time Unix milliseconds of Redis's clock.
type Sale struct {
	ID      string // tells one life of a SKU from the next
	Secret  string // of which the tokens of requests are made
	Shards  int
	OpenAt  int64 // 0: open at once
	CloseAt int64 // 0: never closes
	Limit   int64 // units per user, 0 for no limit
	PayTTL  int64 // 0: reservations stay

	RateCount  int64 // purchases per user and RateWindow, 0 for any number
	RateWindow int64

	// Virgin is a sale without any order, settled ones included.
	Virgin bool
}

// absence is the knowledge that a SKU has no sale.
type absence struct {
	mark uint64
	at   time.Time
}

// LearnSale remembers a sale as Redis described it when its clock showed redisNow,
// both read after the mark was taken. Of several descriptions the one with the
// latest mark stays.
func (c *Cache[R]) LearnSale(m Mark, sale Sale, redisNow int64) {
	answered := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.absent.Peek(m.sku); ok && a.mark > m.number {
		return
	}
	r := c.recordOf(m.sku)
	if r.learned > m.number {
		return
	}
	c.absent.Remove(m.sku)
	r.sale, r.learned, r.clock = sale, m.number, reading{redis: redisNow, asked: m.at, answered: answered}
}

// LearnAbsent remembers that there is no sale of this SKU.
func (c *Cache[R]) LearnAbsent(m Mark) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.sales.Peek(m.sku)
	if !c.holds(m.number, r) || ok && r.learned > m.number {
		return
	}
	if ok {
		r.sale, r.learned = Sale{}, 0
		c.flags.Remove(m.sku)
	}
	c.absent.Add(m.sku, absence{mark: m.number, at: m.at})
}

// Sale returns what is remembered of a SKU's sale. It may be out of date.
func (c *Cache[R]) Sale(sku string) (Sale, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.sales.Get(sku)
	if !ok || r.learned == 0 {
		return Sale{}, false
	}
	return r.sale, true
}

// isAbsent reports whether a SKU certainly has no sale. r is its record, nil for
// none.
func (c *Cache[R]) isAbsent(sku string, r *record, now time.Time) bool {
	a, ok := c.absent.Get(sku)
	return ok && c.holds(a.mark, r) && now.Sub(a.at) < c.opts.AbsentFor
}
