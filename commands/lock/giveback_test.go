package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
)

// refusal is an error that Redis answers.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// unreleasable refuses to release a lock, as Redis does while its slot moves.
type unreleasable struct {
	key     atomic.Value // of the lock; "" for none
	refused atomic.Int64
}

func (u *unreleasable) DialHook(next redis.DialHook) redis.DialHook { return next }
func (u *unreleasable) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (u *unreleasable) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	sha := redis.NewScript(handoverSource + holdSource + releaseSource).Hash()
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 3 && args[1] == sha && args[3] == u.key.Load() {
			u.refused.Add(1)
			err := refusal("TRYAGAIN Multiple keys request during rehashing of slot")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// hinder makes it impossible to release a lock until lift is called.
func hinder(rdb redis.UniversalClient, l *Locker, name string) (u *unreleasable, lift func()) {
	u = &unreleasable{}
	u.key.Store(l.opts.Prefix + name)
	rdb.AddHook(u)
	return u, func() { u.key.Store("") }
}

// One lock that can't be given back keeps none of the others, and is given back as soon
// as it can be.
func TestWhatCannotBeGivenBackIsLater(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.Options{}).Client(t)
	l := newLocker(t, rdb)
	var ties Ties
	for _, name := range []string{"a", "b", "c", "d"} {
		keepFor(t, l, &ties, name, "me", minute, 0)
	}
	_, lift := hinder(rdb, l, "b")
	ties.Release()
	for name, want := range map[string]Outcome{"a": Expired, "b": Held, "c": Expired, "d": Expired} {
		if got := check(t, l, name, "me"); got.Outcome != want {
			t.Fatalf("%s: got %+v", name, got)
		}
	}
	if !ties.Empty() {
		t.Fatal("something is still tied")
	}
	lift()
	eventually(t, "it is given back", func() bool { return check(t, l, "b", "me").Outcome == Expired })
	expectNoTraces(t, rdb)
}

// What is given back later has an end: its TTL, which leaves alone who has the lock
// then with the same token, and that of the Locker.
func TestGivingBackLaterEnds(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.Options{}).Client(t)
	l := newLocker(t, rdb)
	u, lift := hinder(rdb, l, "x")
	owes := func(n int) func() bool {
		return func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.debts == n
		}
	}
	var ties Ties
	keepFor(t, l, &ties, "x", "me", 300*time.Millisecond, 0)
	ties.Release()
	eventually(t, "it is tried again", func() bool { return u.refused.Load() > 1 })
	waitGone(t, rdb, "lock:x")
	eventually(t, "nothing is owed", owes(0))
	next := acquire(t, l, "x", "me", minute)
	lift()
	expect(t, check(t, l, "x", "me"), Result{Held, "me", next.Fence, minute, 1})

	u.key.Store("lock:y")
	keepFor(t, l, &ties, "y", "me", minute, 0)
	ties.Release()
	eventually(t, "one is owed", owes(1))
	l.Close() // or the test never ends
	if !owes(0)() {
		t.Fatal("something is still being given back")
	}
}

// More than may be given back later are given back once and for all.
func TestGivingBackLaterIsBounded(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.Options{}).Client(t)
	l := newLocker(t, rdb)
	u, _ := hinder(rdb, l, "b")
	var ties Ties
	for _, name := range []string{"a", "b", "c"} {
		keepFor(t, l, &ties, name, "me", minute, 0)
	}
	l.mu.Lock()
	l.debts = debtsMax
	l.mu.Unlock()
	ties.Release()
	for name, want := range map[string]Outcome{"a": Expired, "b": Held, "c": Expired} {
		if got := check(t, l, name, "me"); got.Outcome != want {
			t.Fatalf("%s: got %+v", name, got)
		}
	}
	if n := u.refused.Load(); n != 1 || l.debts != debtsMax {
		t.Fatalf("tried %d times, %d are owed", n, l.debts)
	}
}

// The end of a connection doesn't wait for a Redis that doesn't answer.
func TestTheEndOfAConnectionDoesNotHang(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ReadTimeout: -1})
	t.Cleanup(func() { rdb.Close() })
	l := newLocker(t, rdb)
	var ties Ties
	keepFor(t, l, &ties, "x", "me", minute, 0)
	keepFor(t, l, &ties, "y", "me", minute, 0)
	server.Pause()
	ties.Release() // for ever, would it wait
	server.Resume()
	for _, name := range []string{"x", "y"} {
		eventually(t, "it is given back", func() bool { return check(t, l, name, "me").Outcome == Expired })
	}
}

