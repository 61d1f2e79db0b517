package main

import "math"

// bar is a number that the project has set itself to reach.
type bar struct {
	what, against string
	bound         float64
	atMost        bool // the bound is the largest value allowed, else the smallest
	decimals      int
	unit          string // behind the numbers, with its space

	// values returns what was measured for one sidecar, one value for each
	// round, none when it wasn't.
	values func(r results, sidecar string) []float64
}

var bars = []bar{
	{what: "GET, 50 clients: throughput", against: direct, bound: 0.95, decimals: 2,
		values: versus(get50, direct, throughput, ratio)},
	{what: "GET, 50 clients: CPU of the proxy per operation", against: twemproxy, bound: 1, atMost: true, decimals: 2,
		values: versus(get50, twemproxy, proxyCPU, ratio)},
	{what: "GET, 500 clients: throughput", against: direct, bound: 0.9, decimals: 2,
		values: versus(get500, direct, throughput, ratio)},
	{what: "GET, 50 clients, pipeline of 16: throughput", against: direct, bound: 0.7, decimals: 2,
		values: versus(get50p16, direct, throughput, ratio)},
	{what: "GET, 50 clients, pipeline of 16: throughput", against: twemproxy, bound: 2, decimals: 2,
		values: versus(get50p16, twemproxy, throughput, ratio)},
	{what: "Purchases, 500 clients: CPU of Redis per purchase", against: directScript, bound: 0.25, atMost: true, decimals: 2,
		values: versus(buy500, direct, redisCPU, ratio)},
	{what: "Purchases, 500 clients: throughput", against: directScript, bound: 1.5, decimals: 2,
		values: versus(buy500, direct, throughput, ratio)},
	{what: "Sold out: throughput", against: directScript, bound: 2, decimals: 2,
		values: versus(soldout, direct, throughput, ratio)},
	{what: "Sold out, pipeline of 16: throughput", against: directScript, bound: 2, decimals: 2,
		values: versus(soldoutp16, direct, throughput, ratio)},
	// redis-benchmark asks for the configuration when it starts.
	{what: "Sold out: commands in Redis per purchase", against: nothing, bound: 0.01, atMost: true, decimals: 3, values: alone(soldout, commands)},
	{what: "A purchase at a time: p50 of the latency, more by", against: directScript, bound: 0.2, atMost: true, decimals: 3, unit: " ms",
		values: versus(lonebuy, direct, p50, difference)},
	{what: "Many buyers of 100 units: script calls in Redis", against: nothing, bound: 200, atMost: true,
		values: ofFlash(func(f *flash) float64 { return float64(f.scripts) })},
	{what: "Many buyers of 100 units: units sold too many or too few", against: nothing, bound: 0, atMost: true,
		values: ofFlash(func(f *flash) float64 { return math.Abs(float64(f.sold - flashStock)) })},
	{what: "Contended lock, 100 clients: hand-overs per second", against: spinning, bound: 3, decimals: 2,
		values: ofContention(func(ours, spin contention) []float64 {
			values := ours.column(handOvers)
			for i, other := range spin.column(handOvers) {
				values[i] /= other
			}
			return values
		})},
	{what: "Contended lock, 100 clients: p99 of the wait by its mean", against: nothing, bound: 3, atMost: true, decimals: 2,
		values: ofContention(func(ours, _ contention) []float64 { return ours.column(unfairness) })},
	{what: "A sale over three masters, 500 clients: CPU of Redis, busiest node by idlest", against: nothing, bound: 1.2, atMost: true, decimals: 2,
		values: ofCluster(oneNode, threeMasters, func(three, _ site) []float64 { return three.column(unevenness) })},
	{what: "A sale over three masters, 500 clients: CPU of all Redis per purchase", against: oneNode, bound: 1.3, atMost: true, decimals: 2,
		values: ofCluster(oneNode, threeMasters, costlier)},
	{what: "A sale over three masters, 500 clients for each: CPU of all Redis per purchase", against: oneShard, bound: 1.3, atMost: true, decimals: 2,
		values: ofCluster(oneShard, threeBusy, costlier)},
	{what: "Connections to Redis", against: nothing, bound: 16, atMost: true,
		values: ofConnections(func(c *connections) float64 { return float64(c.ordinary.upstream) })},
	{what: "Clients that got an error", against: nothing, bound: 0, atMost: true,
		values: ofConnections(func(c *connections) float64 { return float64(c.ordinary.failed) })},
	{what: "Memory per idle client", against: nothing, bound: 16, atMost: true, decimals: 1, unit: " KiB",
		values: ofConnections(func(c *connections) float64 { return c.rssPerClient() / 1024 })},
}

// What else stands in the column of whom it is measured against.
const (
	directScript = "direct EVALSHA" // the direct way when scripts are called
	spinning     = "direct SET NX, spinning"
	nothing      = "–"
)

// versus measures a sidecar against another contender.
func versus(workload, other string, measure func(sample) float64, combine func(a, b float64) float64) func(results, string) []float64 {
	return func(r results, sidecar string) []float64 {
		rounds := r.rounds[workload]
		return within(rounds[sidecar], rounds[other], measure, combine)
	}
}

// alone measures a sidecar.
func alone(workload string, measure func(sample) float64) func(results, string) []float64 {
	return func(r results, sidecar string) []float64 { return each(r.rounds[workload][sidecar], measure) }
}

// ofConnections measures the sidecar of the question about connections.
func ofConnections(measure func(*connections) float64) func(results, string) []float64 {
	return func(r results, sidecar string) []float64 {
		if r.connections == nil || r.connections.sidecar != sidecar {
			return nil
		}
		return []float64{measure(r.connections)}
	}
}

// ofFlash measures the sidecars of the question about a flash.
func ofFlash(measure func(*flash) float64) func(results, string) []float64 {
	return func(r results, sidecar string) []float64 {
		if r.flash == nil || r.flash.sidecar != sidecar {
			return nil
		}
		return []float64{measure(r.flash)}
	}
}

// ofContention measures the sidecar of the question about a lock, with
// contendClients.
func ofContention(measure func(ours, spin contention) []float64) func(results, string) []float64 {
	return func(r results, sidecar string) []float64 {
		found := map[string]contention{}
		for _, c := range r.contention {
			if c.clients == contendClients {
				found[c.contender] = c
			}
		}
		if len(found[sidecar].rounds) == 0 {
			return nil
		}
		return measure(found[sidecar], found[direct])
	}
}

// costlier is by how much the servers of one site have more to do than those of another.
func costlier(three, one site) []float64 {
	values := three.column(allNodesCPU)
	for i, other := range one.column(allNodesCPU) {
		values[i] /= other
	}
	return values
}

// ofCluster measures the sidecar of the question about a cluster, by two of its sites.
func ofCluster(ofOne, ofThree string, measure func(three, one site) []float64) func(results, string) []float64 {
	return func(r results, sidecar string) []float64 {
		one, found := siteNamed(r.cluster, ofOne)
		three, foundToo := siteNamed(r.cluster, ofThree)
		if !found || !foundToo || three.sidecar.name != sidecar {
			return nil
		}
		return measure(three, one)
	}
}

// verdict says whether a value is on the right side of the bar.
func (b bar) verdict(value float64) string {
	switch {
	case math.IsNaN(value) || math.IsInf(value, 0):
		return "unknown" // too few operations to use up a tick of CPU time
	case b.atMost && value <= b.bound, !b.atMost && value >= b.bound:
		return "yes"
	default:
		return "no"
	}
}
