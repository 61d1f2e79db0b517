package simulator

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// order is one reservation as SECKILL.ORDERS lists it.
type order struct {
	token, user      string
	qty              int64
	status           string
	createdAt, payBy int64
	orderID, reason  string
}

// ordersIn are the orders of one answer to SECKILL.ORDERS.
func ordersIn(a *answer) []order {
	var orders []order
	for i := 3; i < len(a.array()); i++ {
		e := answer{reply: a.array()[i]}
		orders = append(orders, order{
			token: e.text(0), user: e.text(1), qty: e.integer(2), status: e.text(3),
			createdAt: e.integer(4), payBy: e.integer(5), orderID: e.text(6), reason: e.text(7),
		})
	}
	return orders
}

// cursorOf is where to go on after one answer to SECKILL.ORDERS.
func cursorOf(a *answer) string { return fmt.Sprint(a.array()[2]) }

// inspect compares Redis with what clients were told, when all is quiet: no
// faults, no other clients, nothing under way.
func (c *client) inspect(t *testing.T) {
	for _, s := range c.world.shops {
		sale := c.settleLife(t, s)
		if sale == nil {
			continue
		}
		orders := c.awaitRest(t, sale)
		for _, check := range []func(){
			func() { c.model.reconcile(sale, orders) },
			func() { c.model.judgeRefusals(sale, orders) },
			func() { c.compareCounters(t, sale, orders) },
			func() { c.compareQueues(t, sale, orders) },
			func() { c.askAgain(sale, orders) },
			func() { c.sellOut(t, sale) },
			func() { c.awaitClean(t, s) },
		} {
			if check(); c.model.failing() {
				return
			}
		}
	}
	c.dropAll(t)
}

// must is sure, and the end of the test where there is no certain answer.
func (c *client) must(t *testing.T, to *sidecar, args ...string) *answer {
	t.Helper()
	a, err := c.sure(to, args...)
	if err != nil {
		t.Fatalf("all is quiet, and %v", err)
	}
	return a
}

// settleLife finishes a creation or an end whose outcome isn't known and returns
// the sale that is there, nil for none.
func (c *client) settleLife(t *testing.T, s *shop) *sale {
	sale := s.latest()
	if sale != nil && sale.created.IsZero() {
		c.model.created(sale, []*answer{c.must(t, nil, sale.command(s.sku)...)})
	}
	if sale != nil && !sale.dropping.IsZero() && sale.dropped.IsZero() {
		c.model.droppedBy(sale, c.must(t, nil, "SECKILL.DROP", s.sku, "FORCE"), true)
	}
	if sale != nil && sale.dropped.IsZero() {
		return sale
	}
	for _, to := range c.world.sidecars {
		if a := c.must(t, to, "SECKILL.INFO", s.sku); a.code() != 404 {
			c.model.fail(a, "there is no such sale")
		}
	}
	return nil
}

// awaitClean waits until nothing is in transit and the audit is clean.
func (c *client) awaitClean(t *testing.T, s *shop) {
	t.Helper()
	eventually(t, func() (bool, string) {
		a := c.must(t, nil, "SECKILL.AUDIT", s.sku)
		c.model.audited(a, s)
		fields := a.fields(2)
		return a.code() == 200 && number(fields, "in_transit") == 0, fmt.Sprintf("the audit is %s", a)
	})
}

// eventually waits until a condition holds.
func eventually(t *testing.T, holds func() (bool, string)) {
	t.Helper()
	for end := time.Now().Add(hangs); ; time.Sleep(20 * time.Millisecond) {
		ok, instead := holds()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %s of quiet, %s", hangs, instead)
		}
	}
}

// awaitRest waits until nothing is in transit and all that has a deadline has
// expired, its units back, and returns all orders.
func (c *client) awaitRest(t *testing.T, sale *sale) map[string]order {
	t.Helper()
	eventually(t, func() (bool, string) {
		info := c.must(t, nil, "SECKILL.INFO", sale.shop.sku)
		pending := number(info.fields(2), "pending")
		return sale.payTTL == 0 || pending == 0, fmt.Sprintf("%d units are pending in a sale with PAYTTL %d", pending, sale.payTTL)
	})
	c.awaitClean(t, sale.shop)
	return c.allOrders(t, sale.shop.sku)
}

