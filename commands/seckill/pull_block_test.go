package seckill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
)

// awaitOrders lets a worker wait in the background, and returns when he has looked.
func awaitOrders(t testing.TB, ctx context.Context, s *Store, sent *probe, consumer string, wait time.Duration) (answer chan []Delivery) {
	t.Helper()
	known := knownSale(t, s, "sku")
	before := sent.count("script pull")
	answer = make(chan []Delivery, 1)
	go func() {
		deliveries, found, err := s.Pull(ctx, "sku", consumer, 10, wait)
		if err != nil || !found {
			t.Errorf("Pull: found %v, %v", found, err)
		}
		answer <- deliveries
	}()
	eventually(t, "a first look", func() bool { return sent.count("script pull") >= before+known.Shards })
	return answer
}

func TestAWorkerThatWaitsIsWoken(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	rdb := connect(t, server.Addr)
	sent := newProbe(rdb)
	worker, shop := newListeningStore(t, rdb, Options{TakeoverAfter: long}), newQuietStore(t, connect(t, server.Addr), Options{})
	const shards = 4
	sell(t, shop, Sale{SKU: "sku", Stock: 1000, Limit: 1, Shards: shards})
	for user := range 12 { // of all shards
		before := sent.count("script pull")
		answer := awaitOrders(t, t.Context(), worker, sent, "w", long)
		token := reserve(t, shop, Purchase{SKU: "sku", User: fmt.Sprint(user), Qty: 1})
		deliveries := <-answer
		if len(deliveries) != 1 || deliveries[0].Token != token {
			t.Fatalf("handed out %+v, want %s", deliveries, token)
		}
		if looks := sent.count("script pull") - before; looks > 2*shards {
			t.Fatalf("%d looks at %d shards", looks, shards)
		}
	}
	equal(t, "who wait", len(worker.news.bells), 0)
	clean(t, shop, "sku")
}

func TestWaitingForOrdersEnds(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		sent := newProbe(rdb)
		s := newListeningStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 10, Limit: 0})
		deliveries, found, err := s.Pull(t.Context(), "sku", "w", 1, 20*time.Millisecond)
		if len(deliveries) != 0 || !found || err != nil {
			t.Fatalf("in time: %v, found %v, %v", deliveries, found, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		answer := awaitOrders(t, ctx, s, sent, "w", long)
		cancel()
		equal(t, "when its client is gone", len(<-answer), 0)
		if _, found, err := s.Pull(t.Context(), "none", "w", 1, long); found || err != nil {
			t.Fatalf("of no sale: found %v, %v", found, err)
		}
		// The order that came after he had gone is nobody's yet.
		token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		equal(t, "then", pull(t, s, "w2", 1)[0].Token, token)
	})
}

func TestAWorkerThatWaitsTakesOver(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		sent := newProbe(rdb)
		s := newListeningStore(t, rdb, Options{TakeoverAfter: 200 * time.Millisecond})
		sell(t, s, Sale{SKU: "sku", Stock: 10, Limit: 0, Shards: 2})
		token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		equal(t, "the dead one", pullUntil(t, s, "dead", 1)[0].Token, token)
		deliveries := <-awaitOrders(t, t.Context(), s, sent, "w", long)
		equal(t, "the other", deliveries[0].Token, token)
		equal(t, "delivery", deliveries[0].Number, 2)
	})
}

// Several wait, in two sidecars: each order comes to one, and nobody waits in vain.
func TestSeveralWorkersWait(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	shop := newQuietStore(t, connect(t, server.Addr), Options{})
	sell(t, shop, Sale{SKU: "sku", Stock: 1000, Limit: 1, Shards: 2})
	const workers = 6
	answers := make(chan []Delivery, workers)
	for i := range 2 {
		rdb := connect(t, server.Addr)
		sent := newProbe(rdb)
		s := newListeningStore(t, rdb, Options{TakeoverAfter: long})
		for n := range workers / 2 {
			answer := awaitOrders(t, t.Context(), s, sent, fmt.Sprint("w", i, n), long)
			go func() { answers <- <-answer }()
		}
	}
	seen := map[string]bool{}
	for n := range workers {
		token := reserve(t, shop, Purchase{SKU: "sku", User: fmt.Sprint(n), Qty: 1})
		deliveries := <-answers
		if len(deliveries) != 1 || deliveries[0].Token != token || seen[token] {
			t.Fatalf("order %d: handed out %+v, want %s", n, deliveries, token)
		}
		seen[token] = true
	}
	clean(t, shop, "sku")
}

// Whatever the moment in which an order comes, the worker hears of it: he never
// comes to the point where he looks by himself.
func TestNoOrderIsMissed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	worker := newListeningStore(t, connect(t, server.Addr), Options{TakeoverAfter: long})
	shop := newQuietStore(t, connect(t, server.Addr), Options{})
	const rounds, shards = 150, 2
	sell(t, shop, Sale{SKU: "sku", Stock: rounds, Limit: 1, Shards: shards})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	patience := worker.takeoverLook() - time.Second
	for round := range rounds {
		answer := make(chan []Delivery, 1)
		began := time.Now()
		go func() {
			deliveries, _, err := worker.Pull(t.Context(), "sku", "w", 1, patience)
			if err != nil {
				t.Error(err)
			}
			answer <- deliveries
		}()
		time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
		token := reserve(t, shop, Purchase{SKU: "sku", User: fmt.Sprint(round), Qty: 1})
		deliveries := <-answer
		if len(deliveries) != 1 || deliveries[0].Token != token || time.Since(began) >= patience {
			t.Fatalf("round %d: %+v after %v, want %s", round, deliveries, time.Since(began), token)
		}
		must[Settlement](t)(shop.Confirm(t.Context(), token, "o"))
	}
	clean(t, shop, "sku")
}

// What comes while the subscription is away isn't missed either.
func TestOrdersThatCameWhileNothingWasHeard(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	rdb := connect(t, server.Addr)
	sent := newProbe(rdb)
	worker := newListeningStore(t, rdb, Options{TakeoverAfter: long})
	admin := connect(t, server.Addr)
	shop := newQuietStore(t, admin, Options{})
	sell(t, shop, Sale{SKU: "sku", Stock: 10, Limit: 1})
	answer := awaitOrders(t, t.Context(), worker, sent, "w", long)
	must[any](t)(admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Result())
	token := reserve(t, shop, Purchase{SKU: "sku", User: "u", Qty: 1})
	equal(t, "handed out", (<-answer)[0].Token, token)
}
