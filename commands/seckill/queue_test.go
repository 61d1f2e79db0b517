package seckill

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// pull returns what a worker is given.
func pull(t testing.TB, s *Store, consumer string, count int64) []Delivery {
	t.Helper()
	deliveries, found, err := s.Pull(t.Context(), "sku", consumer, count, 0)
	if err != nil || !found {
		t.Fatalf("Pull: found %v, %v", found, err)
	}
	return deliveries
}

// pullUntil pulls until there is something.
func pullUntil(t testing.TB, s *Store, consumer string, count int64) []Delivery {
	t.Helper()
	for {
		deliveries := pull(t, s, consumer, count)
		if len(deliveries) > 0 {
			return deliveries
		}
	}
}

func TestPullHandsOutEachOrderOnceAndInOrder(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t, rdb, Options{})
		if _, found, err := s.Pull(t.Context(), "sku", "w", 1, 0); found || err != nil {
			t.Fatalf("no sale: found %v, %v", found, err)
		}
		create(t, s, Sale{SKU: "sku", Stock: 100, Limit: 5})
		equal(t, "orders before the first", len(pull(t, s, "w1", 10)), 0)
		var tokens []string
		before := must[time.Time](t)(rdb.Time(t.Context()).Result()).UnixMilli()
		for i := range 5 {
			tokens = append(tokens, reserve(t, s, Purchase{SKU: "sku", User: fmt.Sprint("u", i), Qty: int64(i) + 1}))
		}
		after := must[time.Time](t)(rdb.Time(t.Context()).Result()).UnixMilli()
		got := append(pull(t, s, "w1", 2), pull(t, s, "w2", 1)...)
		got = append(got, pull(t, s, "w1", 100)...)
		equal(t, "deliveries", len(got), 5)
		for i, d := range got {
			if d.CreatedAt < before || d.CreatedAt > after {
				t.Fatalf("created at %d, between %d and %d", d.CreatedAt, before, after)
			}
			equal(t, "delivery", d, Delivery{tokens[i], fmt.Sprint("u", i), int64(i) + 1, d.CreatedAt, 1})
		}
		equal(t, "orders after the last", len(pull(t, s, "w3", 100)), 0)
		clean(t, s, "sku")
	})
}

func TestPullTakesOverWhatADeadWorkerLeft(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		patient, hasty := newStore(t, rdb, Options{}), newStore(t, rdb, Options{TakeoverAfter: time.Millisecond})
		create(t, patient, Sale{SKU: "sku", Stock: 100, Limit: 1})
		token := reserve(t, patient, Purchase{SKU: "sku", User: "u", Qty: 1})
		equal(t, "first delivery", pull(t, patient, "dead", 1)[0].Number, 1)
		equal(t, "while the worker has time", len(pull(t, patient, "w", 1)), 0)
		equal(t, "to the worker itself", len(pull(t, patient, "dead", 1)), 0)

		for n := range int64(3) {
			d := pullUntil(t, hasty, fmt.Sprint("w", n), 1)[0]
			equal(t, "again", d, Delivery{token, "u", 1, d.CreatedAt, n + 2})
		}
		must[Settlement](t)(patient.Confirm(t.Context(), token, "o"))
		pending := must[*redis.XPending](t)(rdb.XPending(t.Context(), patient.keys("sku", shardTag("sku", 0, 1)).queue, workersGroup).Result())
		equal(t, "entries that wait for an acknowledgement", pending.Count, 0)
		clean(t, patient, "sku")
	})
}

// A takeover that looks at a part of the pending list at a time must get to all
// of it.
func TestPullTakesOverAllOfALongList(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		patient, hasty := newStore(t, rdb, Options{}), newStore(t, rdb, Options{TakeoverAfter: time.Millisecond})
		const orders = 3 * MaxBatch // more than one call looks at
		create(t, patient, Sale{SKU: "sku", Stock: orders, Limit: 1})
		for first := 0; first < orders; first += MaxBatch {
			var purchases []Purchase
			for i := range MaxBatch {
				purchases = append(purchases, Purchase{User: fmt.Sprint(first + i), Qty: 1})
			}
			buyTogether(t, patient, "sku", purchases)
		}
		for taken := 0; taken < orders; {
			taken += len(pull(t, patient, "dead", 1000))
		}
		seen := map[string]bool{}
		for len(seen) < orders {
			for _, d := range pull(t, hasty, "w", 30) {
				seen[d.User] = true
				must[Settlement](t)(patient.Cancel(t.Context(), d.Token, ""))
			}
		}
		equal(t, "available", clean(t, patient, "sku").Available, orders)
	})
}

