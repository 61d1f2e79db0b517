package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"time"
)

// sample is one measurement of one contender.
type sample struct {
	throughput float64 // operations per second
	p50, p99   float64 // milliseconds
	// CPU time per operation in microseconds: of the proxy (0 for the direct
	// way), of Redis and of redis-benchmark.
	proxyCPU, redisCPU, loadCPU float64
	commands                    float64 // that Redis executed per operation, those inside of scripts included
}

// results are all samples, and the questions of another kind if they were asked.
type results struct {
	rounds      map[string]map[string][]sample // by workload and contender, one for each round
	flash       *flash
	contention  []contention // direct, and one sidecar
	cluster     []site       // the sites of clusterSites
	connections *connections
}

// measureWorkloads asks the questions about speed. Contenders take turns, so
// that a disturbance of the machine meets all of them, and ratios are taken
// within a round.
func measureWorkloads(ctx context.Context, l *lab, opts options, progress io.Writer) (results, error) {
	r := results{rounds: map[string]map[string][]sample{}}
	var f *field
	for _, w := range workloads {
		if !opts.asks(w.key) {
			continue
		}
		if f == nil {
			var err error
			if f, err = l.startField(ctx, opts.peers); err != nil {
				return r, err
			}
		}
		samples, err := measureRounds(ctx, f, w, opts, progress)
		if err != nil {
			return r, err
		}
		r.rounds[w.key] = samples
	}
	return r, nil
}

// measureRounds measures all contenders again and again, after a short round
// that doesn't count.
func measureRounds(ctx context.Context, f *field, w workload, opts options, progress io.Writer) (map[string][]sample, error) {
	samples := map[string][]sample{}
	for round := range opts.rounds + 1 {
		n := w.operations(opts.n)
		if round == 0 {
			n = w.operations(opts.n / 10)
		}
		for _, c := range f.contenders {
			if !w.takes(c) {
				continue
			}
			s, err := measure(ctx, f, w, c, n)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", w.key, c.name, err)
			}
			if round == 0 {
				continue
			}
			samples[c.name] = append(samples[c.name], s)
			fmt.Fprintf(progress, "%s, round %d of %d, %s: %.0f/s\n", w.key, round, opts.rounds, c.name, s.throughput)
		}
	}
	return samples, nil
}

// measure runs n operations through one contender.
func measure(ctx context.Context, f *field, w workload, c contender, n int) (sample, error) {
	t, err := w.prepare(f, c)
	if err != nil {
		return sample{}, err
	}
	before, err := readMeters(f, c)
	if err != nil {
		return sample{}, err
	}
	s, err := load(ctx, w, c.addr, n, t.command)
	if err != nil {
		return sample{}, err
	}
	after, err := readMeters(f, c)
	if err != nil {
		return sample{}, err
	}
	s.proxyCPU = micros(after.proxy-before.proxy) / float64(n)
	s.redisCPU = micros(after.redis-before.redis) / float64(n)
	s.commands = float64(after.commands-before.commands) / float64(n)
	if t.done != nil {
		err = t.done(n)
	}
	return s, err
}

// meters are what is read before and after a measurement.
type meters struct {
	proxy, redis time.Duration
	commands     int64
}

func readMeters(f *field, c contender) (m meters, err error) {
	asker, err := dial(f.addr)
	if err != nil {
		return m, err
	}
	defer asker.Close()
	if m.commands, err = asker.info("stats", "total_commands_processed"); err != nil {
		return m, err
	}
	if m.redis, err = f.redis.cpu(); err != nil {
		return m, err
	}
	if c.process != nil {
		m.proxy, err = c.process.cpu()
	}
	return m, err
}

// load runs redis-benchmark. It ends with an error when a reply is an error.
func load(ctx context.Context, w workload, addr string, n int, command []string) (sample, error) {
	program, err := find("redis-benchmark")
	if err != nil {
		return sample{}, err
	}
	const different = "2000000000" // values of random; redis-benchmark reads an int
	args := append([]string{"-h", "127.0.0.1", "-p", port(addr), "--csv", "-r", different,
		"-c", strconv.Itoa(w.clients), "-P", strconv.Itoa(w.pipeline), "-n", strconv.Itoa(n)}, command...)
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return sample{}, fmt.Errorf("redis-benchmark: %w\n%s%s", err, &stdout, &stderr)
	}
	s, err := parseCSV(&stdout)
	if err != nil {
		return sample{}, fmt.Errorf("redis-benchmark: %w\n%s", err, &stderr)
	}
	s.loadCPU = micros(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()) / float64(n)
	return s, nil
}

// parseCSV reads the table of redis-benchmark --csv: a header and a row.
func parseCSV(table io.Reader) (sample, error) {
	reader := csv.NewReader(table)
	reader.LazyQuotes = true // the row begins with the command, as it is
	rows, err := reader.ReadAll()
	if err != nil {
		return sample{}, err
	}
	if len(rows) != 2 || len(rows[0]) != len(rows[1]) {
		return sample{}, fmt.Errorf("unexpected table %q", rows)
	}
	var s sample
	for name, field := range map[string]*float64{"rps": &s.throughput, "p50_latency_ms": &s.p50, "p99_latency_ms": &s.p99} {
		err = errors.Join(err, readColumn(rows, name, field))
	}
	return s, err
}

func readColumn(rows [][]string, name string, field *float64) (err error) {
	for i, title := range rows[0] {
		if title == name {
			*field, err = strconv.ParseFloat(rows[1][i], 64)
			return err
		}
	}
	return fmt.Errorf("no column %s", name)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
