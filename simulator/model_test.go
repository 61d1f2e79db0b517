package simulator

import (
	"encoding/base64"
	"fmt"
	"slices"
	"sync"
	"time"
)

// model is what clients were told, and judges whether it can be true. An answer
// is compared with all that was told before, by what holds for certain: commands
// overlap, and one without an answer may be carried out or not, and later than
// its client gave up.
type model struct {
	mu     sync.Mutex
	shops  map[string]*shop // by SKU
	tokens map[string]*reservation

	failed  chan struct{} // closed at the first fault
	fault   string
	faultOf *answer // nil when it is of none
}

const (
	// late is how long after its client gave up a command may be carried out:
	// longer than faults hold processes and connections one after the other.
	late = 10 * time.Second
	// stale is for how long a sidecar may go on saying no on the strength of
	// what it remembers: until it knows that it doesn't hear of changes, a
	// second, and what it takes to answer.
	stale = 1250 * time.Millisecond
)

// shop is one SKU and the sales that it had, one after the other.
type shop struct {
	sku string

	// lifecycle is held by who creates, drops, opens or closes: what they are
	// told can only be judged one after the other.
	lifecycle sync.Mutex

	// The rest is guarded by the model's mu.
	sales     []*sale
	unsettled time.Time // before then, a CREATE or DROP without an answer may be carried out
	purchases []*purchase
	restocks  []*restock
}

// sale is one life of a SKU.
type sale struct {
	shop *shop
	terms

	// Certainly there from created to dropping, possibly from creating to
	// dropped. Zero times have not come.
	creating, created, dropping, dropped time.Time
	tried                                bool // an earlier CREATE may have been carried out
	half                                 bool // its creation or its end may have stopped half-way

	window window
	ids    map[request]string // tokens by request
}

// terms are what a sale is created with.
type terms struct {
	stock, limit, shards    int64 // shards: 0 for the default
	openAt, closeAt, payTTL int64
	rate, rateWindow        int64
}

// window is when a sale sells, as far as it is known.
type window struct {
	known           bool
	since           time.Time // holds from then on
	changing        bool      // somebody opens or closes it now
	openAt, closeAt int64     // 0 for at once, for never
	planned         int64     // what closeAt was before a CLOSE, which OPEN brings back; -1 if that isn't known
}

// request is a purchase that is made once.
type request struct{ user, id string }

// purchase is one BUY.
type purchase struct {
	shop *shop
	request
	qty        int64
	start, end time.Time // end: when it can't be carried out any more; zero while under way
	answer     *answer
	sale       *sale // whose it certainly is, nil where that isn't known
}

// restock is one RESTOCK.
type restock struct {
	shop       *shop
	id         string
	delta      int64
	start, end time.Time
	answer     *answer
	sale       *sale
}

// reservation is what is known of a token.
type reservation struct {
	token string
	shop  *shop
	sale  *sale // whose it certainly is, nil where that isn't known
	user  string
	qty   int64
	payBy int64 // 0 for none

	since      time.Time // when somebody was first told of it
	reserved   *answer   // that said RESERVED
	attempts   []attempt // to settle it, begun
	final      string    // CONFIRMED, CANCELLED or EXPIRED, "" while nobody was told so
	orderID    string
	finalSince time.Time
	back       time.Time // when somebody was first told that its units are back
	won        *answer   // that decided it
	deliveries map[int64]*answer
}

// attempt is a CONFIRM or CANCEL that was begun.
type attempt struct {
	status string // that it wants
	detail string // order id or reason
	start  time.Time
}

func newModel(skus []string) *model {
	m := &model{shops: map[string]*shop{}, tokens: map[string]*reservation{}, failed: make(chan struct{})}
	for _, sku := range skus {
		m.shops[sku] = &shop{sku: sku}
	}
	return m
}

// fail notes a fault of the program; the first one counts.
func (m *model) fail(a *answer, format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failLocked(a, format, args...)
}

func (m *model) failLocked(a *answer, format string, args ...any) {
	select {
	case <-m.failed:
	default:
		m.fault, m.faultOf = fmt.Sprintf(format, args...), a
		close(m.failed)
	}
}

// failing reports whether there was a fault.
func (m *model) failing() bool {
	select {
	case <-m.failed:
		return true
	default:
		return false
	}
}

// possible returns the sales of the SKU that may have been there at some moment
// from a to b.
func (s *shop) possible(a, b time.Time) []*sale {
	var sales []*sale
	for _, sale := range s.sales {
		if !sale.creating.After(b) && (sale.dropped.IsZero() || !sale.dropped.Before(a)) {
			sales = append(sales, sale)
		}
	}
	return sales
}

