package simulator

import "time"

// settling notes that a CONFIRM or CANCEL begins.
func (m *model) settling(token, status, detail string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.tokens[token]; r != nil {
		r.attempts = append(r.attempts, attempt{status, detail, time.Now()})
	}
}

// settled judges the answer to a CONFIRM or CANCEL of a token that is known.
func (m *model) settled(a *answer, token, status, detail string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.tokens[token]
	if a.unknown() || a.refused() {
		return
	}
	if a.text(2) != token {
		m.failLocked(a, "the answer is about another token")
		return
	}
	orderID := a.text(3)
	switch {
	case a.code() == 200 && a.word() == status:
		if r.won != nil {
			m.failLocked(a, "it was decided before, by %s", r.won)
		}
		r.won = a
		if r.payBy > 0 && a.start.UnixMilli() > r.payBy+clockSlack {
			m.failLocked(a, "its time was over for %d ms", a.start.UnixMilli()-r.payBy)
		}
		if status == "CONFIRMED" && orderID != detail {
			m.failLocked(a, "the order id is %s, want %s", shown(orderID), shown(detail))
		}
		m.ends(a, r, status, orderID)
	case a.code() == 200 && a.word() == "REPLAYED":
		asked := 0
		for _, t := range r.attempts {
			if t.status == status && (status == "CANCELLED" || t.detail == detail) {
				asked++
			}
		}
		if asked < 2 || status == "CONFIRMED" && orderID != detail {
			m.failLocked(a, "REPLAYED to the first who asked")
		}
		m.ends(a, r, status, orderID)
	case a.code() == 409 && (a.word() == "CONFIRMED" || a.word() == "CANCELLED"):
		if a.word() == status && (status == "CANCELLED" || orderID == detail) {
			m.failLocked(a, "a conflict with what was asked for")
		}
		m.ends(a, r, a.word(), orderID)
	case a.code() == 410 && a.word() == "EXPIRED":
		m.ends(a, r, "EXPIRED", "")
	case a.code() == 404 && (a.word() == "NO_SALE" || a.word() == "NO_RESERVATION"):
		m.lost(a, r)
		return
	default:
		m.failLocked(a, "no such answer")
	}
	m.stillThere(a, r)
}

// lost: a reservation that somebody was told of is there as long as its sale.
func (m *model) lost(a *answer, r *reservation) {
	if r.sale != nil && r.sale == r.shop.certain(a.start, a.end) {
		m.failLocked(a, "%s is lost; somebody was told of it until %s", r.token, r.since.Format("15:04:05.000"))
	}
}

// stillThere: nothing is known of a reservation whose sale was dropped.
func (m *model) stillThere(a *answer, r *reservation) {
	if r.sale != nil && !r.sale.dropped.IsZero() && r.sale.dropped.Before(a.start) {
		m.failLocked(a, "the sale of %s was dropped until %s", r.token, r.sale.dropped.Format("15:04:05.000"))
	}
}

// looked judges the answer to RESULT for a token that is known.
func (m *model) looked(a *answer, token string, blocked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.tokens[token]
	if a.unknown() || a.refused() {
		return
	}
	if a.text(2) != token {
		m.failLocked(a, "the answer is about another token")
		return
	}
	switch {
	case a.code() == 404 && (a.word() == "NO_SALE" || a.word() == "NO_RESERVATION"):
		m.lost(a, r)
		return
	case a.word() == "PENDING" && (a.code() == 200 && !blocked || a.code() == 408 && blocked):
		if r.final != "" && r.finalSince.Before(a.start) {
			m.failLocked(a, "it was %s before", r.final)
		}
	case a.code() == 200 && (a.word() == "CONFIRMED" || a.word() == "CANCELLED" || a.word() == "EXPIRED"):
		m.ends(a, r, a.word(), a.text(3))
	default:
		m.failLocked(a, "no such answer")
	}
	m.stillThere(a, r)
}

// pulled judges the answer to PULL and returns the tokens that it handed out.
func (m *model) pulled(a *answer, s *shop, count int64) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case a.unknown(), a.refused():
		return nil
	case a.code() == 404:
		m.missing(s, a)
		return nil
	case a.code() != 200 || a.integer(1) != int64(len(a.array())-2) || a.integer(1) > count:
		m.failLocked(a, "PULL has no such answer")
		return nil
	}
	var tokens []string
	for _, element := range a.array()[2:] {
		order := answer{reply: element}
		token, user, qty := order.text(0), order.text(1), order.integer(2)
		r := m.learn(a, s, token, user, qty)
		if r.sale == nil {
			r.sale = s.only(a.start, a.end)
		}
		m.delivered(a, r, order.integer(3), order.integer(4))
		tokens = append(tokens, token)
	}
	return tokens
}

func (m *model) delivered(a *answer, r *reservation, createdAt, delivery int64) {
	if r.sale != nil && r.sale.payTTL > 0 && r.payBy == 0 {
		r.payBy = createdAt + r.sale.payTTL
	}
	if r.reserved != nil && !r.reserved.inTime(createdAt) {
		m.failLocked(a, "%s wasn't created at %d", r.token, createdAt)
	}
	if r.over(a.start) {
		m.failLocked(a, "%s was handed out when it was %s", r.token, r.final)
	}
	if before := r.deliveries[delivery]; before != nil || delivery < 1 {
		m.failLocked(a, "%s had a delivery %d before: %s", r.token, delivery, before)
	}
	r.deliveries[delivery] = a
	for number, other := range r.deliveries {
		if number < delivery && a.end.Sub(other.start) < takeover-clockSlack*time.Millisecond {
			m.failLocked(a, "%s was handed out again too early, after %s", r.token, other)
		}
	}
}

// found judges the answer to FIND.
func (m *model) found(a *answer, s *shop, user string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case a.unknown(), a.refused():
		return
	case a.code() == 404:
		m.missing(s, a)
		return
	case a.code() != 200 || a.integer(1) != int64(len(a.array())-2):
		m.failLocked(a, "FIND has no such answer")
		return
	}
	listed := map[string]bool{}
	for i := range a.array()[2:] {
		token := a.text(2 + i)
		listed[token] = true
		r := m.tokens[token]
		if r == nil {
			continue // of a purchase whose answer was lost, or comes
		}
		if r.user != user || r.shop != s {
			m.failLocked(a, "%s is of %s", token, shown(r.user))
		}
		if r.gone(a.start) {
			m.failLocked(a, "%s was %s before", token, r.final)
		}
		m.stillThere(a, r)
	}
	there := s.certain(a.start, a.end)
	for token, r := range m.tokens {
		if there != nil && r.sale == there && r.user == user && r.since.Before(a.start) && r.held(time.Now()) && !listed[token] {
			m.failLocked(a, "%s is missing", token)
		}
	}
}
