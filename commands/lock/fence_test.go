package lock

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"seckill-proxy/internal/redistest"
)

// fences checks that the fences of one name grow.
type fences struct{ last int64 }

func (f *fences) add(t *testing.T, result Result) {
	t.Helper()
	if result.Outcome != Acquired {
		t.Fatalf("not acquired: %+v", result)
	}
	if result.Fence <= f.last || result.Fence >= 1<<53 {
		t.Fatalf("fence %d after %d", result.Fence, f.last)
	}
	f.last = result.Fence
}

func TestFencesGrow(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l, ctx := locker(s.rdb), t.Context()
		k := must(l.keys("x"))(t)
		var f fences

		take := func() Result {
			t.Helper()
			result := acquire(t, l, "x", "", minute)
			f.add(t, result)
			return result
		}
		for range 100 {
			release(t, l, "x", take().Token)
		}

		f.add(t, acquire(t, l, "x", "", 20*time.Millisecond))
		s.waitLapsed(k.lock)
		take()

		must(s.rdb.Del(ctx, k.lock).Result())(t)
		take()

		must(s.rdb.Del(ctx, k.lock, k.record).Result())(t)
		must(s.rdb.ScriptFlush(ctx).Result())(t)
		take()

		must(s.rdb.Del(ctx, k.lock, k.fence).Result())(t)
		take()

		// A counter ahead of the clock is what a clock that stepped back looks like.
		ahead := time.Now().Add(time.Hour).UnixMicro()
		must(s.rdb.Set(ctx, k.fence, ahead, 0).Result())(t)
		for i := range int64(3) {
			must(s.rdb.Del(ctx, k.lock).Result())(t)
			if fence := take().Fence; fence != ahead+1+i {
				t.Fatalf("fence %d, the counter was at %d", fence, ahead+i)
			}
		}
		if ttl := must(s.rdb.PTTL(ctx, k.fence).Result())(t); ttl != -1 {
			t.Fatalf("the counter lapses in %s", ttl)
		}
	})
}

// Digits beyond the 14 that Lua prints by itself must not be lost on the way.
func TestFencesAreExact(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l, ctx := locker(s.rdb), t.Context()
		k := must(l.keys("x"))(t)
		must(s.rdb.Set(ctx, k.fence, int64(1)<<53-3, 0).Result())(t)
		const want = int64(1)<<53 - 2

		if got := acquire(t, l, "x", "me", minute).Fence; got != want {
			t.Fatalf("acquired with fence %d, want %d", got, want)
		}
		for what, fence := range map[string]int64{
			"reentered": acquire(t, l, "x", "me", minute).Fence,
			"checked":   check(t, l, "x", "me").Fence,
			"renewed":   renew(t, l, "x", "me", minute).Fence,
			"released":  release(t, l, "x", "me").Fence,
		} {
			if fence != want {
				t.Errorf("%s with fence %d, want %d", what, fence, want)
			}
		}
		for _, got := range []string{
			must(s.rdb.Get(ctx, k.fence).Result())(t),
			must(s.rdb.HGet(ctx, k.record, "fence").Result())(t),
		} {
			if got != strconv.FormatInt(want, 10) {
				t.Errorf("stored as %q, want %d", got, want)
			}
		}
	})
}

func TestFencesGrowThroughARestart(t *testing.T) {
	server := redistest.Start(t, redistest.Options{AppendOnly: true})
	rdb, ctx := server.Client(t), t.Context()
	l := locker(rdb)
	k := must(l.keys("x"))(t)
	var f fences

	// Ahead of the clock, so that it is the counter that counts.
	must(rdb.Set(ctx, k.fence, time.Now().Add(time.Hour).UnixMicro(), 0).Result())(t)
	for range 2 {
		held := acquire(t, l, "x", "", minute)
		f.add(t, held)
		server.Kill()
		server.Restart()
		l = locker(server.Client(t))
		expect(t, check(t, l, "x", held.Token), Result{Held, held.Token, held.Fence, minute, 1})
		release(t, l, "x", held.Token)
	}
	f.add(t, acquire(t, l, "x", "", minute))
}

// Any number of names leaves one counter per slot.
func TestNamesLeaveNoKeysBehind(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := locker(s.rdb)
		counters := map[string]bool{}
		for i := range 500 {
			name := fmt.Sprint("{shop}", i)
			release(t, l, name, acquire(t, l, name, "", minute).Token)
			counters[must(l.keys(name))(t).fence] = true
		}
		size := must(s.rdb.DBSize(t.Context()).Result())(t)
		if size != 1 || len(counters) != 1 {
			t.Fatalf("%d keys are left by 500 names of one slot, %d counters", size, len(counters))
		}
	})
}