func (c *client) allOrders(t *testing.T, sku string) map[string]order {
	t.Helper()
	orders := map[string]order{}
	for cursor := "0"; ; {
		a := c.must(t, nil, "SECKILL.ORDERS", sku, cursor, "COUNT", "100")
		if a.code() != 200 || a.integer(1) != int64(len(a.array())-3) {
			c.model.fail(a, "ORDERS has no such answer")
			return orders
		}
		for _, o := range ordersIn(a) {
			if other, twice := orders[o.token]; twice && other != o {
				c.model.fail(a, "%s changes while all is quiet: %+v", o.token, other)
			}
			orders[o.token] = o
		}
		if cursor = cursorOf(a); cursor == "0" {
			return orders
		}
	}
}

// reconcile: every token that somebody was told is there, as they were told; every
// order that nobody was told of is one whose answer was lost, one each.
func (m *model) reconcile(sale *sale, orders map[string]order) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := &answer{args: []string{"SECKILL.ORDERS", sale.shop.sku}, client: "inspector", start: time.Now(), end: time.Now()}
	for token, r := range m.tokens {
		if _, there := orders[token]; r.sale == sale && !there {
			m.failLocked(now, "%s of %s is lost", token, shown(r.user))
		}
	}
	var untold []order
	for _, token := range slices.Sorted(maps.Keys(orders)) {
		o := orders[token]
		r := m.tokens[token]
		if r == nil {
			untold = append(untold, o)
			r = m.learn(now, sale.shop, token, o.user, o.qty)
			r.payBy = o.payBy
		}
		r.sale = sale
		m.compareOrder(now, r, o)
	}
	for _, o := range unexplained(untold, sale.lostRequests()) {
		m.failLocked(now, "nobody asked for %+v", o)
	}
	m.compareHoldings(now, sale, orders)
}

func (m *model) compareOrder(now *answer, r *reservation, o order) {
	switch {
	case r.user != o.user || r.qty != o.qty || r.payBy != o.payBy:
		m.failLocked(now, "%+v was told %s %d %d", o, shown(r.user), r.qty, r.payBy)
	case r.reserved != nil && !r.reserved.inTime(o.createdAt):
		m.failLocked(now, "%+v was made by %s", o, r.reserved)
	case r.sale.payTTL > 0 && o.payBy != o.createdAt+r.sale.payTTL, r.sale.payTTL == 0 && o.payBy != 0:
		m.failLocked(now, "PAYTTL is %d and %+v", r.sale.payTTL, o)
	case o.status == "PENDING" && r.final != "":
		m.failLocked(now, "%+v was told %s", o, r.final)
	case o.status != "PENDING":
		m.ends(now, r, o.status, o.orderID)
	}
	if o.status == "CANCELLED" && !slices.ContainsFunc(r.attempts, func(t attempt) bool {
		return t.status == o.status && t.detail == o.reason
	}) {
		m.failLocked(now, "nobody gave the reason of %+v", o)
	}
}

// compareHoldings: nobody holds more than LIMIT.
func (m *model) compareHoldings(now *answer, sale *sale, orders map[string]order) {
	held := map[string]int64{}
	for _, o := range orders {
		if o.status == "PENDING" || o.status == "CONFIRMED" {
			held[o.user] += o.qty
		}
	}
	for user, units := range held {
		if sale.limit > 0 && units > sale.limit {
			m.failLocked(now, "%s holds %d units, the limit is %d", shown(user), units, sale.limit)
		}
	}
}

// lostRequests are the purchases that may have been made without anybody being
// told, each with all its attempts; those with one request id are one.
func (s *sale) lostRequests() [][]*purchase {
	var lost [][]*purchase
	byRequest := map[request]int{}
	for _, p := range s.shop.purchases {
		if p.answer == nil || !p.answer.unknown() || !s.overlaps(p.start, p.end) || p.id != "" && s.ids[p.request] != "" {
			continue
		}
		i, known := byRequest[p.request]
		if p.id == "" || !known {
			i = len(lost)
			lost = append(lost, nil)
			byRequest[p.request] = i
		}
		lost[i] = append(lost[i], p)
	}
	return lost
}

