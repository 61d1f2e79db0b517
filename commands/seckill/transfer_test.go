package seckill

import (
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
)

// send makes a shard send units as a sidecar does that dies then.
func send(t testing.TB, s *Store, sku string, known localcache.Sale, from, to int, arrived, wanted int64) delivery {
	t.Helper()
	d := must[delivery](t)(s.send(t.Context(), sku, known, from, to, arrived, wanted, 0))
	if d.units == 0 {
		t.Fatalf("shard %d has sent nothing", from)
	}
	return d
}

// available returns the units on sale in one shard.
func available(t testing.TB, s *Store, sku string, shard, shards int) int64 {
	t.Helper()
	return must[int64](t)(s.rdb.HGet(t.Context(), shardKeys(s, sku, shard, shards).sale, "available").Int64())
}

// Units that a sidecar that died has left on their way count as such, and are sold
// to the next who wants them, wherever he is at home.
func TestUnitsOnTheirWayAreSold(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		const shards = 3
		dying, s := newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})
		for home := range shards {
			for to := range shards {
				if to == 0 {
					continue
				}
				sku := fmt.Sprint("sku", home, to)
				sell(t, s, Sale{SKU: sku, Stock: 1, Shards: shards}) // in shard 0
				send(t, dying, sku, knownSale(t, dying, sku), 0, to, 0, 1)
				audit := clean(t, s, sku)
				equal(t, "in transit", audit.InTransit, 1)
				equal(t, "available", audit.Available, 0)
				info := infoOf(t, s, sku)
				equal(t, "in transit", info.InTransit, 1)
				reserve(t, s, Purchase{SKU: sku, User: userOf(home, shards), Qty: 1})
				whole(t, s, sku, 1)
				equal(t, "the next", must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: sku, User: "u", Qty: 1})), Receipt{Outcome: SoldOut})
			}
		}
	})
}

// The same for units that many have left, and who takes stock away gets them too.
func TestUnitsOnTheirWayAreTakenAway(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		const shards, units = 4, 40
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		leave := func(sku string) {
			sell(t, s, Sale{SKU: sku, Stock: units, Shards: shards})
			known := knownSale(t, s, sku)
			for from := range shards {
				for to := range shards {
					if from != to && available(t, s, sku, from, shards) > 0 {
						send(t, s, sku, known, from, to, 0, 3)
					}
				}
			}
			if moving := clean(t, s, sku).InTransit; moving == 0 {
				t.Fatal("nothing is on its way")
			}
		}
		leave("taken")
		equal(t, "too many", must[Restock](t)(s.Restock(ctx, "taken", -units-1, "")), Restock{Insufficient, units})
		leave("taken too")
		equal(t, "all", must[Restock](t)(s.Restock(ctx, "taken too", -units, "")), Restock{Restocked, 0})
		whole(t, s, "taken too", 0)
		leave("bought")
		reserve(t, s, Purchase{SKU: "bought", User: "u", Qty: units})
		whole(t, s, "bought", units)
		leave("too many")
		receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "too many", User: "u", Qty: units + 1}))
		equal(t, "too many", receipt, Receipt{Outcome: SoldOut, Left: units})
		whole(t, s, "too many", units)
	})
}

// A delivery counts once, whoever takes it in, how often, and how late.
func TestADeliveryCountsOnce(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, a, b := t.Context(), newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})
		sell(t, a, Sale{SKU: "sku", Stock: 100, Shards: 2}) // 50 and 50
		known := knownSale(t, a, "sku")
		take := func(s *Store, deliveries ...delivery) {
			t.Helper()
			if err := s.take(ctx, "sku", known, 1, deliveries); err != nil {
				t.Fatal(err)
			}
		}
		first := send(t, a, "sku", known, 0, 1, 0, 1)
		equal(t, "half", first, delivery{0, 25, 25})
		equal(t, "asked for again", send(t, b, "sku", known, 0, 1, 0, 50), first)
		take(b, first, first)
		take(a, first)
		equal(t, "received once", available(t, a, "sku", 1, 2), 75)

		// Somebody who hasn't noticed gets the old one again, and no other.
		equal(t, "asked by a late one", send(t, a, "sku", known, 0, 1, 0, 50), first)
		second := send(t, b, "sku", known, 0, 1, 25, 20)
		equal(t, "what was wanted", second, delivery{0, 45, 20})
		take(a, first, second, first, second)
		take(b, second)
		equal(t, "received both", available(t, a, "sku", 1, 2), 95)
		equal(t, "all in all", whole(t, a, "sku", 100).Available, 100)

		third := send(t, b, "sku", known, 0, 1, 45, 100)
		equal(t, "the rest", third, delivery{0, 50, 5})
		take(b, third)
		equal(t, "nothing more", must[delivery](t)(a.send(ctx, "sku", known, 0, 1, 50, 1, 0)), delivery{0, 50, 0})
		equal(t, "both directions", send(t, a, "sku", known, 1, 0, 0, 60), delivery{1, 60, 60})
		if _, err := b.finishTransfers(ctx, "sku", known, 0); err != nil {
			t.Fatal(err)
		}
		equal(t, "back again", available(t, a, "sku", 0, 2), 60)
		whole(t, a, "sku", 100)
	})
}

