package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
)

func waitFirst(t *testing.T, l *Locker, n int) []<-chan outcome {
	t.Helper()
	var waiting []<-chan outcome
	for i := range n {
		waiting = append(waiting, waitFor(l, Request{Name: "x", TTL: minute, Wait: minute}))
		waiters(t, l, "x", i+1)
	}
	return waiting
}

// granted returns what a waiter got, which must be the lock.
func granted(t *testing.T, waiting <-chan outcome) Result {
	t.Helper()
	got := <-waiting
	if got.err != nil || got.Outcome != Acquired {
		t.Fatalf("got %+v", got)
	}
	return got.Result
}

func TestWaitersAreServedInTheirOrder(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		held := acquire(t, l, "x", "", minute)
		var f fences
		f.add(t, held)
		for _, w := range waitFirst(t, l, 5) {
			expect(t, release(t, l, "x", held.Token), Result{Released, held.Token, held.Fence, 0, 0})
			held = granted(t, w)
			f.add(t, held)
			expect(t, check(t, l, "x", held.Token), Result{Held, held.Token, held.Fence, minute, 1})
			expectTTLs(t, l, s.rdb, "x")
		}
		release(t, l, "x", held.Token)
		expectNoTraces(t, s.rdb)
		if len(l.queues) != 0 {
			t.Fatalf("%d queues are left", len(l.queues))
		}
	})
}

func TestAFreeLockNeedsNoWait(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		gone, leave := context.WithCancel(t.Context())
		leave()
		for _, ctx := range []context.Context{t.Context(), gone} {
			got := must(l.Acquire(ctx, Request{Name: "x", TTL: minute, Wait: minute}))(t)
			expect(t, got, Result{Acquired, got.Token, got.Fence, minute, 1})
			release(t, l, "x", got.Token)
		}
		expectNoTraces(t, s.rdb)
	})
}

func TestWaitingEndsInTime(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		held := acquire(t, l, "x", "", minute)
		expect(t, (<-waitFor(l, Request{Name: "x", TTL: minute, Wait: 20 * time.Millisecond})).Result, Result{Outcome: TimedOut})
		expect(t, release(t, l, "x", held.Token), Result{Released, held.Token, held.Fence, 0, 0})
		expect(t, acquire(t, l, "x", "me", minute), Result{Acquired, "me", check(t, l, "x", "me").Fence, minute, 1})
	})
}

func TestWaitersAreWokenByExpiry(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		first := acquire(t, l, "x", "", 200*time.Millisecond)
		waiting := waitFirst(t, l, 1)
		s.pass(200 * time.Millisecond)
		if second := granted(t, waiting[0]); second.Fence <= first.Fence {
			t.Fatalf("fence %d after %d", second.Fence, first.Fence)
		}
	})
}

func TestL4_AWaiterWhoIsGoneIsSkipped(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		held := acquire(t, l, "x", "", minute)
		ctx, leave := context.WithCancel(t.Context())
		first := waitIn(ctx, l, Request{Name: "x", TTL: minute, Wait: minute})
		waiters(t, l, "x", 1)
		second := waitFor(l, Request{Name: "x", TTL: minute, Wait: minute})
		waiters(t, l, "x", 2)
		third := waitFor(l, Request{Name: "x", TTL: minute, Wait: minute})
		waiters(t, l, "x", 3)
		leave()
		release(t, l, "x", held.Token) // maybe before the first has noticed
		if got := <-first; !errors.Is(got.err, script.ErrNotExecuted) {
			t.Fatalf("who is gone got %+v", got)
		}
		release(t, l, "x", granted(t, second).Token)
		granted(t, third)
	})
}

// L10: whoever was told TIMEOUT doesn't have the lock.
func TestL10_ReleaseWhileManyTimeOut(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		for round := range 10 {
			held := acquire(t, l, "x", "", minute)
			const wait = 60 * time.Millisecond
			deadline := time.Now().Add(wait)
			var waiting []<-chan outcome
			for range 100 {
				waiting = append(waiting, waitFor(l, Request{Name: "x", TTL: minute, Wait: max(time.Until(deadline), time.Millisecond)}))
			}
			time.Sleep(time.Until(deadline) - rand.N(2*time.Millisecond))
			release(t, l, "x", held.Token)
			served, timedOut := 0, 0
			for _, w := range waiting {
				switch got := <-w; {
				case errors.Is(got.err, script.ErrUncertain):
					// It was offered the lock in time, and Redis was slow to tell.
					must(l.Release(t.Context(), "x", got.Token, nil))(t)
				case got.err != nil:
					t.Fatal(got.err)
				case got.Outcome == Acquired:
					served++
					expect(t, release(t, l, "x", got.Token), Result{Released, got.Token, got.Fence, 0, 0})
				default:
					timedOut++
					expect(t, got.Result, Result{Outcome: TimedOut})
				}
			}
			t.Logf("round %d: %d served, %d timed out", round, served, timedOut)
			expectNoTraces(t, s.rdb)
		}
	})
}

