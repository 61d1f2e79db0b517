package lock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
)

// plainRelease is release.lua without what comes before it for the usual case.
var plainRelease = script.New("lock.release without handover.lua", holdSource+releaseSource)

// What handover.lua does is what release.lua would do: it answers the same and leaves the
// same behind, and it is used where it should be.
func TestTheUsualHandOverIsARelease(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := locker(s.rdb)
		lined := func(sidecars ...string) func(context.Context, redis.Pipeliner, keys) {
			return func(ctx context.Context, p redis.Pipeliner, k keys) {
				for i, sidecar := range sidecars {
					p.ZAdd(ctx, k.line, redis.Z{Score: float64(i), Member: sidecar})
				}
			}
		}
		set := func(key func(keys) string, value any) func(context.Context, redis.Pipeliner, keys) {
			return func(ctx context.Context, p redis.Pipeliner, k keys) { p.Set(ctx, key(k), value, time.Hour) }
		}
		record := func(values ...any) func(context.Context, redis.Pipeliner, keys) {
			return func(ctx context.Context, p redis.Pipeliner, k keys) { p.HSet(ctx, k.record, values...) }
		}
		with := func(changes ...func(context.Context, redis.Pipeliner, keys)) func(context.Context, redis.Pipeliner, keys) {
			return func(ctx context.Context, p redis.Pipeliner, k keys) {
				for _, change := range changes {
					change(ctx, p, k)
				}
			}
		}
		lock, counter, turn := func(k keys) string { return k.lock }, func(k keys) string { return k.fence }, func(k keys) string { return k.turn }
		next := want{token: "next", ttl: minute, mode: Exclusive}
		for name, test := range map[string]struct {
			prepare func(context.Context, redis.Pipeliner, keys) // nil: as it was acquired
			offer   offer
			force   bool
			usual   bool
		}{
			"many wait":                      {lined("me"), offer{waiters: 5, first: true}, false, true},
			"the last one":                   {lined("me"), offer{waiters: 1, first: true}, false, true},
			"the last one, not in line":      {nil, offer{waiters: 1, first: true}, false, true},
			"many wait, not in line":         {nil, offer{waiters: 5, first: true}, false, false},
			"another waits behind":           {lined("me", "other"), offer{waiters: 5, first: true}, false, true},
			"another waits before":           {lined("other", "me"), offer{waiters: 5, first: true}, false, true},
			"another alone waits":            {lined("other"), offer{waiters: 1, first: true}, false, true},
			"two others wait before":         {lined("other", "third", "me"), offer{waiters: 5, first: true}, false, false},
			"long enough first, nobody else": {lined("me"), offer{waiters: 5}, false, true},
			"another's turn by now":          {lined("me", "other"), offer{waiters: 5}, false, false},
			"another alone, its turn by now": {lined("other"), offer{waiters: 1}, false, false},
			"a turn was given":               {with(lined("me"), set(turn, "other")), offer{waiters: 5, first: true}, false, false},
			"a turn of its own":              {with(lined("me"), set(turn, "me")), offer{waiters: 5, first: true}, false, false},
			"held twice":                     {with(lined("me"), record("depth", 2)), offer{waiters: 5, first: true}, false, false},
			"another's":                      {with(lined("me"), set(lock, "thief")), offer{waiters: 5, first: true}, false, false},
			"another's, by force":            {with(lined("me"), set(lock, "thief")), offer{waiters: 5, first: true}, true, false},
			"of other code":                  {with(lined("me"), record("token", "older")), offer{waiters: 5, first: true}, false, false},
			"shared":                         {with(lined("me"), record("mode", "shared")), offer{waiters: 5, first: true}, false, false},
			"the clock stepped back":         {with(lined("me"), set(counter, 9e15)), offer{waiters: 5, first: true}, false, false},
			"the counter is no number":       {with(lined("me"), set(counter, "9999999999999999x")), offer{waiters: 5, first: true}, false, false},
		} {
			t.Run(name, func(t *testing.T) {
				var replies [2][]any
				var left [2]map[string]string
				for i, run := range []*script.Script{releaseScript, plainRelease} {
					must("", s.rdb.FlushAll(t.Context()).Err())(t)
					acquire(t, l, "x", "holder", time.Hour)
					k := must(l.keys("x"))(t)
					if test.prepare != nil {
						must(s.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
							test.prepare(t.Context(), p, k)
							return nil
						}))(t)
					}
					args := append([]any{"holder", 1, flag(test.force), "me", test.offer.waiters, flag(test.offer.first), l.channel(), "x"}, next.args(true)...)
					replies[i] = must(run.Run(t.Context(), s.rdb, k.all(), args...))(t).([]any)
					left[i] = contents(t, s.rdb, k)
				}
				if _, usual := replies[0][6].(string); usual != test.usual {
					t.Errorf("by handover.lua: %v", usual)
				}
				for i := range replies {
					replies[i] = comparable(t, replies[i])
				}
				if !slices.Equal(replies[0], replies[1]) {
					t.Errorf("answers %v, release.lua %v", replies[0], replies[1])
				}
				if !maps.Equal(left[0], left[1]) {
					t.Errorf("leaves %v,\nrelease.lua %v", left[0], left[1])
				}
			})
		}
	})
}

