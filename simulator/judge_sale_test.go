package simulator

import (
	"maps"
	"slices"
	"time"
)

// restocking notes that a RESTOCK begins.
func (m *model) restocking(r *restock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.start = time.Now()
	r.shop.restocks = append(r.shop.restocks, r)
}

// restocked judges the answer to a RESTOCK.
func (m *model) restocked(r *restock, a *answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.answer, r.end = a, a.end
	if a.unknown() {
		r.end = a.end.Add(late)
	}
	r.sale = r.shop.only(r.start, r.end)
	there := r.shop.certain(a.start, a.end)
	applied, asked := false, 0
	for _, other := range r.shop.restocks {
		if other.id == r.id && r.id != "" {
			asked++
			applied = applied || other != r && other.applied() && other.sale == there && other.end.Before(a.start)
		}
	}
	switch {
	case a.unknown(), a.refused():
	case a.code() == 200 && a.word() == "RESTOCKED" && a.integer(2) >= 0:
		if applied && there != nil {
			m.failLocked(a, "it was carried out before")
		}
	case a.code() == 200 && a.word() == "REPLAYED" && a.integer(2) >= 0:
		if asked < 2 {
			m.failLocked(a, "REPLAYED to the first who asked")
		}
	case a.code() == 409 && a.word() == "INSUFFICIENT" && r.delta < 0: // refusals_test.go
		if applied && there != nil {
			m.failLocked(a, "it was carried out before")
		}
	case a.code() == 404 && a.word() == "NO_SALE":
		m.missing(r.shop, a)
	default:
		m.failLocked(a, "RESTOCK has no such answer")
	}
}

// applied reports that the restock certainly was carried out.
func (r *restock) applied() bool {
	return r.answer != nil && r.answer.code() == 200
}

// change changes the model in one step, by who holds a lifecycle.
func (m *model) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// turned judges the answer to OPEN or CLOSE of a sale, by who holds the
// lifecycle, and reports whether it is known what came of it.
func (m *model) turned(a *answer, sale *sale, open bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &sale.window
	w.changing = false
	from, to := a.start.UnixMilli()-clockSlack, a.end.UnixMilli()+clockSlack
	switch {
	case a.err != nil && !a.sent:
		return
	case a.unknown() || a.refused(): // one with several shards may have stopped between them
		w.known = false
		w.since = a.end.Add(late)
		return
	case a.code() == 404 && a.word() == "NO_SALE":
		m.missing(sale.shop, a)
		return
	case a.code() != 200 || open != (a.word() == "OPENED") || open == (a.word() == "CLOSED"):
		m.failLocked(a, "no such answer")
		return
	case a.end.Before(w.since):
		return // an earlier one may still come
	}
	switch {
	case open && !w.known:
		// Whether a CLOSE to come stands isn't known.
	case open && w.closeAt > 0 && w.closeAt >= from && w.closeAt <= to:
		w.known = false
	case open:
		w.openAt = min(w.openAt, to)
		switch {
		case w.closeAt == 0 || w.closeAt > to:
		case w.planned > to:
			w.closeAt = w.planned
		case w.planned == -1 || w.planned >= from:
			w.known = false
		default:
			w.closeAt = 0
		}
	case w.known && w.closeAt > 0 && w.closeAt < from:
		// It stays closed since then.
	default:
		w.planned = w.closeAt
		if !w.known || w.closeAt > 0 && w.closeAt <= to {
			w.planned = -1
		}
		w.known, w.closeAt = true, to
	}
	w.since = time.Now()
}

// described judges the answer to INFO.
func (m *model) described(a *answer, s *shop) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case a.unknown(), a.refused():
		return
	case a.code() == 404 && a.word() == "NO_SALE":
		m.missing(s, a)
		return
	case a.code() != 200 || a.word() != "INFO":
		m.failLocked(a, "INFO has no such answer")
		return
	}
	sale := s.certain(a.start, a.end)
	if sale == nil {
		return
	}
	fields := a.fields(2)
	for name, want := range sale.asCreated() {
		if fields[name] != want {
			m.failLocked(a, "%s is %v, want %v", name, fields[name], want)
		}
	}
	if fields["state"] == "DAMAGED" {
		m.failLocked(a, "the sale is damaged")
	}
}

// asCreated are the fields of INFO that never change.
func (s *sale) asCreated() map[string]any {
	want := map[string]any{
		"sku": s.shop.sku, "stock": s.stock, "limit": s.limit,
		"pay_ttl_ms": s.payTTL, "rate_count": s.rate, "rate_window_ms": s.rateWindow,
	}
	if s.shards > 0 {
		want["shards"] = s.shards
	}
	return want
}

// audited judges the answer to AUDIT: the equation holds at any moment.
func (m *model) audited(a *answer, s *shop) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sale := s.certain(a.start, a.end)
	switch {
	case a.unknown(), a.refused():
	case a.code() == 404 && a.word() == "NO_SALE":
		m.missing(s, a)
	case a.code() == 409 && a.word() == "DAMAGED":
		if sale != nil && !sale.half {
			m.failLocked(a, "the sale is damaged")
		}
	case a.code() == 200 && a.word() == "CLEAN":
		fields := a.fields(2)
		stocked := number(fields, "stock") + number(fields, "restocked")
		is := number(fields, "available") + number(fields, "in_transit") + number(fields, "pending") + number(fields, "confirmed")
		if stocked != is {
			m.failLocked(a, "clean, and %d units are stocked and %d are there", stocked, is)
		}
	default:
		m.failLocked(a, "AUDIT has no such answer")
	}
}

func number(fields map[string]any, name string) int64 {
	n, _ := fields[name].(int64)
	return n
}

// listed judges the answer to LIST: all sales that are there and none that isn't.
func (m *model) listed(a *answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.unknown() || a.refused() {
		return
	}
	if a.code() != 200 || a.integer(1) != int64(len(a.array())-2) {
		m.failLocked(a, "LIST has no such answer")
		return
	}
	var skus []string
	for _, element := range a.array()[2:] {
		entry := answer{reply: element}
		skus = append(skus, entry.text(0))
		s := m.shops[entry.text(0)]
		if s == nil || len(s.possible(a.start, a.end)) == 0 {
			m.failLocked(a, "there is no sale of %s", shown(entry.text(0)))
		} else if entry.text(1) == "DAMAGED" && s.certain(a.start, a.end) != nil {
			m.failLocked(a, "%s is damaged", shown(s.sku))
		}
	}
	if !slices.IsSorted(skus) {
		m.failLocked(a, "not in the order of the SKUs")
	}
	for _, sku := range slices.Sorted(maps.Keys(m.shops)) {
		if m.shops[sku].certain(a.start, a.end) != nil && !slices.Contains(skus, sku) {
			m.failLocked(a, "%s is missing", shown(sku))
		}
	}
}
