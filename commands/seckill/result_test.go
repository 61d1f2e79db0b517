package seckill

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
)

// long is longer than any test takes: who waits for so long is woken, or the test
// fails.
const long = time.Hour

// hanging reports how many wait under a name.
func (n *news) hanging(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.bells[name])
}

// await lets somebody wait for a result in the background, and returns when he has
// looked once.
func awaitResult(t testing.TB, ctx context.Context, s *Store, sent *probe, token string, wait time.Duration) (answer chan Reservation) {
	t.Helper()
	before := sent.count("script result")
	answer = make(chan Reservation, 1)
	go func() {
		reservation, err := s.AwaitResult(ctx, token, wait)
		if err != nil {
			t.Error(err)
		}
		answer <- reservation
	}()
	eventually(t, "a first look", func() bool { return s.news.hanging(token) == 1 && sent.count("script result") > before })
	return answer
}

func TestWhoWaitsForAResultIsWoken(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	rdb := connect(t, server.Addr)
	sent := newProbe(rdb)
	ctx, s := t.Context(), newListeningStore(t, rdb, Options{})
	shop := newQuietStore(t, connect(t, server.Addr), Options{})
	sell(t, shop, Sale{SKU: "sku", Stock: 10, Limit: 0})
	sell(t, shop, Sale{SKU: "soon", Stock: 10, Limit: 0, PayTTL: 500})
	for _, c := range []struct {
		name, sku string
		settle    func(token string)
		want      Reservation
	}{
		{"confirmed", "sku", func(token string) { must[Settlement](t)(shop.Confirm(ctx, token, "o")) }, Reservation{Found, Confirmed, "o", ""}},
		{"cancelled", "sku", func(token string) { must[Settlement](t)(shop.Cancel(ctx, token, "why")) }, Reservation{Found, Cancelled, "", "why"}},
		{"expired", "soon", func(string) { sweepUntil(t, shop, "soon", 1) }, Reservation{Found, Expired, "", ""}},
	} {
		token := reserve(t, shop, Purchase{SKU: c.sku, User: "u", Qty: 1})
		before := sent.count("script result")
		answer := awaitResult(t, ctx, s, sent, token, long)
		c.settle(token)
		equal(t, c.name, <-answer, c.want)
		equal(t, "looks until it was "+c.name, sent.count("script result")-before, 2)
		equal(t, "of what is known already", must[Reservation](t)(s.AwaitResult(ctx, token, long)), c.want)
	}
	equal(t, "who wait", len(s.news.bells), 0)
}

func TestWaitingForAResultEnds(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		sent := newProbe(rdb)
		s := newListeningStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 10, Limit: 0})
		token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		pending := Reservation{Outcome: Found, Status: Pending}

		before := sent.count("script result")
		equal(t, "in time", must[Reservation](t)(s.AwaitResult(t.Context(), token, 50*time.Millisecond)), pending)
		// At first and at the end, and once more if word of the sale's creation comes
		// only now.
		if looks := sent.count("script result") - before; looks < 2 || looks > 3 {
			t.Errorf("it looked %d times", looks)
		}

		ctx, cancel := context.WithCancel(t.Context())
		answer := awaitResult(t, ctx, s, sent, token, long)
		cancel()
		equal(t, "when its client is gone", <-answer, pending)

		unknown := token[:len(token)-2] + "00"
		equal(t, "of none", must[Reservation](t)(s.AwaitResult(t.Context(), unknown, long)).Outcome, NoReservation)
		equal(t, "of what is no token", must[Reservation](t)(s.AwaitResult(t.Context(), "orders sku", long)).Outcome, NoReservation)
		elsewhere := tokenPrefix("none", firstTag("none")) + id(token)
		equal(t, "of no sale", must[Reservation](t)(s.AwaitResult(t.Context(), elsewhere, long)).Outcome, NoSale)
		equal(t, "who wait", len(s.news.bells), 0)
	})
}

// What is settled while the subscription is away isn't missed.
func TestAResultThatCameWhileNothingWasHeard(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	deafClient, deafness := connectDeaf(t, server.Addr)
	admin := connect(t, server.Addr)
	for name, lose := range map[string]func(){
		"killed": func() { must[any](t)(admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Result()) },
		"deaf":   func() { deafness.set(true) },
	} {
		t.Run(name, func(t *testing.T) {
			rdb := deafClient
			if name == "killed" {
				rdb = connect(t, server.Addr)
			}
			sent := newProbe(rdb)
			s, shop := newListeningStore(t, rdb, Options{}), newQuietStore(t, admin, Options{})
			sell(t, shop, Sale{SKU: name, Stock: 10, Limit: 0})
			token := reserve(t, shop, Purchase{SKU: name, User: "u", Qty: 1})
			answer := awaitResult(t, t.Context(), s, sent, token, long)
			lose()
			must[Settlement](t)(shop.Confirm(t.Context(), token, "o"))
			equal(t, "confirmed", (<-answer).Status, Confirmed)
		})
	}
}

// Without the right to the channel it is looked for from time to time; and who may
// not publish is not heard, but in the end it is looked once more.
func TestResultsWithoutTheRightToTheChannel(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	admin := connect(t, server.Addr)
	must[any](t)(admin.Do(t.Context(), "ACL", "SETUSER", "shop", "on", ">pw", "~seckill:*", "resetchannels", "+@all").Result())
	limited := connectAs(t, &redis.Options{Addr: server.Addr, Username: "shop", Password: "pw"})
	sentLimited, sentAdmin := newProbe(limited), newProbe(admin)
	s, deaf := newListeningStore(t, admin, Options{}), newStore(t, limited, Options{})
	sell(t, deaf, Sale{SKU: "sku", Stock: 10, Limit: 0})

	token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
	answer := awaitResult(t, t.Context(), deaf, sentLimited, token, long)
	must[Settlement](t)(s.Confirm(t.Context(), token, "o"))
	equal(t, "heard by nobody", (<-answer).Status, Confirmed)

	token = reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
	answer = awaitResult(t, t.Context(), s, sentAdmin, token, 500*time.Millisecond)
	must[Settlement](t)(deaf.Confirm(t.Context(), token, "o"))
	equal(t, "told by nobody", (<-answer).Status, Confirmed)
}
