package lock

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func acquireAs(t *testing.T, l *Locker, mode Mode, most int64, token string, ttl time.Duration) Result {
	t.Helper()
	return must(l.Acquire(t.Context(), Request{Name: "x", TTL: ttl, Mode: mode, Most: most, Token: token}))(t)
}

func TestSharedLock(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := locker(s.rdb)
		var f fences
		a := acquireAs(t, l, Shared, 0, "a", minute)
		f.add(t, a)
		b := acquireAs(t, l, Shared, 0, "b", time.Hour)
		f.add(t, b)
		expectTTLs(t, l, s.rdb, "x")
		if value := must(s.rdb.Get(t.Context(), "lock:x").Result())(t); value == "a" || value == "b" {
			t.Fatalf("the key has the token of one of two holders")
		}
		expect(t, acquire(t, l, "x", "c", minute), Result{Outcome: Busy, TTL: time.Hour})
		if must(s.rdb.SetNX(t.Context(), "lock:x", "theirs", minute).Result())(t) {
			t.Fatal("other code took a shared lock")
		}
		expect(t, acquireAs(t, l, Permits, 5, "c", minute), Result{Outcome: Busy, TTL: time.Hour})
		expect(t, acquire(t, l, "x", "a", minute), Result{Outcome: OtherMode, TTL: minute})

		expect(t, check(t, l, "x", "a"), Result{Held, "a", a.Fence, minute, 1})
		expect(t, check(t, l, "x", "c"), Result{Outcome: NotOwner, TTL: time.Hour})
		expect(t, acquireAs(t, l, Shared, 0, "a", minute), Result{Reentered, "a", a.Fence, minute, 2})
		expect(t, renew(t, l, "x", "a", 2*minute), Result{Renewed, "a", a.Fence, 2 * minute, 2})
		expect(t, check(t, l, "x", "b"), Result{Held, "b", b.Fence, time.Hour, 1})
		expect(t, renew(t, l, "x", "b", minute), Result{Renewed, "b", b.Fence, minute, 1})
		expectTTLs(t, l, s.rdb, "x")
		if left := acquire(t, l, "x", "c", minute).TTL; left <= minute {
			t.Fatalf("the lock lapses in %s, before its longest share", left)
		}

		expect(t, release(t, l, "x", "a"), Result{Released, "a", a.Fence, 2 * minute, 1})
		expect(t, release(t, l, "x", "a"), Result{Released, "a", a.Fence, 0, 0})
		expect(t, release(t, l, "x", "a"), Result{Outcome: NotOwner, TTL: minute})
		expect(t, acquire(t, l, "x", "c", minute), Result{Outcome: Busy, TTL: minute})
		expectTTLs(t, l, s.rdb, "x")
		expect(t, release(t, l, "x", "b"), Result{Released, "b", b.Fence, 0, 0})
		expectNoTraces(t, s.rdb)
		c := acquire(t, l, "x", "c", minute)
		f.add(t, c)
		expect(t, acquireAs(t, l, Shared, 0, "a", minute), Result{Outcome: Busy, TTL: minute})
	})
}

func TestPermits(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := locker(s.rdb)
		for i := range 3 {
			got := acquireAs(t, l, Permits, 3, fmt.Sprint(i), time.Duration(i+1)*minute)
			expect(t, got, Result{Acquired, fmt.Sprint(i), got.Fence, time.Duration(i+1) * minute, 1})
		}
		expect(t, acquireAs(t, l, Permits, 3, "3", minute), Result{Outcome: Busy, TTL: minute})
		if got := acquireAs(t, l, Permits, 4, "3", minute); got.Outcome != Acquired {
			t.Fatalf("a fourth of four: %+v", got)
		}
		release(t, l, "x", "0")
		release(t, l, "x", "1")
		if got := acquireAs(t, l, Permits, 3, "4", minute); got.Outcome != Acquired {
			t.Fatalf("a third of three: %+v", got)
		}
	})
}

// A share that lapses makes room, and is not its token's any more.
func TestASharesEnd(t *testing.T) {
	// Shares lapse by the clock of the server, which the embedded store can't be
	// told to move.
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		acquireAs(t, l, Permits, 2, "long", minute)
		acquireAs(t, l, Permits, 2, "short", 100*time.Millisecond)
		got := <-waitFor(l, Request{Name: "x", TTL: minute, Mode: Permits, Most: 2, Wait: minute})
		expect(t, got.Result, Result{Acquired, got.Token, got.Fence, minute, 1})
		expect(t, check(t, l, "x", "short"), Result{Outcome: NotOwner, TTL: minute})
		expect(t, release(t, l, "x", "short"), Result{Outcome: NotOwner, TTL: minute})
		if got := acquireAs(t, l, Permits, 2, "short", minute); got.Outcome != Busy {
			t.Fatalf("a third of two: %+v", got)
		}
	})
}

// What is known of shares that lapsed is forgotten while others last.
func TestLapsedSharesLeaveNothing(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		acquireAs(t, l, Shared, 0, "long", minute)
		for i := range 5 {
			acquireAs(t, l, Shared, 0, fmt.Sprint(i), 20*time.Millisecond)
		}
		k := must(l.keys("x"))(t)
		eventually(t, "only the new one and the long one are there", func() bool {
			release(t, l, "x", acquireAs(t, l, Shared, 0, "new", minute).Token)
			fields := must(s.rdb.HKeys(t.Context(), k.record).Result())(t)
			shares := must(s.rdb.ZRange(t.Context(), k.shares, 0, -1).Result())(t)
			fields = slices.DeleteFunc(fields, func(f string) bool { return f[0] != '=' })
			return slices.Equal(fields, []string{"=long"}) && slices.Equal(shares, []string{"long"})
		})
	})
}

// Those who share don't keep an exclusive waiter out for ever, and come in together
// after it.
func TestSharedAndExclusiveWaiters(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		for _, sidecars := range []int{1, 2} {
			a, b := newLocker(t, s.rdb), newLocker(t, s.rdb)
			if sidecars == 1 {
				b = a
			}
			first := acquireAs(t, a, Shared, 0, "", minute)
			writer := waitFor(a, Request{Name: "x", TTL: minute, Wait: minute})
			waiters(t, a, "x", 1)
			hears(t, a)
			var readers []<-chan outcome
			for i := range 5 {
				readers = append(readers, waitFor(b, Request{Name: "x", TTL: minute, Wait: minute, Mode: Shared}))
				waiters(t, b, "x", i+1+2-sidecars)
				if sidecars == 2 {
					continue
				}
			}
			hears(t, b)
			if got := acquireAs(t, b, Shared, 0, "", minute); got.Outcome != Busy {
				t.Fatalf("a reader overtook a writer: %+v", got)
			}
			release(t, a, "x", first.Token)
			held := granted(t, writer)
			release(t, a, "x", held.Token)
			tokens := []string{}
			for _, r := range readers {
				tokens = append(tokens, granted(t, r).Token)
			}
			last := waitFor(a, Request{Name: "x", TTL: minute, Wait: minute})
			waiters(t, a, "x", 1)
			slices.Reverse(tokens)
			for _, token := range tokens {
				release(t, b, "x", token)
			}
			release(t, a, "x", granted(t, last).Token)
			expectNoTraces(t, s.rdb)
		}
	})
}
