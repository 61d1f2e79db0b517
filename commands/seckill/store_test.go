package seckill

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestS1_LastUnitIsASale(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 1, Limit: 1})
		receipt := must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: "sku", User: "u1", Qty: 1}))
		equal(t, "first", receipt, Receipt{Outcome: Reserved, Token: receipt.Token, Left: 0})
		if receipt.Token == "" || len(receipt.Token) > MaxTokenBytes {
			t.Fatalf("token %q", receipt.Token)
		}
		receipt = must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: "sku", User: "u2", Qty: 1}))
		equal(t, "second", receipt, Receipt{Outcome: SoldOut})
		clean(t, s, "sku")
	})
}

func TestS2_LimitOfOneUserHoldsAgainstParallelPurchases(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 500, Limit: 1})
		var tokens sync.Map
		var reserved, limited atomic.Int64
		parallel(50, func() {
			for range 20 {
				receipt, err := s.Buy(t.Context(), Purchase{SKU: "sku", User: "one", Qty: 1})
				if err != nil {
					t.Error(err)
					return
				}
				tokens.Store(receipt.Token, true)
				switch receipt.Outcome {
				case Reserved:
					reserved.Add(1)
				case LimitReached:
					limited.Add(1)
				}
			}
		})
		equal(t, "reserved", reserved.Load(), 1)
		equal(t, "limited", limited.Load(), 999)
		different := 0
		tokens.Range(func(_, _ any) bool { different++; return true })
		equal(t, "different tokens", different, 1)
		equal(t, "left", clean(t, s, "sku").Available, 499)
	})
}

// parallel runs f in n goroutines and waits for all.
func parallel(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(f)
	}
	wg.Wait()
}

func TestNeverOversold(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 100, Limit: 1})
		var next, soldOut atomic.Int64
		var tokens sync.Map
		parallel(20, func() {
			for {
				user := next.Add(1)
				if user > 1000 {
					return
				}
				receipt, err := s.Buy(t.Context(), Purchase{SKU: "sku", User: fmt.Sprint(user), Qty: 1})
				if err != nil {
					t.Error(err)
					return
				}
				switch receipt.Outcome {
				case Reserved:
					tokens.Store(receipt.Token, true)
				case SoldOut:
					soldOut.Add(1)
				default:
					t.Errorf("user %d: %+v", user, receipt)
				}
			}
		})
		sold := 0
		tokens.Range(func(_, _ any) bool { sold++; return true })
		equal(t, "different tokens", sold, 100)
		equal(t, "sold out", soldOut.Load(), 900)
		equal(t, "pending", clean(t, s, "sku").Pending, 100)
	})
}

func TestS6_OneSettlementWins(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 10, Limit: 0})
		settled := must[Settlement](t)

		token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 2})
		equal(t, "cancel", settled(s.Cancel(ctx, token, "no money")), Settlement{Outcome: Settled, Status: Cancelled})
		equal(t, "cancel again", settled(s.Cancel(ctx, token, "other")), Settlement{Outcome: Replayed, Status: Cancelled})
		equal(t, "confirm the cancelled", settled(s.Confirm(ctx, token, "o1")), Settlement{Outcome: Conflict, Status: Cancelled})
		equal(t, "result", must[Reservation](t)(s.Result(ctx, token)), Reservation{Outcome: Found, Status: Cancelled, Reason: "no money"})
		equal(t, "available", clean(t, s, "sku").Available, 10)

		token = reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 2})
		equal(t, "pending", must[Reservation](t)(s.Result(ctx, token)), Reservation{Outcome: Found, Status: Pending})
		equal(t, "confirm", settled(s.Confirm(ctx, token, "o1")), Settlement{Outcome: Settled, Status: Confirmed, OrderID: "o1"})
		equal(t, "confirm again", settled(s.Confirm(ctx, token, "o1")), Settlement{Outcome: Replayed, Status: Confirmed, OrderID: "o1"})
		equal(t, "another order id", settled(s.Confirm(ctx, token, "o2")), Settlement{Outcome: Conflict, Status: Confirmed, OrderID: "o1"})
		equal(t, "cancel the confirmed", settled(s.Cancel(ctx, token, "")), Settlement{Outcome: Conflict, Status: Confirmed, OrderID: "o1"})
		equal(t, "result", must[Reservation](t)(s.Result(ctx, token)), Reservation{Outcome: Found, Status: Confirmed, OrderID: "o1"})
		equal(t, "queue", clean(t, s, "sku").RecordedQueue, 0)
	})
}

