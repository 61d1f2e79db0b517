package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// site is a sidecar and the servers of Redis behind it: one, or a cluster.
type site struct {
	name    string
	sidecar contender
	nodes   []*field // without contenders
	shards  int      // of the sale
	clients int
	rounds  []siteRound
}

// siteRound is one round of a sale at a site.
type siteRound struct {
	sample            // without redisCPU
	nodeCPU []float64 // of each node, in microseconds per purchase
}

const (
	clusterKey    = "cluster"
	clusterShards = 3 // what a cluster of three masters has by default
)

// Names of sites.
const (
	oneNode      = "one node, 3 shards"
	oneShard     = "one node, 1 shard"
	threeMasters = "three masters, 3 shards"
	threeBusy    = "three masters, 3 shards, 500 clients for each"
)

// clusterLoad takes many more purchases than other workloads: CPU times have
// steps of 10 ms, and each node does a third of the work.
var clusterLoad = workload{key: clusterKey, clients: 500, pipeline: 1, share: 2}

// measureCluster lets 500 clients buy from a sale whose shards lie on three
// masters, and from the same sale on one server; and as many for each master: the
// fewer gather for a call, the more the call costs each of them. The sites take
// turns, after a short round that doesn't count.
func measureCluster(ctx context.Context, l *lab, opts options, progress io.Writer) ([]site, error) {
	sites, err := l.startSites(ctx)
	if err != nil {
		return nil, err
	}
	for round := range opts.rounds + 1 {
		n := clusterLoad.operations(opts.n)
		if round == 0 {
			n = clusterLoad.operations(opts.n / 10)
		}
		for i := range sites {
			result, err := sites[i].measure(ctx, n)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", clusterKey, sites[i].name, err)
			}
			if round == 0 {
				continue
			}
			sites[i].rounds = append(sites[i].rounds, result)
			fmt.Fprintf(progress, "%s, round %d of %d, %s: %.0f/s\n", clusterKey, round, opts.rounds, sites[i].name, result.throughput)
		}
	}
	return sites, nil
}

// startSites starts the servers. The sale with one shard is at the server of
// that with three.
func (l *lab) startSites(ctx context.Context) ([]site, error) {
	redis, addr, err := l.startRedis(ctx)
	if err != nil {
		return nil, err
	}
	single := []*field{{redis: redis, addr: addr}}
	const variant = 0 // the program's own choice of everything
	sidecar, err := l.startSidecar(ctx, sidecarVariants[variant].name, sidecarVariants[variant].env, addr)
	if err != nil {
		return nil, err
	}
	masters, err := l.startCluster(ctx, clusterShards)
	if err != nil {
		return nil, err
	}
	clustered, err := l.startSidecar(ctx, sidecarVariants[variant].name, sidecarVariants[variant].env, "redis+cluster://"+strings.Join(addrsOf(masters), ","))
	return []site{
		{name: oneNode, sidecar: sidecar, nodes: single, shards: clusterShards, clients: clusterLoad.clients},
		{name: oneShard, sidecar: sidecar, nodes: single, shards: 1, clients: clusterLoad.clients},
		{name: threeMasters, sidecar: clustered, nodes: masters, shards: clusterShards, clients: clusterLoad.clients},
		{name: threeBusy, sidecar: clustered, nodes: masters, shards: clusterShards, clients: clusterLoad.clients * len(masters)},
	}, err
}

// measure runs n purchases of a new sale.
func (s site) measure(ctx context.Context, n int) (siteRound, error) {
	sku, err := createSale(addrsOf(s.nodes), s.sidecar.addr, stock, "SHARDS", strconv.Itoa(s.shards))
	if err != nil {
		return siteRound{}, err
	}
	before, err := s.readMeters()
	if err != nil {
		return siteRound{}, err
	}
	work := clusterLoad
	work.clients = s.clients
	result, err := load(ctx, work, s.sidecar.addr, n, purchaseOf(sku))
	if err != nil {
		return siteRound{}, err
	}
	after, err := s.readMeters()
	if err != nil {
		return siteRound{}, err
	}
	return sumUpSite(result, before, after, n), wantPending(s.sidecar.addr, sku, n+openingPurchases)
}

