package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func acquireAll(l *Locker, wait time.Duration, names ...string) (Result, error) {
	return l.AcquireAll(context.Background(), MultiRequest{Names: names, TTL: minute, Wait: wait})
}

func TestAllOrNone(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		single := acquire(t, l, "b", "", time.Hour)
		expect(t, must(acquireAll(l, 0, "a", "b", "c"))(t), Result{Outcome: Busy, TTL: time.Hour})
		expect(t, must(acquireAll(l, 20*time.Millisecond, "a", "b", "c"))(t), Result{Outcome: TimedOut})
		release(t, l, "b", single.Token)
		expectNoTraces(t, s.rdb)

		all := must(acquireAll(l, 0, "c", "a", "b"))(t)
		expect(t, all, Result{Acquired, all.Token, all.Fence, minute, 1})
		for _, name := range []string{"a", "b", "c"} {
			expect(t, check(t, l, name, all.Token), Result{Held, all.Token, all.Fence, minute, 1})
			expectTTLs(t, l, s.rdb, name)
			expect(t, release(t, l, name, all.Token), Result{Released, all.Token, all.Fence, 0, 0})
			if next := acquire(t, l, name, "", minute); next.Fence <= all.Fence {
				t.Fatalf("fence %d after %d", next.Fence, all.Fence)
			}
		}
		must(s.rdb.Set(t.Context(), "lock:stock", 5, 0).Result())(t)
		expect(t, must(acquireAll(l, minute, "d", "stock"))(t), Result{Outcome: NoTTL})
		if got := acquire(t, l, "d", "", minute); got.Outcome != Acquired {
			t.Fatalf("got %+v", got)
		}
	})
}

// Waiting for several locks, the caller has them all at the end, with one fence.
func TestWaitingForSeveral(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		a, c := acquire(t, l, "a", "", minute), acquire(t, l, "c", "", minute)
		var ties Ties
		done := make(chan Result)
		go func() {
			result, err := l.AcquireAll(context.Background(), MultiRequest{
				Names: []string{"c", "b", "a"}, TTL: minute, Wait: minute, Tie: &Tie{Of: &ties},
			})
			if err != nil {
				result.Outcome = Outcome(err.Error())
			}
			done <- result
		}()
		waiters(t, l, "a", 1)
		release(t, l, "a", a.Token)
		waiters(t, l, "c", 1)
		if got := acquire(t, l, "b", "", minute); got.Outcome != Busy {
			t.Fatalf("got %+v", got)
		}
		release(t, l, "c", c.Token)
		all := <-done
		expect(t, all, Result{Acquired, all.Token, all.Fence, minute, 1})
		for _, name := range []string{"a", "b", "c"} {
			expect(t, check(t, l, name, all.Token), Result{Held, all.Token, all.Fence, minute, 1})
		}
		ties.Release()
		expectNoTraces(t, s.rdb)
	})
}

func TestWhoLeavesWhileWaitingForSeveralHasNone(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		c := acquire(t, l, "c", "", minute)
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := l.AcquireAll(ctx, MultiRequest{Names: []string{"a", "c"}, TTL: minute, Wait: minute})
			done <- err
		}()
		waiters(t, l, "c", 1)
		leave()
		if err := <-done; !errors.Is(err, ErrBusy) {
			t.Fatalf("got %v", err)
		}
		release(t, l, "c", c.Token)
		expectNoTraces(t, s.rdb)
	})
}

// Philosophers: everybody wants two of few, from two sidecars, and all get them.
func TestNoDeadlock(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		philosophers(t, s.rdb)
		expectNoTraces(t, s.rdb)
	})
}

func philosophers(t *testing.T, rdb redis.UniversalClient) {
	const names, clients, rounds = 4, 8, 15
	var (
		sidecars = []*Locker{newLocker(t, rdb), newLocker(t, rdb)}
		holders  [names]atomic.Int32
		wait     sync.WaitGroup
	)
	for i := range clients {
		l := sidecars[i%2]
		wait.Go(func() {
			for range rounds {
				first := rand.IntN(names)
				pair := []int{first, (first + 1) % names}
				got, err := acquireAll(l, minute, fmt.Sprint(pair[0]), fmt.Sprint(pair[1]))
				if err != nil || got.Outcome != Acquired {
					t.Errorf("got %+v, %v", got, err)
					return
				}
				for _, n := range pair {
					if holders[n].Add(1) != 1 {
						t.Errorf("%d is held twice", n)
					}
				}
				for _, n := range pair {
					holders[n].Add(-1)
					if _, err := l.Release(context.Background(), fmt.Sprint(n), got.Token, nil); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wait.Wait()
}