func TestS6_OneOfManySettlementsWins(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 50, Limit: 0})
		for i := range 25 {
			token := reserve(t, s, Purchase{SKU: "sku", User: fmt.Sprint(i), Qty: 1})
			var won, caller atomic.Int64
			parallel(8, func() {
				var settlement Settlement
				var err error
				if n := caller.Add(1); n%2 == 0 {
					settlement, err = s.Cancel(ctx, token, "")
				} else {
					settlement, err = s.Confirm(ctx, token, fmt.Sprint(n))
				}
				if err != nil {
					t.Error(err)
				}
				if settlement.Outcome == Settled {
					won.Add(1)
				}
			})
			equal(t, "winners", won.Load(), 1)
			status := must[Reservation](t)(s.Result(ctx, token)).Status
			if status != Confirmed && status != Cancelled {
				t.Fatalf("after all: %s", status)
			}
		}
		clean(t, s, "sku")
	})
}

func TestS7_IDsAreBytes(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		ids := []string{
			"9007199254740992", "9007199254740993", "1", "01", "1.0", "1e0", " 1", "-0", "0",
			"a}b{", "{a}b", "a b\r\n", "\x00", "\xff\xfe", "用户", "🛒", ":", ",", ".", strings.Repeat("x", 256), strings.Repeat("x", 255) + "\x00",
		}
		for _, sku := range ids {
			create(t, s, Sale{SKU: sku, Stock: 100, Limit: 1})
		}
		tokens := map[string]bool{}
		for _, sku := range ids {
			for _, user := range ids {
				token := reserve(t, s, Purchase{SKU: sku, User: user, Qty: 1, RequestID: user})
				tokens[token] = true
				if len(token) > MaxTokenBytes {
					t.Fatalf("token of %d bytes", len(token))
				}
				again := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: sku, User: user, Qty: 1, RequestID: user}))
				equal(t, "again", again, Receipt{Outcome: Replayed, Token: token, Left: again.Left})
			}
			deliveries, _, err := s.Pull(ctx, sku, "w", 100, 0)
			if err != nil || len(deliveries) != len(ids) {
				t.Fatalf("Pull: %d deliveries, %v", len(deliveries), err)
			}
			for i, d := range deliveries {
				equal(t, "user", d.User, ids[i])
				equal(t, "confirmed", must[Settlement](t)(s.Confirm(ctx, d.Token, ids[i])), Settlement{Settled, Confirmed, ids[i]})
			}
			equal(t, "users", clean(t, s, sku).RecordedBuyers, int64(len(ids)))
		}
		equal(t, "different tokens", len(tokens), len(ids)*len(ids))
		list := must[[]Listed](t)(s.List(ctx))
		equal(t, "sales", len(list), len(ids))
		for i := range list[1:] {
			if list[i].SKU >= list[i+1].SKU {
				t.Fatalf("%q is listed before %q", list[i].SKU, list[i+1].SKU)
			}
		}
	})
}

func TestS10_CreateOfALiveSaleChangesNothing(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 10, Limit: 2})
		reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		before, _, err := s.Info(ctx, "sku")
		if err != nil {
			t.Fatal(err)
		}
		created := must[Created](t)(s.Create(ctx, Sale{SKU: "sku", Stock: 1000, Limit: 0}))
		equal(t, "second create", created, Created{Exists: true, Shards: 1})
		after, found, err := s.Info(ctx, "sku")
		if err != nil || !found || fmt.Sprint(after) != fmt.Sprint(before) {
			t.Fatalf("was %+v, is %+v (%v)", before, after, err)
		}
		clean(t, s, "sku")
	})
}

func TestSalesDoNotTouchEachOther(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, a, b := t.Context(), newStore(t, rdb, Options{}), newStore(t, rdb, Options{Prefix: "other:"})
		create(t, a, Sale{SKU: "sku", Stock: 1, Limit: 1})
		create(t, b, Sale{SKU: "sku", Stock: 2, Limit: 1})
		reserve(t, a, Purchase{SKU: "sku", User: "u", Qty: 1})
		equal(t, "other prefix", clean(t, b, "sku").Available, 2)
		receipt := must[Receipt](t)(a.Buy(ctx, Purchase{SKU: "sku2", User: "u", Qty: 1}))
		equal(t, "no such sale", receipt, Receipt{Outcome: NoSale})
	})
}

func TestLimit(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 10, Limit: 3})
		buy := func(qty int64) Receipt {
			t.Helper()
			return must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: qty}))
		}
		equal(t, "more than the limit at once", buy(4), Receipt{Outcome: LimitReached, Left: 10})
		first := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 2})
		equal(t, "more than is left of the limit", buy(2), Receipt{Outcome: LimitReached, Token: first, Left: 8})
		second := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		equal(t, "latest", buy(1), Receipt{Outcome: LimitReached, Token: second, Left: 7})
		must[Settlement](t)(s.Cancel(ctx, second, ""))
		equal(t, "latest that holds units", buy(2), Receipt{Outcome: LimitReached, Token: first, Left: 8})
		must[Settlement](t)(s.Confirm(ctx, first, "o"))
		equal(t, "confirmed units count", buy(2), Receipt{Outcome: LimitReached, Token: first, Left: 8})
		equal(t, "the allowance came back", buy(1).Outcome, Reserved)
		clean(t, s, "sku")
	})
}

