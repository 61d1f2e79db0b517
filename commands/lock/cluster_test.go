package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
	"seckill-proxy/sharding"
)

// All on one cluster, each with locks of its own.
func TestOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{Masters: 3, Replicas: 1})
	t.Run("all operations", func(t *testing.T) { onAllMasters(t, c) })
	t.Run("another sidecar is woken", func(t *testing.T) { wokenAtAnyMaster(t, c) })
	t.Run("several locks", func(t *testing.T) { severalSlots(t, c) })
	t.Run("several locks, given back later", func(t *testing.T) { givenBackLater(t, c) })
	t.Run("nobody waits for another", func(t *testing.T) { philosophers(t, c.Client(t)) })
	t.Run("a slot that is half moved", func(t *testing.T) { halfMoved(t, c) })
	t.Run("masters that go", func(t *testing.T) { mastersThatGo(t, c) })
}

// nameAt returns the n-th name of a lock that is at a master.
func nameAt(c *redistest.Cluster, master, n int) string {
	for i := 0; ; i++ {
		name := fmt.Sprint("at", i)
		if c.OwnerOf(slotOf(name)) != c.Masters[master] {
			continue
		}
		if n == 0 {
			return name
		}
		n--
	}
}

func slotOf(name string) int { return sharding.Slot(DefaultOptions().Prefix + name) }

func onAllMasters(t *testing.T, c *redistest.Cluster) {
	l := newLocker(t, c.Client(t))
	names := []string{"x", "a}b{", "{}", "用户"}
	for master := range c.Masters {
		names = append(names, nameAt(c, master, 0))
	}
	for _, name := range names {
		held := acquire(t, l, name, "", minute)
		expect(t, acquire(t, l, name, held.Token, minute), Result{Reentered, held.Token, held.Fence, minute, 2})
		expect(t, renew(t, l, name, held.Token, time.Hour), Result{Renewed, held.Token, held.Fence, time.Hour, 2})
		expect(t, check(t, l, name, held.Token), Result{Held, held.Token, held.Fence, time.Hour, 2})
		if info := must(l.Info(t.Context(), name))(t); info.State != "HELD" || info.Fence != held.Fence {
			t.Fatalf("info %+v", info)
		}
	}
	var listed []string
	for _, lock := range must(l.List(t.Context(), "*"))(t) {
		listed = append(listed, lock.Name)
	}
	slices.Sort(names)
	slices.Sort(listed)
	if !slices.Equal(listed, names) {
		t.Fatalf("listed %q, want %q", listed, names)
	}
	for _, name := range names {
		if got := must(l.Force(t.Context(), name))(t); got.Outcome != Released {
			t.Fatalf("got %+v", got)
		}
		one := must(l.Acquire(t.Context(), Request{Name: name, TTL: minute, Mode: Permits, Most: 2}))(t)
		two := must(l.Acquire(t.Context(), Request{Name: name, TTL: minute, Mode: Permits, Most: 2, Replicas: 1}))(t)
		expect(t, two, Result{Acquired, two.Token, two.Fence, minute, 1})
		release(t, l, name, one.Token)
		release(t, l, name, two.Token)
	}
}

func wokenAtAnyMaster(t *testing.T, c *redistest.Cluster) {
	rdb := c.Client(t)
	one, two := newLocker(t, rdb), newLocker(t, rdb)
	for master := range c.Masters {
		name := nameAt(c, master, 0)
		held := acquire(t, one, name, "", minute)
		waiting := waitFor(two, Request{Name: name, TTL: minute, Wait: minute})
		waiters(t, two, name, 1)
		hears(t, two)
		release(t, one, name, held.Token)
		release(t, two, name, granted(t, waiting).Token)
	}
}

// A message comes from each master, and makes the head look once.
func TestAMessageThatComesAgainIsIgnored(t *testing.T) {
	l := newLocker(t, redistest.Start(t, redistest.Options{}).Client(t))
	acquire(t, l, "x", "", minute)
	waitFirst(t, l, 1)
	calls := func(payload string) int {
		l.message("", payload)
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.queues["x"].calls
	}
	first := calls("T1 x")
	if again, next := calls("T1 x"), calls("T2 x"); again != first || next != first+1 {
		t.Fatalf("%d calls, then %d, then %d", first, again, next)
	}
}

