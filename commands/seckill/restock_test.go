package seckill

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

func TestRestockOverShards(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		restock := func(sku string, units int64, request string) Restock {
			t.Helper()
			return must[Restock](t)(s.Restock(ctx, sku, units, request))
		}
		for _, shards := range []int{1, 4} {
			sku := fmt.Sprint("sku", shards)
			equal(t, "no sale", restock(sku, 1, ""), Restock{Outcome: NoSale})
			sell(t, s, Sale{SKU: sku, Stock: 20, Shards: shards})
			equal(t, "more", restock(sku, 5, "a"), Restock{Restocked, 25})
			equal(t, "again", restock(sku, 5, "a"), Restock{Replayed, 25})
			equal(t, "same id, other units", restock(sku, 6, "a"), Restock{Conflict, 25})
			equal(t, "same id, other sign", restock(sku, -5, "a"), Restock{Conflict, 25})
			equal(t, "less", restock(sku, -3, "b"), Restock{Restocked, 22})
			equal(t, "without id", restock(sku, -3, ""), Restock{Restocked, 19})
			equal(t, "without id, again", restock(sku, -3, ""), Restock{Restocked, 16})
			equal(t, "more than there are", restock(sku, -17, "c"), Restock{Insufficient, 16})
			reserve(t, s, Purchase{SKU: sku, User: "u", Qty: 4})
			equal(t, "reserved ones stay", restock(sku, -13, "c"), Restock{Insufficient, 12})
			equal(t, "all that there are", restock(sku, -12, "c"), Restock{Restocked, 0})
			equal(t, "again, though none are left", restock(sku, -12, "c"), Restock{Replayed, 0})
			equal(t, "none are left", restock(sku, -1, ""), Restock{Insufficient, 0})
			equal(t, "sold out", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: sku, User: "v", Qty: 1})), Receipt{Outcome: SoldOut})
			equal(t, "restocked", whole(t, s, sku, 4).Restocked, -16)

			equal(t, "on sale again", restock(sku, 2, ""), Restock{Restocked, 2})
			for shard := range min(shards, 2) {
				reserve(t, s, Purchase{SKU: sku, User: userOf(shard+shards/4, shards), Qty: int64(3 - min(shards, 2))})
			}
			whole(t, s, sku, 6)
			equal(t, "most", restock(sku, 1_000_000_000_001, ""), Restock{TooMany, 0})
			must[bool](t)(s.Shut(ctx, sku))
			equal(t, "of a closed sale", restock(sku, 2, ""), Restock{Restocked, 2})
			whole(t, s, sku, 8)
		}
	})
}

// What another sidecar takes for sold out is on sale again, and who waits for
// nothing but that is heard.
func TestRestockIsHeard(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s, other := t.Context(), newQuietStore(t, rdb, Options{}), newListeningStore(t, rdb, Options{})
		const shards = 3
		sell(t, s, Sale{SKU: "sku", Stock: 0, Shards: shards})
		for shard := range shards {
			turnedAway(t, other, "sku")
			must[Restock](t)(s.Restock(ctx, "sku", 1, ""))
			eventually(t, "a unit to buy", func() bool {
				receipt := must[Receipt](t)(other.Buy(ctx, Purchase{SKU: "sku", User: userOf(shard, shards), Qty: 1}))
				return receipt.Outcome == Reserved
			})
		}
		whole(t, s, "sku", shards)
	})
}

func TestS9_RestockDuringPurchases(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		const shards, units = 4, 70
		var stores []*Store
		for range 4 {
			stores = append(stores, newQuietStore(t, rdb, Options{}))
		}
		sell(t, stores[0], Sale{SKU: "sku", Stock: units, Shards: shards})
		var bought, taken, asked atomic.Int64
		var wg sync.WaitGroup
		for i, s := range stores[:2] {
			wg.Go(func() {
				for n := range 30 {
					receipt, err := s.Buy(ctx, Purchase{SKU: "sku", User: fmt.Sprint(i, n), Qty: 1})
					if err != nil {
						t.Error(err)
					}
					if receipt.Outcome == Reserved {
						bought.Add(1)
					}
				}
			})
		}
		for i, s := range stores[2:] {
			wg.Go(func() {
				for n := range 8 {
					request := fmt.Sprint(i, n)
					if n%2 == 0 {
						request = ""
					}
					restock, err := s.Restock(ctx, "sku", -5, request)
					asked.Add(1)
					switch {
					case errors.Is(err, script.ErrNotExecuted): // too much moved
					case err != nil:
						t.Error(err)
					case restock.Outcome == Restocked:
						taken.Add(5)
					case restock.Outcome == Insufficient && restock.Left < 5:
					default:
						t.Errorf("%+v", restock)
					}
				}
			})
		}
		for asked.Load() < 16 {
			clean(t, stores[0], "sku")
		}
		wg.Wait()
		audit := whole(t, stores[0], "sku", units-taken.Load())
		equal(t, "pending", audit.Pending, bought.Load())
		equal(t, "available", audit.Available, units-taken.Load()-bought.Load())
		if taken.Load() == 0 || bought.Load() == 0 {
			t.Errorf("%d taken, %d bought", taken.Load(), bought.Load())
		}
	})
}

// The same request, by many at once, is carried out once.
func TestConcurrentRestocksWithOneID(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		stores := []*Store{newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})}
		sell(t, stores[0], Sale{SKU: "sku", Stock: 40, Shards: 4})
		for _, units := range []int64{7, -25} {
			var caller, done atomic.Int64
			parallel(8, func() {
				restock, err := stores[caller.Add(1)%2].Restock(t.Context(), "sku", units, fmt.Sprint("r", units))
				switch {
				case err != nil:
					t.Error(err)
				case restock.Outcome == Restocked:
					done.Add(1)
				case restock.Outcome != Replayed:
					t.Errorf("%+v", restock)
				}
			})
			equal(t, "done", done.Load(), 1)
		}
		whole(t, stores[0], "sku", 40+7-25)
	})
}

// One that was carried out by another while this one looked for units was carried
// out, and doesn't find that there are too few.
func TestARestockThatIsOvertaken(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		client := connect(t, rdb.Options().Addr)
		probe := newProbe(client)
		slow, fast := newQuietStore(t, client, Options{}), newQuietStore(t, rdb, Options{})
		for trips, overtaken := 1, true; overtaken; trips++ {
			sku := fmt.Sprint("sku", trips)
			sell(t, fast, Sale{SKU: sku, Stock: 40, Shards: 4})
			overtaken = false
			probe.interrupt(trips, func() {
				overtaken = true
				must[Restock](t)(fast.Restock(t.Context(), sku, -25, "r"))
			})
			restock := must[Restock](t)(slow.Restock(t.Context(), sku, -25, "r"))
			if restock.Outcome != Restocked && restock.Outcome != Replayed {
				t.Fatalf("overtaken after %d calls: %+v", trips, restock)
			}
			whole(t, fast, sku, 15)
		}
	})
}

// An id is bound to its sale, and the next sale of the SKU has none of them.
func TestRestockIDsEndWithTheirSale(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		for range 2 {
			sell(t, s, Sale{SKU: "sku", Stock: 1, Shards: 2})
			equal(t, "restock", must[Restock](t)(s.Restock(ctx, "sku", 2, "r")), Restock{Restocked, 3})
			must[Dropped](t)(s.Drop(ctx, "sku", true))
		}
		equal(t, "left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
	})
}
