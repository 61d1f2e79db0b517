package seckill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
	"seckill-proxy/sharding"
	"seckill-proxy/upstream"
)

// cluster is one whose clients are made as the sidecar makes them.
type cluster struct {
	*redistest.Cluster
	nodes *upstream.Cluster
}

func startCluster(t testing.TB, opts redistest.ClusterOptions) *cluster {
	c := redistest.StartCluster(t, opts)
	nodes := upstream.NewCluster(upstream.Options{
		DialTimeout: time.Second, ScriptTimeout: 5 * time.Second, BackoffMin: 10 * time.Millisecond, BackoffMax: 100 * time.Millisecond,
	}, slices.Clip(c.Addrs()))
	t.Cleanup(nodes.Close)
	return &cluster{c, nodes}
}

// Client returns a client that is closed when the test t ends.
func (c *cluster) Client(t testing.TB) *redis.ClusterClient {
	rdb := c.nodes.Client(upstream.Identity{})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// All on one cluster, each on sales of its own.
func TestOnACluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t, redistest.ClusterOptions{Masters: 3})
	t.Run("all operations", func(t *testing.T) { allOperations(t, c) })
	t.Run("one shard for each master by default", func(t *testing.T) { shardsByDefault(t, c) })
	t.Run("a sale over all masters", func(t *testing.T) { saleOverAllMasters(t, c) })
	t.Run("the last units", func(t *testing.T) { lastUnitsOfAllMasters(t, c) })
	t.Run("news", func(t *testing.T) { newsOfAllMasters(t, c) })
	t.Run("a slot that is half moved", func(t *testing.T) { halfMoved(t, c) })
	t.Run("slots that move", func(t *testing.T) { slotsThatMove(t, c) })
}

// A cluster refuses scripts whose keys lie in several slots, or that touch keys
// that they didn't declare.
func allOperations(t *testing.T, c *cluster) {
	s := newStore(t, c.Client(t), Options{Shards: 1})
	for _, sku := range []string{"sku", "a}b{", "用户"} {
		create(t, s, Sale{SKU: sku, Stock: 2, Limit: 0})
		p := Purchase{SKU: sku, User: "u", Qty: 1, RequestID: "r"}
		a := reserve(t, s, p)
		b := reserve(t, s, Purchase{SKU: sku, User: "u", Qty: 1})
		equal(t, "replay", must[Receipt](t)(s.Buy(t.Context(), p)).Outcome, Replayed)
		deliveries, _, err := s.Pull(t.Context(), sku, "w", 5, 0)
		if err != nil || len(deliveries) != 2 {
			t.Fatalf("Pull: %v, %v", deliveries, err)
		}
		equal(t, "confirmed", must[Settlement](t)(s.Confirm(t.Context(), a, "o")).Outcome, Settled)
		equal(t, "cancelled", must[Settlement](t)(s.Cancel(t.Context(), b, "")).Outcome, Settled)
		equal(t, "result", must[Reservation](t)(s.Result(t.Context(), a)).Status, Confirmed)
		clean(t, s, sku)
	}
	equal(t, "sales", len(must[[]Listed](t)(s.List(t.Context()))), 3)
	for _, sku := range []string{"sku", "a}b{", "用户"} {
		equal(t, "dropped", must[Dropped](t)(s.Drop(t.Context(), sku, true)).Outcome, Removed)
	}
}

func shardsByDefault(t *testing.T, c *cluster) {
	s := newQuietStore(t, c.Client(t), Options{})
	equal(t, "created", must[Created](t)(s.Create(t.Context(), Sale{SKU: "default", Stock: 5})), Created{Shards: 3})
	equal(t, "again", must[Created](t)(s.Create(t.Context(), Sale{SKU: "default", Stock: 5})), Created{Exists: true, Shards: 3})
	owners := map[*redistest.Server]bool{}
	for shard := range 3 {
		owners[c.OwnerOf(sharding.ShardSlot("default", shard, 3))] = true
	}
	equal(t, "masters with a shard", len(owners), 3)
	equal(t, "dropped", must[Dropped](t)(s.Drop(t.Context(), "default", true)).Outcome, Removed)
}