func TestLimitIsToldBeforeSoldOut(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 1, Limit: 1})
		token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		again := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1}))
		equal(t, "the buyer", again, Receipt{Outcome: LimitReached, Token: token})
	})
}

func TestSoldOutTellsWhatIsLeft(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 5, Limit: 0})
		equal(t, "too many", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 6})), Receipt{Outcome: SoldOut, Left: 5})
		reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 5})
		create(t, s, Sale{SKU: "empty", Stock: 0, Limit: 1})
		equal(t, "stock 0", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "empty", User: "u", Qty: 1})), Receipt{Outcome: SoldOut})
	})
}

func TestRequestIDNeverBuysTwice(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		s, other := newStore(t, rdb, Options{}), newStore(t, rdb, Options{}) // two sidecars
		create(t, s, Sale{SKU: "sku", Stock: 3, Limit: 2})
		p := Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "r1"}
		token := reserve(t, s, p)
		equal(t, "another sidecar", must[Receipt](t)(other.Buy(ctx, p)), Receipt{Outcome: Replayed, Token: token, Left: 2})
		stranger := reserve(t, s, Purchase{SKU: "sku", User: "v", Qty: 1, RequestID: "r1"})
		if stranger == token {
			t.Fatal("request ids of two users are taken for one")
		}
		second := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "r2"})
		equal(t, "sold out", must[Receipt](t)(s.Buy(ctx, p)), Receipt{Outcome: Replayed, Token: token})
		equal(t, "at the limit", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "r2"})), Receipt{Outcome: Replayed, Token: second})
		must[Settlement](t)(s.Cancel(ctx, token, ""))
		equal(t, "after it was cancelled", must[Receipt](t)(s.Buy(ctx, p)), Receipt{Outcome: Replayed, Token: token, Left: 1})
		equal(t, "what became of it", must[Reservation](t)(s.Result(ctx, token)).Status, Cancelled)
		clean(t, s, "sku")
	})
}

// User and request id are one string in the hash: their border must count.
func TestRequestIDsAreTheUsersOwn(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 9, Limit: 1})
		reserve(t, s, Purchase{SKU: "sku", User: "ab", Qty: 1, RequestID: "c"})
		reserve(t, s, Purchase{SKU: "sku", User: "a", Qty: 1, RequestID: "bc"})
		reserve(t, s, Purchase{SKU: "sku", User: "a:b", Qty: 1, RequestID: "c"})
		reserve(t, s, Purchase{SKU: "sku", User: "a:", Qty: 1, RequestID: "bc"})
		clean(t, s, "sku")
	})
}

func TestBatchIsLikeOneAfterTheOther(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 5, Limit: 2})
		receipts := buyTogether(t, s, "sku", []Purchase{
			{User: "a", Qty: 1, RequestID: "r"},
			{User: "b", Qty: 1},
			{User: "a", Qty: 1, RequestID: "r"},
			{User: "a", Qty: 1},
			{User: "a", Qty: 1},
			{User: "c", Qty: 3},
			{User: "c", Qty: 2},
			{User: "d", Qty: 1},
		})
		want := []Receipt{
			{Outcome: Reserved, Token: receipts[0].Token, Left: 4},
			{Outcome: Reserved, Token: receipts[1].Token, Left: 3},
			{Outcome: Replayed, Token: receipts[0].Token, Left: 3},
			{Outcome: Reserved, Token: receipts[3].Token, Left: 2},
			{Outcome: LimitReached, Token: receipts[3].Token, Left: 2},
			{Outcome: LimitReached, Left: 2},
			{Outcome: Reserved, Token: receipts[6].Token, Left: 0},
			{Outcome: SoldOut},
		}
		for i := range want {
			equal(t, fmt.Sprint("purchase ", i), receipts[i], want[i])
		}
		equal(t, "orders", clean(t, s, "sku").Orders, 4)
	})
}

func TestLargestBatch(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: MaxBatch, Limit: 1})
		var purchases []Purchase
		for i := range MaxBatch {
			purchases = append(purchases, Purchase{User: fmt.Sprint(i), Qty: 1, RequestID: "r"})
		}
		receipts := buyTogether(t, s, "sku", purchases)
		equal(t, "left after the last", receipts[MaxBatch-1].Left, 0)
		equal(t, "orders", clean(t, s, "sku").Orders, MaxBatch)
	})
}

