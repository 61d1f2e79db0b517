package seckill

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// allOrders goes through all orders of a sale, and returns them by token.
func allOrders(t testing.TB, s *Store, sku string, count int64) map[string]Order {
	t.Helper()
	all := map[string]Order{}
	for cursor, pages := FirstCursor, 0; ; pages++ {
		orders, next, found, err := s.Orders(t.Context(), sku, cursor, count)
		if err != nil || !found {
			t.Fatalf("Orders(%q): found %v, %v", cursor, found, err)
		}
		for _, order := range orders {
			all[order.Token] = order
		}
		if cursor = next; cursor == FirstCursor {
			return all
		}
		if pages > 10_000 {
			t.Fatal("no end of orders")
		}
	}
}

func TestOrdersListsEachReservationAsItStands(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		if _, _, found, err := s.Orders(ctx, "sku", FirstCursor, 10); found || err != nil {
			t.Fatalf("no sale: found %v, %v", found, err)
		}
		const shards, payTTL = 3, 1_000_000
		sell(t, s, Sale{SKU: "sku", Stock: 1000, Shards: shards, PayTTL: payTTL})
		equal(t, "orders before the first", len(allOrders(t, s, "sku", 10)), 0)
		want := map[string]Order{}
		for i := range 30 {
			user := fmt.Sprint("用户\r\n", i)
			receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: user, Qty: int64(1 + i%3)}))
			equal(t, "bought", receipt.Outcome, Reserved)
			order := Order{
				Token: receipt.Token, User: user, Qty: int64(1 + i%3), Status: Pending, CreatedAt: receipt.At - payTTL, PayBy: receipt.At,
			}
			switch i % 4 {
			case 1:
				order.Status, order.OrderID = Confirmed, fmt.Sprint("o:", i)
				must[Settlement](t)(s.Confirm(ctx, order.Token, order.OrderID))
			case 2:
				order.Status, order.Reason = Cancelled, "too,late:"
				must[Settlement](t)(s.Cancel(ctx, order.Token, order.Reason))
			}
			want[order.Token] = order
		}
		for _, count := range []int64{1, 7, 1000} {
			got := allOrders(t, s, "sku", count)
			equal(t, "orders", len(got), len(want))
			for token, order := range want {
				equal(t, "order", got[token], order)
			}
		}
		// One that can't be read is left to AUDIT.
		token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		parsed, _ := parseToken(token)
		rdb.HSet(ctx, s.keys("sku", parsed.tag).orders, parsed.id, "?")
		equal(t, "orders", len(allOrders(t, s, "sku", 100)), len(want))
	})
}

// As SCAN promises, all that is there throughout comes, whatever comes besides. Many
// orders of one shard, so that it takes several pages.
func TestOrdersAreCompleteDuringPurchases(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		const before = 2 * MaxBatch * 2
		sell(t, s, Sale{SKU: "sku", Stock: 1_000_000, Shards: 2})
		known := knownSale(t, s, "sku")
		for shard := range 2 {
			c := &call{Store: s, lane: lane{sku: "sku", shard: shard, shards: 2}, known: known}
			for n := 0; n < before/2; n += MaxBatch {
				orders := make([]*order, MaxBatch)
				for i := range orders {
					orders[i] = &order{Purchase: Purchase{User: fmt.Sprint(shard, "user", n+i), Qty: 1}, known: known}
				}
				if _, err := c.purchase(ctx, orders, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				receipt, err := s.Buy(ctx, Purchase{SKU: "sku", User: fmt.Sprint("new", n), Qty: 1})
				if err == nil && n%2 == 0 {
					_, err = s.Cancel(ctx, receipt.Token, "")
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
		got := allOrders(t, s, "sku", 100)
		close(stop)
		wg.Wait()
		old := 0
		for _, order := range got {
			if strings.Contains(order.User, "user") {
				old++
			}
		}
		equal(t, "orders that were there throughout", old, before)
	})
}

func TestCursorsThatAreNone(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 10, Shards: 3})
		reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		for _, cursor := range []string{
			"", "1", "-", "0-", "-0", "x", "0-x", "x-0", "-1-0", "+1-0", " 0-0", "0-0 ", "0- 0", "0-+1", "0--1", "0-0-0", "128-0", "1e1-0",
			"0x1-0", "99999999999999999999-0", "0-99999999999999999999", "0\x00", "0-0\r\n",
		} {
			if _, _, _, err := s.Orders(ctx, "sku", cursor, 10); !errors.Is(err, ErrBadCursor) {
				t.Errorf("cursor %q: %v", cursor, err)
			}
		}
		// One of a sale before, that had more shards, is at its end.
		orders, next, found, err := s.Orders(ctx, "sku", "3-0", 10)
		if err != nil || !found || next != FirstCursor || len(orders) != 0 {
			t.Fatalf("%v, %q, found %v, %v", orders, next, found, err)
		}
		if _, _, found, err = s.Orders(ctx, "none", "2-17", 10); found || err != nil {
			t.Fatalf("no sale: found %v, %v", found, err)
		}
	})
}

