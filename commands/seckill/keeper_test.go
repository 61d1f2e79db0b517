package seckill

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"seckill-proxy/internal/redistest"
)

// audits is an Observer of audits.
type audits struct {
	nobody
	mu    sync.Mutex
	found []int64 // differences
}

func (a *audits) Audited(differences int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.found = append(a.found, differences)
}

// last returns how many audits there were and what the last one found.
func (a *audits) last() (n int, differences int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n = len(a.found); n > 0 {
		differences = a.found[n-1]
	}
	return n, differences
}

// keeperOf returns which keeper has the lease of a sale, "" for none.
func keeperOf(t testing.TB, s *Store, sku string) string {
	t.Helper()
	id, err := s.rdb.Get(t.Context(), s.key("keeper", sku, firstTag(sku))).Result()
	if err != nil && err != redis.Nil {
		t.Fatal(err)
	}
	return id
}

func TestWhenAKeeperEndsAnotherTakesOver(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		a, b := New(rdb, Options{}), New(rdb, Options{})
		stores := map[string]*Store{a.keeper.id: a, b.keeper.id: b}
		defer func() {
			for _, s := range stores {
				s.Close()
			}
		}()
		shop := newQuietStore(t, rdb, Options{})
		sell(t, shop, Sale{SKU: "sku", Stock: 10, Limit: 1, PayTTL: 1, Shards: 2})
		a.Start()
		b.Start()
		for expired := int64(1); len(stores) > 0; expired++ {
			reserve(t, shop, Purchase{SKU: "sku", User: "u", Qty: 1})
			eventually(t, "expiry", func() bool { return clean(t, shop, "sku").Expired == expired })
			id := keeperOf(t, shop, "sku")
			if stores[id] == nil {
				t.Fatalf("the lease is %q's", id)
			}
			stores[id].Close()
			delete(stores, id)
			// Time passes; the embedded store's clock is told so.
			must[int64](t)(rdb.Del(t.Context(), shop.key("keeper", "sku", firstTag("sku"))).Result())
		}
	})
}

// That of the real thing, once: nothing but time passes.
func TestALeaseLapses(t *testing.T) {
	t.Parallel()
	rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
	shop := newQuietStore(t, rdb, Options{})
	sell(t, shop, Sale{SKU: "sku", Stock: 10, Limit: 1, PayTTL: 1})
	reserve(t, shop, Purchase{SKU: "sku", User: "u", Qty: 1})
	gone := newQuietStore(t, rdb, Options{})
	if held := must[bool](t)(gone.keeper.lease("sku", leaseFor)); !held {
		t.Fatal("no lease")
	}
	s := newStore(t, rdb, Options{})
	if held := must[bool](t)(s.keeper.lease("sku", leaseFor)); held {
		t.Fatal("a lease was given twice")
	}
	s.Start()
	eventually(t, "expiry", func() bool { return clean(t, shop, "sku").Expired == 1 })
	equal(t, "who did it", keeperOf(t, s, "sku"), s.keeper.id)
}

func TestAKeeperFindsTheSalesOfThoseWhoAreGone(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		gone := newQuietStore(t, rdb, Options{})
		for i := range 3 {
			sku := fmt.Sprint("sku", i)
			sell(t, gone, Sale{SKU: sku, Stock: 10, Limit: 1, PayTTL: 1, Shards: i + 1})
			reserve(t, gone, Purchase{SKU: sku, User: "u", Qty: 1})
		}
		s := newStore(t, rdb, Options{})
		s.Start()
		for i := range 3 {
			eventually(t, "expiry", func() bool { return clean(t, s, fmt.Sprint("sku", i)).Expired == 1 })
		}
	})
}

// A keeper that didn't hear that a SKU is sold anew finds out.
func TestAKeeperThatHeardNothing(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, shop, s := t.Context(), newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})
		sell(t, shop, Sale{SKU: "changed", Stock: 10, Limit: 1})
		sell(t, shop, Sale{SKU: "gone", Stock: 10, Limit: 1, PayTTL: 1})
		now := time.Now()
		s.keeper.round(now)
		equal(t, "sales", len(s.keeper.sales), 2)
		for _, sku := range []string{"changed", "gone"} {
			equal(t, "dropped", must[Dropped](t)(shop.Drop(ctx, sku, true)).Outcome, Removed)
		}
		sell(t, shop, Sale{SKU: "changed", Stock: 10, Limit: 1, PayTTL: 1, Shards: 2})
		receipt := must[Receipt](t)(shop.Buy(ctx, Purchase{SKU: "changed", User: "u", Qty: 1}))
		past(t, rdb, receipt.At)
		s.keeper.round(now.Add(listEvery))
		equal(t, "expired", clean(t, shop, "changed").Expired, 1)
		equal(t, "sales", len(s.keeper.sales), 1)
	})
}

// A keeper that lacks a right doesn't keep the lease from one that has it.
func TestAKeeperWithoutRightsGivesWay(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	admin := connect(t, server.Addr)
	ctx, s := t.Context(), newQuietStore(t, admin, Options{})
	sell(t, s, Sale{SKU: "sku", Stock: 10, Limit: 1, PayTTL: 1})
	past(t, admin, must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1})).At)
	must[any](t)(admin.Do(ctx, "ACL", "SETUSER", "limited", "on", ">pw", "~*", "resetchannels", "+@all", "-xdel").Result())
	limited := newQuietStore(t, connectAs(t, &redis.Options{Addr: server.Addr, Username: "limited", Password: "pw"}), Options{})

	now := time.Now()
	limited.keeper.round(now)
	equal(t, "the lease", keeperOf(t, s, "sku"), limited.keeper.id)
	must[int64](t)(admin.Del(ctx, s.key("keeper", "sku", firstTag("sku"))).Result()) // it lapses
	for after := time.Duration(0); after <= leaseFor+leaseEvery; after += leaseEvery {
		limited.keeper.round(now.Add(after))
	}
	equal(t, "the lease", keeperOf(t, s, "sku"), "")
	s.keeper.round(now.Add(leaseFor + leaseEvery))
	equal(t, "expired", clean(t, s, "sku").Expired, 1)
}

