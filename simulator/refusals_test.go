package simulator

import (
	"math"
	"time"
)

// refusals judges, when all orders of a sale are known with the times at which
// they were made, whether those were right who were told that nothing is left or
// that they have enough: was there a moment at which it can have been true?
type refusals struct {
	sale   *sale
	orders map[string]order
	units  []movement
}

// movement is a change of what is on sale. Units that are taken count from the
// earliest moment on, those that come back from the latest, so that the sum is
// never more than what there was.
type movement struct {
	at    time.Time
	units int64
}

// judgeRefusals looks at all answers about a sale. Nobody else uses the model
// meanwhile.
func (m *model) judgeRefusals(sale *sale, orders map[string]order) {
	j := refusals{sale: sale, orders: orders}
	j.movements(m)
	for _, p := range sale.shop.purchases {
		if p.answer == nil || p.answer.start.Before(sale.created.Add(stale)) {
			continue
		}
		from := p.answer.start.Add(-stale)
		switch p.answer.word() {
		case "SOLD_OUT":
			if left := j.left(from, p.answer.end); left >= p.qty {
				m.failLocked(p.answer, "at least %d units were left all the time", left)
			}
		case "LIMIT":
			if held := j.held(m, p.user, from, p.answer.end); sale.limit > 0 && held+p.qty <= sale.limit {
				m.failLocked(p.answer, "the user held at most %d units, the limit is %d", held, sale.limit)
			}
		}
	}
	for _, r := range sale.shop.restocks {
		if r.answer == nil || r.answer.word() != "INSUFFICIENT" || r.answer.start.Before(sale.created) {
			continue
		}
		if left := j.left(r.answer.start, r.answer.end); left >= -r.delta {
			m.failLocked(r.answer, "at least %d units were left all the time", left)
		}
	}
}

// movements collects what was taken off and what came back.
func (j *refusals) movements(m *model) {
	j.units = []movement{{j.sale.created, j.sale.stock}}
	for token, o := range j.orders {
		j.units = append(j.units, movement{time.UnixMilli(o.createdAt - clockSlack), -o.qty})
		if o.status == "CANCELLED" || o.status == "EXPIRED" {
			j.units = append(j.units, movement{m.tokens[token].back, o.qty})
		}
	}
	counted := map[string]bool{}
	for _, r := range j.sale.shop.restocks {
		if !j.sale.overlaps(r.start, r.end) || r.id != "" && counted[r.id] {
			continue
		}
		switch {
		case r.delta > 0 && r.applied() && r.sale == j.sale:
			j.units = append(j.units, movement{r.end, r.delta})
			counted[r.id] = true
		case r.delta < 0 && (r.applied() || r.answer.unknown()):
			j.units = append(j.units, movement{r.start, r.delta})
			counted[r.id] = true
		}
	}
}

// overlaps reports whether what may have been carried out from a to b may have
// been so on this sale.
func (s *sale) overlaps(a, b time.Time) bool {
	return !s.creating.After(b) && (s.dropped.IsZero() || !s.dropped.Before(a))
}

// left returns how many units there were at least at any moment from a to b.
func (j *refusals) left(a, b time.Time) int64 {
	at := func(t time.Time) (units int64) {
		for _, move := range j.units {
			if !move.at.After(t) {
				units += move.units
			}
		}
		return units
	}
	least := at(a)
	for _, move := range j.units {
		if move.units < 0 && move.at.After(a) && !move.at.After(b) {
			least = min(least, at(move.at))
		}
	}
	return least
}

// held returns how many units a user held at most at one moment from a to b.
func (j *refusals) held(m *model, user string, a, b time.Time) int64 {
	at := func(t time.Time) (units int64) {
		for token, o := range j.orders {
			back := time.Unix(math.MaxInt32, 0)
			if o.status == "CANCELLED" || o.status == "EXPIRED" {
				back = m.tokens[token].back
			}
			if o.user == user && !time.UnixMilli(o.createdAt-clockSlack).After(t) && !back.Before(t) {
				units += o.qty
			}
		}
		return units
	}
	most := at(a)
	for _, o := range j.orders {
		if made := time.UnixMilli(o.createdAt); o.user == user && made.After(a) && !made.After(b.Add(clockSlack*time.Millisecond)) {
			most = max(most, at(made))
		}
	}
	return most
}
