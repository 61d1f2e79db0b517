// Package e2e tests the built program as its users meet it: started as a process
// in front of a real redis-server, spoken to by go-redis, redis-cli, PHP and
// Python, killed and started again.
package e2e

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/sidecartest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	redis.SetLogger(silence{})
	os.Exit(sidecartest.Main(m, "-ldflags", "-X main.version="+builtVersion))
}

// builtVersion is what the program under test calls itself.
const builtVersion = "0.0.0-e2e"

// silence is go-redis's log: it tells what its errors tell too, once for each
// connection that a killed program doesn't accept.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
