package seckill

import (
	"context"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/localcache"
)

// connect returns a client of the server at addr, closed at the end of the test.
func connect(t testing.TB, addr string) *redis.Client {
	return connectAs(t, &redis.Options{Addr: addr})
}

func connectAs(t testing.TB, options *redis.Options) *redis.Client {
	options.MaxRetries = -1
	rdb := redis.NewClient(options)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// onEveryServer runs a test on a real redis-server and on the embedded store.
func onEveryServer(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Run("redis", func(t *testing.T) {
		test(t, connect(t, redistest.Start(t, redistest.Options{}).Addr))
	})
	t.Run("embedded", func(t *testing.T) {
		test(t, connect(t, miniredis.RunT(t).Addr()))
	})
}

// must returns a value that came without an error.
func must[T any](t testing.TB) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// create makes a sale that mustn't be there yet.
func create(t testing.TB, s *Store, sale Sale) {
	t.Helper()
	created := must[Created](t)(s.Create(t.Context(), sale))
	if created != (Created{Exists: false, Shards: 1}) {
		t.Fatalf("Create(%+v) = %+v", sale, created)
	}
}

// reserve makes a purchase that must succeed and returns its token.
func reserve(t testing.TB, s *Store, p Purchase) string {
	t.Helper()
	receipt := must[Receipt](t)(s.Buy(t.Context(), p))
	if receipt.Outcome != Reserved {
		t.Fatalf("Buy(%+v) = %+v", p, receipt)
	}
	return receipt.Token
}

// clean audits a sale and fails the test unless it is clean.
func clean(t testing.TB, s *Store, sku string) Audit {
	t.Helper()
	audit, found, err := s.Audit(context.WithoutCancel(t.Context()), sku)
	if err != nil || !found {
		t.Fatalf("Audit: found %v, error %v", found, err)
	}
	if audit.Differences != 0 {
		t.Fatalf("damaged: %+v", audit)
	}
	if sum := audit.Available + audit.InTransit + audit.Pending + audit.Confirmed; audit.Stock+audit.Restocked != sum {
		t.Fatalf("clean, and yet the equation doesn't hold: %+v", audit)
	}
	return audit
}

// equal fails the test unless got is want.
func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %+v, want %+v", what, got, want)
	}
}

// newStore returns a Store that is closed at the end of the test.
func newStore(t testing.TB, rdb redis.UniversalClient, opts Options) *Store {
	s := New(rdb, opts)
	t.Cleanup(s.Close)
	return s
}

// buyTogether makes purchases of a sale of one shard in one script call.
func buyTogether(t testing.TB, s *Store, sku string, purchases []Purchase) []Receipt {
	t.Helper()
	known := must[localcache.Sale](t)(s.readSale(t.Context(), sku))
	orders := make([]*order, len(purchases))
	for i, p := range purchases {
		orders[i] = &order{Purchase: p, known: known}
	}
	c := &call{Store: s, lane: lane{sku: sku, shards: 1}, known: known}
	if _, err := c.purchase(t.Context(), orders, nil); err != nil {
		t.Fatal(err)
	}
	receipts := make([]Receipt, len(orders))
	for i, o := range orders {
		receipts[i] = o.receipt
	}
	return receipts
}

// shardKeys returns the keys of one shard of a sale.
func shardKeys(s *Store, sku string, shard, shards int) keys {
	return s.keys(sku, shardTag(sku, shard, shards))
}

// infoOf reads how a sale stands that must be there.
func infoOf(t testing.TB, s *Store, sku string) Info {
	t.Helper()
	info, found, err := s.Info(context.WithoutCancel(t.Context()), sku)
	if err != nil || !found {
		t.Fatalf("Info(%q): found %v, %v", sku, found, err)
	}
	return info
}

// keysOf returns all keys in Redis of a SKU, and its name in the index.
func keysOf(t testing.TB, rdb redis.UniversalClient, sku string) []string {
	t.Helper()
	found := must[[]string](t)(rdb.Keys(t.Context(), "*:"+sku).Result())
	if rdb.ZScore(t.Context(), DefaultPrefix+"sales", sku).Err() == nil {
		found = append(found, "index")
	}
	return found
}
