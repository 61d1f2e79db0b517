package simulator

import (
	"strconv"
	"sync"
	"time"
)

// tries is how often a merchant asks again when it isn't known whether a sale was
// created, dropped, opened or closed.
const tries = 6

// randomTerms are the terms of a new sale.
func (c *client) randomTerms() terms {
	r := c.random
	t := terms{stock: int64(r.IntN(150)), limit: 1}
	if r.IntN(4) > 0 {
		t.limit = []int64{0, 0, 2, 5, 20}[r.IntN(5)]
	}
	if r.IntN(4) > 0 {
		t.shards = 1 + int64(r.IntN(10))
	}
	if r.IntN(2) == 0 {
		t.payTTL = 100 + int64(r.IntN(1500))
	}
	now := time.Now().UnixMilli()
	if r.IntN(4) == 0 {
		t.openAt = now + int64(r.IntN(1500))
	}
	if r.IntN(6) == 0 {
		t.closeAt = max(now, t.openAt) + 500 + int64(r.IntN(5000))
	}
	if r.IntN(5) == 0 {
		t.rate, t.rateWindow = 1+int64(r.IntN(4)), 50+int64(r.IntN(1000))
	}
	return t
}

// command is the CREATE with these terms.
func (t terms) command(sku string) []string {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	args := []string{"SECKILL.CREATE", sku, number(t.stock)}
	option := func(name string, n int64) {
		if n > 0 {
			args = append(args, name, number(n))
		}
	}
	if t.limit != 1 {
		args = append(args, "LIMIT", number(t.limit))
	}
	option("SHARDS", t.shards)
	option("PAYTTL", t.payTTL)
	option("OPEN", t.openAt)
	option("CLOSE", t.closeAt)
	if t.rate > 0 {
		args = append(args, "RATE", number(t.rate), number(t.rateWindow))
	}
	return args
}

// manage creates a sale where there is none, and drops, opens or closes it where
// there is one. Only one client at a time manages a SKU.
func (c *client) manage(s *shop) {
	if !s.lifecycle.TryLock() {
		return
	}
	defer s.lifecycle.Unlock()
	var now *sale
	settled := false
	c.model.change(func() { now, settled = s.latest(), time.Now().After(s.unsettled) })
	switch {
	case !settled:
		// What may still be carried out would hit the next sale.
	case now == nil || !now.dropped.IsZero():
		c.create(s)
	case now.created.IsZero():
		c.finishCreating(now)
	case !now.dropping.IsZero():
		c.drop(now, true)
	case c.random.IntN(100) < c.world.plan.dropPercent:
		c.drop(now, c.random.IntN(2) == 0)
	case c.random.IntN(8) == 0:
		c.createAgain(now)
	default:
		c.turn(now, c.random.IntN(6) > 0)
	}
}

func (c *client) create(s *shop) {
	sale := &sale{shop: s, terms: c.randomTerms(), ids: map[request]string{}, half: true}
	c.model.change(func() {
		sale.creating = time.Now()
		s.sales = append(s.sales, sale)
	})
	c.finishCreating(sale)
}

// finishCreating asks until the sale is there, now and then through two sidecars
// at once. Exactly one may be told that it created the sale.
func (c *client) finishCreating(sale *sale) {
	args := sale.command(sale.shop.sku)
	var asked []*answer
	for range tries {
		asked = append(asked, c.together(1+c.random.IntN(5)/4, args...)...)
		if c.model.created(sale, asked) {
			return
		}
		time.Sleep(time.Duration(c.random.IntN(200)) * time.Millisecond)
	}
}

// together sends a command n times at once, once on the client's own connection.
func (c *client) together(n int, args ...string) []*answer {
	answers := make([]*answer, n)
	var others sync.WaitGroup
	for i := 1; i < n; i++ {
		twin := newClient(c.name+"'", c.world, c.model, c.random)
		twin.at = c.world.sidecars[c.random.IntN(len(c.world.sidecars))]
		others.Go(func() {
			defer twin.close()
			answers[i] = twin.callAt(twin.at, args...)
		})
	}
	answers[0] = c.callAt(nil, args...)
	others.Wait()
	return answers
}

