package seckill

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
)

// keptBy returns a keeper's sale, to be looked after by hand.
func keptBy(t testing.TB, s *Store, sku string) *kept {
	sale := knownSale(t, s, sku)
	return &kept{sku: sku, known: sale, sweeps: make([]time.Time, sale.Shards)}
}

// sweepFirst sweeps shard 0.
func sweepFirst(s *Store, sale *kept) (wait time.Duration, err error) {
	_, wait, err = s.sweepShard(s.ctx, sale.sku, sale.known.Shards, 0)
	return wait, err
}

// sweepUntil sweeps a sale of one shard until so many of its units have expired in
// all.
func sweepUntil(t testing.TB, s *Store, sku string, expired int64) {
	t.Helper()
	sale := keptBy(t, s, sku)
	eventually(t, "expiry", func() bool {
		must[time.Duration](t)(sweepFirst(s, sale))
		info, _, err := s.Info(t.Context(), sku)
		return err == nil && info.Expired >= expired
	})
}

func TestS5_AnUnpaidReservationExpires(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 1, Limit: 1, PayTTL: 20})
		p := Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "r"}
		receipt := must[Receipt](t)(s.Buy(ctx, p))
		token := receipt.Token
		orders, _, _, err := s.Orders(ctx, "sku", FirstCursor, 10)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "time to pay", receipt.At-orders[0].CreatedAt, 20)
		past(t, rdb, receipt.At)

		// Before anybody has looked for what is due.
		equal(t, "result", must[Reservation](t)(s.Result(ctx, token)), Reservation{Outcome: Found, Status: Expired})
		equal(t, "confirm", must[Settlement](t)(s.Confirm(ctx, token, "o")), Settlement{Outcome: Lapsed, Status: Expired})
		equal(t, "available", clean(t, s, "sku").Available, 1)

		equal(t, "confirm again", must[Settlement](t)(s.Confirm(ctx, token, "o")), Settlement{Outcome: Lapsed, Status: Expired})
		equal(t, "cancel", must[Settlement](t)(s.Cancel(ctx, token, "")), Settlement{Outcome: Lapsed, Status: Expired})
		equal(t, "result", must[Reservation](t)(s.Result(ctx, token)), Reservation{Outcome: Found, Status: Expired})
		equal(t, "the same request", must[Receipt](t)(s.Buy(ctx, p)), Receipt{Outcome: Replayed, Token: token, Left: 1, At: receipt.At})
		audit := clean(t, s, "sku")
		equal(t, "available", audit.Available, 1)
		equal(t, "expired", audit.Expired, 1)

		p.RequestID = "r2"
		receipt = must[Receipt](t)(s.Buy(ctx, p))
		equal(t, "a new request of the same user", receipt.Outcome, Reserved)
		past(t, rdb, receipt.At)
		equal(t, "cancel too late", must[Settlement](t)(s.Cancel(ctx, receipt.Token, "why")), Settlement{Outcome: Lapsed, Status: Expired})
		audit = clean(t, s, "sku")
		equal(t, "available", audit.Available, 1)
		equal(t, "cancelled", audit.Cancelled, 0)
	})
}

func TestTheKeeperPutsUnpaidUnitsOnSaleAgain(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 9, Limit: 3, PayTTL: 1500, Shards: 3})
		confirmed := reserve(t, s, Purchase{SKU: "sku", User: "paid", Qty: 2})
		equal(t, "confirmed", must[Settlement](t)(s.Confirm(ctx, confirmed, "o")).Outcome, Settled)
		for user := range 7 {
			reserve(t, s, Purchase{SKU: "sku", User: fmt.Sprint(user), Qty: 1})
		}
		eventually(t, "the units", func() bool { return clean(t, s, "sku").Available == 7 })
		audit := clean(t, s, "sku")
		equal(t, "expired", audit.Expired, 7)
		equal(t, "confirmed", audit.Confirmed, 2)
		equal(t, "what was paid", must[Reservation](t)(s.Result(ctx, confirmed)).Status, Confirmed)
		for user := range 7 {
			reserve(t, s, Purchase{SKU: "sku", User: fmt.Sprint(user), Qty: 1})
		}
	})
}

