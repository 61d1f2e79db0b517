// Command bench compares Redis alone, the sidecar in front of it, twemproxy and
// HAProxy in one run on one machine, and holds the results against the bars
// that the project has set itself. README.md says what is asked and how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	opts, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, opts, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options of a run, as the command line gives them.
type options struct {
	rounds  int      // how often each contender is measured
	n       int      // operations per measurement; a workload may take a multiple or a part
	clients int      // connections of the connection and memory question
	buyers  int      // of the flash question
	only    []string // keys of the questions to ask, all if empty
	peers   []string // other proxies to compare with
	update  bool     // write the results into README.md
}

const connectionsKey = "connections"

func parse(args []string) (options, error) {
	var opts options
	var only, peers string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&opts.rounds, "rounds", 5, "how often each contender is measured")
	flags.IntVar(&opts.n, "n", 100_000, "operations per measurement")
	flags.IntVar(&opts.buyers, "buyers", 50_000, "buyers of the "+flashKey+" question")
	flags.IntVar(&opts.clients, "clients", 5000, "connections for the "+connectionsKey+" question")
	flags.StringVar(&only, "only", "", "ask only these questions, comma separated: "+strings.Join(questionKeys(), ", "))
	flags.StringVar(&peers, "peers", strings.Join(peerNames, ","), "other proxies to compare with, comma separated")
	flags.BoolVar(&opts.update, "update", false, "write the results into bench/README.md too")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	opts.only, opts.peers = list(only), list(peers)
	return opts, opts.validate()
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func (o options) validate() error {
	if o.rounds < 1 || o.n < 1 || o.clients < 1 || o.buyers < 1 {
		return errors.New("-rounds, -n, -clients and -buyers must be at least 1")
	}
	if o.update && len(o.only) > 0 {
		return errors.New("-update writes all results: it doesn't go with -only")
	}
	for _, key := range o.only {
		if !slices.Contains(questionKeys(), key) {
			return fmt.Errorf("-only: no question %q; there are %s", key, strings.Join(questionKeys(), ", "))
		}
	}
	for _, name := range o.peers {
		if !slices.Contains(peerNames, name) {
			return fmt.Errorf("-peers: %q is none of %s", name, strings.Join(peerNames, ", "))
		}
	}
	return nil
}

// asks reports whether a question is to be asked.
func (o options) asks(key string) bool {
	return len(o.only) == 0 || slices.Contains(o.only, key)
}

// questionKeys lists what -only can name.
func questionKeys() []string {
	var keys []string
	for _, w := range workloads {
		keys = append(keys, w.key)
	}
	return append(keys, flashKey, contendKey, clusterKey, connectionsKey)
}

// run measures, and writes the report to stdout and progress to stderr.
func run(ctx context.Context, opts options, stdout, stderr io.Writer) error {
	if err := raiseOpenFiles(opts.clients); err != nil {
		return err
	}
	lab, err := openLab(ctx)
	if err != nil {
		return err
	}
	defer lab.close()

	about, err := describe(ctx, opts)
	if err != nil {
		return err
	}
	results, err := measureWorkloads(ctx, lab, opts, stderr)
	if err != nil {
		return err
	}
	if opts.asks(flashKey) {
		if results.flash, err = measureFlash(ctx, lab, opts.buyers, stderr); err != nil {
			return err
		}
	}
	if opts.asks(contendKey) {
		if results.contention, err = measureContention(ctx, lab, opts, stderr); err != nil {
			return err
		}
	}
	if opts.asks(clusterKey) {
		if results.cluster, err = measureCluster(ctx, lab, opts, stderr); err != nil {
			return err
		}
	}
	if opts.asks(connectionsKey) {
		if results.connections, err = measureConnections(ctx, lab, opts.clients, stderr); err != nil {
			return err
		}
	}

	text := about + report(results)
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	if opts.update {
		return updateReadme(ctx, text)
	}
	return nil
}