// A RELEASE hands the lock over to another who waits with the same token, on another
// connection: it is kept for that one now.
func TestAReleaseLeavesTheNextHoldOfItsToken(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		held := acquire(t, l, "x", "other", minute)
		var first, second Ties
		wait := func(ties *Ties, before int) <-chan outcome {
			waiting := waitFor(l, Request{Name: "x", Token: "me", TTL: minute, Wait: minute, Tie: &Tie{Of: ties}})
			waiters(t, l, "x", before+1)
			return waiting
		}
		one, two := wait(&first, 0), wait(&second, 1)
		release(t, l, "x", held.Token)
		before := granted(t, one)

		key := holdKey{"x", "me"}
		released := must(l.release(t.Context(), "x", must(l.keys("x"))(t), giving{token: "me", levels: 1}))(t)
		after := granted(t, two)
		if after.Fence <= before.Fence {
			t.Fatalf("fence %d after %d", after.Fence, before.Fence)
		}
		l.untie(key, &first, released)
		if !first.Empty() || second.Empty() || len(l.holds[key]) != 1 {
			t.Fatalf("the first is untied: %v, the second: %v", first.Empty(), second.Empty())
		}
		must(l.Release(t.Context(), "x", "me", nil))(t)
		if !second.Empty() {
			t.Fatal("it is still tied")
		}
	})
}

// Several locks, of which one could not be given back before they were waited for.
func givenBackLater(t *testing.T, c *redistest.Cluster) {
	rdb := c.Client(t)
	l := newLocker(t, rdb)
	names := []string{nameAt(c, 0, 0), nameAt(c, 1, 0), nameAt(c, 2, 0)}
	parts := several{names: names, keys: keysOf(t, l, names)}.bySlot()
	first, last := parts[0].names[0], parts[2].names[0]
	single := acquire(t, l, last, "", minute)
	_, lift := hinder(rdb, l, first)
	exists := func(name string) bool { return rdb.Exists(t.Context(), "lock:"+name).Val() == 1 }

	if got := must(acquireAll(l, 0, names...))(t); got.Outcome != Busy || !exists(first) {
		t.Fatalf("got %+v; the first is held: %v", got, exists(first))
	}
	lift()
	eventually(t, "it is given back", func() bool { return !exists(first) })

	u, lift := hinder(rdb, l, first)
	waiting := make(chan outcome, 1)
	go func() {
		result, err := acquireAll(l, minute, names...)
		waiting <- outcome{result, err}
	}()
	eventually(t, "it could not be given back", func() bool { return u.refused.Load() > 0 })
	waiters(t, l, first, 1) // for it, since it will be given back whenever that can be
	lift()
	waiters(t, l, last, 1)
	release(t, l, last, single.Token)
	all := granted(t, waiting)
	expect(t, all, Result{Acquired, all.Token, all.Fence, minute, 1})
	for _, name := range names {
		expect(t, check(t, l, name, all.Token), Result{Held, all.Token, all.Fence, minute, 1})
		expect(t, release(t, l, name, all.Token), Result{Released, all.Token, all.Fence, 0, 0})
	}
}

// Who waits for several has each of them once, also if it has one more often on the way;
// and none where that fails.
func TestWaitingForSeveralThatOneHasAlready(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		many := several{names: []string{"a", "b"}, token: "mine", ttl: minute}
		many.keys = keysOf(t, l, many.names)
		acquire(t, l, "a", "mine", minute)
		all := must(l.waitForAll(t.Context(), many, minute))(t)
		expect(t, all, Result{Acquired, "mine", all.Fence, minute, 1})
		for _, name := range many.names {
			expect(t, check(t, l, name, "mine"), Result{Held, "mine", all.Fence, minute, 1})
		}
		release(t, l, "b", "mine")
		acquire(t, l, "b", "other", minute)
		expect(t, must(l.waitForAll(t.Context(), many, 20*time.Millisecond))(t), Result{Outcome: TimedOut})
		expect(t, check(t, l, "a", "mine"), Result{Outcome: Expired})
		expect(t, check(t, l, "b", "other"), Result{Held, "other", check(t, l, "b", "other").Fence, minute, 1})
		acquire(t, l, "a", "mine", minute)
		gone, leave := context.WithCancel(t.Context())
		leave()
		if _, err := l.waitForAll(gone, many, minute); !errors.Is(err, ErrBusy) {
			t.Fatalf("got %v", err)
		}
		expect(t, check(t, l, "a", "mine"), Result{Outcome: Expired})
	})
}

// What holds left behind that lapsed just now doesn't stay in the record of the next.
func TestARecordHasOnlyItsOwnHolds(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		k := must(l.keys("x"))(t)
		for _, mode := range []Mode{Shared, Exclusive} {
			must(l.Acquire(t.Context(), Request{Name: "x", Token: "old", TTL: minute, Mode: Shared}))(t)
			must(s.rdb.Del(t.Context(), k.lock).Result())(t)
			must(l.Acquire(t.Context(), Request{Name: "x", Token: "new", TTL: minute, Mode: mode}))(t)
			if s.rdb.HExists(t.Context(), k.record, "=old").Val() {
				t.Fatalf("the old share stands in the record of a hold that is %s", mode)
			}
			release(t, l, "x", "new")
		}
	})
}
