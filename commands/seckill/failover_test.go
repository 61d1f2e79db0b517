package seckill

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
	"seckill-proxy/sharding"
)

// Masters of a cluster are killed, and replicas take over, while several shoppers buy
// and settle. They wait for a replica each time: what they were told stays so, whatever
// else gets lost, and not a unit is lost or sold twice. FAILOVER_SOAK=10m is how long
// to do so; make failover-soak does.
func TestMastersThatAreKilled(t *testing.T) {
	t.Parallel()
	soak, _ := time.ParseDuration(os.Getenv("FAILOVER_SOAK"))
	end := time.Now().Add(soak)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := startCluster(t, redistest.ClusterOptions{Masters: 3, Replicas: 1})
	store := func() *Store {
		return newStore(t, c.Client(t), Options{TakeoverAfter: time.Millisecond, SyncReplicas: 1, SyncTimeout: 100 * time.Millisecond})
	}
	const shards = 6
	observer := store()
	sell(t, observer, Sale{SKU: "sku", Stock: scarce, Limit: modelLimit, Shards: shards})
	m := newModel()
	stop := m.run(t, seed, true, store, isLost)
	const kills, stepsPerRound = 2, 150
	for n := 0; n < kills || time.Now().Before(end); n++ {
		m.steps(t, stepsPerRound)
		at := slices.Index(c.Masters, c.OwnerOf(sharding.ShardSlot("sku", 0, shards)))
		if n%2 == 1 {
			at = random.IntN(len(c.Masters))
		}
		killed, replica := c.Masters[at], c.Replicas[at][0]
		if n%2 == 0 { // it has written things that the replica doesn't have
			eventually(t, "units to send", func() bool { _, err := observer.Restock(t.Context(), "sku", 20, ""); return err == nil })
			cutOff(t, killed, replica)
			for shard := range shards {
				refill(t, observer, "sku", shard)
			}
			m.steps(t, stepsPerRound/5)
		}
		c.KillMaster(at)
		untilClean(t, observer, "sku")
		must[string](t)(replica.Client(t).ConfigSet(t.Context(), "masterauth", "").Result())
		m.steps(t, stepsPerRound/5) // without a replica
		untilClean(t, observer, "sku")
		c.Rejoin(at, killed)
		m.steps(t, stepsPerRound)
		untilClean(t, observer, "sku")
	}
	stop()
	untilClean(t, observer, "sku")
	m.check(t, observer, false)
}

// refill brings units of others to a shard, if it may, as a purchase does that finds too
// few.
func refill(t *testing.T, s *Store, sku string, shard int) {
	known := knownSale(t, s, sku)
	seen, err := s.look(t.Context(), sku, known, shard)
	if err != nil {
		return
	}
	if deliveries, err := s.gather(t.Context(), sku, known, seen, modelStock, 0); err == nil {
		_ = s.take(t.Context(), sku, known, shard, deliveries)
	}
}

// cutOff keeps a replica from getting what its master writes from now on.
func cutOff(t *testing.T, master, replica *redistest.Server) {
	t.Helper()
	copy := replica.Client(t)
	must[string](t)(copy.ConfigSet(t.Context(), "masterauth", "not the password").Result())
	must[int64](t)(master.Client(t).ClientKillByFilter(t.Context(), "TYPE", "replica").Result())
	eventually(t, "a replica that is cut off", func() bool {
		return strings.Contains(must[string](t)(copy.Info(t.Context(), "replication").Result()), "master_link_status:down")
	})
}

// tail is what a shard writes after a moment: it is lost when a replica takes over
// that has what was written up to then.
type tail struct {
	t    *testing.T
	rdb  *redis.Client
	keys []string
	had  []string // dumps, "" for a key that wasn't there
}

// beginTail begins a shard's tail.
func beginTail(t *testing.T, s *Store, sku string, shard, shards int) *tail {
	at := &tail{t: t, rdb: s.rdb.(*redis.Client), keys: shardKeys(s, sku, shard, shards).all()}
	for _, key := range at.keys {
		dump, err := at.rdb.Dump(t.Context(), key).Result()
		if err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		at.had = append(at.had, dump)
	}
	return at
}