// Whoever goes on with a sale that was dropped meanwhile moves nothing in the next
// one, be it of as many shards or not.
func TestTransfersOfASaleThatWasDropped(t *testing.T) {
	t.Parallel()
	for _, next := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(next), func(t *testing.T) {
			onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
				ctx, late, s := t.Context(), newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})
				sell(t, s, Sale{SKU: "sku", Stock: 20, Shards: 2})
				old := knownSale(t, late, "sku")
				d := send(t, late, "sku", old, 0, 1, 0, 1)
				must[Dropped](t)(s.Drop(ctx, "sku", true))
				sell(t, s, Sale{SKU: "sku", Stock: 40, Shards: next})
				before := fmt.Sprint(whole(t, s, "sku", 40))

				equal(t, "sent", must[delivery](t)(late.send(ctx, "sku", old, 0, 1, 0, 1, 0)), delivery{})
				if err := late.take(ctx, "sku", old, 1, []delivery{d}); err != nil {
					t.Fatal(err)
				}
				if _, err := late.finishTransfers(ctx, "sku", old, 0); err != nil {
					t.Fatal(err)
				}
				equal(t, "the next sale", fmt.Sprint(whole(t, s, "sku", 40)), before)
				// It buys, from the sale that there is.
				for shard := range next {
					reserve(t, late, Purchase{SKU: "sku", User: userOf(shard, next), Qty: 1})
				}
				whole(t, s, "sku", 40)
			})
		})
	}
}

// An operation that fails while units are brought for it was not executed, and says
// so; only where its own script was sent that is uncertain.
func TestWhatFailsWhileUnitsAreBroughtIsNotExecuted(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		for name, operation := range map[string]struct {
			scripts int // of its own that are sent
			run     func(s *Store, sku string) error
		}{
			"buy": {2, func(s *Store, sku string) error {
				_, err := s.Buy(ctx, Purchase{SKU: sku, User: "u", Qty: 9})
				return err
			}},
			"restock": {2, func(s *Store, sku string) error { _, err := s.Restock(ctx, sku, -9, ""); return err }},
		} {
			sell(t, s, Sale{SKU: name, Stock: 9, Shards: 3})
			if err := operation.run(s, name); err != nil { // and Redis knows the scripts
				t.Fatal(err)
			}
			uncertain := 0
			for trips, crashed := 1, true; crashed; trips++ {
				sku := fmt.Sprint(name, trips)
				sell(t, s, Sale{SKU: sku, Stock: 9, Shards: 3})
				client := connect(t, rdb.Options().Addr)
				probe := newProbe(client)
				dying := newQuietStore(t, client, Options{})
				probe.crashAfter(trips)
				err := operation.run(dying, sku)
				crashed = probe.crashed()
				switch {
				case errors.Is(err, script.ErrUncertain):
					uncertain++
				case errors.Is(err, script.ErrNotExecuted):
					audit := clean(t, s, sku)
					equal(t, "units that are left", audit.Available+audit.InTransit, 9)
				case err != nil:
					t.Errorf("%s cut off after %d calls: %v", name, trips, err)
				}
			}
			equal(t, name+": uncertain", uncertain, operation.scripts)
		}
	})
}

// A purchase that brings units asks Redis no more than it has to: a look at the
// shards, what others send, and the purchase once more.
func TestBringingUnitsTakesFewCalls(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		probe := newProbe(rdb)
		s := newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 900, Shards: 9})
		reserve(t, s, Purchase{SKU: "sku", User: userOf(3, 9), Qty: 100}) // all that is there
		sent, bought := probe.count("script send"), probe.count("script buy")
		reserve(t, s, Purchase{SKU: "sku", User: userOf(3, 9), Qty: 1})
		equal(t, "sent", probe.count("script send")-sent, 1)
		equal(t, "bought", probe.count("script buy")-bought, 2)
		// Half of what a shard had: those who come next find it at home.
		sent = probe.count("script send")
		for range 49 {
			reserve(t, s, Purchase{SKU: "sku", User: userOf(3, 9), Qty: 1})
		}
		equal(t, "sent for the next", probe.count("script send")-sent, 0)
		whole(t, s, "sku", 900)
	})
}
