package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
)

// guarded is what one lock guards.
type guarded struct {
	exclusive atomic.Int32
	shared    atomic.Int32
	fence     atomic.Int64
}

// enter checks that a hold excludes what it must, and returns how to leave.
func (g *guarded) enter(mode Mode, fence int64) (leave func(), err error) {
	if mode == Shared {
		g.shared.Add(1)
		if n := g.exclusive.Load(); n != 0 {
			err = fmt.Errorf("shared with %d exclusive holders", n)
		}
		return func() { g.shared.Add(-1) }, err
	}
	last := g.fence.Swap(fence)
	if n := g.exclusive.Add(1); n != 1 || g.shared.Load() != 0 {
		err = fmt.Errorf("%d exclusive holders, %d shared", n, g.shared.Load())
	} else if fence <= last {
		err = fmt.Errorf("fence %d after %d", fence, last)
	}
	return func() { g.exclusive.Add(-1) }, err
}

// Many wait for few of many names, through two sidecars, some leave or give up, and
// no wake-up is lost: a waiter that isn't woken waits in vain, since nobody looks
// without being told. LOCK_SOAK is the number of rounds of 500 waiters with 10,000
// names; without it there are a few with less.
func TestSoak(t *testing.T) {
	waiters, names, rounds := 60, 500, 20
	if n, err := strconv.Atoi(os.Getenv("LOCK_SOAK")); err == nil {
		waiters, names, rounds = 500, 10_000, n
	}
	rdb := redistest.Start(t, redistest.Options{}).Client(t)
	sidecars := []*Locker{newLocker(t, rdb), newLocker(t, rdb)}
	locks := make([]guarded, names)
	var (
		wait                      sync.WaitGroup
		granted, gone, gaveUp, no atomic.Int64
	)
	for range waiters {
		wait.Go(func() {
			for range rounds {
				// Half of all want one of a few.
				name := rand.IntN(names)
				if rand.IntN(2) == 0 {
					name = rand.IntN(5)
				}
				through, by := sidecars[rand.IntN(2)], sidecars[rand.IntN(2)]
				req := Request{Name: strconv.Itoa(name), TTL: time.Hour, Wait: 10 * time.Minute, Mode: Exclusive}
				ctx, leave := context.WithCancel(context.Background())
				switch rand.IntN(10) {
				case 0:
					time.AfterFunc(rand.N(20*time.Millisecond), leave)
				case 1:
					req.Wait = rand.N(20 * time.Millisecond)
				case 2, 3:
					req.Mode = Shared
				}
				got, err := through.Acquire(ctx, req)
				switch {
				case errors.Is(err, script.ErrUncertain) && req.Wait < time.Minute:
					// Redis was asked in time and has not answered in time.
					no.Add(1)
					if _, err := by.Release(context.Background(), req.Name, got.Token, nil); err != nil {
						t.Error(err)
					}
				case err != nil && ctx.Err() != nil:
					gone.Add(1)
				case err != nil:
					t.Error(err)
				case got.Outcome == Acquired:
					granted.Add(1)
					out, err := locks[name].enter(req.Mode, got.Fence)
					if err != nil {
						t.Errorf("lock %d: %v", name, err)
					}
					out()
					if released, err := by.Release(context.Background(), req.Name, got.Token, nil); err != nil || released.Outcome != Released {
						t.Errorf("released %+v: %v", released, err)
					}
				case req.Wait > time.Minute:
					t.Errorf("a lost wake-up: %+v", got)
				default:
					gaveUp.Add(1)
				}
				leave()
			}
		})
	}
	wait.Wait()
	t.Logf("%d granted, %d left, %d gave up, %d don't know", granted.Load(), gone.Load(), gaveUp.Load(), no.Load())
	expectNoTraces(t, rdb)
	for _, l := range sidecars {
		if len(l.queues) > 0 {
			t.Errorf("%d queues are left", len(l.queues))
		}
	}
}
