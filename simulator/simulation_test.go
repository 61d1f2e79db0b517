// Package simulator runs sales against the real program while everything around
// it fails, and compares what clients were told with a model.
//
//	go test ./simulator                                   two episodes, a fresh seed
//	go test ./simulator -seed 42                          those of seed 42
//	go test ./simulator -duration 30m -timeout 0          a soak; put nice -n 10 in front of it
//
// An episode is one redis-server with an append only file, two or three sidecars,
// each behind a relay of its own, some tens of clients, and a nemesis. Clients
// speak RESP to any sidecar: they create, buy, settle, pull, restock, open, close,
// drop and audit a few sales on behalf of a few users, so that they collide. The
// nemesis kills sidecars, also right before or after any request that they send to
// Redis or before the reply comes, kills Redis, stops processes for a while, cuts,
// delays and partitions connections, and flushes scripts. Each sidecar's clock is
// off by minutes.
//
// What it proves: no client was told anything, while that went on, which isn't
// possible by the rules of SECKILL (model_test.go and the files beside it that
// judge answers); and when all is quiet again, what is in Redis is what clients
// were told, unit by unit (final_test.go, refusals_test.go).
//
// All decisions come from one seed, which is printed. Processes and the network
// aren't part of it, so the same seed makes the same kind of episode and not the
// same interleaving; run it with a longer duration to meet a fault again. A
// failure prints the episode's seed, the last operations on the same sale, and
// where the logs and the whole history are.
package simulator

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	seedFlag     = flag.Uint64("seed", 0, "seed of the first episode; 0 for a fresh one")
	durationFlag = flag.Duration("duration", 20*time.Second, "how long to go on with new episodes")
)

// program is the path of the seckill-proxy under test.
var program string

func TestMain(m *testing.M) {
	flag.Parse()
	redis.SetLogger(silence{})
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "seckill-simulator-build")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if program, err = build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// silence is go-redis's log: it tells what its errors tell too.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// TestSimulation runs episodes, each with a seed of its own, until the duration
// is over.
func TestSimulation(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	fmt.Printf("simulator: -seed %d\n", seed) // also where the log isn't shown
	seeds := rand.New(rand.NewPCG(seed, 0))
	total := newTally()
	for begin := time.Now(); total.episodes == 0 || time.Since(begin) < *durationFlag; seed = seeds.Uint64() {
		ok := t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			runEpisode(t, planEpisode(seed), total)
		})
		if !ok {
			t.Fatalf("the episode of -seed %d failed; so far %s", seed, total)
		}
		total.episodes++
	}
	t.Logf("all is well: %s", total)
}