// Whoever has the lock may take it once more though others wait.
func TestReentranceBeforeWaiters(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		held := acquire(t, l, "x", "me", minute)
		waiting := waitFirst(t, l, 1)
		again := must(l.Acquire(t.Context(), Request{Name: "x", TTL: minute, Wait: minute, Token: "me"}))(t)
		expect(t, again, Result{Reentered, "me", held.Fence, minute, 2})
		release(t, l, "x", "me")
		release(t, l, "x", "me")
		granted(t, waiting[0])
	})
}

// Nobody overtakes those who wait, here or in another sidecar.
func TestNobodyOvertakes(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		a, b := newLocker(t, s.rdb), newLocker(t, s.rdb)
		held := acquire(t, a, "x", "", minute)
		waiting := waitFirst(t, a, 1)
		hears(t, a)
		// The lock is free, and who waits doesn't know.
		must(s.rdb.Del(t.Context(), "lock:x").Result())(t)
		if got := acquire(t, b, "x", "", minute); got.Outcome != Busy {
			t.Fatalf("who doesn't wait got %+v", got)
		}
		if got := granted(t, waiting[0]); got.Fence <= held.Fence {
			t.Fatalf("fence %d after %d", got.Fence, held.Fence)
		}
	})
}

func TestTheQueueIsBounded(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb, func(o *Options) { o.QueueMax = 2 })
		held := acquire(t, l, "x", "", minute)
		waiting := waitFirst(t, l, 2)
		if got := <-waitFor(l, Request{Name: "x", TTL: minute, Wait: minute}); !errors.Is(got.err, ErrBusy) {
			t.Fatalf("got %+v", got)
		}
		release(t, l, "x", held.Token)
		release(t, l, "x", granted(t, waiting[0]).Token)
		granted(t, waiting[1])
	})
}

// Two sidecars: a release through one wakes who waits in the other.
func TestAReleaseWakesAnotherSidecar(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		a, b, c := newLocker(t, s.rdb), newLocker(t, s.rdb), newLocker(t, s.rdb)
		held := acquire(t, a, "x", "", minute)
		for range 20 {
			inB := waitFirst(t, b, 1)
			hears(t, b)
			inC := waitFirst(t, c, 1)
			hears(t, c)
			release(t, a, "x", held.Token)
			held = granted(t, inB[0])
			release(t, a, "x", held.Token) // through a third, as after a reconnect
			held = granted(t, inC[0])
		}
		release(t, c, "x", held.Token)
		expectNoTraces(t, s.rdb)
	})
}

// A sidecar that never stops handing over inside lets others have their turn.
func TestNoSidecarStarves(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		a, b := newLocker(t, s.rdb), newLocker(t, s.rdb)
		held := acquire(t, a, "x", "", minute)
		greedy := waitFirst(t, a, 4*streakMax)
		lone := waitFirst(t, b, 1)
		hears(t, a)
		hears(t, b)
		for i := range 3 * streakMax {
			release(t, a, "x", held.Token)
			select {
			case got := <-lone[0]:
				t.Logf("after %d others", i)
				release(t, b, "x", got.Token)
				for ; i < len(greedy); i++ {
					release(t, a, "x", granted(t, greedy[i]).Token)
				}
				expectNoTraces(t, s.rdb)
				return
			case got := <-greedy[i]:
				held = got.Result
			}
		}
		t.Fatalf("%d others went first", 3*streakMax)
	})
}