func saleOverAllMasters(t *testing.T, c *cluster) {
	ctx, rdb := t.Context(), c.Client(t)
	s, other := newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})
	const shards, units = 6, 60
	sell(t, s, Sale{SKU: "sku", Stock: units, Shards: shards, RateCount: 100, RateWindow: 100_000})
	perMaster := map[string]int{}
	for shard := range shards {
		node := must[*redis.Client](t)(rdb.MasterForKey(ctx, shardKeys(s, "sku", shard, shards).sale))
		perMaster[node.Options().Addr]++
	}
	for addr, n := range perMaster {
		equal(t, "shards on "+addr, n, shards/3)
	}
	large := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 35, RequestID: "r"})
	for shard := range shards {
		reserve(t, other, Purchase{SKU: "sku", User: userOf(shard, shards), Qty: 4})
	}
	equal(t, "too many", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "v", Qty: 2})), Receipt{Outcome: SoldOut, Left: 1})
	equal(t, "taken away", must[Restock](t)(other.Restock(ctx, "sku", -1, "r")), Restock{Restocked, 0})
	equal(t, "sold out", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "v", Qty: 1})), Receipt{Outcome: SoldOut})
	must[Settlement](t)(s.Cancel(ctx, large, ""))
	reserve(t, other, Purchase{SKU: "sku", User: "v", Qty: 35})
	must[bool](t)(s.Shut(ctx, "sku"))
	told, _ := outcomes(t, other, "sku", shards)
	equal(t, "closed", told, Closed)
	must[bool](t)(other.Open(ctx, "sku"))
	equal(t, "orders", len(allOrders(t, other, "sku", 2)), 8)
	equal(t, "info", infoOf(t, other, "sku").Pending, units-1)
	equal(t, "list", fmt.Sprint(must[[]Listed](t)(s.List(ctx))), fmt.Sprint([]Listed{{"sku", Opened, 0}}))
	whole(t, s, "sku", units-1)
	equal(t, "dropped", must[Dropped](t)(s.Drop(ctx, "sku", true)), Dropped{Removed, units - 1})
	for addr := range perMaster {
		node := connect(t, addr)
		equal(t, "left on "+addr, fmt.Sprint(must[[]string](t)(node.Keys(ctx, "*:sku").Result())), "[]")
	}
}

// Who fights for the last units over several masters gets them, or a proof.
func lastUnitsOfAllMasters(t *testing.T, c *cluster) {
	rdb := c.Client(t)
	var stores []*Store
	for range 3 {
		stores = append(stores, newQuietStore(t, rdb, Options{QueueWait: time.Minute}))
	}
	const shards, units = 6, 4
	for round := range 5 {
		sku := fmt.Sprint("last", round)
		sell(t, stores[0], Sale{SKU: sku, Stock: units, Shards: shards})
		var caller, reserved atomic.Int64
		parallel(len(stores)*shards, func() {
			n := int(caller.Add(1))
			s, shard := stores[n%len(stores)], n/len(stores)%shards
			receipt, err := s.Buy(t.Context(), Purchase{SKU: sku, User: userOf(shard, shards), Qty: 1})
			switch {
			case err != nil:
				t.Error(err)
			case receipt.Outcome == Reserved:
				reserved.Add(1)
			case receipt != Receipt{Outcome: SoldOut}:
				t.Errorf("%+v", receipt)
			}
		})
		equal(t, "reserved", reserved.Load(), units)
		whole(t, stores[0], sku, units)
	}
}

// Who waits is told, and who remembers that nothing is left forgets it, whichever master
// has the shard.
func newsOfAllMasters(t *testing.T, c *cluster) {
	ctx, s := t.Context(), newListeningStore(t, c.Client(t), Options{TakeoverAfter: long})
	other := newQuietStore(t, c.Client(t), Options{})
	const shards = 6
	sell(t, s, Sale{SKU: "news", Stock: shards, Limit: 1, Shards: shards})
	var tokens []string
	for shard := range shards {
		tokens = append(tokens, reserve(t, other, Purchase{SKU: "news", User: userOf(shard, shards), Qty: 1}))
	}
	for shard, token := range tokens {
		eventually(t, "the flag", func() bool { turnedAway(t, s, "news"); return flagged(s, "news") })
		told := make(chan Reservation, 1)
		go func() {
			reservation, err := s.AwaitResult(ctx, token, long)
			if err != nil {
				t.Error(err)
			}
			told <- reservation
		}()
		eventually(t, "one who waits", s.news.awaited)
		must[Settlement](t)(other.Cancel(ctx, token, ""))
		eventually(t, "that he is told", func() bool { return len(told) > 0 })
		equal(t, "told", (<-told).Status, Cancelled)
		eventually(t, "that it is forgotten", func() bool { return !flagged(s, "news") })
		reserve(t, other, Purchase{SKU: "news", User: userOf(shard, shards), Qty: 1})
	}

	waiting, _, err := other.Pull(ctx, "news", "w2", 2*shards, 0)
	equal(t, "orders", fmt.Sprint(len(waiting), err), fmt.Sprint(shards, error(nil)))
	answer := make(chan []Delivery, 1)
	go func() {
		deliveries, _, err := s.Pull(ctx, "news", "w", 10, long)
		if err != nil {
			t.Error(err)
		}
		answer <- deliveries
	}()
	eventually(t, "a worker who waits", func() bool {
		return must[bool](t)(other.rdb.HExists(ctx, shardKeys(other, "news", 5, shards).sale, "wanted").Result())
	})
	must[Restock](t)(other.Restock(ctx, "news", 1, ""))
	token := reserve(t, other, Purchase{SKU: "news", User: "somebody else", Qty: 1})
	equal(t, "pulled", (<-answer)[0].Token, token)
	whole(t, s, "news", shards+1)
}

