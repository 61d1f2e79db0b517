//go:build linux

package main

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSmallRun asks all questions with few operations, and wants all of them
// answered: what the numbers are is not a test's business. The other proxies are
// left out, which a machine that tests needn't have.
func TestSmallRun(t *testing.T) {
	opts, err := parse([]string{"-rounds", "2", "-n", "200", "-clients", "30", "-buyers", "300", "-peers", ""})
	if err != nil {
		t.Fatal(err)
	}
	var report, progress bytes.Buffer
	if err := run(t.Context(), opts, &report, &progress); err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}

	tables := tablesOf(report.String())
	contenders := []string{direct}
	for _, variant := range sidecarVariants {
		contenders = append(contenders, variant.name)
	}
	for _, w := range workloads {
		wantRows(t, tables, w.title+" (`"+w.key+"`)", 0, contenders)
	}
	wantRows(t, tables, "A sale over three masters, 500 clients where no other number stands (`cluster`)", 0, []string{oneNode, oneShard, threeMasters, threeBusy})
	wantRows(t, tables, "30 clients of one sidecar (`connections`)", 0, []string{
		"30 at work at a time: connections to Redis", "30 at work at a time: clients that got an error",
		"memory (RSS) without clients", "memory (RSS) with all clients idle", "per client", "of that in Go's heap",
		"30 at work at a time: connections to Redis", "30 at work at a time: clients that got an error",
	})
	var wanted []string // the bars, each for the sidecars that it is measured for
	for _, bar := range bars {
		switch bar.against {
		case twemproxy:
		case direct, directScript:
			wanted = slices.Concat(wanted, slices.Repeat([]string{bar.what}, len(sidecarVariants)))
		default:
			if strings.HasPrefix(bar.what, "Sold out") {
				wanted = slices.Concat(wanted, slices.Repeat([]string{bar.what}, len(sidecarVariants)))
			} else {
				wanted = append(wanted, bar.what)
			}
		}
	}
	wantRows(t, tables, "Bars", 0, wanted)
}

// tablesOf returns the rows of the report's tables without their heads, by the
// headline above them.
func tablesOf(report string) map[string][][]string {
	tables := map[string][][]string{}
	for _, section := range strings.Split(report, "### ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		var rows [][]string
		for line := range strings.Lines(body) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "| ") {
				rows = append(rows, strings.Split(strings.Trim(line, "| "), " | "))
			}
		}
		tables[title] = rows[1:]
	}
	return tables
}

// wantRows wants a table whose column has these cells, and no empty cell.
func wantRows(t *testing.T, tables map[string][][]string, title string, column int, want []string) {
	t.Helper()
	rows, there := tables[title]
	if !there {
		t.Errorf("no table %q", title)
		return
	}
	var got []string
	for _, row := range rows {
		got = append(got, row[column])
		if slices.Contains(row, "") {
			t.Errorf("table %q: an empty cell in %q", title, row)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("table %q has %q, want %q", title, got, want)
	}
}

func TestOptions(t *testing.T) {
	for args, want := range map[string]string{
		"-only get5":          `-only: no question "get5"; there are get50, get500, get50p16, set50, lonebuy, buy500, buy500p16, soldout, soldoutp16, flash, lock100, cluster, connections`,
		"-peers nginx":        `-peers: "nginx" is none of twemproxy, HAProxy`,
		"-rounds 0":           "-rounds, -n, -clients and -buyers must be at least 1",
		"-update -only get50": "-update writes all results: it doesn't go with -only",
	} {
		if _, err := parse(strings.Fields(args)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
	opts, err := parse([]string{"-only", "get50,connections"})
	if err != nil || !opts.asks("get50") || !opts.asks("connections") || opts.asks("get500") {
		t.Errorf("-only get50,connections: %+v, %v", opts, err)
	}
}

func TestSpread(t *testing.T) {
	if got, want := spreadOf([]float64{3, 1, 2}), (spread{median: 2, min: 1, max: 3}); got != want {
		t.Errorf("of three: %v, want %v", got, want)
	}
	if got, want := spreadOf([]float64{4, 1, 2, 3}).format(1), "2.5 (1.0–4.0)"; got != want {
		t.Errorf("of four: %q, want %q", got, want)
	}
	if got, want := spreadOf([]float64{1}).format(2), "1.00"; got != want {
		t.Errorf("of one: %q, want %q", got, want)
	}
}

// TestRatiosAreTakenWithinRounds has a machine that is half as fast in the
// second round.
func TestRatiosAreTakenWithinRounds(t *testing.T) {
	r := results{rounds: map[string]map[string][]sample{get50: {
		direct:    {{throughput: 1000}, {throughput: 500}},
		"sidecar": {{throughput: 900}, {throughput: 450}},
	}}}
	got := bars[0].values(r, "sidecar")
	if want := []float64{0.9, 0.9}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestVerdict(t *testing.T) {
	atLeast, atMost := bar{bound: 2}, bar{bound: 2, atMost: true}
	for _, test := range []struct {
		value           float64
		atLeast, atMost string
	}{
		{1.9, "no", "yes"},
		{2, "yes", "yes"},
		{2.1, "yes", "no"},
		{math.NaN(), "unknown", "unknown"},
		{math.Inf(1), "unknown", "unknown"},
	} {
		if got := atLeast.verdict(test.value); got != test.atLeast {
			t.Errorf("%v, at least 2: %s, want %s", test.value, got, test.atLeast)
		}
		if got := atMost.verdict(test.value); got != test.atMost {
			t.Errorf("%v, at most 2: %s, want %s", test.value, got, test.atMost)
		}
	}
}

func TestParseCSV(t *testing.T) {
	table := `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"EVALSHA 9f {a}:sale:b ","7692.31","0.263","0.032","0.103","0.487","3.287","6.095"
`
	got, err := parseCSV(strings.NewReader(table))
	if want := (sample{throughput: 7692.31, p50: 0.103, p99: 3.287}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := parseCSV(strings.NewReader("Error from server: LOADING\n")); err == nil {
		t.Error("something else than the table was read as one")
	}
}

func TestParseStat(t *testing.T) {
	got, err := parseStat("4711 (a) S b) S 1 4711 4711 0 -1 4194560 500 0 0 0 250 50 0 0 20 0 9 0 123 0 0\n")
	if want := 3 * time.Second; err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestReplaceResults(t *testing.T) {
	readme := "head\n" + resultsBegin + "old\n" + resultsEnd + "tail\n"
	got, err := replaceResults([]byte(readme), "new\n")
	if want := "head\n" + resultsBegin + "new\n" + resultsEnd + "tail\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := replaceResults([]byte("head\n"+resultsEnd), "new\n"); err == nil {
		t.Error("a file without marks was accepted")
	}
}
