package localcache

import "time"

// drift is by how much a time that passed on Redis's clock may differ from what
// passed on ours: a fifth. Clocks err by some millionths, but each may be running
// up to 8.3 % off while it is being corrected (chrony's default maxslewrate). A
// clock that is set, instead, isn't covered: what was reckoned from it is wrong
// until the reading is too old.
func drift(d time.Duration) time.Duration { return d / 5 }

// reading is a look at Redis's clock, which took place between asked and answered.
type reading struct {
	redis           int64 // Unix milliseconds, rounded down
	asked, answered time.Time
}

// bounds returns between which points in time, in Unix milliseconds, Redis's clock
// is now.
func (r reading) bounds(now time.Time) (earliest, latest int64) {
	least, most := now.Sub(r.answered), now.Sub(r.asked)
	earliest = r.redis + (least - drift(least)).Milliseconds()
	// One millisecond that was cut off in the reading, one that is cut off here.
	latest = r.redis + (most + drift(most)).Milliseconds() + 2
	return earliest, latest
}

// window is how a sale stands to its opening hours, as far as it is certain.
type window int

const (
	anyTime window = iota // open, or not known
	notOpen
	closed
)

// window looks at the clock. It knows nothing when a change came after the reading.
// Of an old reading it only knows that the sale had closed by then.
func (c *Cache[R]) window(r *record, now time.Time) window {
	if !c.holds(r.learned, r) {
		return anyTime
	}
	earliest, latest := r.clock.bounds(now)
	old := now.Sub(r.clock.asked) > c.opts.ClockFor
	switch {
	case r.sale.CloseAt > 0 && (r.clock.redis >= r.sale.CloseAt || !old && earliest >= r.sale.CloseAt):
		return closed
	case old:
	// CLOSED comes before NOT_OPEN, so it must not be possible yet.
	case latest < r.sale.OpenAt && (r.sale.CloseAt == 0 || latest < r.sale.CloseAt):
		return notOpen
	}
	return anyTime
}

// sells reports whether a sale is certainly open: a purchase of one that has closed,
// or isn't open yet, is to be told so and not that it is sold out.
func (c *Cache[R]) sells(r *record, now time.Time) bool {
	if r.sale.OpenAt == 0 && r.sale.CloseAt == 0 {
		return true // and whoever closes it says so
	}
	earliest, latest := r.clock.bounds(now)
	return c.holds(r.learned, r) && earliest >= r.sale.OpenAt && (r.sale.CloseAt == 0 || latest < r.sale.CloseAt)
}