// unexplained returns the orders for which there is no lost request, each request
// having made at most one: a matching, by augmenting paths.
func unexplained(orders []order, lost [][]*purchase) []order {
	made := map[int]int{} // request → order
	var assign func(o int, tried map[int]bool) bool
	assign = func(o int, tried map[int]bool) bool {
		for i, attempts := range lost {
			if tried[i] || !slices.ContainsFunc(attempts, func(p *purchase) bool { return p.canHaveMade(orders[o]) }) {
				continue
			}
			tried[i] = true
			if other, taken := made[i]; !taken || assign(other, tried) {
				made[i] = o
				return true
			}
		}
		return false
	}
	var rest []order
	for o := range orders {
		if !assign(o, map[int]bool{}) {
			rest = append(rest, orders[o])
		}
	}
	return rest
}

func (p *purchase) canHaveMade(o order) bool {
	return p.user == o.user && p.qty == o.qty &&
		o.createdAt >= p.start.UnixMilli()-clockSlack && o.createdAt <= p.end.UnixMilli()+clockSlack
}

// compareCounters: INFO says what follows from the orders.
func (c *client) compareCounters(t *testing.T, sale *sale, orders map[string]order) {
	t.Helper()
	units := map[string]int64{}
	users := map[string]bool{}
	for _, o := range orders {
		units[o.status] += o.qty
		users[o.user] = true
	}
	a := c.must(t, nil, "SECKILL.INFO", sale.shop.sku)
	fields := a.fields(2)
	restocked := number(fields, "restocked")
	want := sale.asCreated()
	want["available"] = sale.stock + restocked - units["PENDING"] - units["CONFIRMED"]
	want["in_transit"] = int64(0)
	want["pending"], want["confirmed"] = units["PENDING"], units["CONFIRMED"]
	want["cancelled"], want["expired"] = units["CANCELLED"], units["EXPIRED"]
	want["orders"], want["buyers"] = int64(len(orders)), int64(len(users))
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if fields[name] != want[name] {
			c.model.fail(a, "%s is %v, and follows from the orders as %v", name, fields[name], want[name])
		}
	}
	if number(fields, "available") < 0 {
		c.model.fail(a, "oversold")
	}
	if sums := sale.restockSums(); !sums[restocked] {
		c.model.fail(a, "%d units were restocked, and it can only have been %v", restocked, slices.Sorted(maps.Keys(sums)))
	}
}

// restockSums are all that can have been restocked in all: what certainly was,
// and any of what may have been. With a request id, once.
func (s *sale) restockSums() map[int64]bool {
	certain, maybe := map[string]int64{}, map[string]int64{}
	for i, r := range s.shop.restocks {
		name := r.id
		if name == "" {
			name = fmt.Sprint("#", i)
		}
		switch {
		case r.applied() && r.sale == s:
			certain[name] = r.delta
		case (r.applied() || r.answer.unknown()) && s.overlaps(r.start, r.end):
			maybe[name] = r.delta
		}
	}
	sum := int64(0)
	for name, delta := range certain {
		sum += delta
		delete(maybe, name)
	}
	sums := map[int64]bool{sum: true}
	for _, delta := range maybe {
		for _, before := range slices.Collect(maps.Keys(sums)) {
			sums[before+delta] = true
		}
	}
	return sums
}

// compareQueues: the streams hold what is pending, and nothing else.
func (c *client) compareQueues(t *testing.T, sale *sale, orders map[string]order) {
	t.Helper()
	a := c.must(t, nil, "SECKILL.INFO", sale.shop.sku)
	queues, _ := a.fields(2)["queues"].([]any)
	queued := map[string]bool{}
	entries := 0
	for _, queue := range queues {
		stream, err := c.world.direct.XRange(t.Context(), fmt.Sprint(queue), "-", "+").Result()
		if err != nil {
			t.Fatal(err)
		}
		entries += len(stream)
		for _, entry := range stream {
			queued[fmt.Sprint(entry.Values["token"])] = true
		}
	}
	pending := 0
	for token, o := range orders {
		if o.status != "PENDING" {
			continue
		}
		pending++
		if !queued[token] {
			c.model.fail(a, "%s is pending and not in the queue", token)
		}
	}
	if entries != pending {
		c.model.fail(a, "%d orders are queued, %d are pending", entries, pending)
	}
}

