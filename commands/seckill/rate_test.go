package seckill

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
)

const longWindow = 10_000_000 // milliseconds; none ends during a test

func TestRateIsCountedPerUserAndWindow(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s, other := t.Context(), newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 1000, Shards: 3, RateCount: 3, RateWindow: longWindow})
		buy := func(s *Store, user string) Receipt {
			t.Helper()
			return must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: user, Qty: 1}))
		}
		for i := range 3 {
			equal(t, fmt.Sprint("purchase ", i), buy([]*Store{s, other, s}[i], "u").Outcome, Reserved)
		}
		for _, s := range []*Store{s, other, s, other} {
			receipt := buy(s, "u")
			equal(t, "too fast", receipt.Outcome, RateLimited)
			if receipt.At <= 0 || receipt.At > longWindow {
				t.Fatalf("to wait for %d ms", receipt.At)
			}
		}
		equal(t, "somebody else", buy(s, "v").Outcome, Reserved)

		// When the window has ended, the next begins.
		rdb.Del(ctx, s.rateKey(knownSale(t, s, "sku").ID, homeTag("sku", "u", knownSale(t, s, "sku")), "u"))
		equal(t, "in the next window", buy(newQuietStore(t, rdb, Options{}), "u").Outcome, Reserved)
		equal(t, "pending", whole(t, s, "sku", 1000).Pending, 5)
	})
}

func TestARateWindowEnds(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 1000, RateCount: 1, RateWindow: 20})
		reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		ttl := rdb.PTTL(ctx, s.rateKey(knownSale(t, s, "sku").ID, firstTag("sku"), "u")).Val()
		if ttl > 20*time.Millisecond {
			t.Fatalf("the window lasts for %v", ttl)
		}
	})
	rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
	ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
	sell(t, s, Sale{SKU: "sku", Stock: 1000, RateCount: 1, RateWindow: 20})
	for range 3 {
		eventually(t, "the next window", func() bool {
			receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1}))
			if receipt.Outcome == RateLimited && (receipt.At < 1 || receipt.At > 20) {
				t.Fatalf("to wait for %d ms of 20", receipt.At)
			}
			return receipt.Outcome == Reserved
		})
	}
}

// What was carried out before is answered again and doesn't count. Everything else
// counts, and is looked at before limit and stock.
func TestWhatCountsForTheRate(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 10, Limit: 1, RateCount: 3, RateWindow: longWindow, OpenAt: 1 << 45})
		buy := func(request string) Outcome {
			t.Helper()
			return must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: request})).Outcome
		}
		for range 5 {
			equal(t, "not open", buy("r"), NotOpen)
		}
		must[bool](t)(s.Open(ctx, "sku"))
		equal(t, "first", buy("r"), Reserved)
		for range 5 {
			equal(t, "again", buy("r"), Replayed)
		}
		equal(t, "second", buy("s"), LimitReached)
		equal(t, "third", buy(""), LimitReached)
		equal(t, "fourth", buy("t"), RateLimited)
		equal(t, "fifth", buy(""), RateLimited)
		equal(t, "again", buy("r"), Replayed)
		must[bool](t)(s.Shut(ctx, "sku"))
		equal(t, "closed", buy("t"), Closed)
		equal(t, "pending", clean(t, s, "sku").Pending, 1)
	})
}

// Of a button that was clicked ten times one click counts, as it does when the clicks
// come one after the other.
func TestCopiesOfARequestCountOnce(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 10, Limit: 1, RateCount: 2, RateWindow: longWindow})
		var clicks []Purchase
		for range 10 {
			clicks = append(clicks, Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "r"})
		}
		next := Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "s"}
		third := Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "t"}
		receipts := buyTogether(t, s, "sku", append(clicks, next, third, third))
		equal(t, "first click", receipts[0].Outcome, Reserved)
		for _, again := range receipts[1:10] {
			equal(t, "another click", again.Outcome, Replayed)
		}
		equal(t, "second request", receipts[10].Outcome, LimitReached)
		equal(t, "third request", receipts[11].Outcome, RateLimited)
		equal(t, "a copy of it", receipts[12].Outcome, RateLimited)
		clean(t, s, "sku")
	})
}

// A purchase counts once, also when it needs units of other shards and is tried
// again for that.
func TestAPurchaseThatWaitsForUnitsCountsOnce(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		const shards = 3
		sell(t, s, Sale{SKU: "sku", Stock: 9, Shards: shards, RateCount: 1, RateWindow: longWindow})
		reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 8})
		for shard := range shards {
			user := userOf(shard, shards)
			receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: user, Qty: 2}))
			equal(t, "too many", receipt, Receipt{Outcome: SoldOut, Left: 1})
			receipt = must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: user, Qty: 1}))
			equal(t, "too fast", receipt.Outcome, RateLimited)
			count := rdb.Get(ctx, s.rateKey(knownSale(t, s, "sku").ID, homeTag("sku", user, knownSale(t, s, "sku")), user)).Val()
			equal(t, "counted", count, "2")
		}
		whole(t, s, "sku", 9)
	})
}

// In a batch each purchase counts, in its order.
func TestRateInABatch(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 10, RateCount: 2, RateWindow: longWindow})
		receipts := buyTogether(t, s, "sku", []Purchase{
			{User: "a", Qty: 1}, {User: "a", Qty: 1, RequestID: "r"}, {User: "a", Qty: 1}, {User: "b", Qty: 1}, {User: "a", Qty: 1, RequestID: "s"},
		})
		for i, want := range []Outcome{Reserved, Reserved, RateLimited, Reserved, RateLimited} {
			equal(t, fmt.Sprint("purchase ", i), receipts[i].Outcome, want)
		}
		clean(t, s, "sku")
	})
}

// Whatever bytes their names have, sales and users have windows of their own.
func TestRatesOfDifferentUsersAndSalesAreApart(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		names := []string{"a", "a:a", "a:", ":a", ":", "1:a", "a:1:a", "{a}", "a}b{", "用户", "\x00", "a\r\n"}
		for _, sku := range names {
			sell(t, s, Sale{SKU: sku, Stock: 100, RateCount: 1, RateWindow: longWindow})
		}
		for _, sku := range names {
			for _, user := range names {
				reserve(t, s, Purchase{SKU: sku, User: user, Qty: 1})
			}
		}
		for _, sku := range names {
			for _, user := range names {
				receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: sku, User: user, Qty: 1}))
				equal(t, fmt.Sprintf("%q of %q", user, sku), receipt.Outcome, RateLimited)
			}
		}
	})
}

func TestRateHoldsAgainstParallelPurchases(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		stores := []*Store{newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})}
		sell(t, stores[0], Sale{SKU: "sku", Stock: 1000, Shards: 2, RateCount: 5, RateWindow: longWindow})
		var caller, reserved atomic.Int64
		parallel(20, func() {
			for range 5 {
				receipt, err := stores[caller.Add(1)%2].Buy(t.Context(), Purchase{SKU: "sku", User: "u", Qty: 1})
				switch {
				case err != nil:
					t.Error(err)
				case receipt.Outcome == Reserved:
					reserved.Add(1)
				case receipt.Outcome != RateLimited:
					t.Errorf("%+v", receipt)
				}
			}
		})
		equal(t, "reserved", reserved.Load(), 5)
		whole(t, stores[0], "sku", 1000)
	})
}
