package main

import (
	"fmt"
	"strings"
)

// report writes the results in Markdown.
func report(r results) string {
	var b strings.Builder
	reportBars(&b, r)
	for _, w := range workloads {
		if rounds, asked := r.rounds[w.key]; asked {
			reportWorkload(&b, w, rounds)
		}
	}
	if r.flash != nil {
		reportFlash(&b, r.flash)
	}
	if r.contention != nil {
		reportContention(&b, r.contention)
	}
	if r.cluster != nil {
		reportCluster(&b, r.cluster)
	}
	if r.connections != nil {
		reportConnections(&b, r.connections)
	}
	return b.String()
}

// reportBars has a row for each bar and sidecar that it was measured for.
func reportBars(b *strings.Builder, r results) {
	fmt.Fprint(b, "### Bars\n\n")
	row(b, "what", "against", "bar", "contender", "measured", "reached")
	rule(b, 6)
	for _, bar := range bars {
		for _, variant := range sidecarVariants {
			if values := bar.values(r, variant.name); len(values) > 0 {
				row(b, bar.cells(variant.name, spreadOf(values))...)
			}
		}
	}
}

func (b bar) cells(sidecar string, measured spread) []string {
	sign := "≥"
	if b.atMost {
		sign = "≤"
	}
	return []string{b.what, b.against, fmt.Sprintf("%s %g%s", sign, b.bound, b.unit), sidecar,
		measured.format(b.decimals) + b.unit, b.verdict(measured.median)}
}

// reportWorkload has a row for each contender, in the order of their turns.
func reportWorkload(b *strings.Builder, w workload, rounds map[string][]sample) {
	fmt.Fprintf(b, "\n### %s (`%s`)\n\n", w.title, w.key)
	row(b, "contender", "thousand/s", "of direct", "p50 ms", "p99 ms", "CPU µs/op: proxy", "Redis", "redis-benchmark")
	rule(b, 8)
	for _, name := range contenderNames() {
		samples, there := rounds[name]
		if !there {
			continue
		}
		column := func(decimals int, measure func(sample) float64) string {
			return spreadOf(each(samples, measure)).format(decimals)
		}
		proxy := nothing
		if name != direct {
			proxy = column(1, proxyCPU)
		}
		row(b, name,
			column(1, func(s sample) float64 { return s.throughput / 1000 }),
			spreadOf(within(samples, rounds[direct], throughput, ratio)).format(2),
			column(3, p50),
			column(3, func(s sample) float64 { return s.p99 }),
			proxy,
			column(1, redisCPU),
			column(1, func(s sample) float64 { return s.loadCPU }))
	}
}

// contenderNames lists all names that contenders can have, in the order of their
// turns.
func contenderNames() []string {
	names := []string{direct}
	for _, variant := range sidecarVariants {
		names = append(names, variant.name)
	}
	return append(names, peerNames...)
}

func reportFlash(b *strings.Builder, f *flash) {
	fmt.Fprintf(b, "\n### %d buyers of %d units, through two sidecars (`%s`)\n\n", f.buyers, flashStock, flashKey)
	row(b, "measured", "value")
	rule(b, 2)
	row(b, "units sold", fmt.Sprint(f.sold))
	row(b, "script calls in Redis", fmt.Sprint(f.scripts))
	row(b, "commands in Redis, those inside of scripts included", fmt.Sprint(f.commands))
	row(b, "CPU of Redis in all", fmt.Sprintf("%.0f ms", f.redisCPU.Seconds()*1000))
	row(b, "from the first question to the last answer", fmt.Sprintf("%.2f s", f.took.Seconds()))
	row(b, "buyers that got an error or 503", fmt.Sprint(f.failed))
}

func reportContention(b *strings.Builder, measured []contention) {
	fmt.Fprintf(b, "\n### One lock that many clients want (`%s`)\n\n", contendKey)
	row(b, "clients", "contender", "hand-overs/s", "taken again at once, %", "mean wait ms", "p99 wait ms", "p99 by mean",
		"commands in Redis per hand-over", "CPU µs per hand-over: proxy", "Redis")
	rule(b, 10)
	for _, c := range measured {
		column := func(decimals int, measure func(contended) float64) string {
			return spreadOf(c.column(measure)).format(decimals)
		}
		name := c.contender
		if name == direct {
			name = spinning
		}
		row(b, fmt.Sprint(c.clients), name, column(0, handOvers),
			column(1, func(r contended) float64 { return 100 * r.again }),
			column(2, func(r contended) float64 { return r.mean }),
			column(2, func(r contended) float64 { return r.p99 }),
			column(2, unfairness),
			column(1, func(r contended) float64 { return r.commands }),
			column(1, func(r contended) float64 { return r.proxyCPU }),
			column(1, func(r contended) float64 { return r.redisCPU }))
	}
}

func reportCluster(b *strings.Builder, sites []site) {
	fmt.Fprintf(b, "\n### A sale over three masters, %d clients where no other number stands (`%s`)\n\n", clusterLoad.clients, clusterKey)
	row(b, "contender", "thousand/s", "p99 ms", "CPU µs/purchase: proxy", "Redis, all nodes", "Redis, by node", "busiest node by idlest",
		"commands in Redis per purchase")
	rule(b, 8)
	for _, s := range sites {
		column := func(decimals int, measure func(siteRound) float64) string {
			return spreadOf(s.column(measure)).format(decimals)
		}
		var nodes []string
		for i := range s.nodes {
			nodes = append(nodes, column(1, func(r siteRound) float64 { return r.nodeCPU[i] }))
		}
		row(b, s.name,
			column(1, func(r siteRound) float64 { return r.throughput / 1000 }),
			column(2, func(r siteRound) float64 { return r.p99 }),
			column(1, func(r siteRound) float64 { return r.proxyCPU }),
			column(1, allNodesCPU),
			strings.Join(nodes, ", "),
			column(2, unevenness),
			column(2, func(r siteRound) float64 { return r.commands }))
	}
}

func reportConnections(b *strings.Builder, c *connections) {
	fmt.Fprintf(b, "\n### %d clients of one %s (`%s`)\n\n", c.clients, c.sidecar, connectionsKey)
	row(b, "measured", "value")
	rule(b, 2)
	reportWork(b, c.ordinary)
	row(b, "memory (RSS) without clients", mebibytes(c.before.rss))
	row(b, "memory (RSS) with all clients idle", mebibytes(c.after.rss))
	row(b, "per client", fmt.Sprintf("%.1f KiB", c.rssPerClient()/1024))
	row(b, "of that in Go's heap", fmt.Sprintf("%.1f KiB", c.heapPerClient()/1024))
	reportWork(b, c.rush)
}

func reportWork(b *strings.Builder, w work) {
	when := fmt.Sprintf("%d at work at a time: ", w.together)
	row(b, when+"connections to Redis", fmt.Sprint(w.upstream))
	failed := fmt.Sprint(w.failed)
	if w.failure != nil {
		failed += fmt.Sprintf(", first `%v`", w.failure)
	}
	row(b, when+"clients that got an error", failed)
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// row writes a row of a table.
func row(b *strings.Builder, cells ...string) {
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

// rule writes the line between the head of a table and its body.
func rule(b *strings.Builder, columns int) {
	fmt.Fprintln(b, strings.Repeat("|---", columns)+"|")
}