// askAgain asks for each reservation, user and request once more.
func (c *client) askAgain(sale *sale, orders map[string]order) {
	for _, token := range slices.Sorted(maps.Keys(orders)) {
		c.model.looked(c.callAt(nil, "SECKILL.RESULT", token), token, false)
	}
	for _, user := range c.world.users {
		c.model.found(c.callAt(nil, "SECKILL.FIND", sale.shop.sku, user), sale.shop, user)
	}
	for r, token := range maps.Clone(sale.ids) {
		p := &purchase{shop: sale.shop, request: r, qty: c.model.tokens[token].qty}
		c.model.buying(p)
		c.model.bought(p, c.callAt(nil, "SECKILL.BUY", sale.shop.sku, r.user, "ID", r.id, "QTY", strconv.FormatInt(p.qty, 10)))
		c.close() // the next one at any sidecar
	}
}

// sellOut sells what is left, to the last unit and through all sidecars, sees
// that nothing is left then, and that what comes back is sold again.
func (c *client) sellOut(t *testing.T, sale *sale) {
	t.Helper()
	sku := sale.shop.sku
	c.must(t, nil, "SECKILL.OPEN", sku)
	left := number(c.must(t, nil, "SECKILL.INFO", sku).fields(2), "available")
	for i := 0; left > 0; i++ {
		qty := min(left, 1+int64(i)%3)
		if sale.limit > 0 {
			qty = min(qty, sale.limit)
		}
		to := c.world.sidecars[i%len(c.world.sidecars)]
		left -= c.buyFresh(t, to, sale, fmt.Sprint("fresh ", i), qty)
		if c.model.failing() {
			return
		}
	}
	for i, to := range c.world.sidecars {
		if a := c.must(t, to, "SECKILL.BUY", sku, fmt.Sprint("too late ", i)); a.word() != "SOLD_OUT" {
			c.model.fail(a, "all is sold, all is quiet")
		}
	}
	for i, to := range c.world.sidecars {
		c.must(t, nil, "SECKILL.RESTOCK", sku, "1", "ID", fmt.Sprint("last ", i))
		c.buyFresh(t, to, sale, fmt.Sprint("last ", i), 1)
	}
}

// buyFresh has a new user buy, for good, what is certainly there, and returns how
// many units are sold now: none if the time to pay was over before it was paid.
func (c *client) buyFresh(t *testing.T, to *sidecar, sale *sale, user string, qty int64) int64 {
	t.Helper()
	token := ""
	eventually(t, func() (bool, string) {
		a := c.must(t, to, "SECKILL.BUY", sale.shop.sku, user, "QTY", strconv.FormatInt(qty, 10), "ID", "once")
		// A sidecar that hasn't heard of an OPEN or a RESTOCK yet may say no.
		heard := a.word() != "SOLD_OUT" && a.code() != 4003
		if token = a.text(2); heard && a.code() != 200 {
			c.model.fail(a, "units are left, all is quiet")
		}
		return heard, fmt.Sprintf("units are left, and the answer is %s", a)
	})
	if c.model.failing() {
		return 0
	}
	switch a := c.must(t, to, "SECKILL.CONFIRM", token, "paid"); {
	case a.code() == 200:
		return qty
	case a.code() != 410 || sale.payTTL == 0:
		c.model.fail(a, "it was paid in time")
	}
	return 0
}

// dropAll drops all sales: nothing of them is left.
func (c *client) dropAll(t *testing.T) {
	for _, s := range c.world.shops {
		if a := c.must(t, nil, "SECKILL.DROP", s.sku, "FORCE"); a.code() != 200 && a.code() != 404 {
			c.model.fail(a, "DROP has no such answer")
		}
	}
	if a := c.must(t, nil, "SECKILL.LIST"); len(a.array()) != 2 {
		c.model.fail(a, "all sales were dropped")
	}
	// A lease, or the count of a user's rate, has a TTL and may take its time.
	eventually(t, func() (bool, string) {
		keys, err := c.world.direct.Keys(t.Context(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return len(keys) == 0, fmt.Sprintf("all sales were dropped and these keys are left: %q", strings.Join(keys, " "))
	})
}
