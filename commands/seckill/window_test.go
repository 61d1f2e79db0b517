package seckill

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// outcomes buys one unit in each shard of a sale and returns what all were told, ""
// when that differs. at is what they were told of the time.
func outcomes(t testing.TB, s *Store, sku string, shards int) (told Outcome, at int64) {
	t.Helper()
	for shard := range shards {
		receipt := must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: sku, User: userOf(shard, shards), Qty: 1}))
		if shard > 0 && (receipt.Outcome != told || receipt.At != at) {
			return "", 0
		}
		told, at = receipt.Outcome, receipt.At
	}
	return told, at
}

func TestOpenAndCloseReachAllShards(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		const shards, future = 4, 1 << 45
		decide := func(what string, decision func() (bool, error), want Outcome, state State) {
			t.Helper()
			equal(t, what, must[bool](t)(decision()), true)
			for _, s := range []*Store{s, newQuietStore(t, rdb, Options{})} {
				told, _ := outcomes(t, s, "sku", shards)
				equal(t, what, told, want)
			}
			equal(t, what, infoOf(t, s, "sku").State, state)
			equal(t, what, must[[]Listed](t)(s.List(ctx))[0].State, state)
		}
		open := func() (bool, error) { return s.Open(ctx, "sku") }
		shut := func() (bool, error) { return s.Shut(ctx, "sku") }

		equal(t, "open of none", must[bool](t)(open()), false)
		equal(t, "close of none", must[bool](t)(shut()), false)
		sell(t, s, Sale{SKU: "sku", Stock: 1000, Shards: shards, OpenAt: future})
		told, at := outcomes(t, s, "sku", shards)
		equal(t, "before it opens", told, NotOpen)
		equal(t, "told when", at, int64(future))
		equal(t, "before it opens", infoOf(t, s, "sku").State, NotYet)

		decide("opened", open, Reserved, Opened)
		now := must[time.Time](t)(rdb.Time(ctx).Result()).UnixMilli()
		if at := infoOf(t, s, "sku").OpenAt; at > now || at < now-60_000 {
			t.Fatalf("opened at %d, now is %d", at, now)
		}
		decide("opened again", open, Reserved, Opened)
		decide("closed", shut, Closed, Ended)
		since := infoOf(t, s, "sku").CloseAt
		decide("closed again", shut, Closed, Ended)
		equal(t, "closed since", infoOf(t, s, "sku").CloseAt, since)
		decide("opened again", open, Reserved, Opened)
		equal(t, "forgets that it was closed", infoOf(t, s, "sku").CloseAt, 0)
		whole(t, s, "sku", 1000)

		// One that is closed before it opens, and one that will close.
		sell(t, s, Sale{SKU: "never", Stock: 10, Shards: 2, OpenAt: future})
		must[bool](t)(s.Shut(ctx, "never"))
		told, at = outcomes(t, s, "never", 2)
		equal(t, "closed before it opened", told, Closed)
		equal(t, "nothing to wait for", at, 0)
		sell(t, s, Sale{SKU: "closes", Stock: 10, Shards: 2, OpenAt: future, CloseAt: future + 1})
		must[bool](t)(s.Open(ctx, "closes"))
		told, _ = outcomes(t, s, "closes", 2)
		equal(t, "opened", told, Reserved)
		equal(t, "a later end stands", infoOf(t, s, "closes").CloseAt, future+1)
	})
}

func TestAClosedSaleAnswersWhatItAnsweredBefore(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 10, Shards: 3, Limit: 1})
		p := Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "r"}
		token := reserve(t, s, p)
		must[bool](t)(s.Shut(ctx, "sku"))
		for _, s := range []*Store{s, newStore(t, rdb, Options{})} {
			for range 3 {
				equal(t, "same request", must[Receipt](t)(s.Buy(ctx, p)).Outcome, Replayed)
				equal(t, "without id", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1})).Outcome, Closed)
				another := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "s"}))
				equal(t, "another request", another.Outcome, Closed)
			}
		}
		equal(t, "settled after the end", must[Settlement](t)(s.Confirm(ctx, token, "o")).Outcome, Settled)
		whole(t, s, "sku", 10)
	})
}

