package simulator

import "time"

// buying notes that a BUY begins.
func (m *model) buying(p *purchase) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.start = time.Now()
	p.shop.purchases = append(p.shop.purchases, p)
}

// bought judges the answer to a BUY.
func (m *model) bought(p *purchase, a *answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.answer, p.end = a, a.end
	if a.unknown() {
		p.end = a.end.Add(late)
	}
	p.sale = p.shop.only(p.start, p.end)
	there := p.shop.certain(a.start, a.end) // all the time
	m.knownRequest(p, a, there)
	switch {
	case a.unknown(), a.refused():
	case a.code() == 200 && a.word() == "RESERVED":
		m.reserved(p, a)
	case a.code() == 200 && a.word() == "REPLAYED":
		m.replayed(p, a)
	case a.code() == 4001 && a.word() == "SOLD_OUT": // refusals_test.go
	case a.code() == 4002 && a.word() == "LIMIT":
		m.limited(p, a, there)
	case a.code() == 4003:
		m.notOnSale(p, a)
	case a.code() == 429 && a.word() == "RATE_LIMITED":
		m.rateLimited(p, a)
	case a.code() == 404 && a.word() == "NO_SALE":
		m.missing(p.shop, a)
	default:
		m.failLocked(a, "BUY has no such answer")
	}
}

// knownRequest: a request that was carried out before is REPLAYED with its token,
// whatever else is the matter.
func (m *model) knownRequest(p *purchase, a *answer, there *sale) {
	if p.id == "" || there == nil || a.unknown() || a.refused() {
		return
	}
	token := there.ids[p.request]
	if token == "" || m.tokens[token].since.After(a.start) {
		return
	}
	// A sidecar that was cut off a moment ago may not have heard of it. It says no
	// then, as it does to everybody, and sells nothing.
	if no := a.code() == 404 || a.code() == 4001 || a.code() == 4003; no && m.tokens[token].since.After(a.start.Add(-stale)) {
		return
	}
	if a.word() != "REPLAYED" || a.text(2) != token {
		m.failLocked(a, "the request was carried out before, under %s", token)
	}
}

func (m *model) reserved(p *purchase, a *answer) {
	token := a.text(2)
	if known := m.tokens[token]; known != nil && known.reserved != nil {
		m.failLocked(a, "%s was RESERVED before, to %s", token, known.reserved)
	}
	r := m.own(p, a, p.qty)
	if r == nil {
		return
	}
	r.reserved = a
	sale := r.sale
	if sale == nil {
		return
	}
	if w := sale.window; w.stable(a.start) {
		if a.end.UnixMilli() < w.openAt-clockSlack {
			m.failLocked(a, "it opens %d ms later", w.openAt-a.end.UnixMilli())
		}
		if w.closeAt > 0 && a.start.UnixMilli() > w.closeAt+clockSlack {
			m.failLocked(a, "it has been closed for %d ms", a.start.UnixMilli()-w.closeAt)
		}
	}
	m.withinLimit(p, a, sale)
	m.withinRate(p, a, sale)
}

func (m *model) replayed(p *purchase, a *answer) {
	if p.id == "" {
		m.failLocked(a, "REPLAYED without a request id")
		return
	}
	asked := 0
	for _, other := range p.shop.purchases {
		if other.request == p.request && other.start.Before(a.end) {
			asked++
		}
	}
	if asked < 2 {
		m.failLocked(a, "REPLAYED to the first who asked")
	}
	m.own(p, a, p.qty)
}

// own notes whose token an answer to BUY names.
func (m *model) own(p *purchase, a *answer, qty int64) *reservation {
	token, payBy := a.text(2), a.integer(4)
	if token == "" {
		m.failLocked(a, "no token")
		return nil
	}
	if len(p.shop.possible(a.start, a.end)) == 0 {
		m.failLocked(a, "there is no such sale")
		return nil
	}
	r := m.learn(a, p.shop, token, p.user, qty)
	if r.sale == nil {
		r.sale = p.shop.only(a.start, a.end)
	}
	r.payBy = payBy
	sale := r.sale
	if sale == nil {
		return r
	}
	switch {
	case (payBy == 0) != (sale.payTTL == 0):
		m.failLocked(a, "pay by %d with PAYTTL %d", payBy, sale.payTTL)
	case payBy != 0 && a.word() == "RESERVED" && !a.inTime(payBy-sale.payTTL):
		m.failLocked(a, "pay by %d isn't PAYTTL %d after the purchase", payBy, sale.payTTL)
	}
	if p.id != "" {
		if known := sale.ids[p.request]; known != "" && known != token {
			m.failLocked(a, "the same request has %s too", known)
		}
		sale.ids[p.request] = token
	}
	return r
}

