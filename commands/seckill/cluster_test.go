package seckill

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
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
