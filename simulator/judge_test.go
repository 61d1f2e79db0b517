package simulator

import (
	"strings"
	"testing"
	"time"
)

// script is a made-up history of one sale, for tests of the model: each answer
// begins a second after the last one ended.
type script struct {
	m    *model
	shop *shop
	sale *sale
	now  time.Time
}

// scripted begins with a sale that was created ten seconds ago.
func scripted(t terms) *script {
	m := newModel([]string{"sku"})
	h := &script{m: m, shop: m.shops["sku"], now: time.Now().Add(-10 * time.Second)}
	h.sale = &sale{shop: h.shop, terms: t, ids: map[request]string{}, creating: h.now, created: h.now}
	h.sale.window = window{known: true, since: h.now, openAt: t.openAt, closeAt: t.closeAt}
	h.shop.sales = append(h.shop.sales, h.sale)
	h.now = h.now.Add(3 * time.Second)
	return h
}

// says is an answer that took a millisecond; without elements it was lost.
func (h *script) says(elements ...any) *answer {
	a := &answer{args: []string{"SECKILL.X", "sku"}, sent: true, start: h.now, end: h.now.Add(time.Millisecond)}
	if h.now = h.now.Add(time.Second); len(elements) == 0 {
		a.err = errImpatient
		return a
	}
	a.reply = elements
	return a
}

func (h *script) buy(user, id string, qty int64, a *answer) *script {
	p := &purchase{shop: h.shop, request: request{user, id}, qty: qty}
	h.m.buying(p)
	p.start = a.start
	h.m.bought(p, a)
	return h
}

func (h *script) reserve(user, id, token string) *script {
	return h.buy(user, id, 1, h.says(int64(200), "RESERVED", token, int64(0), int64(0)))
}

func (h *script) settle(token, status, detail string, code int64, word, orderID string) *script {
	h.m.settling(token, status, detail)
	h.m.settled(h.says(code, word, token, orderID), token, status, detail)
	return h
}

func (h *script) restock(id string, delta int64, a *answer) *script {
	r := &restock{shop: h.shop, id: id, delta: delta}
	h.m.restocking(r)
	r.start = a.start
	h.m.restocked(r, a)
	return h
}

// reconcile ends the history with the orders that there are.
func (h *script) reconcile(orders ...order) *script {
	all := map[string]order{}
	for _, o := range orders {
		all[o.token] = o
	}
	h.m.reconcile(h.sale, all)
	h.m.judgeRefusals(h.sale, all)
	return h
}

// after is what Redis's clock says so many milliseconds after the history's next
// answer begins, negative for before.
func (h *script) after(ms int64) int64 { return h.now.UnixMilli() + ms }

// soldOutAfter is that a request is carried out, and so many seconds later is told
// that the sale is sold out.
func soldOutAfter(seconds int) *script {
	h := scripted(terms{stock: 5}).reserve("u", "r", "T")
	h.now = h.now.Add(time.Duration(seconds-1) * time.Second)
	return h.buy("u", "r", 1, h.says(int64(4001), "SOLD_OUT", "", int64(0), int64(0)))
}

// TestModelBelievesWhatIsPossible tells the model histories that can be true.
func TestModelBelievesWhatIsPossible(t *testing.T) {
	const ok, no = int64(200), int64(4001)
	plain := terms{stock: 2, limit: 1}
	for name, h := range map[string]*script{
		"a lost answer, then the same token": scripted(plain).buy("u", "r", 1, scripted(plain).says()).
			buy("u", "r", 1, scripted(plain).says(ok, "REPLAYED", "T", int64(0), int64(0))),
		"cancelled, and bought again": scripted(plain).reserve("u", "", "T").
			settle("T", "CANCELLED", "", ok, "CANCELLED", "").reserve("u", "", "T2"),
		"a loser is told the state that stands": scripted(plain).reserve("u", "", "T").
			settle("T", "CONFIRMED", "1", ok, "CONFIRMED", "1").settle("T", "CONFIRMED", "2", 409, "CONFIRMED", "1").
			settle("T", "CANCELLED", "", 409, "CONFIRMED", "1").settle("T", "CONFIRMED", "1", ok, "REPLAYED", "1"),
		"a sidecar hasn't heard of it yet": soldOutAfter(1),
		"a restock that was lost": scripted(plain).restock("r", 1, scripted(plain).says()).
			restock("r", 1, scripted(plain).says(ok, "REPLAYED", int64(3))),
	} {
		if h.m.fault != "" {
			t.Errorf("%s: %s", name, h.m.fault)
		}
	}
	h := scripted(plain)
	lost := h.says()
	made := lost.start.UnixMilli()
	h.buy("u", "", 1, lost).reserve("v", "", "T").buy("w", "", 1, h.says(no, "SOLD_OUT", "", int64(0), int64(0)))
	h.reconcile(order{token: "lost", user: "u", qty: 1, status: "PENDING", createdAt: made},
		order{token: "T", user: "v", qty: 1, status: "PENDING", createdAt: h.m.tokens["T"].reserved.start.UnixMilli()})
	if h.m.fault != "" {
		t.Errorf("a purchase whose answer was lost: %s", h.m.fault)
	}
}

