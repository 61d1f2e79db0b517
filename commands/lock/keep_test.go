package lock

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
)

// observed is an Observer for tests.
type observed struct {
	mu     sync.Mutex
	losses []string
	kept   int
	long   int
}

func (o *observed) Waiting(int)                  {}
func (o *observed) Waited(string, time.Duration) {}
func (o *observed) HandedOver()                  {}
func (o *observed) Held(_ time.Duration, long bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if long {
		o.long++
	}
}
func (o *observed) Kept(change int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept += change
}
func (o *observed) Lost(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.losses = append(o.losses, reason)
}

// lost waits until so many locks are lost, and none is kept.
func (o *observed) lost(t *testing.T, reasons ...string) {
	t.Helper()
	eventually(t, "the losses are known", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.losses) >= len(reasons) && o.kept == 0
	})
	if !slices.Equal(o.losses, reasons) {
		t.Fatalf("losses %q, want %q", o.losses, reasons)
	}
}

func observe(o *observed) func(*Options) { return func(opts *Options) { opts.Observer = o } }

func keepFor(t *testing.T, l *Locker, ties *Ties, name, token string, ttl, holdMax time.Duration) Result {
	t.Helper()
	return must(l.Acquire(t.Context(), Request{Name: name, Token: token, TTL: ttl, Tie: &Tie{Of: ties, HoldMax: holdMax}}))(t)
}

func TestAKeptLockOutlivesItsTTL(t *testing.T) {
	var o observed
	rdb := redistest.Start(t, redistest.Options{}).Client(t)
	l := newLocker(t, rdb, observe(&o))
	var ties Ties
	const ttl = 600 * time.Millisecond
	held := keepFor(t, l, &ties, "x", "", ttl, 0)
	expect(t, held, Result{Acquired, held.Token, held.Fence, ttl, 1})
	time.Sleep(2 * ttl)
	expect(t, check(t, l, "x", held.Token), Result{Held, held.Token, held.Fence, ttl, 1})
	if ties.Empty() || !ties.Need(l) {
		t.Fatal("nothing is tied")
	}
	ties.Release()
	expectNoTraces(t, rdb)
	if !ties.Empty() || ties.Need(l) || len(l.holds) != 0 {
		t.Fatal("something is still tied")
	}
	o.lost(t)
}

// RELEASE by the client ends the renewals, by whichever connection.
func TestReleaseUnties(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		var o observed
		l := newLocker(t, s.rdb, observe(&o))
		var ties, others Ties
		for _, by := range []*Ties{&ties, &others, nil} {
			held := keepFor(t, l, &ties, "x", "", minute, 0)
			result := must(l.Release(t.Context(), "x", held.Token, by))(t)
			expect(t, result, Result{Released, held.Token, held.Fence, 0, 0})
			if !ties.Empty() {
				t.Fatal("it is still tied")
			}
		}
		o.lost(t)
	})
}

// At the end of a connection only what it took is given back.
func TestLevelsOfAKeptLock(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		var first, second Ties
		fence := keepFor(t, l, &first, "x", "me", minute, 0).Fence
		expect(t, keepFor(t, l, &first, "x", "me", minute, 0), Result{Reentered, "me", fence, minute, 2})
		expect(t, keepFor(t, l, &second, "x", "me", minute, 0), Result{Reentered, "me", fence, minute, 3})
		expect(t, acquire(t, l, "x", "me", minute), Result{Reentered, "me", fence, minute, 4})
		first.Release()
		expect(t, check(t, l, "x", "me"), Result{Held, "me", fence, minute, 2})
		must(l.Release(t.Context(), "x", "me", &second))(t)
		if !second.Empty() {
			t.Fatal("it is still tied")
		}
		second.Release()
		expect(t, check(t, l, "x", "me"), Result{Held, "me", fence, minute, 1})
	})
}