// created judges what CREATE has answered so far and reports whether the sale is
// there for certain.
func (m *model) created(sale *sale, asked []*answer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	created, unknown := 0, false
	var there *answer
	for _, a := range asked {
		switch {
		case a.unknown() || a.refused():
			unknown = true // one with several shards may have stopped between them
		case a.code() == 200 && a.word() == "CREATED":
			created, there = created+1, a
		case a.code() == 409 && a.word() == "EXISTS":
			there = a
		default:
			m.failLocked(a, "CREATE has no such answer")
		}
	}
	if unknown {
		sale.tried, sale.shop.unsettled = true, time.Now().Add(late)
	}
	if there == nil {
		return false
	}
	if created > 1 {
		m.failLocked(there, "created twice")
	}
	if created == 0 && !sale.tried {
		m.failLocked(there, "it exists, and nobody has created it")
	}
	if sale.shards > 0 && there.integer(3) != sale.shards {
		m.failLocked(there, "it has %d shards, want %d", there.integer(3), sale.shards)
	}
	now := time.Now()
	sale.created, sale.half = now, false
	sale.window = window{known: true, since: now, openAt: sale.openAt, closeAt: sale.closeAt}
	return true
}

// createAgain creates what is there: it must stay as it is.
func (c *client) createAgain(sale *sale) {
	a := c.call(c.randomTerms().command(sale.shop.sku)...)
	if a.unknown() || a.refused() {
		return
	}
	if a.code() != 409 || a.word() != "EXISTS" || sale.shards > 0 && a.integer(3) != sale.shards {
		c.model.fail(a, "the sale is there, with %d shards (0: as configured)", sale.shards)
	}
}

// drop drops a sale, by force or only if it is closed and settled.
func (c *client) drop(sale *sale, force bool) {
	c.model.change(func() {
		if sale.dropping.IsZero() {
			sale.dropping = time.Now()
		}
	})
	args := []string{"SECKILL.DROP", sale.shop.sku}
	if force {
		args = append(args, "FORCE")
	}
	for range tries {
		if c.model.droppedBy(sale, c.call(args...), force) {
			return
		}
		time.Sleep(time.Duration(c.random.IntN(200)) * time.Millisecond)
	}
}

// droppedBy judges the answer to DROP and reports whether it is known what came
// of it.
func (m *model) droppedBy(sale *sale, a *answer, force bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case a.unknown() || a.refused(): // one with several shards may have stopped between them
		sale.half, sale.shop.unsettled = true, time.Now().Add(late)
		return false
	case a.code() == 200 && a.word() == "DROPPED":
		if !force && !sale.half {
			m.mayDrop(a, sale)
		}
		sale.dropped = a.end
	case a.code() == 404 && a.word() == "NO_SALE":
		if !sale.half {
			m.failLocked(a, "the sale was there")
		}
		sale.dropped = a.end
	case a.code() == 409 && !force && (a.word() == "OPEN" || a.word() == "PENDING"):
		if !sale.half {
			sale.dropping = time.Time{}
		}
	default:
		m.failLocked(a, "DROP has no such answer")
	}
	return true
}

// mayDrop: without FORCE a sale that sells or has something pending stays.
func (m *model) mayDrop(a *answer, sale *sale) {
	if w := sale.window; w.stable(a.start) && (w.closeAt == 0 || a.end.UnixMilli() < w.closeAt-clockSlack) {
		m.failLocked(a, "it wasn't closed")
	}
	for token, r := range m.tokens {
		if r.sale == sale && r.since.Before(a.start) && r.final == "" && len(r.attempts) == 0 && sale.payTTL == 0 {
			m.failLocked(a, "%s was pending", token)
		}
	}
}

// turn opens or closes a sale.
func (c *client) turn(sale *sale, open bool) {
	word := "SECKILL.CLOSE"
	if open {
		word = "SECKILL.OPEN"
	}
	c.model.change(func() { sale.window.changing = true })
	c.model.turned(c.call(word, sale.shop.sku), sale, open)
}