// TestModelNoticesLies tells it histories that can't be true.
func TestModelNoticesLies(t *testing.T) {
	const ok, zero = int64(200), int64(0)
	plain := terms{stock: 5, limit: 1}
	bought := func(terms terms, user, id string, elements ...any) *script {
		h := scripted(terms)
		return h.buy(user, id, 1, h.says(elements...))
	}
	for _, lie := range []struct {
		want string
		h    *script
	}{
		{"RESERVED before", scripted(terms{stock: 5}).reserve("u", "", "T").reserve("u", "", "T")},
		{"was of u", scripted(plain).reserve("u", "", "T").buy("v", "r", 1, scripted(plain).says()).
			buy("v", "r", 1, scripted(plain).says(ok, "REPLAYED", "T", zero, zero))},
		{"the limit is 1", scripted(plain).reserve("u", "", "T").reserve("u", "", "T2")},
		{"carried out before, under T", scripted(terms{stock: 5}).reserve("u", "r", "T").reserve("u", "r", "T2")},
		{"carried out before, under T", soldOutAfter(2)},
		{"REPLAYED to the first", bought(plain, "u", "r", ok, "REPLAYED", "T", zero, zero)},
		{"no rate", bought(plain, "u", "", int64(429), "RATE_LIMITED", "", zero, int64(5))},
		{"asked 1 times", bought(terms{rate: 1, rateWindow: 100}, "u", "", int64(429), "RATE_LIMITED", "", zero, int64(5))},
		{"no limit", bought(terms{stock: 5}, "u", "", int64(4002), "LIMIT", "", zero, zero)},
		{"open for", bought(plain, "u", "", int64(4003), "NOT_OPEN", "", zero, zero)},
		{"closes at 0", bought(plain, "u", "", int64(4003), "CLOSED", "", zero, zero)},
		{"closed for", bought(terms{stock: 5, closeAt: 1}, "u", "", ok, "RESERVED", "T", zero, zero)},
		{"it opens", bought(terms{stock: 5, openAt: time.Now().UnixMilli()}, "u", "", ok, "RESERVED", "T", zero, zero)},
		{"the sale is there", bought(plain, "u", "", int64(404), "NO_SALE", "", zero, zero)},
		{"pay by 7", bought(plain, "u", "", ok, "RESERVED", "T", zero, int64(7))},
		{"pay by 7", bought(terms{stock: 5, payTTL: 9}, "u", "", ok, "RESERVED", "T", zero, int64(7))},
		{"no such answer", bought(plain, "u", "", ok, "SOLD", "T", zero, zero)},
		{"decided before", scripted(plain).reserve("u", "", "T").
			settle("T", "CANCELLED", "", ok, "CANCELLED", "").settle("T", "CANCELLED", "", ok, "CANCELLED", "")},
		{"stood CONFIRMED 1 before", scripted(plain).reserve("u", "", "T").
			settle("T", "CONFIRMED", "1", ok, "CONFIRMED", "1").settle("T", "CANCELLED", "", 409, "CONFIRMED", "2")},
		{"nobody asked for", scripted(plain).reserve("u", "", "T").settle("T", "CANCELLED", "", 409, "CONFIRMED", "1")},
		{"without PAYTTL", scripted(plain).reserve("u", "", "T").settle("T", "CONFIRMED", "1", 410, "EXPIRED", "")},
		{"is lost", scripted(plain).reserve("u", "", "T").settle("T", "CONFIRMED", "1", 404, "NO_RESERVATION", "")},
		{"carried out before", scripted(plain).restock("r", 1, scripted(plain).says(ok, "RESTOCKED", zero)).
			restock("r", 1, func() *answer { h := scripted(plain); h.says(); return h.says(ok, "RESTOCKED", zero) }())},
		{"T of u is lost", scripted(plain).reserve("u", "", "T").reconcile()},
		{"nobody asked for", scripted(plain).reconcile(order{token: "T", user: "u", qty: 1, status: "PENDING"})},
	} {
		if !strings.Contains(lie.h.m.fault, lie.want) {
			t.Errorf("want %q, the model says %q", lie.want, lie.h.m.fault)
		}
	}
}

// TestModelNoticesLiesAboutStock is about answers that only the orders contradict.
func TestModelNoticesLiesAboutStock(t *testing.T) {
	const ok = int64(200)
	h := scripted(terms{stock: 1, limit: 1})
	h.reserve("u", "", "T")
	made := h.m.tokens["T"].reserved.start.UnixMilli()
	h.settle("T", "CANCELLED", "", ok, "CANCELLED", "")
	h.says()
	h.says()
	h.buy("v", "", 1, h.says(int64(4001), "SOLD_OUT", "", int64(0), int64(0)))
	h.reconcile(order{token: "T", user: "u", qty: 1, status: "CANCELLED", createdAt: made})
	if want := "at least 1 units were left"; !strings.Contains(h.m.fault, want) {
		t.Errorf("want %q, the model says %q", want, h.m.fault)
	}

	h = scripted(terms{stock: 5, limit: 2})
	h.reserve("u", "", "T")
	made = h.m.tokens["T"].reserved.start.UnixMilli()
	h.buy("u", "", 1, h.says(int64(4002), "LIMIT", "T", int64(0), int64(0)))
	h.reconcile(order{token: "T", user: "u", qty: 1, status: "PENDING", createdAt: made})
	if want := "held at most 1 units"; !strings.Contains(h.m.fault, want) {
		t.Errorf("want %q, the model says %q", want, h.m.fault)
	}

	h = scripted(terms{stock: 5})
	h.buy("u", "", 1, h.says()).reconcile(
		order{token: "T", user: "u", qty: 1, status: "PENDING", createdAt: h.after(-1000)},
		order{token: "T2", user: "u", qty: 1, status: "PENDING", createdAt: h.after(-1000)})
	if want := "nobody asked for"; !strings.Contains(h.m.fault, want) {
		t.Errorf("want %q, the model says %q", want, h.m.fault)
	}
}