// withinLimit: nobody holds more than LIMIT.
func (m *model) withinLimit(p *purchase, a *answer, sale *sale) {
	if sale.limit == 0 {
		return
	}
	now, units := time.Now(), int64(0)
	for _, r := range m.tokens {
		if r.sale == sale && r.user == p.user && r.held(now) {
			units += r.qty
		}
	}
	if units > sale.limit {
		m.failLocked(a, "%s holds %d units, the limit is %d", shown(p.user), units, sale.limit)
	}
}

// limited: who is told LIMIT is told their own token. Whether it was true is
// judged at the end.
func (m *model) limited(p *purchase, a *answer, there *sale) {
	if there != nil && there.limit == 0 {
		m.failLocked(a, "this sale has no limit")
	}
	if r := m.tokens[a.text(2)]; r != nil && (r.user != p.user || r.shop != p.shop) {
		m.failLocked(a, "the token is of %s", shown(r.user))
	}
}

// notOnSale: NOT_OPEN and CLOSED by Redis's clock, also where a sidecar answers
// by its own, which is wrong.
func (m *model) notOnSale(p *purchase, a *answer) {
	if a.word() != "NOT_OPEN" && a.word() != "CLOSED" {
		m.failLocked(a, "BUY has no such answer")
		return
	}
	since := a.start.Add(-stale)
	sale := p.shop.certain(since, a.end)
	if sale == nil || !sale.window.stable(since) {
		return
	}
	w := sale.window
	closed := w.closeAt > 0 && a.end.UnixMilli() >= w.closeAt-clockSlack
	switch {
	case a.word() == "NOT_OPEN" && a.start.UnixMilli() > w.openAt+clockSlack:
		m.failLocked(a, "it has been open for %d ms", a.start.UnixMilli()-w.openAt)
	case a.word() == "NOT_OPEN" && a.integer(4) != w.openAt:
		m.failLocked(a, "it opens at %d", w.openAt)
	case a.word() == "CLOSED" && !closed:
		m.failLocked(a, "it closes at %d", w.closeAt)
	}
}

// rateLimited: too fast is who asked more than so often within the window.
func (m *model) rateLimited(p *purchase, a *answer) {
	sale := p.shop.certain(a.start.Add(-stale), a.end)
	if sale == nil {
		return
	}
	if sale.rate == 0 {
		m.failLocked(a, "this sale has no rate")
		return
	}
	if wait := a.integer(4); wait < 1 || wait > sale.rateWindow {
		m.failLocked(a, "retry after %d ms, in a window of %d", wait, sale.rateWindow)
	}
	from := a.start.Add(-stale - time.Duration(sale.rateWindow)*time.Millisecond)
	asked := int64(0)
	for _, other := range p.shop.purchases {
		if other.user == p.user && !other.start.After(a.end) && (other.end.IsZero() || other.end.After(from)) {
			asked++
		}
	}
	if asked <= sale.rate {
		m.failLocked(a, "%s asked %d times, and may %d times", shown(p.user), asked, sale.rate)
	}
}

// withinRate: no window lets more than so many through, and no time as long as
// one has more than two of them.
func (m *model) withinRate(p *purchase, a *answer, sale *sale) {
	if sale.rate == 0 {
		return
	}
	from := a.end.Add(-time.Duration(sale.rateWindow) * time.Millisecond)
	through := int64(0)
	for _, other := range p.shop.purchases {
		mine := other.user == p.user && other.sale == sale
		if mine && other.answer != nil && other.answer.word() == "RESERVED" && other.start.After(from) {
			through++
		}
	}
	if through > 2*sale.rate {
		m.failLocked(a, "%s bought %d times within %d ms, and may %d times", shown(p.user), through, sale.rateWindow, sale.rate)
	}
}

// missing: NO_SALE is not said of a sale that is there.
func (m *model) missing(s *shop, a *answer) {
	if sale := s.certain(a.start.Add(-stale), a.end); sale != nil {
		m.failLocked(a, "the sale is there, created until %s", sale.created.Format("15:04:05.000"))
	}
}