func TestASweepIsNeverEarly(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newQuietStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 10, Limit: 1, PayTTL: 60_000})
		at := must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: "sku", User: "u", Qty: 1})).At
		past(t, rdb, at-60_000+5)
		asked := must[time.Time](t)(rdb.Time(t.Context()).Result())
		answer := must[any](t)(sweepScript.Run(t.Context(), rdb, s.keys("sku", firstTag("sku")).all(), tokenPrefix("sku", firstTag("sku")),
			sweepMax, s.ResultsChannel(), s.eventsChannel(), "", "-")).([]any)
		after := must[time.Time](t)(rdb.Time(t.Context()).Result())
		equal(t, "expired", answer[0], any(int64(0)))
		if wait := answer[1].(int64); wait > at-asked.UnixMilli() || wait < at-after.UnixMilli() {
			t.Fatalf("to come again after %d ms", wait)
		}
		equal(t, "pending", clean(t, s, "sku").Pending, 1)

		create(t, s, Sale{SKU: "for ever", Stock: 10, Limit: 1})
		reserve(t, s, Purchase{SKU: "for ever", User: "u", Qty: 1})
		equal(t, "to come again", must[time.Duration](t)(sweepFirst(s, keptBy(t, s, "for ever"))), listEvery)
		equal(t, "to come again", must[time.Duration](t)(sweepFirst(s, &kept{sku: "none", known: knownSale(t, s, "sku")})), listEvery)
		equal(t, "pending", clean(t, s, "for ever").Pending, 1)
	})
}

// Of expiry, CONFIRM and CANCEL one wins, and all agree on which.
func TestS5_ExpiryAgainstConfirmAgainstCancel(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 100, Limit: 0, PayTTL: 3})
		sale := keptBy(t, s, "sku")
		units := map[Status]int64{}
		for round := range 25 {
			receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1}))
			var turn, won atomic.Int64
			parallel(6, func() {
				n := turn.Add(1)
				var settlement Settlement
				var err error
				switch n % 3 {
				case 0:
					_, err = sweepFirst(s, sale)
				case 1:
					settlement, err = s.Confirm(ctx, receipt.Token, fmt.Sprint(n))
				case 2:
					settlement, err = s.Cancel(ctx, receipt.Token, "")
				}
				if err != nil {
					t.Error(err)
				}
				if settlement.Outcome == Settled {
					won.Add(1)
				}
			})
			status := must[Reservation](t)(s.Result(ctx, receipt.Token)).Status
			if (won.Load() == 1) != (status != Expired) || won.Load() > 1 {
				t.Fatalf("round %d: %d won, and it is %s", round, won.Load(), status)
			}
			if status == Pending {
				t.Fatalf("round %d: nobody won", round)
			}
			units[status]++
		}
		audit := clean(t, s, "sku")
		equal(t, "confirmed", audit.Confirmed, units[Confirmed])
		equal(t, "cancelled", audit.Cancelled, units[Cancelled])
		equal(t, "expired", audit.Expired, units[Expired])
		equal(t, "available", audit.Available, 100-units[Confirmed])
	})
}

// More than one call looks at, behind more entries that are nobody's.
func TestASweepGoesThroughALongQueue(t *testing.T) {
	t.Parallel()
	rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
	ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
	const orders, strays = 2 * MaxBatch, sweepMax + 100
	create(t, s, Sale{SKU: "sku", Stock: orders, Limit: 1, PayTTL: 1})
	queue := s.keys("sku", firstTag("sku")).queue
	pipe := rdb.Pipeline()
	for i := range strays {
		values := []string{"token", fmt.Sprint("stray", i)}
		if i%2 == 0 {
			values = []string{"x", "y"}
		}
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: queue, Values: values})
	}
	must[[]redis.Cmder](t)(pipe.Exec(ctx))
	var at int64
	for first := 0; first < orders; first += MaxBatch {
		var purchases []Purchase
		for i := range MaxBatch {
			purchases = append(purchases, Purchase{User: fmt.Sprint(first + i), Qty: 1})
		}
		at = buyTogether(t, s, "sku", purchases)[MaxBatch-1].At
	}
	past(t, rdb, at)
	must[time.Duration](t)(sweepFirst(s, keptBy(t, s, "sku")))

	equal(t, "what is left in the queue", must[int64](t)(rdb.XLen(ctx, queue).Result()), strays)
	must[int64](t)(rdb.XTrimMaxLen(ctx, queue, 0).Result())
	audit := clean(t, s, "sku")
	equal(t, "expired", audit.Expired, orders)
	equal(t, "available", audit.Available, orders)
}