// certain returns the sale that was there all the time from a to b, nil where
// there may have been none or another.
func (s *shop) certain(a, b time.Time) *sale {
	for _, sale := range s.sales {
		if !sale.created.IsZero() && !sale.created.After(a) && (sale.dropping.IsZero() || sale.dropping.After(b)) {
			return sale
		}
	}
	return nil
}

// only returns the one sale that an effect from a to b can have been on, nil
// where it may have been one of several.
func (s *shop) only(a, b time.Time) *sale {
	if sales := s.possible(a, b); len(sales) == 1 {
		return sales[0]
	}
	return nil
}

// latest returns the sale created last, nil for none.
func (s *shop) latest() *sale {
	if len(s.sales) == 0 {
		return nil
	}
	return s.sales[len(s.sales)-1]
}

// stable reports that the window is known and the same from a until now.
func (w *window) stable(a time.Time) bool { return w.known && !w.changing && !w.since.After(a) }

// tokenPrefix is what all tokens of a SKU begin with.
func tokenPrefix(sku string) string { return base64.RawURLEncoding.EncodeToString([]byte(sku)) + "." }

// learn notes that there is a reservation with these properties, on the strength
// of an answer, and returns what is known of it now.
func (m *model) learn(a *answer, s *shop, token, user string, qty int64) *reservation {
	r := m.tokens[token]
	if r == nil {
		r = &reservation{
			token: token, shop: s, user: user, qty: qty, since: a.end, deliveries: map[int64]*answer{},
		}
		m.tokens[token] = r
	}
	switch {
	case r.shop != s:
		m.failLocked(a, "%s is a token of %s too", token, shown(r.shop.sku))
	case r.user != user || r.qty != qty:
		m.failLocked(a, "%s was of %s and %d units", token, shown(r.user), r.qty)
	}
	return r
}

// ends notes how a reservation stands for good, and that this never changes.
func (m *model) ends(a *answer, r *reservation, status, orderID string) {
	if r.final != "" && (r.final != status || r.orderID != orderID) {
		m.failLocked(a, "%s is %s %s, and stood %s %s before", r.token, status, shown(orderID), r.final, shown(r.orderID))
		return
	}
	if r.final == "" {
		r.final, r.orderID, r.finalSince = status, orderID, a.end
	}
	// RESULT says EXPIRED from the deadline on, some time before the units are back.
	if r.back.IsZero() && (status == "CANCELLED" || status == "EXPIRED" && a.args[0] != "SECKILL.RESULT") {
		r.back = a.end
	}
	switch status {
	case "CONFIRMED", "CANCELLED":
		if !r.attempted(status, orderID) {
			m.failLocked(a, "%s is %s %s, which nobody asked for", r.token, status, shown(orderID))
		}
	case "EXPIRED":
		if r.sale != nil && r.sale.payTTL == 0 {
			m.failLocked(a, "%s is EXPIRED in a sale without PAYTTL", r.token)
		}
		if r.payBy > a.end.UnixMilli()+clockSlack {
			m.failLocked(a, "%s is EXPIRED %d ms before its time", r.token, r.payBy-a.end.UnixMilli())
		}
	}
}

// over reports that somebody was told before t that it isn't pending any more,
// and nothing of it is in the queue.
func (r *reservation) over(t time.Time) bool {
	return r.final == "CONFIRMED" && r.finalSince.Before(t) || r.gone(t)
}

// gone reports that somebody was told before t that its units are back.
func (r *reservation) gone(t time.Time) bool { return !r.back.IsZero() && r.back.Before(t) }

// attempted reports whether somebody asked for this.
func (r *reservation) attempted(status, orderID string) bool {
	return slices.ContainsFunc(r.attempts, func(t attempt) bool {
		return t.status == status && (status != "CONFIRMED" || t.detail == orderID)
	})
}

// held reports that the reservation certainly holds its units at the time t,
// after it was heard of.
func (r *reservation) held(t time.Time) bool {
	if r.final != "" {
		return r.final == "CONFIRMED"
	}
	cancelled := slices.ContainsFunc(r.attempts, func(t attempt) bool { return t.status == "CANCELLED" })
	lasting := r.sale != nil && r.sale.payTTL == 0
	return !cancelled && (lasting || t.UnixMilli() < r.payBy-clockSlack)
}
