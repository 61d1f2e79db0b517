package localcache

import (
	"hash/maphash"
	"time"
)

// Verdict is what is certain about a purchase.
type Verdict int

// Unknown: Redis has to be asked. Remembered: Redis answered the very same before.
// The others are its refusals.
const (
	Unknown Verdict = iota
	NoSale
	NotOpen
	Closed
	SoldOut
	RateLimited
	Remembered
)

// String returns the verdict's name.
func (v Verdict) String() string {
	return [...]string{"Unknown", "NoSale", "NotOpen", "Closed", "SoldOut", "RateLimited", "Remembered"}[v]
}

// Answer is a Verdict with what belongs to it.
type Answer[R any] struct {
	Verdict Verdict
	At      int64 // NotOpen: OpenAt of the sale. RateLimited: milliseconds to wait, at least 1.
	Receipt R     // of Remembered
}

// Refuse says what is certain about a purchase of qty units, without asking Redis.
// requestID is "" for none.
//
// The rules, in their order. All but RateLimited need Trust.
//
//   - NoSale: Redis said so, at most AbsentFor ago.
//   - Remembered: the sale is sold out, the user is among its buyers, and Redis
//     has answered this user, request id and quantity since.
//   - Closed: even the earliest time that Redis's clock can show is at or after
//     CloseAt. Not with a request id.
//   - NotOpen: even the latest is before OpenAt. With a request id only if the
//     sale is Virgin.
//   - RateLimited: the user's window has not ended by any reckoning. Not with a
//     request id.
//   - SoldOut: the sale is sold out and certainly open, and the user is not among
//     its buyers.
//
// A request with an id may have been carried out before, also by another sidecar,
// and then gets its answer again (REPLAYED) whatever has become of the sale. So
// it is refused only where it can't have been: there is no sale, there never was
// an order, or none of this user.
//
// Redis's script would look at window and rate before the limit. A receipt goes
// first here nevertheless: the token is worth more to its holder than to hear
// that the sale has closed meanwhile. And where the window isn't known, a
// purchase that is too fast or too late for the stock is refused as such.
func (c *Cache[R]) Refuse(sku, user, requestID string, qty int64) Answer[R] {
	now, hash := c.opts.Now(), maphash.String(seed, user)
	c.mu.Lock()
	defer c.mu.Unlock()
	trusted := c.trusted(now)
	r, ok := c.sales.Get(sku)
	if !ok || r.learned == 0 {
		if trusted && c.isAbsent(sku, r, now) {
			return Answer[R]{Verdict: NoSale}
		}
		return Answer[R]{}
	}
	if !trusted {
		return c.refuseRate(sku, user, requestID, r, now)
	}
	f := c.flagOf(sku, r)
	if f != nil {
		f.asked = now
	}
	bought := f != nil && f.has(hash)
	if bought {
		if answer, ok := c.receiptOf(f, receiptKey{sku, user, requestID, qty}); ok {
			return Answer[R]{Verdict: Remembered, Receipt: answer}
		}
	}
	if a := c.refuseWindow(requestID, r, now); a.Verdict != Unknown {
		return a
	}
	if a := c.refuseRate(sku, user, requestID, r, now); a.Verdict != Unknown {
		return a
	}
	if f != nil && !bought && c.sells(r, now) {
		return Answer[R]{Verdict: SoldOut}
	}
	return Answer[R]{}
}

func (c *Cache[R]) refuseWindow(requestID string, r *record, now time.Time) Answer[R] {
	switch w := c.window(r, now); {
	case w == closed && requestID == "":
		return Answer[R]{Verdict: Closed}
	case w == notOpen && (requestID == "" || r.sale.Virgin):
		return Answer[R]{Verdict: NotOpen, At: r.sale.OpenAt}
	}
	return Answer[R]{}
}

func (c *Cache[R]) refuseRate(sku, user, requestID string, r *record, now time.Time) Answer[R] {
	if requestID != "" {
		return Answer[R]{}
	}
	if left := c.rateLeft(sku, user, r, now); left > 0 {
		return Answer[R]{Verdict: RateLimited, At: left}
	}
	return Answer[R]{}
}