// comparable is what release.lua answered, less what time has to do with: that there are
// fences is compared, and which.
func comparable(t *testing.T, reply []any) []any {
	t.Helper()
	fields := []any{reply[0]}
	for i, field := range reply[1:] {
		n, ok := number(field)
		if !ok {
			t.Fatalf("%v is no answer", reply)
		}
		switch i {
		case 0, 5: // fences
			n = min(n, 1)
		case 1, 3: // what is left, and how long it was held
			n = (n + 5_000) / 10_000
		}
		fields = append(fields, n)
	}
	return fields
}

// contents are all keys of a lock with their values, less what time has to do with.
func contents(t *testing.T, rdb *redis.Client, k keys) map[string]string {
	t.Helper()
	ctx, all := t.Context(), map[string]string{}
	for _, key := range []string{k.lock, k.turn} {
		all[key] = rdb.Get(ctx, key).Val()
	}
	record := must(rdb.HGetAll(ctx, k.record).Result())(t)
	// The counter is what the record says, or ahead of it.
	all[k.fence] = strconv.FormatBool(rdb.Get(ctx, k.fence).Val() == record["fence"])
	delete(record, "fence")
	delete(record, "acquired_at")
	all[k.record] = fmt.Sprint(record)
	all[k.line] = fmt.Sprint(must(rdb.ZRange(ctx, k.line, 0, -1).Result())(t))
	for _, key := range k.all() {
		all[key] += fmt.Sprint(" ", rdb.PTTL(ctx, key).Val().Round(10*time.Second))
	}
	return all
}

// Who holds a lock already has it once more at once, whoever waits.
func TestWhoHoldsALockDoesNotWaitForIt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		held := acquire(t, l, "x", "holder", minute)
		waitFirst(t, l, 1)
		again := must(l.Acquire(t.Context(), Request{Name: "x", Token: "holder", TTL: minute, Wait: minute}))(t)
		expect(t, again, Result{Reentered, "holder", held.Fence, minute, 2})

		shared := must(l.Acquire(t.Context(), Request{Name: "y", Token: "one", TTL: minute, Mode: Shared}))(t)
		writer := waitFor(l, Request{Name: "y", TTL: minute, Wait: minute})
		waiters(t, l, "y", 1)
		again = must(l.Acquire(t.Context(), Request{Name: "y", Token: "one", TTL: minute, Wait: minute, Mode: Shared}))(t)
		expect(t, again, Result{Reentered, "one", shared.Fence, minute, 2})
		release(t, l, "y", "one")
		release(t, l, "y", "one")
		release(t, l, "y", granted(t, writer).Token)
	})
}

// Who is about to look is offered nothing: it could get the lock twice.
func TestWhoLooksIsOfferedNothing(t *testing.T) {
	l := newLocker(t, redistest.Start(t, redistest.Options{}).Client(t))
	w := &waiter{want: want{token: "me", ttl: minute, mode: Exclusive}, deadline: time.Now().Add(minute), gone: t.Context(), changed: make(chan struct{}, 1)}
	if !l.enqueue("x", w) {
		t.Fatal("no room")
	}
	if step, _ := l.next("x", w); step != stepLook {
		t.Fatalf("step %d", step)
	}
	if o := l.offer("x"); o.to != nil {
		t.Fatal("it was offered the lock")
	}
	l.look("x", must(l.keys("x"))(t), w)
	if !w.served || w.result.Outcome != Acquired {
		t.Fatalf("got %+v", w.result)
	}
}
