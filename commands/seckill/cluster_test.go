package seckill

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/sharding"
)

// A cluster refuses scripts whose keys lie in several slots, or that touch keys
// that they didn't declare.
func TestSaleOnACluster(t *testing.T) {
	server := redistest.Start(t, redistest.Options{Args: []string{"--cluster-enabled", "yes"}})
	node := connect(t, server.Addr)
	must[any](t)(node.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Result())
	for !strings.Contains(must[string](t)(node.ClusterInfo(t.Context()).Result()), "cluster_state:ok") {
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr}, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	s := newStore(t, rdb, Options{})
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
}

// startCluster starts a cluster of so many masters with equal parts of the slots.
func startCluster(t *testing.T, masters int) *redis.ClusterClient {
	t.Helper()
	var addrs []string
	var nodes []*redis.Client
	for i := range masters {
		server := redistest.Start(t, redistest.Options{Args: []string{"--cluster-enabled", "yes"}})
		node := connect(t, server.Addr)
		addrs, nodes = append(addrs, server.Addr), append(nodes, node)
		first, last := i*sharding.Slots/masters, (i+1)*sharding.Slots/masters-1
		must[any](t)(node.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", first, last).Result())
		must[any](t)(node.Do(t.Context(), "CLUSTER", "SET-CONFIG-EPOCH", i+1).Result())
		if i > 0 {
			must[any](t)(node.Do(t.Context(), "CLUSTER", "MEET", "127.0.0.1", strings.TrimPrefix(addrs[0], "127.0.0.1:")).Result())
		}
	}
	for _, node := range nodes {
		eventually(t, "the cluster", func() bool {
			info := must[string](t)(node.ClusterInfo(t.Context()).Result())
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprint("cluster_known_nodes:", masters))
		})
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func TestASaleOverThreeMasters(t *testing.T) {
	t.Parallel()
	ctx, rdb := t.Context(), startCluster(t, 3)
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
func TestTheLastUnitsOfThreeMasters(t *testing.T) {
	t.Parallel()
	rdb := startCluster(t, 3)
	var stores []*Store
	for range 3 {
		stores = append(stores, newQuietStore(t, rdb, Options{QueueWait: time.Minute}))
	}
	const shards, units = 6, 4
	for round := range 5 {
		sku := fmt.Sprint("sku", round)
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