// A keeper with nothing to do does little, and comes again when there is.
func TestAnIdleKeeper(t *testing.T) {
	t.Parallel()
	rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
	sent := newProbe(rdb)
	s := newQuietStore(t, rdb, Options{AuditEvery: time.Minute})
	for i := range 20 {
		sell(t, s, Sale{SKU: fmt.Sprint("plain", i), Stock: 1})
	}
	sell(t, s, Sale{SKU: "slow", Stock: 1, PayTTL: 60_000})
	now := time.Now()
	s.keeper.round(now)
	before := sent.all()
	for end := now.Add(10 * time.Second); now.Before(end); {
		now = s.keeper.round(now)
	}
	// A lease each second, a sweep or two, and the list of the sales.
	if commands := sent.all() - before; commands > 60 {
		t.Errorf("%d commands in ten seconds: %v", commands, sent.seen())
	}
	sell(t, s, Sale{SKU: "fast", Stock: 1, PayTTL: 1, Shards: 2})
	s.keeper.reconsider("fast")
	before = sent.count("script sweep")
	rounds := 0
	for end := now.Add(time.Second); now.Before(end); rounds++ {
		next := s.keeper.round(now)
		if next.Before(now.Add(sweepEvery)) {
			t.Fatalf("round %d: the next is %v later", rounds, next.Sub(now))
		}
		now = next
	}
	if sweeps := sent.count("script sweep") - before; sweeps < 2 || sweeps > 2*rounds+1 {
		t.Errorf("%d sweeps in %d rounds", sweeps, rounds)
	}
}

func TestAKeeperGoesOnAfterRedisWasGone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AppendOnly: true})
	rdb := connect(t, server.Addr)
	s := newStore(t, rdb, Options{})
	sell(t, s, Sale{SKU: "sku", Stock: 10, Limit: 1, PayTTL: 300})
	reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
	server.Kill()
	server.Restart()
	eventually(t, "expiry", func() bool {
		info, _, err := s.Info(t.Context(), "sku")
		return err == nil && info.Expired == 1
	})
	clean(t, s, "sku")
}

func TestDamageIsCountedAndLogged(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, found := t.Context(), &audits{}
		core, logged := observer.New(zap.ErrorLevel)
		s := newStore(t, rdb, Options{AuditEvery: 10 * time.Millisecond, Observer: found, Log: zap.New(core)})
		sell(t, s, Sale{SKU: "sku", Stock: 10, Limit: 1, Shards: 2})
		token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		eventually(t, "an audit", func() bool { n, _ := found.last(); return n > 0 })
		_, differences := found.last()
		equal(t, "differences", differences, 0)
		equal(t, "in the log", logged.Len(), 0)

		parsed, _ := parseToken(token)
		must[int64](t)(rdb.HIncrBy(ctx, s.keys("sku", parsed.tag).sale, "available", 1).Result())
		eventually(t, "what was planted", func() bool { _, differences := found.last(); return differences == 2 })
		eventually(t, "the log", func() bool { return logged.Len() > 0 })
		equal(t, "in the log", fmt.Sprint(logged.All()[0].ContextMap()), fmt.Sprint(map[string]any{"sku": "sku", "differences": 2}))
	})
}

// Of a sale with very many reservations only the counters are looked at.
func TestPeriodicAuditsAreBounded(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newQuietStore(t, rdb, Options{AuditEvery: time.Hour, AuditOrdersMax: 2})
		sell(t, s, Sale{SKU: "sku", Stock: 10, Limit: 0})
		for range 3 {
			reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		}
		keys := s.keys("sku", firstTag("sku"))
		must[int64](t)(rdb.HSet(t.Context(), keys.orders, "x", "unreadable").Result())
		audit, _, err := s.audit(t.Context(), "sku", false)
		if err != nil || audit.Differences != 0 {
			t.Fatalf("%+v, %v", audit, err)
		}
		must[int64](t)(rdb.HIncrBy(t.Context(), keys.sale, "pending", 1).Result())
		audit, _, err = s.audit(t.Context(), "sku", false)
		if err != nil || audit.Differences != 1 {
			t.Fatalf("%+v, %v", audit, err)
		}
	})
}

// An audit holds up Redis: one sidecar does it, and not each.
func TestOneKeeperAudits(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		found := &audits{}
		var stores []*Store
		for range 3 {
			stores = append(stores, newQuietStore(t, rdb, Options{AuditEvery: 30 * time.Second, Observer: found}))
		}
		sell(t, stores[0], Sale{SKU: "plain", Stock: 10})
		sell(t, stores[0], Sale{SKU: "sharded", Stock: 10, Shards: 2})
		start := time.Now()
		for second := range 70 {
			for _, s := range stores {
				s.keeper.round(start.Add(time.Duration(second) * time.Second))
			}
		}
		n, _ := found.last()
		equal(t, "audits of two sales in 70 seconds", n, 4)
		key := stores[0].key("keeper", "plain", firstTag("plain"))
		if left := must[time.Duration](t)(rdb.PTTL(t.Context(), key).Result()); left <= leaseFor {
			t.Fatalf("in %v another one audits", left)
		}
	})
}