// lose makes the tail disappear, in one step.
func (at *tail) lose() {
	at.t.Helper()
	_, err := at.rdb.TxPipelined(at.t.Context(), func(pipe redis.Pipeliner) error {
		for i, key := range at.keys {
			pipe.Del(at.t.Context(), key)
			if at.had[i] != "" {
				pipe.Restore(at.t.Context(), key, 0, at.had[i])
			}
		}
		return nil
	})
	if err != nil {
		at.t.Fatal(err)
	}
}

// arrive lets a delivery arrive in shard 1.
func arrive(t *testing.T, s *Store, sku string, known localcache.Sale, d delivery) {
	t.Helper()
	if err := s.take(t.Context(), sku, known, 1, []delivery{d}); err != nil {
		t.Fatal(err)
	}
}

// A receiver that forgets what it has taken in gets it again, be it the last delivery
// or several, and whether or not the sender has sent more since.
func TestAReceiverThatLosesItsTail(t *testing.T) {
	t.Parallel()
	const units = 40
	s := newQuietStore(t, connect(t, redistest.Start(t, redistest.Options{}).Addr), Options{})
	for lost := range 3 { // deliveries, of three
		for further := range 2 {
			sku := fmt.Sprint("sku", lost, further)
			sell(t, s, Sale{SKU: sku, Stock: units, Shards: 2})
			known := knownSale(t, s, sku)
			var at *tail
			arrived := int64(0)
			for n := range 3 {
				if n == 3-lost {
					at = beginTail(t, s, sku, 1, 2)
				}
				d := send(t, s, sku, known, 0, 1, arrived, 1)
				arrive(t, s, sku, known, d)
				arrived = d.total
			}
			if further > 0 {
				send(t, s, sku, known, 0, 1, arrived, 1) // on its way when it is lost
			}
			if at == nil {
				at = beginTail(t, s, sku, 1, 2)
			}
			reserve(t, s, Purchase{SKU: sku, User: userOf(1, 2), Qty: 1})
			at.lose()
			clean(t, s, sku)
			// All of them can be bought.
			reserve(t, s, Purchase{SKU: sku, User: userOf(lost%2, 2), Qty: units})
			whole(t, s, sku, units)
		}
	}
}

// A sender that forgets what it has sent has units that arrived as well. They are taken
// off again, by whoever sees it first; as far as they were sold they are too many, and
// Audit says how many.
func TestASenderThatLosesItsTail(t *testing.T) {
	t.Parallel()
	const units = 40
	rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
	s := newQuietStore(t, rdb, Options{})
	double := func(sku string) {
		sell(t, s, Sale{SKU: sku, Stock: units, Shards: 2})
		known := knownSale(t, s, sku)
		at := beginTail(t, s, sku, 0, 2)
		d := send(t, s, sku, known, 0, 1, 0, 1)
		arrive(t, s, sku, known, d)
		at.lose()
		audit, _, err := s.Audit(t.Context(), sku)
		equal(t, "named", fmt.Sprint(audit.Named, err), "[{units sent by shard 0 that have arrived in shard 1 0 10}] <nil>")
		equal(t, "in transit", audit.InTransit, -10)
	}
	now := time.Now()
	tend := func() {
		for range 3 {
			now = now.Add(listEvery)
			s.keeper.round(now)
		}
	}
	double("kept")
	tend()
	equal(t, "available", whole(t, s, "kept", units).Available, units)

	double("bought")
	reserve(t, s, Purchase{SKU: "bought", User: userOf(1, 2), Qty: units})
	whole(t, s, "bought", units)

	double("too many")
	equal(t, "too many", must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: "too many", User: userOf(1, 2), Qty: units + 1})),
		Receipt{Outcome: SoldOut, Left: units})
	whole(t, s, "too many", units)

	double("taken away")
	equal(t, "taken away", must[Restock](t)(s.Restock(t.Context(), "taken away", -units, "")), Restock{Restocked, 0})
	tend() // what is too much is where it wasn't asked for
	whole(t, s, "taken away", 0)

	// Sold twice before anybody sees it.
	double("sold")
	first := reserve(t, s, Purchase{SKU: "sold", User: userOf(0, 2), Qty: 20})
	reserve(t, s, Purchase{SKU: "sold", User: userOf(1, 2), Qty: 30})
	sold := must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: "sold", User: userOf(1, 2), Qty: 1}))
	equal(t, "sold out", sold, Receipt{Outcome: SoldOut})
	audit, _, err := s.Audit(t.Context(), "sold")
	equal(t, "named", fmt.Sprint(audit.Named, err), "[{units sent by shard 0 that have arrived in shard 1 0 10}] <nil>")
	equal(t, "sold too many", audit.Pending, units+10)
	must[Settlement](t)(s.Cancel(t.Context(), first, ""))
	equal(t, "of those that come back, too many aren't sold again", must[Receipt](t)(s.Buy(t.Context(),
		Purchase{SKU: "sold", User: userOf(1, 2), Qty: 11})), Receipt{Outcome: SoldOut, Left: 10})
	equal(t, "available", whole(t, s, "sold", units).Available, 10)
}

