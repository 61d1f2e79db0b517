// Package clients tests the built program with the clients that applications use:
// redis-cli, redis-benchmark, phpredis, Predis, redis-py, ioredis, node-redis and
// go-redis. What they do with any Redis must come out the same in front of one
// and through the sidecar, and few connections to Redis must do for all of them.
package clients

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
	os.Exit(sidecartest.Main(m))
}

// silence is go-redis's log: what it tells, its errors tell too.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