// A dead sidecar's waiters hold up nobody for long.
func TestADeadSidecarIsSkipped(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	dying := server.Client(t)
	a, b := newLocker(t, server.Client(t)), New(dying, DefaultOptions())
	held := acquire(t, a, "x", "", minute)
	ctx, leave := context.WithCancel(t.Context())
	inB := waitIn(ctx, b, Request{Name: "x", TTL: minute, Wait: minute})
	waiters(t, b, "x", 1)
	inA := waitFirst(t, a, 1)
	hears(t, a)
	// It dies: nothing that it does reaches Redis any more.
	dying.Close()
	b.Close()
	a.mu.Lock()
	a.queues["x"].streak = streakMax // it would be b's turn
	a.mu.Unlock()
	release(t, a, "x", held.Token)
	granted(t, inA[0])
	leave()
	<-inB
}

// The end of a wait doesn't wait for Redis.
func TestAWaitEndsThoughRedisStandsStill(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: time.Hour})
	t.Cleanup(func() { rdb.Close() })
	l := newLocker(t, rdb)
	held := acquire(t, l, "x", "", minute)
	waiting := []<-chan outcome{
		waitFor(l, Request{Name: "x", TTL: minute, Wait: 300 * time.Millisecond}), // the head
	}
	waiters(t, l, "x", 1)
	waiting = append(waiting, waitFor(l, Request{Name: "x", TTL: minute, Wait: 300 * time.Millisecond}))
	waiters(t, l, "x", 2)
	server.Pause()
	waiting = append(waiting, waitFor(l, Request{Name: "y", TTL: minute, Wait: 100 * time.Millisecond})) // not even the first look comes back
	released := make(chan error)
	go func() { // nor does the release that offers it the lock
		_, err := l.Release(context.Background(), "x", held.Token, nil)
		released <- err
	}()
	for i, w := range waiting {
		switch got := <-w; {
		case errors.Is(got.err, script.ErrUncertain) && got.Token != "":
		case got.err == nil && got.Outcome == TimedOut && i < 2:
		default:
			t.Errorf("%d got %+v", i, got)
		}
	}
	server.Resume()
	if err := <-released; err != nil {
		t.Fatal(err)
	}
}

// A foreign holder's DEL tells nobody; the head of the queue looks, and nobody else.
func TestBehindAForeignHolder(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	rdb, ctx := server.Client(t), t.Context()
	l := newLocker(t, rdb)
	must(rdb.Set(ctx, "lock:x", "theirs", minute).Result())(t)
	waiting := waitFirst(t, l, 1)
	for i := range 20 {
		waiting = append(waiting, waitFor(l, Request{Name: "x", TTL: minute, Wait: minute}))
		waiters(t, l, "x", i+2)
	}
	before := scriptCalls(t, rdb)
	time.Sleep(10 * lookEvery)
	if calls := scriptCalls(t, rdb) - before; calls < 1 || calls > 11 {
		t.Fatalf("%d looks in the time of 10", calls)
	}
	must(rdb.Del(ctx, "lock:x").Result())(t)
	served := func() (got outcome) {
		for {
			for i, w := range waiting {
				select {
				case got = <-w:
					waiting = append(waiting[:i], waiting[i+1:]...)
					return got
				default:
				}
			}
			time.Sleep(time.Millisecond)
		}
	}
	for range 21 {
		release(t, l, "x", served().Token)
	}
}

// scriptCalls is how often Redis has run a script.
func scriptCalls(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	var calls int
	stats := must(rdb.InfoMap(t.Context(), "commandstats").Result())(t)
	_, _ = fmt.Sscanf(stats["Commandstats"]["cmdstat_evalsha"], "calls=%d", &calls)
	return calls
}

// Among clients of one sidecar a hand-over is one call, and waiting costs none.
func TestUpstreamCommandsPerHandOver(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	rdb := server.Client(t)
	l := newLocker(t, rdb)
	held := acquire(t, l, "x", "", minute)
	const handOvers = 100
	waiting := waitFirst(t, l, 1)
	for i := 1; i < handOvers; i++ {
		waiting = append(waiting, waitFor(l, Request{Name: "x", TTL: minute, Wait: minute}))
		waiters(t, l, "x", i+1)
	}
	hears(t, l)
	before := scriptCalls(t, rdb)
	for _, w := range waiting {
		release(t, l, "x", held.Token)
		held = granted(t, w)
	}
	if calls := scriptCalls(t, rdb) - before; calls != handOvers {
		t.Fatalf("%d calls for %d hand-overs", calls, handOvers)
	}
}