func severalSlots(t *testing.T, c *redistest.Cluster) {
	rdb := c.Client(t)
	l := newLocker(t, rdb)
	names := []string{nameAt(c, 2, 0), nameAt(c, 0, 0), nameAt(c, 1, 0), nameAt(c, 0, 1)}
	expectNone := func() {
		t.Helper()
		if left := must(l.List(t.Context(), "*"))(t); len(left) > 0 {
			t.Fatalf("left: %v", left)
		}
	}
	parts := several{names: names, keys: keysOf(t, l, names)}.bySlot()
	last := parts[len(parts)-1].names[0]

	// What is in the way of the last of them is in the way of all.
	single := acquire(t, l, last, "", time.Hour)
	expect(t, must(acquireAll(l, 0, slices.Clone(names)...))(t), Result{Outcome: Busy, TTL: time.Hour})
	expect(t, must(acquireAll(l, 20*time.Millisecond, slices.Clone(names)...))(t), Result{Outcome: TimedOut})
	waiting := make(chan outcome, 1)
	go func() {
		result, err := acquireAll(l, minute, slices.Clone(names)...)
		waiting <- outcome{result, err}
	}()
	waiters(t, l, last, 1)
	release(t, l, last, single.Token)
	all := granted(t, waiting)
	for _, name := range names {
		expect(t, check(t, l, name, all.Token), Result{Held, all.Token, all.Fence, minute, 1})
		release(t, l, name, all.Token)
	}
	expectNone()

	must(rdb.Set(t.Context(), "lock:"+last, "5", 0).Result())(t)
	expect(t, must(acquireAll(l, minute, slices.Clone(names)...))(t), Result{Outcome: NoTTL})
	must(rdb.Del(t.Context(), "lock:"+last).Result())(t)
	expectNone()

	// The fence is larger than all before it, and smaller than all after it, of each of
	// them; though the counter of one is ahead of the clock.
	for ahead := range names {
		fence := time.Now().Add(time.Hour).UnixMicro()
		must(rdb.Set(t.Context(), parts[ahead].keys[0].fence, fence, 0).Result())(t)
		all := must(acquireAll(l, 0, slices.Clone(names)...))(t)
		if all.Outcome != Acquired || all.Fence <= fence {
			t.Fatalf("got %+v after fence %d", all, fence)
		}
		for _, name := range names {
			expect(t, release(t, l, name, all.Token), Result{Released, all.Token, all.Fence, 0, 0})
			next := acquire(t, l, name, "", minute)
			if next.Fence <= all.Fence {
				t.Fatalf("fence %d after %d", next.Fence, all.Fence)
			}
			release(t, l, name, next.Token)
		}
	}
	expectNone()

	// Redis refuses one of them: nothing is taken.
	finish := c.BeginMove(slotOf(last), c.Masters[(slices.Index(c.Masters, c.OwnerOf(slotOf(last)))+1)%len(c.Masters)])
	if got, err := acquireAll(l, 0, slices.Clone(names)...); !errors.Is(err, script.ErrNotExecuted) {
		t.Fatalf("got %+v, %v", got, err)
	}
	finish()
	expectNone()
}

func keysOf(t *testing.T, l *Locker, names []string) []keys {
	t.Helper()
	var all []keys
	for _, name := range names {
		all = append(all, must(l.keys(name))(t))
	}
	return all
}

// While a slot moves its locks can't be had, and those that are kept are not lost,
// however long it takes.
func halfMoved(t *testing.T, c *redistest.Cluster) {
	var o observed
	rdb := c.Client(t)
	l, name := newLocker(t, rdb, observe(&o)), nameAt(c, 0, 0)
	slot := slotOf(name)
	var ties Ties
	const ttl = time.Second
	held := keepFor(t, l, &ties, name, "", ttl, 0)
	var leaving Ties
	stuck, free := "{"+DefaultOptions().Prefix+name+"}", []string{nameAt(c, 0, 1), nameAt(c, 1, 0), nameAt(c, 2, 0)}
	for _, name := range append(free, stuck) {
		keepFor(t, l, &leaving, name, "me", minute, 0)
	}
	finish := c.BeginMove(slot, c.Masters[1])
	leaving.Release()
	for _, name := range free {
		expect(t, check(t, l, name, "me"), Result{Outcome: Expired})
	}
	if n := must(rdb.Exists(t.Context(), DefaultOptions().Prefix+stuck).Result())(t); n != 1 {
		t.Fatal("a lock was given back while its slot moves")
	}
	if got, err := l.Acquire(t.Context(), Request{Name: name, TTL: minute}); !errors.Is(err, script.ErrNotExecuted) {
		t.Fatalf("got %+v, %v", got, err)
	}
	k := must(l.keys(name))(t)
	time.Sleep(ttl + ttl/4)
	for _, key := range []string{k.lock, k.record} {
		if left := must(rdb.PTTL(t.Context(), key).Result())(t); left <= 0 || left > ttl+spare {
			t.Fatalf("%s lapses in %s", key, left)
		}
	}
	finish()
	eventually(t, "the lock is given back", func() bool { return check(t, l, stuck, "me").Outcome == Expired })
	stop := contend(t, []*Locker{l, newLocker(t, rdb)}, "moving")
	for range 3 {
		moving := slotOf("moving")
		c.MoveSlot(moving, c.Masters[(slices.Index(c.Masters, c.OwnerOf(moving))+1)%len(c.Masters)])
	}
	stop()
	expect(t, check(t, l, name, held.Token), Result{Held, held.Token, held.Fence, ttl, 1})
	ties.Release()
	o.lost(t)
}