func TestPullNeverHandsOutASettledOrder(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		queue := s.keys("sku", shardTag("sku", 0, 1)).queue
		create(t, s, Sale{SKU: "sku", Stock: 100, Limit: 1})
		confirmed := reserve(t, s, Purchase{SKU: "sku", User: "a", Qty: 1})
		cancelled := reserve(t, s, Purchase{SKU: "sku", User: "b", Qty: 1})
		pending := reserve(t, s, Purchase{SKU: "sku", User: "c", Qty: 1})
		must[Settlement](t)(s.Confirm(ctx, confirmed, "o"))
		must[Settlement](t)(s.Cancel(ctx, cancelled, ""))
		equal(t, "before delivery", pull(t, s, "w", 10)[0].Token, pending)

		// Somebody puts a settled order back by hand.
		rdb.XAdd(ctx, &redis.XAddArgs{Stream: queue, Values: []string{"token", confirmed, "user", "a", "qty", "1"}})
		fresh := reserve(t, s, Purchase{SKU: "sku", User: "d", Qty: 1})
		equal(t, "by hand", pull(t, s, "w", 1)[0].Token, fresh)
		equal(t, "queue", clean(t, s, "sku").RecordedQueue, 2)
	})
}

func TestPullMakesALostGroupAgain(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 100, Limit: 1})
		token := reserve(t, s, Purchase{SKU: "sku", User: "a", Qty: 1})
		pull(t, s, "w", 1)
		rdb.XGroupDestroy(t.Context(), s.keys("sku", shardTag("sku", 0, 1)).queue, workersGroup)
		equal(t, "once more", pull(t, s, "w", 1)[0].Token, token)
		clean(t, s, "sku")
	})
}

func TestPlainReadGroupWorksOnTheStreamThatInfoNames(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 100, Limit: 5})
		token := reserve(t, s, Purchase{SKU: "sku", User: "a", Qty: 5})
		info, _, err := s.Info(ctx, "sku")
		if err != nil {
			t.Fatal(err)
		}
		streams, err := rdb.XReadGroup(ctx, &redis.XReadGroupArgs{Group: workersGroup, Consumer: "plain", Streams: []string{info.Queues[0], ">"}}).Result()
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "fields", fmt.Sprint(streams[0].Messages[0].Values), fmt.Sprint(map[string]any{"token": token, "user": "a", "qty": "5"}))
		equal(t, "left for PULL", len(pull(t, s, "w", 10)), 0)
		must[Settlement](t)(s.Confirm(ctx, token, "o"))
		clean(t, s, "sku")
	})
}

func TestSettledOrdersArePublished(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 100, Limit: 0})
		subscription := rdb.Subscribe(ctx, s.ResultsChannel())
		defer subscription.Close()
		if _, err := subscription.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		a := reserve(t, s, Purchase{SKU: "sku", User: "a", Qty: 1})
		b := reserve(t, s, Purchase{SKU: "sku", User: "b", Qty: 1})
		must[Settlement](t)(s.Confirm(ctx, a, "o\"\n\xff订单"))
		must[Settlement](t)(s.Confirm(ctx, a, "o\"\n\xff订单")) // replayed: not published
		must[Settlement](t)(s.Cancel(ctx, a, ""))             // conflict: not published
		must[Settlement](t)(s.Cancel(ctx, b, "reason"))
		for _, want := range []string{
			`{"type":"seckill_result","data":{"token":"` + a + `","status":"CONFIRMED","order_id":"o\"\n\ufffd订单"}}`,
			`{"type":"seckill_result","data":{"token":"` + b + `","status":"CANCELLED","order_id":""}}`,
		} {
			message, err := subscription.ReceiveMessage(ctx)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "message", message.Payload, want)
		}
	})
}
