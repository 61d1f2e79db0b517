package seckill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

// beginCreation creates so many shards of a sale, none for its name alone, as a
// sidecar does that dies then.
func beginCreation(t testing.TB, s *Store, sale Sale, shards int) plan {
	t.Helper()
	p := plan{Sale: sale, id: randomHex(8), secret: randomHex(16)}
	if err := s.enterIndex(t.Context(), sale.SKU, sale.Shards); err != nil {
		t.Fatal(err)
	}
	state := creating
	for shard := range shards {
		leaveShard(t, s, p, shard, state)
		state = selling
	}
	return p
}

// leaveShard creates one shard and nothing else.
func leaveShard(t testing.TB, s *Store, p plan, shard int, state string) {
	t.Helper()
	made, id, _, err := s.createShard(t.Context(), p, shard, state, "")
	if err != nil || !made || id != p.id {
		t.Fatalf("shard %d: made %v, of sale %q, %v", shard, made, id, err)
	}
}

func TestCreateWithAllOptions(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{Shards: 3})
		now := must[time.Time](t)(rdb.Time(ctx).Result()).UnixMilli()
		sale := Sale{
			SKU: "sku", Stock: 100, Limit: 4, OpenAt: now - 1000, CloseAt: now + 1_000_000, PayTTL: 60_000, Shards: 7,
			RateCount: 5, RateWindow: 1000,
		}
		equal(t, "created", must[Created](t)(s.Create(ctx, sale)), Created{Shards: 7})
		info := infoOf(t, s, "sku")
		equal(t, "sale", info.Sale, sale)
		equal(t, "state", info.State, Opened)
		equal(t, "queues", len(info.Queues), 7)
		equal(t, "available", whole(t, s, "sku", 100).Available, 100)

		first := rdb.HGetAll(ctx, shardKeys(s, "sku", 0, 7).sale).Val()
		for shard := range 7 {
			fields := rdb.HGetAll(ctx, shardKeys(s, "sku", shard, 7).sale).Val()
			equal(t, "number of shard", fields["shard"], fmt.Sprint(shard))
			if stock := fields["stock"]; stock != "14" && stock != "15" {
				t.Errorf("shard %d has %s of 100 units", shard, stock)
			}
			for _, same := range []string{"sale_id", "secret", "shards", "total", "limit", "open_at", "close_at", "pay_ttl", "rate_count", "rate_window", "state", "window"} {
				if fields[same] == "" || fields[same] != first[same] {
					t.Errorf("%s of shard %d is %q, of shard 0 %q", same, shard, fields[same], first[same])
				}
			}
		}

		equal(t, "default", must[Created](t)(s.Create(ctx, Sale{SKU: "default", Stock: 1})), Created{Shards: 3})
		equal(t, "fewer units than shards", must[Created](t)(s.Create(ctx, Sale{SKU: "small", Stock: 3, Shards: 10})), Created{Shards: 10})
		equal(t, "most shards", must[Created](t)(s.Create(ctx, Sale{SKU: "large", Stock: 1_000_000_000_000, Shards: MaxShards})), Created{Shards: MaxShards})
		whole(t, s, "small", 3)
		equal(t, "all units", whole(t, s, "large", 1_000_000_000_000).Available, 1_000_000_000_000)
	})
}