func TestExpiredOrdersAreNotHandedOut(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{TakeoverAfter: time.Millisecond})
		create(t, s, Sale{SKU: "sku", Stock: 10, Limit: 1, PayTTL: 1000})
		taken := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "taken", Qty: 1}))
		equal(t, "in time", pull(t, s, "w", 10)[0].Token, taken.Token)
		late := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "late", Qty: 1}))
		past(t, rdb, late.At)
		equal(t, "before they were looked for", len(pull(t, s, "w", 10)), 0)
		sweepUntil(t, s, "sku", 2)
		equal(t, "after", len(pull(t, s, "w", 10)), 0)
		queue := s.keys("sku", firstTag("sku")).queue
		equal(t, "to be acknowledged", must[*redis.XPending](t)(rdb.XPending(ctx, queue, workersGroup).Result()).Count, 0)
		equal(t, "queue", clean(t, s, "sku").RecordedQueue, 0)
	})
}

// The sweep relies on the queue being in the order of the deadlines.
func TestTheQueueIsInTheOrderOfTheDeadlines(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 100, Limit: 0, PayTTL: 1000})
		// Redis's clock is behind what it was when the last entry was made.
		future := must[time.Time](t)(rdb.Time(ctx).Result()).Add(time.Minute).UnixMilli()
		queue := s.keys("sku", firstTag("sku")).queue
		must[string](t)(rdb.XAdd(ctx, &redis.XAddArgs{Stream: queue, ID: fmt.Sprintf("%d-0", future), Values: []string{"x", "y"}}).Result())
		for range 5 {
			receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1}))
			equal(t, "to be paid by", receipt.At, future+1000)
		}
		must[int64](t)(rdb.XDel(ctx, queue, fmt.Sprintf("%d-0", future)).Result())
		must[time.Duration](t)(sweepFirst(s, keptBy(t, s, "sku")))
		equal(t, "pending", clean(t, s, "sku").Pending, 5)
	})
}

func TestExpiryIsPublished(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "a \"b\"\n用户", Stock: 100, Limit: 0, PayTTL: 5})
		subscription := rdb.Subscribe(ctx, s.ResultsChannel())
		defer subscription.Close()
		must[any](t)(subscription.Receive(ctx))
		for _, how := range []string{"swept", "confirmed too late"} {
			receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "a \"b\"\n用户", User: "u", Qty: 1}))
			past(t, rdb, receipt.At)
			if how == "swept" {
				must[time.Duration](t)(sweepFirst(s, keptBy(t, s, "a \"b\"\n用户")))
			} else {
				must[Settlement](t)(s.Confirm(ctx, receipt.Token, "o"))
			}
			message := must[*redis.Message](t)(subscription.ReceiveMessage(ctx))
			equal(t, how, message.Payload, `{"type":"seckill_result","data":{"token":"`+receipt.Token+`","status":"EXPIRED","order_id":""}}`)
		}
	})
}

// Whatever right a keeper lacks, a reservation expires as a whole or not at all.
func TestASweepWithoutRightsLeavesNothingHalfDone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	admin := connect(t, server.Addr)
	s := newQuietStore(t, admin, Options{})
	create(t, s, Sale{SKU: "sku", Stock: 1000, Limit: 0, PayTTL: 1})
	past(t, admin, must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: "sku", User: "u", Qty: 1})).At)
	for _, right := range strings.Fields("hmget hlen time xrange hget xdel hset xack") {
		must[any](t)(admin.Do(t.Context(), "ACL", "SETUSER", "no-"+right, "on", ">pw", "~*", "resetchannels", "+@all", "-"+right).Result())
		limited := newQuietStore(t, connectAs(t, &redis.Options{Addr: server.Addr, Username: "no-" + right, Password: "pw"}), Options{})
		if _, err := sweepFirst(limited, keptBy(t, s, "sku")); err == nil || !isLasting(err) {
			t.Errorf("without %s: %v", right, err)
		}
		equal(t, "pending, without "+right, clean(t, s, "sku").Pending, 1)
	}
	sweepUntil(t, s, "sku", 1)
	equal(t, "available", clean(t, s, "sku").Available, 1000)
}
