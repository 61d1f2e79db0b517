package localcache

import "time"

type rateKey struct{ sku, user string }

// rate is a user's being refused for asking too often.
type rate struct {
	fact
	asked time.Time
	after int64 // milliseconds to wait, as of some moment after asked
}

// LearnRateLimited remembers that a user was refused for asking too often and has
// to wait for retryAfter milliseconds.
func (c *Cache[R]) LearnRateLimited(m Mark, saleID, user string, retryAfter int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, _ := c.sales.Peek(m.sku); c.holds(m.number, r) {
		c.rates.Add(rateKey{m.sku, user}, rate{fact{saleID, m.number}, m.at, retryAfter})
	}
}

// rateLeft returns how many milliseconds the user still has to wait, 0 where that
// isn't certain. Nobody waits longer than for Redis: its window runs since it
// answered, this one since it was asked, and ends early by the drift.
func (c *Cache[R]) rateLeft(sku, user string, r *record, now time.Time) int64 {
	if r.sale.RateCount == 0 {
		return 0
	}
	limited, ok := c.rates.Get(rateKey{sku, user})
	if !ok || !c.stands(limited.fact, r) {
		return 0
	}
	waited := now.Sub(limited.asked)
	if (waited + drift(waited)).Milliseconds() >= limited.after {
		return 0
	}
	return limited.after - waited.Milliseconds()
}