// Other sidecars hear of it, whatever they were certain of.
func TestOthersHearOfTheWindow(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s, other := t.Context(), newQuietStore(t, rdb, Options{}), newListeningStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 1000, Shards: 3, OpenAt: 1 << 45})
		for _, decision := range []struct {
			decide func() (bool, error)
			want   Outcome
		}{
			{func() (bool, error) { return false, nil }, NotOpen},
			{func() (bool, error) { return s.Open(ctx, "sku") }, Reserved},
			{func() (bool, error) { return s.Shut(ctx, "sku") }, Closed},
			{func() (bool, error) { return s.Open(ctx, "sku") }, Reserved},
		} {
			must[bool](t)(decision.decide())
			eventually(t, string(decision.want), func() bool {
				told, _ := outcomes(t, other, "sku", 3)
				return told == decision.want
			})
		}
	})
}

// A decision that reached shard 0 only is told to the others by the keeper, and an
// older one never comes after a newer one.
func TestAHalfDecisionIsMended(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		const shards = 4
		sell(t, s, Sale{SKU: "sku", Stock: 1000, Shards: shards})
		known := knownSale(t, s, "sku")
		closed := must[window](t)(s.window(ctx, "sku", known, 0, "CLOSE", window{}))
		receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: userOf(2, shards), Qty: 1}))
		equal(t, "where it isn't known yet", receipt.Outcome, Reserved)
		s.keeper.round(time.Now().Add(listEvery))
		told, _ := outcomes(t, newQuietStore(t, rdb, Options{}), "sku", shards)
		equal(t, "mended", told, Closed)

		// The next decision is for all, too.
		opened := must[window](t)(s.window(ctx, "sku", known, 0, "OPEN", window{}))
		must[window](t)(s.window(ctx, "sku", known, 3, "SET", opened))
		must[window](t)(s.window(ctx, "sku", known, 3, "SET", closed)) // comes late
		equal(t, "number", opened.number, closed.number+1)
		must[bool](t)(s.Open(ctx, "sku"))
		must[window](t)(s.window(ctx, "sku", known, 2, "SET", closed)) // still later
		must[window](t)(s.window(ctx, "sku", known, 1, "SET", opened))
		told, _ = outcomes(t, newQuietStore(t, rdb, Options{}), "sku", shards)
		equal(t, "the last decision", told, Reserved)
		for shard := range shards {
			equal(t, "decisions", rdb.HGet(ctx, shardKeys(s, "sku", shard, shards).sale, "window").Val(), "3")
		}
	})
}

func TestConcurrentDecisionsEndAlikeInAllShards(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		var stores []*Store
		for range 4 {
			stores = append(stores, newQuietStore(t, rdb, Options{}))
		}
		const shards = 4
		sell(t, stores[0], Sale{SKU: "sku", Stock: 1000, Shards: shards})
		for range 10 {
			var caller atomic.Int64
			parallel(len(stores), func() {
				n := caller.Add(1) - 1
				decide := stores[n].Open
				if n%2 == 0 {
					decide = stores[n].Shut
				}
				if found, err := decide(ctx, "sku"); err != nil || !found {
					t.Errorf("found %v, %v", found, err)
				}
			})
			all := map[string]bool{}
			for shard := range shards {
				all[fmt.Sprint(rdb.HMGet(ctx, shardKeys(stores[0], "sku", shard, shards).sale, "window", "open_at", "close_at").Val()...)] = true
			}
			equal(t, "different windows", len(all), 1)
		}
	})
}

// A decision that comes late to a sale that was dropped meanwhile changes nothing in
// the next one.
func TestADecisionAboutASaleThatWasDropped(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 10, Shards: 2})
		old := knownSale(t, s, "sku")
		must[Dropped](t)(s.Drop(ctx, "sku", true))
		sell(t, s, Sale{SKU: "sku", Stock: 10, Shards: 4})
		for shard := range 2 {
			for _, decision := range []string{"CLOSE", "SET"} {
				if _, err := s.window(ctx, "sku", old, shard, decision, window{number: 9, openAt: 1, closeAt: 1}); err == nil {
					t.Errorf("%s of shard %d of a sale that is gone", decision, shard)
				}
			}
		}
		told, _ := outcomes(t, s, "sku", 4)
		equal(t, "the next sale", told, Reserved)
	})
}