// Who waits for replicas lets nothing arrive that the sender's don't have.
func TestUnitsThatReplicasDoNotHaveDoNotArrive(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	master, replica := replicated(t)
	s := newQuietStore(t, connect(t, master.Addr), Options{SyncTimeout: time.Millisecond})
	patient := newQuietStore(t, connect(t, master.Addr), Options{SyncTimeout: time.Minute})
	byDefault := newQuietStore(t, connect(t, master.Addr), Options{SyncTimeout: time.Millisecond, SyncReplicas: 1})
	const units, wanted = 20, 15
	sell(t, s, Sale{SKU: "sku", Stock: units, Shards: 2})
	p := Purchase{SKU: "sku", User: userOf(1, 2), Qty: wanted, RequestID: "r", Sync: 1}
	replica.Pause()
	for _, attempt := range []struct {
		name string
		run  func() error
	}{
		{"with SYNC", func() error { _, err := s.Buy(ctx, p); return err }},
		{"by default", func() error {
			_, err := byDefault.Buy(ctx, Purchase{SKU: "sku", User: userOf(1, 2), Qty: wanted})
			return err
		}},
		{"by the keeper", func() error { _, err := byDefault.finishTransfers(ctx, "sku", knownSale(t, s, "sku"), 0); return err }},
		{"taken away", func() error { _, err := byDefault.Restock(ctx, "sku", -wanted, ""); return err }},
	} {
		if err := attempt.run(); !errors.Is(err, script.ErrNotExecuted) {
			t.Errorf("%s: %v", attempt.name, err)
		}
		audit := clean(t, s, "sku")
		equal(t, attempt.name+": nothing is sold", audit.Pending, 0)
		equal(t, attempt.name+": nothing arrives", must[string](t)(s.rdb.HGet(ctx, shardKeys(s, "sku", 1, 2).sale, "received").Result()), "0")
	}
	replica.Resume()
	receipt := must[Receipt](t)(patient.Buy(ctx, p))
	equal(t, "when it is back", receipt.Outcome, Reserved)
	whole(t, s, "sku", units)

	// The default is for all.
	replica.Pause()
	if _, err := byDefault.Cancel(ctx, receipt.Token, ""); !errors.Is(err, script.ErrUncertain) {
		t.Errorf("cancelled: %v", err)
	}
	replica.Resume()
	confident := newQuietStore(t, connect(t, master.Addr), Options{SyncTimeout: time.Minute, SyncReplicas: 1})
	equal(t, "again", must[Settlement](t)(confident.Cancel(ctx, receipt.Token, "")).Outcome, Replayed)
	equal(t, "restocked", must[Restock](t)(confident.Restock(ctx, "sku", 5, "r")), Restock{Restocked, units + 5})
	equal(t, "restocked again", must[Restock](t)(confident.Restock(ctx, "sku", 5, "r")), Restock{Replayed, units + 5})
	equal(t, "closed", must[bool](t)(confident.Shut(ctx, "sku")), true)
	equal(t, "created", must[Created](t)(confident.Create(ctx, Sale{SKU: "other", Stock: 1, Shards: 3})), Created{Shards: 3})
	copied := newQuietStore(t, connect(t, replica.Addr), Options{})
	equal(t, "on the replica", must[localcache.Sale](t)(copied.readSale(ctx, "other")).Shards, 3)
	whole(t, s, "sku", units+5)
}