// While the keys of a shard are on two servers nothing is executed there, and nobody
// is told anything that isn't so.
func halfMoved(t *testing.T, c *cluster) {
	ctx, s := t.Context(), newQuietStore(t, c.Client(t), Options{SyncTimeout: time.Millisecond})
	const shards, units = 3, 30
	sell(t, s, Sale{SKU: "half", Stock: units, Limit: 0, Shards: shards})
	user := userOf(1, shards)
	token := reserve(t, s, Purchase{SKU: "half", User: user, Qty: 1, RequestID: "r"})
	slot := sharding.ShardSlot("half", 1, shards)
	from := c.OwnerOf(slot)
	to := c.Masters[(slices.Index(c.Masters, from)+1)%3]
	keys := shardKeys(s, "half", 1, shards)
	buy := func(sync int) (Receipt, error) {
		return s.Buy(ctx, Purchase{SKU: "half", User: user, Qty: 1, RequestID: "r", Sync: sync})
	}
	finish := c.BeginMove(slot, to)
	for n, key := range keys.all() {
		for sync := range 2 {
			receipt, err := buy(sync)
			switch {
			case n == 0 && err == nil && receipt.Token == token: // all are where they were
			case n > 0 && errors.Is(err, script.ErrNotExecuted):
			default:
				t.Errorf("%d keys moved, sync %d: %+v, %v", n, sync, receipt, err)
			}
		}
		if _, err := s.Result(ctx, token); n > 0 && n < 3 && !errors.Is(err, script.ErrNotExecuted) {
			t.Errorf("%d keys moved: %v", n, err)
		}
		seen := must[view](t)(s.look(ctx, "half", knownSale(t, s, "half"), 1))
		equal(t, "seen while it moves", fmt.Sprint(seen.gone, seen.total()), fmt.Sprint(false, units-1))
		// In the others it goes on, also for this one's units.
		reserve(t, s, Purchase{SKU: "half", User: userOf(0, shards), Qty: 1})
		must[Settlement](t)(s.Cancel(ctx, reserve(t, s, Purchase{SKU: "half", User: userOf(2, shards), Qty: 1}), ""))
		s.cache.Event("half")
		if _, err := s.Restock(ctx, "half", 1, ""); err != nil {
			t.Error(err)
		}
		c.MoveKeys(from, to, key)
	}
	// All of them are there; the slot isn't yet.
	for sync, want := range []Outcome{Replayed, Uncertain} {
		receipt, err := buy(sync)
		equal(t, "where it was moved to", fmt.Sprint(receipt.Outcome, receipt.Token, err), fmt.Sprint(want, token, error(nil)))
	}
	equal(t, "confirmed there", must[Settlement](t)(s.Confirm(ctx, token, "o")).Outcome, Settled)
	finish()
	for sync, want := range []Outcome{Replayed, Uncertain} {
		receipt, err := buy(sync)
		equal(t, "moved", fmt.Sprint(receipt.Outcome, receipt.Token, err), fmt.Sprint(want, token, error(nil)))
	}
	whole(t, s, "half", units+4)
}

// Random operations, while the slots of a sale move from master to master.
func slotsThatMove(t *testing.T, c *cluster) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const shards, moves = 6, 25
	observer := newStore(t, c.Client(t), Options{})
	sell(t, observer, Sale{SKU: "sku", Stock: scarce, Limit: modelLimit, Shards: shards})
	m := newModel()
	stop := m.run(t, seed, false, func() *Store { return newStore(t, c.Client(t), Options{TakeoverAfter: time.Millisecond}) },
		func(err error) bool { return errors.Is(err, script.ErrNotExecuted) })
	random := rand.New(rand.NewPCG(seed, 0))
	for range moves {
		c.MoveSlot(sharding.ShardSlot("sku", random.IntN(shards), shards), c.Masters[random.IntN(3)])
		m.steps(t, 10)
		untilClean(t, observer, "sku")
	}
	stop()
	m.check(t, observer, true)
}

// untilClean is clean that asks again while the cluster says that it doesn't execute
// something.
func untilClean(t testing.TB, s *Store, sku string) (audit Audit) {
	t.Helper()
	eventually(t, "an audit", func() bool {
		_, _, err := s.Audit(context.WithoutCancel(t.Context()), sku)
		return !errors.Is(err, script.ErrNotExecuted)
	})
	return clean(t, s, sku)
}
