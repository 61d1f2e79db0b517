package seckill

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A key of another type that stands where a sale's key should is damage of that
// sale, and of no other.
func TestAKeyOfAnotherTypeIsDamage(t *testing.T) {
	for _, shards := range []int{1, 3} {
		for at := range shards {
			t.Run(fmt.Sprintf("shard %d of %d", at, shards), func(t *testing.T) {
				onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
					ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
					create(t, s, Sale{SKU: "other", Stock: 1, Limit: 1})
					must[Created](t)(s.Create(ctx, Sale{SKU: "sku", Stock: 9, Shards: shards}))
					key := s.keys("sku", shardTag("sku", at, shards)).sale
					must[int64](t)(rdb.Del(ctx, key).Result())
					must[int64](t)(rdb.RPush(ctx, key, "foreign").Result())

					list := must[[]Listed](t)(s.List(ctx))
					equal(t, "list", fmt.Sprint(list), fmt.Sprint([]Listed{{"other", Opened, 1}, {"sku", Damaged, 0}}))
					audit, found, err := s.Audit(ctx, "sku")
					if err != nil || !found || audit.Differences == 0 {
						t.Fatalf("audit: %+v, found %v, %v", audit, found, err)
					}
					dropped := must[Dropped](t)(s.Drop(ctx, "sku", true))
					equal(t, "dropped", dropped.Outcome, Removed)
					keys := must[[]string](t)(rdb.Keys(ctx, "*}:*:sku").Result())
					equal(t, "keys left", fmt.Sprint(keys), "[]")
				})
			})
		}
	}
}

// Who waits for something of a sale that is dropped waits no longer.
func TestADropWakesWhoWaits(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s, other := newStore(t, rdb, Options{}), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 1, Limit: 1})
		token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		equal(t, "pulled", len(pull(t, s, "w", 1)), 1)
		results, pulls := make(chan Outcome, 1), make(chan bool, 1)
		const long = time.Hour
		go func() {
			reservation, _ := s.AwaitResult(t.Context(), token, long)
			results <- reservation.Outcome
		}()
		go func() {
			_, found, _ := s.Pull(t.Context(), "sku", "w", 1, long)
			pulls <- found
		}()
		eventually(t, "both wait", func() bool {
			s.news.mu.Lock()
			defer s.news.mu.Unlock()
			return len(s.news.bells) == 2
		})
		must[Dropped](t)(other.Drop(t.Context(), "sku", true))
		equal(t, "result", <-results, NoSale)
		equal(t, "sale to pull from", <-pulls, false)
	})
}

// A pause doesn't make a sale forget when it ends.
func TestOpenBringsBackThePlannedEnd(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		const end = 4_000_000_000_000
		create(t, s, Sale{SKU: "sku", Stock: 1, Limit: 1, CloseAt: end})
		for range 2 {
			must[bool](t)(s.Shut(ctx, "sku"))
			must[bool](t)(s.Shut(ctx, "sku"))
			info, _, err := s.Info(ctx, "sku")
			if err != nil || info.State != Ended {
				t.Fatalf("closed: %+v, %v", info, err)
			}
			must[bool](t)(s.Open(ctx, "sku"))
			info, _, err = s.Info(ctx, "sku")
			if err != nil || info.State != Opened || info.CloseAt != end {
				t.Fatalf("open again: %+v, %v", info, err)
			}
		}
	})
}
