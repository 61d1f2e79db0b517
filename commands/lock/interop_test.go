package lock

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
)

// A shop that migrates: locks of its own in PHP, of two libraries in Go, and of two
// sidecars are for the same name, and one at a time has it.
func TestMutualExclusionOfEverybody(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	rdb, ctx := server.Client(t), t.Context()
	port := strconv.Itoa(rdbPort(t, server.Addr))
	const rounds = 60
	var wait sync.WaitGroup

	// enter is in the critical section what testdata/foreign.php is there.
	enter := func() error {
		inside, err := rdb.Incr(ctx, "inside").Result()
		if err != nil || inside != 1 {
			return fmt.Errorf("%d inside: %w", inside, err)
		}
		count, err := rdb.Get(ctx, "count").Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		return errors.Join(rdb.Set(ctx, "count", count+1, 0).Err(), rdb.Decr(ctx, "inside").Err())
	}
	parties := 0
	party := func(who string, run func() error) {
		parties++
		wait.Go(func() {
			if err := run(); err != nil {
				t.Errorf("%s: %v", who, err)
			}
		})
	}

	for _, library := range []string{"phpredis", "predis"} {
		party(library, func() error {
			output, err := exec.CommandContext(ctx, "php", "testdata/foreign.php", library, port, strconv.Itoa(rounds)).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, output)
			}
			return nil
		})
	}
	party("redsync", func() error {
		mutex := redsync.New(redsyncpool.NewPool(rdb)).NewMutex("lock:x", redsync.WithExpiry(minute), redsync.WithTries(1_000_000),
			redsync.WithRetryDelay(time.Millisecond))
		for range rounds {
			if err := mutex.LockContext(ctx); err != nil {
				return err
			}
			if err := enter(); err != nil {
				return err
			}
			if unlocked, err := mutex.UnlockContext(ctx); err != nil || !unlocked {
				return fmt.Errorf("unlocked %t: %w", unlocked, err)
			}
		}
		return nil
	})
	party("redislock", func() error {
		locks := redislock.New(rdb)
		for range rounds {
			lock, err := locks.Obtain(ctx, "lock:x", minute, &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Millisecond)})
			if err != nil {
				return err
			}
			if err := enter(); err != nil {
				return err
			}
			if err := lock.Release(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	var f fences
	for i := range 2 {
		l := newLocker(t, rdb)
		for range 2 {
			party(fmt.Sprint("sidecar ", i), func() error {
				for range rounds {
					held, err := l.Acquire(context.Background(), Request{Name: "x", TTL: minute, Wait: 5 * minute})
					if err != nil || held.Outcome != Acquired {
						return fmt.Errorf("acquired %+v: %w", held, err)
					}
					if err := enter(); err != nil {
						return err
					}
					if held.Fence <= f.last {
						return fmt.Errorf("fence %d after %d", held.Fence, f.last)
					}
					f.last = held.Fence
					if released, err := l.Release(ctx, "x", held.Token, nil); err != nil || released.Outcome != Released {
						return fmt.Errorf("released %+v: %w", released, err)
					}
				}
				return nil
			})
		}
	}
	wait.Wait()
	if count := must(rdb.Get(ctx, "count").Int())(t); count != parties*rounds {
		t.Fatalf("counted to %d, want %d", count, parties*rounds)
	}
	expectNoTraces(t, rdb)
}

func rdbPort(t *testing.T, addr string) int {
	t.Helper()
	return must(strconv.Atoi(addr[len("127.0.0.1:"):]))(t)
}
