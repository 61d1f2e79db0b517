package seckill

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/sharding"
)

// A sidecar dies between two of its calls, after the first, the second, and so on.
// Whatever it was doing, another one's keeper puts it right.

// crash is an operation that is interrupted.
type crash struct {
	prepare func(s *Store, sku string)
	run     func(dying *Store, sku string) error
	// check is called after the keeper of a survivor has made its rounds.
	check func(survivor *Store, sku string)
}

// everywhere runs the operation again and again, each time on a sale of its own and
// cut off from Redis one call later, until it isn't cut off any more.
func (c crash) everywhere(t *testing.T, rdb *redis.Client) {
	t.Helper()
	survivor := newQuietStore(t, rdb, Options{})
	now := time.Now()
	for calls, crashed := 1, true; crashed; calls++ {
		sku := fmt.Sprint("sku", calls)
		c.prepare(survivor, sku)
		client := connect(t, rdb.Options().Addr)
		probe := newProbe(client)
		dying := newQuietStore(t, client, Options{})
		probe.crashAfter(calls)
		err := c.run(dying, sku)
		if crashed = probe.crashed(); !crashed && err != nil {
			t.Fatalf("uninterrupted: %v", err)
		}
		for range 3 { // what moves, or is being dropped, is left alone at first
			now = now.Add(listEvery)
			survivor.keeper.round(now)
		}
		t.Logf("after a crash behind call %d", calls)
		c.check(survivor, sku)
		must[Dropped](t)(survivor.Drop(t.Context(), sku, true))
	}
	equal(t, "sales", len(must[[]Listed](t)(survivor.List(t.Context()))), 0)
	equal(t, "keys left", fmt.Sprint(must[[]string](t)(rdb.Keys(t.Context(), "*:sku*").Result())), "[]")
}

// whole audits a sale and checks how many units there are in all, and that none are
// on their way.
func whole(t testing.TB, s *Store, sku string, units int64) Audit {
	t.Helper()
	audit := clean(t, s, sku)
	equal(t, "units", audit.Stock+audit.Restocked, units)
	equal(t, "units in transit", audit.InTransit, 0)
	return audit
}

// userOf returns a user whose home is a shard.
func userOf(shard, shards int) string {
	for user := 0; ; user++ {
		if sharding.HomeShard(fmt.Sprint(user), shards) == shard {
			return fmt.Sprint(user)
		}
	}
}

func TestCrashInAPurchaseWithUnitsOfOtherShards(t *testing.T) {
	t.Parallel()
	rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
	const shards, units, wanted = 4, 40, 35
	buy := func(s *Store, sku string) (Receipt, error) {
		return s.Buy(t.Context(), Purchase{SKU: sku, User: "u", Qty: wanted, RequestID: "r"})
	}
	crash{
		func(s *Store, sku string) { sell(t, s, Sale{SKU: sku, Stock: units, Limit: wanted, Shards: shards}) },
		func(dying *Store, sku string) error { _, err := buy(dying, sku); return err },
		func(survivor *Store, sku string) {
			before := whole(t, survivor, sku, units)
			want := Reserved
			if before.Orders == 1 {
				want = Replayed
			}
			equal(t, "asked again", must[Receipt](t)(buy(survivor, sku)).Outcome, want)
			equal(t, "available", whole(t, survivor, sku, units).Available, units-wanted)
		},
	}.everywhere(t, rdb)
}

func TestCrashInACreation(t *testing.T) {
	t.Parallel()
	rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
	const shards, units = 4, 11
	crash{
		func(*Store, string) {},
		func(dying *Store, sku string) error {
			_, err := dying.Create(t.Context(), Sale{SKU: sku, Stock: units, Limit: 1, Shards: shards})
			return err
		},
		func(survivor *Store, sku string) {
			if _, found, err := survivor.Audit(t.Context(), sku); err != nil {
				t.Fatal(err)
			} else if !found { // it has come no further than to the name
				sell(t, survivor, Sale{SKU: sku, Stock: units, Limit: 1, Shards: shards})
			}
			equal(t, "sales", fmt.Sprint(must[[]Listed](t)(survivor.List(t.Context()))), fmt.Sprint([]Listed{{sku, Opened, units}}))
			for shard := range shards {
				reserve(t, survivor, Purchase{SKU: sku, User: userOf(shard, shards), Qty: 1})
			}
			whole(t, survivor, sku, units)
		},
	}.everywhere(t, rdb)
}

func TestCrashInARestock(t *testing.T) {
	t.Parallel()
	rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
	for _, delta := range []int64{5, -9} { // which are in several shards
		const units = 12
		crash{
			func(s *Store, sku string) { sell(t, s, Sale{SKU: sku, Stock: units, Shards: 4}) },
			func(dying *Store, sku string) error {
				_, err := dying.Restock(t.Context(), sku, delta, "r")
				return err
			},
			func(survivor *Store, sku string) {
				want := Restock{Restocked, units + delta}
				if clean(t, survivor, sku).Restocked == delta {
					want.Outcome = Replayed
				} else {
					whole(t, survivor, sku, units)
				}
				equal(t, "asked again", must[Restock](t)(survivor.Restock(t.Context(), sku, delta, "r")), want)
				whole(t, survivor, sku, units+delta)
			},
		}.everywhere(t, rdb)
	}
}

func TestCrashInADrop(t *testing.T) {
	t.Parallel()
	rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
	const shards, units = 3, 12
	for _, pending := range []bool{false, true} {
		var token string
		crash{
			func(s *Store, sku string) {
				sell(t, s, Sale{SKU: sku, Stock: units, Shards: shards})
				if pending {
					token = reserve(t, s, Purchase{SKU: sku, User: userOf(1, shards), Qty: 1})
				}
				must[bool](t)(s.Shut(t.Context(), sku))
			},
			func(dying *Store, sku string) error {
				_, err := dying.Drop(t.Context(), sku, false)
				return err
			},
			func(survivor *Store, sku string) {
				_, found, err := survivor.Audit(t.Context(), sku)
				if err != nil {
					t.Fatal(err)
				}
				if pending && !found {
					t.Fatal("a sale with a pending reservation is gone")
				}
				if found {
					whole(t, survivor, sku, units)
				}
				if pending {
					equal(t, "confirmed", must[Settlement](t)(survivor.Confirm(t.Context(), token, "o")).Outcome, Settled)
					whole(t, survivor, sku, units)
				}
				// What is to go goes, without force.
				must[Dropped](t)(survivor.Drop(t.Context(), sku, false))
				equal(t, "keys left", fmt.Sprint(must[[]string](t)(rdb.Keys(t.Context(), "*:"+sku).Result())), "[]")
			},
		}.everywhere(t, rdb)
	}
}