// contend lets clients of several sidecars take a lock again and again, one at a time,
// until stop is called. They begin again when Redis refuses it for a while.
func contend(t *testing.T, sidecars []*Locker, name string) (stop func()) {
	var (
		guard guarded
		wait  sync.WaitGroup
		over  atomic.Bool
		held  atomic.Int64
	)
	for i := range 2 * len(sidecars) {
		l := sidecars[i%len(sidecars)]
		wait.Go(func() {
			for !over.Load() {
				got, err := l.Acquire(context.Background(), Request{Name: name, TTL: minute, Wait: minute})
				if errors.Is(err, script.ErrNotExecuted) {
					time.Sleep(time.Millisecond)
					continue
				}
				if err != nil || got.Outcome != Acquired {
					t.Errorf("got %+v, %v", got, err)
					return
				}
				held.Add(1)
				leave, err := guard.enter(Exclusive, got.Fence)
				if err != nil {
					t.Error(err)
				}
				leave()
				for {
					_, err := l.Release(context.Background(), name, got.Token, nil)
					if err == nil {
						break
					}
					if !errors.Is(err, script.ErrNotExecuted) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	return func() {
		eventually(t, "the lock goes round", func() bool { return held.Load() > 20 })
		over.Store(true)
		wait.Wait()
	}
}

// Replicas take over, in order and not, while locks are kept, waited for, and taken with
// SYNC: what was promised is kept, and fences grow.
func mastersThatGo(t *testing.T, c *redistest.Cluster) {
	var o observed
	rdb := c.Client(t)
	l, other := newLocker(t, rdb, observe(&o)), newLocker(t, rdb)
	name := func(n int) string { return nameAt(c, 0, n) }
	ctx := t.Context()
	newer := map[string]int64{} // the latest fence of a name
	newerThanBefore := func(name string) {
		t.Helper()
		got := acquire(t, l, name, "", minute)
		if got.Outcome != Acquired || got.Fence <= newer[name] {
			t.Fatalf("%s: got %+v after fence %d", name, got, newer[name])
		}
		newer[name] = got.Fence
		release(t, l, name, got.Token)
	}
	usual, ahead, durable, kept := name(0), name(1), name(2), name(3)
	sidecars := []*Locker{newLocker(t, rdb), newLocker(t, rdb)}
	for _, l := range sidecars {
		l.opts.SyncTimeout = 300 * time.Millisecond
	}
	h := record(sidecars, []string{name(4), nameAt(c, 1, 4), nameAt(c, 2, 4)}, 1)

	var ties Ties
	keepFor(t, l, &ties, kept, "me", 15*time.Second, 0)
	synced := must(l.Acquire(ctx, Request{Name: durable, TTL: minute, Replicas: 1}))(t)
	expect(t, synced, Result{Acquired, synced.Token, synced.Fence, minute, 1})
	waiting := waitFor(other, Request{Name: durable, TTL: minute, Wait: minute})
	waiters(t, other, durable, 1)
	must(rdb.Set(ctx, must(l.keys(ahead))(t).fence, time.Now().Add(time.Hour).UnixMicro(), 0).Result())(t)
	for _, replace := range []func(int){c.Failover, c.KillMaster} {
		newerThanBefore(usual)
		confirmed := must(l.Acquire(ctx, Request{Name: ahead, TTL: minute, Replicas: 1}))(t)
		expect(t, confirmed, Result{Acquired, confirmed.Token, confirmed.Fence, minute, 1})
		newer[ahead] = max(newer[ahead], confirmed.Fence)
		release(t, l, ahead, confirmed.Token)

		replace(0)

		eventually(t, "Redis answers", func() bool {
			_, err := l.Check(ctx, usual, "")
			return err == nil
		})
		newerThanBefore(usual)
		must(l.Force(ctx, ahead))(t) // its release may have been lost
		newerThanBefore(ahead)
		expect(t, check(t, l, durable, synced.Token), Result{Held, synced.Token, synced.Fence, minute, 1})
	}
	left := check(t, l, kept, "me").TTL
	eventually(t, "the kept lock is renewed", func() bool {
		now, err := l.Check(ctx, kept, "me")
		return err == nil && now.TTL > left
	})
	hears(t, other) // at the new master
	release(t, l, durable, synced.Token)
	release(t, other, durable, granted(t, waiting).Token)
	ties.Release()
	o.lost(t)
	h.check(t)

	// No replica is left.
	l.opts.SyncTimeout = 10 * time.Millisecond
	alone := must(l.Acquire(ctx, Request{Name: usual, TTL: minute, Replicas: 1}))(t)
	expect(t, alone, Result{Unconfirmed, alone.Token, alone.Fence, minute, 1})
	release(t, l, usual, alone.Token)
}

// A lock that isn't there any more when it is to be confirmed is not confirmed, however
// many replicas there are.
func TestALockThatIsLostIsNotConfirmed(t *testing.T) {
	rdb := redistest.Start(t, redistest.Options{}).Client(t)
	l := newLocker(t, rdb)
	held := acquire(t, l, "x", "", minute)
	k := must(l.keys("x"))(t)
	must(rdb.Del(t.Context(), k.lock).Result())(t)
	got := must(l.confirm(t.Context(), k, Request{Name: "x", Replicas: 0}, held))(t)
	if got.Outcome != Unconfirmed || rdb.Exists(t.Context(), k.lock).Val() != 0 {
		t.Fatalf("got %+v", got)
	}
}
