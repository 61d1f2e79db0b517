package seckill

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A sale that is audited in parts gets the same verdict as in one step.
func TestAuditInParts(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s, inParts := newStore(t, rdb, Options{}), newStore(t, rdb, Options{AuditOrdersMax: 1})
		create(t, s, Sale{SKU: "sku", Stock: 5000, Limit: 0})
		const orders = partSize + 50
		for first := 0; first < orders; first += MaxBatch {
			var purchases []Purchase
			for i := range min(MaxBatch, orders-first) {
				purchases = append(purchases, Purchase{SKU: "sku", User: fmt.Sprint("user", (first+i)%700), Qty: 2, RequestID: fmt.Sprint(first + i)})
			}
			buyTogether(t, s, "sku", purchases)
		}
		for i, d := range pull(t, s, "w", 60) {
			if i%2 == 0 {
				must[Settlement](t)(s.Confirm(t.Context(), d.Token, "o"))
			} else {
				must[Settlement](t)(s.Cancel(t.Context(), d.Token, ""))
			}
		}
		whole, parts := clean(t, s, "sku"), clean(t, inParts, "sku")
		equal(t, "in parts", fmt.Sprint(parts), fmt.Sprint(whole))

		k := s.keys("sku", firstTag("sku"))
		must[int64](t)(rdb.HDel(t.Context(), k.buyers, "user7").Result())
		must[string](t)(rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: k.queue, Values: []string{"token", "x", "token", "y"}}).Result())
		whole = audited(t)(s.Audit(t.Context(), "sku"))
		parts = audited(t)(inParts.Audit(t.Context(), "sku"))
		equal(t, "damage", len(whole.Named), 2)
		equal(t, "damage in parts", fmt.Sprint(namesOf(parts)), fmt.Sprint(namesOf(whole)))
	})
}

func audited(t *testing.T) func(Audit, bool, error) Audit {
	return func(audit Audit, found bool, err error) Audit {
		t.Helper()
		if err != nil || !found {
			t.Fatalf("Audit: found %v, error %v", found, err)
		}
		return audit
	}
}

func namesOf(a Audit) []string {
	var names []string
	for _, d := range a.Named {
		names = append(names, fmt.Sprint(d))
	}
	slices.Sort(names)
	return names
}

// While things happen all the time, an audit in parts says that it can't say, and
// never that something differs.
func TestAuditInPartsWhileThingsHappen(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s, inParts := newStore(t, rdb, Options{}), newStore(t, rdb, Options{AuditOrdersMax: 1})
		create(t, s, Sale{SKU: "sku", Stock: 1000, Limit: 0})
		reserve(t, s, Purchase{SKU: "sku", User: "first", Qty: 1})
		reserve(t, s, Purchase{SKU: "sku", User: "second", Qty: 1})
		ctx, stop := context.WithCancel(t.Context())
		var shopping sync.WaitGroup
		shopping.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				receipt, err := s.Buy(t.Context(), Purchase{SKU: "sku", User: fmt.Sprint("u", i%10), Qty: 1})
				if err == nil {
					_, err = s.Cancel(t.Context(), receipt.Token, "")
				}
				if err != nil {
					t.Errorf("purchase %d: %v", i, err)
					return
				}
			}
		})
		for partial, whole := 0, 0; partial+whole < 20; {
			audit := audited(t)(inParts.Audit(t.Context(), "sku"))
			if audit.Differences != 0 {
				t.Fatalf("%+v", audit)
			}
			if audit.Partial {
				partial++
			} else {
				whole++
			}
		}
		stop()
		shopping.Wait()
		if audit := clean(t, inParts, "sku"); audit.Partial {
			t.Errorf("nothing happens any more, and the audit is partial: %+v", audit)
		}
	})
}

func TestParseRecord(t *testing.T) {
	want := record{state: "P", entry: "1700000000000-3", prev: "aa", user: "u:,", request: "r", qty: 2, deadline: 1700000000500}
	const good = "P,2,1700000000000-3,1700000000500,2,3,1,0,0:aau:,r"
	if got, ok := parseRecord(good); !ok || got != want {
		t.Errorf("%q is read as %+v, %v", good, got, ok)
	}
	for _, bad := range []string{
		"", ":", "P", strings.Replace(good, "P", "Q", 1), strings.Replace(good, "P", "PC", 1), strings.Replace(good, ",2,", ",-2,", 1),
		strings.Replace(good, "-3", "", 1), strings.Replace(good, "-3", "-", 1), good + "x", good[:len(good)-1],
		strings.Replace(good, ",0:", ":", 1), strings.Replace(good, ",0:", ",99999999999999999999:", 1), strings.Replace(good, ",2,3,", ",2,+3,", 1),
	} {
		if got, ok := parseRecord(bad); ok {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}
