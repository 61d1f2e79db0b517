// Package clients tests the built program with the clients that applications use:
// redis-cli, redis-benchmark, phpredis, Predis, redis-py, ioredis, node-redis and
// go-redis. What they do with any Redis must come out the same in front of one
// and through the sidecar, and few connections to Redis must do for all of them.
package clients

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
)

// program is the path of the seckill-proxy under test.
var program string

func TestMain(m *testing.M) {
	flag.Parse()
	redis.SetLogger(silence{})
	os.Exit(runAll(m))
}

// runAll builds the program, with the race detector where the tests have it, and
// runs the tests.
func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "seckill-clients")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "seckill-proxy")
	args := []string{"build", "-o", program}
	if raceEnabled {
		args = append(args, "-race")
	}
	if output, err := exec.Command("go", append(args, "seckill-proxy")...).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the program: %v\n%s", err, output)
		return 1
	}
	return m.Run()
}

// silence is go-redis's log: what it tells, its errors tell too.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