func TestTokensThatAreNone(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "sku", Stock: 5, Limit: 1})
		token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		sku, rest, _ := strings.Cut(token, ".")
		tag, id, _ := strings.Cut(rest, ".")
		for _, not := range []string{
			"", ".", "..", "...", "x", token + ".", "." + token, token[:len(token)-1], token + "0", strings.ToUpper(token),
			sku + "=." + tag + "." + id, "." + tag + "." + id, sku + ".zzzz." + id, sku + ".." + id, sku + "." + tag + ".",
			sku + "\n." + tag + "." + id, "{}." + tag + "." + id, sku + "." + tag + "." + strings.Repeat("0", 23) + "}",
			sku + "." + tag + "." + strings.Repeat("0", 24),
		} {
			equal(t, "Confirm "+not, must[Settlement](t)(s.Confirm(ctx, not, "o")), Settlement{Outcome: NoReservation})
			equal(t, "Cancel "+not, must[Settlement](t)(s.Cancel(ctx, not, "")), Settlement{Outcome: NoReservation})
			equal(t, "Result "+not, must[Reservation](t)(s.Result(ctx, not)), Reservation{Outcome: NoReservation})
		}
		elsewhere := sku + ".0." + id
		equal(t, "in a shard that isn't there", must[Settlement](t)(s.Confirm(ctx, elsewhere, "o")), Settlement{Outcome: NoSale})
		equal(t, "orders", clean(t, s, "sku").Orders, 1)
	})
}

func TestInfoAndList(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		if list := must[[]Listed](t)(s.List(ctx)); len(list) != 0 {
			t.Fatalf("sales before the first: %v", list)
		}
		if info, found, err := s.Info(ctx, "b"); found || err != nil {
			t.Fatalf("no sale: %+v, %v", info, err)
		}
		before := must[time.Time](t)(rdb.Time(ctx).Result()).UnixMilli()
		create(t, s, Sale{SKU: "b", Stock: 9, Limit: 4})
		after := must[time.Time](t)(rdb.Time(ctx).Result()).UnixMilli()
		confirmed := reserve(t, s, Purchase{SKU: "b", User: "u", Qty: 1})
		cancelled := reserve(t, s, Purchase{SKU: "b", User: "u", Qty: 2})
		reserve(t, s, Purchase{SKU: "b", User: "v", Qty: 4})
		must[Settlement](t)(s.Confirm(ctx, confirmed, "o"))
		must[Settlement](t)(s.Cancel(ctx, cancelled, ""))
		info, found, err := s.Info(ctx, "b")
		if err != nil || !found {
			t.Fatalf("Info: found %v, %v", found, err)
		}
		if info.CreatedAt < before || info.CreatedAt > after {
			t.Fatalf("created at %d, between %d and %d", info.CreatedAt, before, after)
		}
		want := Info{
			Sale:  Sale{SKU: "b", Stock: 9, Limit: 4, Shards: 1},
			State: Opened, Available: 4, Pending: 4, Confirmed: 1, Cancelled: 2,
			CreatedAt: info.CreatedAt, Buyers: 2, Orders: 3, QueueLength: 1, Queues: info.Queues,
		}
		equal(t, "info", fmt.Sprint(info), fmt.Sprint(want))
		equal(t, "length of the stream named", must[int64](t)(rdb.XLen(ctx, info.Queues[0]).Result()), 1)
	})
}

// The index is entered first, so a sale whose creation ended half-way has an
// entry and nothing else.
func TestListLeavesOutWhatIsNoSale(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		create(t, s, Sale{SKU: "b", Stock: 2, Limit: 1})
		create(t, s, Sale{SKU: "a", Stock: 1, Limit: 1})
		rdb.ZAdd(ctx, s.indexKey(), redis.Z{Member: "half"})
		list := must[[]Listed](t)(s.List(ctx))
		equal(t, "sales", fmt.Sprint(list), fmt.Sprint([]Listed{{"a", Opened, 1}, {"b", Opened, 2}}))
		create(t, s, Sale{SKU: "half", Stock: 3, Limit: 1})
		equal(t, "sales", len(must[[]Listed](t)(s.List(ctx))), 3)
	})
}

func TestListIsBounded(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newStore(t, rdb, Options{})
		var members []redis.Z
		for i := range ListMax + 1 {
			members = append(members, redis.Z{Member: fmt.Sprintf("%05d", i)})
		}
		rdb.ZAdd(ctx, s.indexKey(), members...)
		create(t, s, Sale{SKU: fmt.Sprintf("%05d", ListMax-1), Stock: 1, Limit: 1})
		create(t, s, Sale{SKU: fmt.Sprintf("%05d", ListMax), Stock: 1, Limit: 1})
		equal(t, "sales", fmt.Sprint(must[[]Listed](t)(s.List(ctx))), fmt.Sprint([]Listed{{fmt.Sprintf("%05d", ListMax-1), Opened, 1}}))
	})
}