func TestFindReturnsWhatHoldsUnits(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		find := func(user string) []string {
			t.Helper()
			tokens, found, err := newQuietStore(t, rdb, Options{}).Find(ctx, "sku", user)
			if err != nil || !found {
				t.Fatalf("found %v, %v", found, err)
			}
			return tokens
		}
		if _, found, err := s.Find(ctx, "sku", "u"); found || err != nil {
			t.Fatalf("no sale: found %v, %v", found, err)
		}
		const shards = 5
		sell(t, s, Sale{SKU: "sku", Stock: 100, Shards: shards})
		for shard := range shards {
			user := userOf(shard, shards)
			equal(t, "before the first", len(find(user)), 0)
			var tokens []string // the latest first
			for range 4 {
				tokens = slices.Insert(tokens, 0, reserve(t, s, Purchase{SKU: "sku", User: user, Qty: 1}))
			}
			equal(t, "all", fmt.Sprint(find(user)), fmt.Sprint(tokens))
			must[Settlement](t)(s.Confirm(ctx, tokens[1], "o"))
			must[Settlement](t)(s.Cancel(ctx, tokens[2], ""))
			equal(t, "without the cancelled", fmt.Sprint(find(user)), fmt.Sprint(slices.Delete(slices.Clone(tokens), 2, 3)))
			must[Settlement](t)(s.Cancel(ctx, tokens[0], ""))
			equal(t, "without the latest", fmt.Sprint(find(user)), fmt.Sprint([]string{tokens[1], tokens[3]}))
		}
		equal(t, "a stranger", len(find("stranger")), 0)
		whole(t, s, "sku", 100)
	})
}

func TestInfoAndListAddUpTheShards(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "b", Stock: 100, Shards: 4})
		sell(t, s, Sale{SKU: "a", Stock: 7})
		sell(t, s, Sale{SKU: "c", Stock: 9, Shards: 2, OpenAt: 1 << 45})
		var tokens []string
		for shard := range 4 {
			tokens = append(tokens, reserve(t, s, Purchase{SKU: "b", User: userOf(shard, 4), Qty: 3}))
		}
		must[Settlement](t)(s.Confirm(ctx, tokens[0], "o"))
		must[Settlement](t)(s.Cancel(ctx, tokens[1], ""))
		must[Restock](t)(s.Restock(ctx, "b", 10, ""))
		send(t, s, "b", knownSale(t, s, "b"), 2, 3, 0, 1)
		info := infoOf(t, s, "b")
		want := Info{
			Sale: Sale{SKU: "b", Stock: 100, Shards: 4}, State: Opened, CreatedAt: info.CreatedAt, Restocked: 10, Available: 90, InTransit: 11,
			Pending: 6, Confirmed: 3, Cancelled: 3, Buyers: 4, Orders: 4, QueueLength: 2, Queues: info.Queues,
		}
		equal(t, "info", fmt.Sprintf("%+v", info), fmt.Sprintf("%+v", want))
		var queued int64
		for _, queue := range info.Queues {
			queued += rdb.XLen(ctx, queue).Val()
		}
		equal(t, "streams named", queued, 2)
		equal(t, "list", fmt.Sprint(must[[]Listed](t)(s.List(ctx))), fmt.Sprint([]Listed{{"a", Opened, 7}, {"b", Opened, 90}, {"c", NotYet, 9}}))
		clean(t, s, "b")
	})
}
