package lock

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// foreignRelease is what lock code everywhere does: compare and delete.
var foreignRelease = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

// Code that locks with SET NX PX and this package exclude each other.
func TestMutualExclusionWithForeignCode(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		const clients, rounds = 4, 50
		var (
			l, ctx  = locker(s.rdb), t.Context()
			holders atomic.Int32
			counter int // guarded by the lock under test
			fence   fences
			wait    sync.WaitGroup
		)
		enter := func() {
			if n := holders.Add(1); n != 1 {
				t.Errorf("%d holders at once", n)
			}
			counter++
		}
		leave := func() { holders.Add(-1) }

		for i := range clients {
			wait.Go(func() {
				for n := 0; n < rounds; {
					result, err := l.Acquire(ctx, Request{Name: "x", TTL: minute})
					if err != nil {
						t.Error(err)
						return
					}
					if result.Outcome != Acquired {
						time.Sleep(100 * time.Microsecond)
						continue
					}
					enter()
					if result.Fence <= fence.last {
						t.Errorf("fence %d after %d", result.Fence, fence.last)
					}
					fence.last = result.Fence
					leave()
					if released, err := l.Release(ctx, "x", result.Token, nil); err != nil || released.Outcome != Released {
						t.Errorf("release: %+v %v", released, err)
						return
					}
					n++
				}
			})
			wait.Go(func() {
				token := fmt.Sprint("foreign", i)
				for n := 0; n < rounds; {
					taken, err := s.rdb.SetNX(ctx, "lock:x", token, minute).Result()
					if err != nil {
						t.Error(err)
						return
					}
					if !taken {
						time.Sleep(100 * time.Microsecond)
						continue
					}
					enter()
					leave()
					if n, err := foreignRelease.Run(ctx, s.rdb, []string{"lock:x"}, token).Int(); err != nil || n != 1 {
						t.Errorf("foreign release: %d %v", n, err)
						return
					}
					n++
				}
			})
		}
		wait.Wait()
		if want := 2 * clients * rounds; counter != want {
			t.Fatalf("%d turns, want %d", counter, want)
		}
		expectNoTraces(t, s.rdb)
	})
}

// A lock that other code took is renewed, checked and released by its token.
func TestForeignLock(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l, ctx := locker(s.rdb), t.Context()
		foreign := func() {
			t.Helper()
			if !must(s.rdb.SetNX(ctx, "lock:x", "tok", minute).Result())(t) {
				t.Fatal("lock:x isn't free")
			}
		}

		foreign()
		expect(t, acquire(t, l, "x", "", minute), Result{Outcome: Busy, TTL: minute})
		expect(t, check(t, l, "x", "tok"), Result{Held, "tok", 0, minute, 1})
		expect(t, renew(t, l, "x", "tok", time.Hour), Result{Renewed, "tok", 0, time.Hour, 1})
		expect(t, release(t, l, "x", "else"), Result{Outcome: NotOwner, TTL: time.Hour})
		expect(t, release(t, l, "x", "tok"), Result{Released, "tok", 0, 0, 0})
		expectNoTraces(t, s.rdb)

		// Taken once more through here, it gets a fence and a depth.
		foreign()
		adopted := acquire(t, l, "x", "tok", minute)
		if adopted.Fence == 0 {
			t.Fatal("no fence")
		}
		expect(t, adopted, Result{Reentered, "tok", adopted.Fence, minute, 2})
		expectTTLs(t, l, s.rdb, "x")
		expect(t, release(t, l, "x", "tok"), Result{Released, "tok", adopted.Fence, minute, 1})
		expect(t, release(t, l, "x", "tok"), Result{Released, "tok", adopted.Fence, 0, 0})
	})
}

// The record of a hold that other code ended says nothing about the next one.
func TestForeignCodeRetakesALock(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l, ctx := locker(s.rdb), t.Context()
		ours := acquire(t, l, "x", "", minute)
		acquire(t, l, "x", ours.Token, minute)
		must(s.rdb.Set(ctx, "lock:x", "tok", minute).Result())(t)

		expect(t, check(t, l, "x", ours.Token), Result{Outcome: NotOwner, TTL: minute})
		expect(t, renew(t, l, "x", ours.Token, time.Hour), Result{Outcome: NotOwner, TTL: minute})
		expect(t, release(t, l, "x", ours.Token), Result{Outcome: NotOwner, TTL: minute})
		expect(t, check(t, l, "x", "tok"), Result{Held, "tok", 0, minute, 1})
		expect(t, release(t, l, "x", "tok"), Result{Released, "tok", 0, 0, 0})
		expectNoTraces(t, s.rdb)

		ours = acquire(t, l, "x", "", minute)
		must(s.rdb.Set(ctx, "lock:x", "tok", minute).Result())(t)
		adopted := acquire(t, l, "x", "tok", minute)
		if adopted.Fence <= ours.Fence {
			t.Fatalf("fence %d after %d", adopted.Fence, ours.Fence)
		}
		expect(t, adopted, Result{Reentered, "tok", adopted.Fence, minute, 2})
	})
}