func TestConcurrentCreatesHaveOneWinner(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		var stores []*Store
		for range 6 {
			stores = append(stores, newQuietStore(t, rdb, Options{}))
		}
		for round := range 3 {
			sku := fmt.Sprint("sku", round)
			answers := make([]Created, len(stores))
			var wg sync.WaitGroup
			for i, s := range stores {
				wg.Go(func() {
					var err error
					answers[i], err = s.Create(ctx, Sale{SKU: sku, Stock: int64(100 + i), Shards: 1 + i})
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			winner := -1
			for i, answer := range answers {
				if !answer.Exists && winner >= 0 {
					t.Fatalf("several have created it: %+v", answers)
				}
				if !answer.Exists {
					winner = i
				}
			}
			if winner < 0 {
				t.Fatalf("nobody has created it: %+v", answers)
			}
			for i, answer := range answers {
				equal(t, fmt.Sprint("shards told to ", i), answer.Shards, 1+winner)
			}
			equal(t, "available", whole(t, stores[0], sku, int64(100+winner)).Available, int64(100+winner))
			equal(t, "index", rdb.ZScore(ctx, stores[0].indexKey(), sku).Val(), float64(1+winner))
		}
		equal(t, "sales", len(must[[]Listed](t)(stores[0].List(ctx))), 3)
	})
}

// A creation that ended half-way is finished by whoever needs the sale next, with
// the numbers that it was begun with.
func TestAHalfCreationIsFinished(t *testing.T) {
	t.Parallel()
	const shards, units = 3, 31
	operations := map[string]func(t *testing.T, s *Store, sku string){
		"buy": func(t *testing.T, s *Store, sku string) {
			reserve(t, s, Purchase{SKU: sku, User: userOf(shards-1, shards), Qty: 2})
			receipt := must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: sku, User: "u", Qty: 3}))
			equal(t, "limit", receipt.Outcome, LimitReached)
		},
		"create": func(t *testing.T, s *Store, sku string) {
			created := must[Created](t)(s.Create(t.Context(), Sale{SKU: sku, Stock: 5, Shards: 2, Limit: 9}))
			equal(t, "created", created, Created{Exists: true, Shards: shards})
		},
		"info":  func(t *testing.T, s *Store, sku string) { equal(t, "available", infoOf(t, s, sku).Available, units) },
		"audit": func(t *testing.T, s *Store, sku string) { equal(t, "available", clean(t, s, sku).Available, units) },
		"restock": func(t *testing.T, s *Store, sku string) {
			equal(t, "restocked", must[Restock](t)(s.Restock(t.Context(), sku, -units, "")), Restock{Restocked, 0})
			equal(t, "restocked", must[Restock](t)(s.Restock(t.Context(), sku, units, "")), Restock{Restocked, units})
		},
		"open": func(t *testing.T, s *Store, sku string) {
			equal(t, "found", must[bool](t)(s.Open(t.Context(), sku)), true)
		},
		"find": func(t *testing.T, s *Store, sku string) {
			tokens, found, err := s.Find(t.Context(), sku, "u")
			if err != nil || !found || len(tokens) != 0 {
				t.Fatalf("%v, found %v, %v", tokens, found, err)
			}
		},
		"orders": func(t *testing.T, s *Store, sku string) {
			orders, _, found, err := s.Orders(t.Context(), sku, FirstCursor, 10)
			if err != nil || !found || len(orders) != 0 {
				t.Fatalf("%v, found %v, %v", orders, found, err)
			}
		},
		"pull": func(t *testing.T, s *Store, sku string) {
			if _, found, err := s.Pull(t.Context(), sku, "w", 1, 0); err != nil || !found {
				t.Fatalf("found %v, %v", found, err)
			}
		},
	}
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		for name, run := range operations {
			for done := 1; done <= shards; done++ {
				sku := fmt.Sprint(name, done)
				s := newQuietStore(t, rdb, Options{})
				beginCreation(t, s, Sale{SKU: sku, Stock: units, Limit: 2, Shards: shards}, done)
				for _, listed := range must[[]Listed](t)(s.List(t.Context())) {
					if listed.SKU == sku {
						t.Fatalf("listed before it is there: %+v", listed)
					}
				}
				run(t, s, sku)
				equal(t, name+": limit", infoOf(t, s, sku).Limit, 2)
				equal(t, name+": shards", infoOf(t, s, sku).Shards, shards)
				whole(t, s, sku, units)
				equal(t, "state", rdb.HGet(t.Context(), shardKeys(s, sku, 0, shards).sale, "state").Val(), selling)
			}
		}
	})
}

func TestAHalfCreationCanBeDropped(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		for done := range 4 {
			sku := fmt.Sprint("sku", done)
			beginCreation(t, s, Sale{SKU: sku, Stock: 31, Shards: 3}, done)
			if done > 0 {
				equal(t, "without force", must[Dropped](t)(s.Drop(ctx, sku, false)), Dropped{Outcome: StillOpen})
			}
			want := Dropped{Outcome: Removed}
			if done == 0 {
				want.Outcome = NoSale
			}
			equal(t, "with force", must[Dropped](t)(s.Drop(ctx, sku, true)), want)
			equal(t, "left", fmt.Sprint(keysOf(t, rdb, sku)), "[]")
		}
	})
}

// Somebody who went on creating a sale that others have finished and dropped
// meanwhile leaves nothing, and spares the sale that is there by now, whose shards
// may have the same keys.
func TestALateFinisherDoesNoHarm(t *testing.T) {
	t.Parallel()
	for _, next := range []int{0, 1, 2, 4, 8} { // shards of the next sale, 0 for none
		t.Run(fmt.Sprint(next), func(t *testing.T) {
			onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
				ctx, late, other := t.Context(), newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})
				p := beginCreation(t, late, Sale{SKU: "sku", Stock: 8, Shards: 4}, 2)
				clean(t, other, "sku")
				must[Dropped](t)(other.Drop(ctx, "sku", true))
				if next > 0 {
					sell(t, other, Sale{SKU: "sku", Stock: 80, Shards: next})
				}
				if err := late.finishCreation(ctx, p); !errors.Is(err, errNoSale) {
					t.Fatalf("finished: %v", err)
				}
				if next == 0 {
					equal(t, "left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
					equal(t, "bought", must[Receipt](t)(late.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1})), Receipt{Outcome: NoSale})
					return
				}
				whole(t, other, "sku", 80)
				for shard := range next {
					reserve(t, other, Purchase{SKU: "sku", User: userOf(shard, next), Qty: 1})
				}
				whole(t, other, "sku", 80)
				must[Dropped](t)(other.Drop(ctx, "sku", true))
				equal(t, "left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
			})
		})
	}
}