func TestHoldMaxEndsAKeptLock(t *testing.T) {
	var o observed
	rdb := redistest.Start(t, redistest.Options{}).Client(t)
	l := newLocker(t, rdb, observe(&o))
	var ties Ties
	const ttl, most = time.Second, 2 * time.Second
	began := time.Now()
	held := keepFor(t, l, &ties, "x", "", ttl, most)
	waitGone(t, rdb, "lock:x")
	if d := time.Since(began); d < most-ttl {
		t.Fatalf("it ended after %s already", d)
	}
	expect(t, check(t, l, "x", held.Token), Result{Outcome: Expired})
	o.lost(t, LostHoldMax)
	if !ties.Empty() {
		t.Fatal("it is still tied")
	}
	// A TTL isn't longer than that either.
	expect(t, keepFor(t, l, &ties, "x", "", minute, most), Result{Acquired, must(rdb.Get(t.Context(), "lock:x").Result())(t), check(t, l, "x", must(rdb.Get(t.Context(), "lock:x").Result())(t)).Fence, most, 1})
	ties.Release()
}

func TestLossesAreReported(t *testing.T) {
	for reason, lose := range map[string]func(t *testing.T, rdb *redis.Client){
		LostLapsed: func(t *testing.T, rdb *redis.Client) { must(rdb.Del(t.Context(), "lock:x").Result())(t) },
		LostTaken:  func(t *testing.T, rdb *redis.Client) { must(rdb.Set(t.Context(), "lock:x", "b", minute).Result())(t) },
	} {
		t.Run(reason, func(t *testing.T) {
			onEveryStore(t, func(t *testing.T, s *store) {
				var o observed
				l := newLocker(t, s.rdb, observe(&o))
				var ties Ties
				keepFor(t, l, &ties, "x", "", 90*time.Millisecond, 0)
				lose(t, s.rdb)
				o.lost(t, reason)
				if !ties.Empty() {
					t.Fatal("it is still tied")
				}
			})
		})
	}
}

// L3: Redis stands still for a while in the life of a kept lock.
func TestL3_AKeptLockSurvivesAPauseOfRedis(t *testing.T) {
	var o observed
	server := redistest.Start(t, redistest.Options{})
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { rdb.Close() })
	l := newLocker(t, rdb, observe(&o))
	var ties Ties
	const ttl = 1500 * time.Millisecond
	held := keepFor(t, l, &ties, "x", "", ttl, 0)
	rival := newLocker(t, rdb)
	waiting := waitFor(rival, Request{Name: "x", TTL: minute, Wait: minute})
	waiters(t, rival, "x", 1)
	server.Pause()
	time.Sleep(ttl * 6 / 10)
	server.Resume()
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got := check(t, l, "x", held.Token); got.Outcome != Held || got.Fence != held.Fence {
			t.Fatalf("got %+v", got)
		}
	}
	ties.Release()
	o.lost(t)
	granted(t, waiting)
}

func TestKeptLocksAreBounded(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb, func(o *Options) { o.AutoMax = 2 })
		var ties Ties
		a := keepFor(t, l, &ties, "a", "", minute, 0)
		keepFor(t, l, &ties, "a", a.Token, minute, 0)
		keepFor(t, l, &ties, "b", "", minute, 0)
		if _, err := l.Acquire(t.Context(), Request{Name: "c", TTL: minute, Tie: &Tie{Of: &ties}}); err != ErrBusy {
			t.Fatalf("got %v", err)
		}
		must(l.Release(t.Context(), "b", "nobody's", &ties))(t)
		ties.Release()
		for _, name := range []string{"a", "b"} { // room is free again, also after an attempt in vain
			keepFor(t, l, &ties, name, "", minute, 0)
		}
		ties.Release()
		expectNoTraces(t, s.rdb)
	})
}

func TestLongHolds(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		var o observed
		l := newLocker(t, s.rdb, observe(&o), func(o *Options) { o.LongHoldPercent = 1 })
		release(t, l, "x", acquire(t, l, "x", "", time.Hour).Token)
		held := acquire(t, l, "x", "", 10*time.Second)
		time.Sleep(110 * time.Millisecond)
		release(t, l, "x", held.Token)
		if o.long != 1 {
			t.Fatalf("%d long holds, want 1", o.long)
		}
	})
}
