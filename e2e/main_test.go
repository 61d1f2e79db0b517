// Package e2e tests the built program as its users meet it: started as a process
// in front of a real redis-server, spoken to by go-redis, redis-cli, PHP and
// Python, killed and started again.
package e2e

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
	dir, err := os.MkdirTemp("", "seckill-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "seckill-proxy")
	args := []string{"build", "-o", program, "-ldflags", "-X main.version=" + builtVersion}
	if raceEnabled {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "seckill-proxy")...)
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the program: %v\n%s", err, output)
		return 1
	}
	return m.Run()
}

// builtVersion is what the program under test calls itself.
const builtVersion = "0.0.0-e2e"

// silence is go-redis's log: it tells what its errors tell too, once for each
// connection that a killed program doesn't accept.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