// One that dies besides leaves a shard of no sale. The next sale replaces it, with
// all that it had.
func TestWhatALateFinisherLeavesIsReplaced(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, late, other := t.Context(), newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})
		p := beginCreation(t, late, Sale{SKU: "sku", Stock: 8, Shards: 4}, 1)
		must[Dropped](t)(other.Drop(ctx, "sku", true))
		for shard := 1; shard < 4; shard++ {
			leaveShard(t, late, p, shard, selling)
			rdb.HSet(ctx, shardKeys(late, "sku", shard, 4).sale, "from:0", 7, "to:0", "9:9", "received", 5, "wanted", 1)
		}
		equal(t, "sales", len(must[[]Listed](t)(other.List(ctx))), 0)
		equal(t, "bought", must[Receipt](t)(other.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1})), Receipt{Outcome: NoSale})

		sell(t, other, Sale{SKU: "sku", Stock: 40, Shards: 8}) // its shards 2, 4 and 6 have the same keys
		reserve(t, other, Purchase{SKU: "sku", User: "u", Qty: 40})
		whole(t, other, "sku", 40)
		must[Dropped](t)(other.Drop(ctx, "sku", true))
		equal(t, "left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
	})
}

// A sale that is being dropped, or was, isn't brought back to life by who still
// thinks that it is being created.
func TestALateFinisherDoesNotReviveASale(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, late, other := t.Context(), newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})
		p := beginCreation(t, late, Sale{SKU: "sku", Stock: 8, Shards: 2}, 1)
		clean(t, other, "sku")
		for _, state := range []string{dropping, removing} {
			for shard := range 2 {
				must[Outcome](t)(move(ctx, other, p, shard, "", dropping))
			}
			must[Outcome](t)(move(ctx, other, p, 0, "", state))
			if state == removing {
				must[int64](t)(other.removeShard(ctx, "sku", p.id, 1, 2))
			}
			if err := late.finishCreation(ctx, p); (state == removing) != errors.Is(err, errNoSale) {
				t.Fatalf("%s: %v", state, err)
			}
			equal(t, "state", rdb.HGet(ctx, shardKeys(late, "sku", 0, 2).sale, "state").Val(), state)
			for user := range 4 {
				receipt := must[Receipt](t)(other.Buy(ctx, Purchase{SKU: "sku", User: fmt.Sprint(user), Qty: 1}))
				equal(t, "bought", receipt, Receipt{Outcome: NoSale})
			}
		}
		equal(t, "dropped", must[Dropped](t)(other.Drop(ctx, "sku", false)), Dropped{Outcome: Removed})
		equal(t, "left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
	})
}

// move brings one shard of a planned sale into another state.
func move(ctx context.Context, s *Store, p plan, shard int, from, to string) (Outcome, error) {
	outcome, _, err := s.move(ctx, p.SKU, p.id, shard, p.Shards, from, to, true)
	return outcome, err
}

// A shard with orders of another sale is never taken for empty.
func TestAShardWithOrdersOfAnotherSaleIsKept(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 8, Shards: 2})
		token := reserve(t, s, Purchase{SKU: "sku", User: userOf(1, 2), Qty: 1})
		rdb.Del(ctx, shardKeys(s, "sku", 0, 2).sale, shardKeys(s, "sku", 0, 2).queue) // by hand

		for range 2 { // the second finds what the first one has begun
			_, err := newQuietStore(t, rdb, Options{}).Create(ctx, Sale{SKU: "sku", Stock: 5, Shards: 2})
			var answered redis.Error
			if !errors.As(err, &answered) || errors.Is(err, script.ErrNotExecuted) {
				t.Fatalf("created: %v", err)
			}
		}
		equal(t, "reservation", must[Reservation](t)(s.Result(ctx, token)).Status, Pending)
		equal(t, "dropped", must[Dropped](t)(s.Drop(ctx, "sku", true)).Outcome, Removed)
		equal(t, "left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
		sell(t, s, Sale{SKU: "sku", Stock: 5, Shards: 2})
		whole(t, s, "sku", 5)
	})
}

// A CREATE that finds a sale leaves its name in the index alone, also when it dies
// before it has read how many shards there are.
func TestTheIndexKnowsHowManyShardsThereAre(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 8, Shards: 4})
		client := connect(t, rdb.Options().Addr)
		probe := newProbe(client)
		dying := newQuietStore(t, client, Options{})
		probe.crashAfter(1)
		if _, err := dying.Create(ctx, Sale{SKU: "sku", Stock: 1, Shards: 2}); err == nil || !probe.crashed() {
			t.Fatalf("not cut off: %v", err)
		}
		equal(t, "index", rdb.ZScore(ctx, s.indexKey(), "sku").Val(), 4)
		want := fmt.Sprint([]Listed{{"sku", Opened, 8}})
		equal(t, "list", fmt.Sprint(must[[]Listed](t)(s.List(ctx))), want)
		// Whatever the index says, the sale knows better.
		for _, wrong := range []float64{0, 1, 2, 128, 1e9, -1} {
			rdb.ZAdd(ctx, s.indexKey(), redis.Z{Score: wrong, Member: "sku"})
			equal(t, "list", fmt.Sprint(must[[]Listed](t)(s.List(ctx))), want)
			equal(t, "audited", clean(t, s, "sku").Available, 8)
		}
	})
}