// readMeters reads those of each node; that of the sidecar is in each.
func (s site) readMeters() ([]meters, error) {
	all := make([]meters, len(s.nodes))
	for i, node := range s.nodes {
		var err error
		if all[i], err = readMeters(node, s.sidecar); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func sumUpSite(result sample, before, after []meters, n int) siteRound {
	r := siteRound{sample: result}
	r.proxyCPU = micros(after[0].proxy-before[0].proxy) / float64(n)
	for i := range before {
		r.nodeCPU = append(r.nodeCPU, micros(after[i].redis-before[i].redis)/float64(n))
		r.commands += float64(after[i].commands-before[i].commands) / float64(n)
	}
	return r
}

// Measures of a round at a site.

func allNodesCPU(r siteRound) (sum float64) {
	for _, cpu := range r.nodeCPU {
		sum += cpu
	}
	return sum
}

func unevenness(r siteRound) float64 { return slices.Max(r.nodeCPU) / slices.Min(r.nodeCPU) }

func (s site) column(measure func(siteRound) float64) []float64 {
	values := make([]float64, len(s.rounds))
	for i, r := range s.rounds {
		values[i] = measure(r)
	}
	return values
}

func siteNamed(sites []site, name string) (site, bool) {
	at := slices.IndexFunc(sites, func(s site) bool { return s.name == name })
	if at < 0 {
		return site{}, false
	}
	return sites[at], true
}

func addrsOf(nodes []*field) []string {
	var addrs []string
	for _, node := range nodes {
		addrs = append(addrs, node.addr)
	}
	return addrs
}

// slots is how many hash slots a cluster has.
const slots = 16384

// startCluster starts a cluster of so many masters with equal parts of the slots.
func (l *lab) startCluster(ctx context.Context, masters int) ([]*field, error) {
	var nodes []*field
	var seed string // where the others meet the first: host, port and port of the bus
	for i := range masters {
		node, bus, err := l.startNode(ctx)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
		steps := [][]string{
			{"CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i * slots / masters), strconv.Itoa((i+1)*slots/masters - 1)},
			{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)},
		}
		if i == 0 {
			seed = "127.0.0.1 " + port(node.addr) + " " + port(bus)
		} else {
			steps = append(steps, append([]string{"CLUSTER", "MEET"}, strings.Fields(seed)...))
		}
		for _, step := range steps {
			if _, err := ask(node.addr, step...); err != nil {
				return nil, err
			}
		}
	}
	for _, node := range nodes {
		if err := node.joined(ctx, masters); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

// startNode starts a server that can become part of a cluster.
func (l *lab) startNode(ctx context.Context) (node *field, bus string, err error) {
	addr, errAddr := freeAddress()
	bus, errBus := freeAddress()
	if err := errors.Join(errAddr, errBus); err != nil {
		return nil, "", err
	}
	p, err := l.start(ctx, addr, "redis", nil, "redis-server",
		"--bind", "127.0.0.1", "--port", port(addr), "--save", "", "--dir", l.dir, "--maxclients", "10000",
		"--cluster-enabled", "yes", "--cluster-config-file", "nodes-"+port(addr)+".conf", "--cluster-port", port(bus))
	return &field{redis: p, addr: addr}, bus, err
}

// joined waits until the node knows so many masters and finds the cluster in
// order.
func (f *field) joined(ctx context.Context, masters int) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		reply, err := ask(f.addr, "CLUSTER", "INFO")
		text := fmt.Sprint(reply)
		if err == nil && strings.Contains(text, "cluster_state:ok") && strings.Contains(text, fmt.Sprintf("cluster_size:%d\r\n", masters)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return f.redis.failure(fmt.Errorf("not part of the cluster: %w\n%s", errors.Join(ctx.Err(), err), text))
		case <-time.After(20 * time.Millisecond): // until the next try
		}
	}
}
