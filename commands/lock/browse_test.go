package lock

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestInfo(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		info := func() Info {
			t.Helper()
			got := must(l.Info(t.Context(), "x"))(t)
			if got.TTL > 0 {
				got.TTL = minute
			}
			return got
		}
		want := func(want Info) {
			t.Helper()
			want.AcquiredAt = info().AcquiredAt
			if got := info(); got != want {
				t.Fatalf("got %+v, want %+v", got, want)
			}
		}
		want(Info{State: "FREE"})
		fence := acquire(t, l, "x", "me", minute).Fence
		acquire(t, l, "x", "me", minute)
		want(Info{State: "HELD", Mode: Exclusive, Fence: fence, TTL: minute, Depth: 2, Holders: 1, SetTTL: minute})
		if age := time.Since(info().AcquiredAt); age < -time.Second || age > minute {
			t.Fatalf("acquired %s ago", age)
		}
		waitFor(l, Request{Name: "x", TTL: minute, Wait: time.Second})
		waiters(t, l, "x", 1)
		want(Info{State: "HELD", Mode: Exclusive, Fence: fence, TTL: minute, Depth: 2, Holders: 1, SetTTL: minute, Sidecars: 1, Waiters: 1})
		expect(t, must(l.Force(t.Context(), "x"))(t), Result{Released, "", fence, 0, 0})
		eventually(t, "the next has it", func() bool { return info().Waiters == 0 })
		must(l.Force(t.Context(), "x"))(t)

		fence = acquireAs(t, l, Shared, 0, "a", minute).Fence
		fence = max(fence, acquireAs(t, l, Shared, 0, "b", minute).Fence)
		want(Info{State: "HELD", Mode: Shared, Fence: fence, TTL: minute, Holders: 2, SetTTL: minute})
		expect(t, must(l.Force(t.Context(), "x"))(t), Result{Released, "", fence, 0, 0})
		expectNoTraces(t, s.rdb)

		must(s.rdb.Set(t.Context(), "lock:x", "theirs", minute).Result())(t)
		want(Info{State: "FOREIGN", TTL: minute, Holders: 1})
		must(s.rdb.Persist(t.Context(), "lock:x").Result())(t)
		want(Info{State: "NO_TTL", Holders: 1})
		expect(t, must(l.Force(t.Context(), "x"))(t), Result{Outcome: Released})
		expect(t, must(l.Force(t.Context(), "x"))(t), Result{Outcome: Expired})
		must(s.rdb.LPush(t.Context(), "lock:x", "1").Result())(t)
		want(Info{State: "WRONG_TYPE"})
		expect(t, must(l.Force(t.Context(), "x"))(t), Result{Outcome: WrongType})
	})
}

func TestList(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := newLocker(t, s.rdb)
		list := func(pattern string) []string {
			t.Helper()
			var names []string
			for _, got := range must(l.List(t.Context(), pattern))(t) {
				if got.TTL <= 0 || got.TTL > minute {
					t.Errorf("%q has %s left", got.Name, got.TTL)
				}
				names = append(names, got.Name)
			}
			slices.SortFunc(names, cmp.Compare)
			return names
		}
		if got := list("*"); len(got) > 0 {
			t.Fatalf("got %q", got)
		}
		for _, name := range []string{"a", "b", "ab", "用户锁"} {
			acquire(t, l, name, "", minute)
		}
		must(s.rdb.Set(t.Context(), "lock:foreign", "t", minute).Result())(t)
		must(s.rdb.Set(t.Context(), "lock:stock", 5, 0).Result())(t)
		must(s.rdb.LPush(t.Context(), "lock:list", 5).Result())(t)
		must(s.rdb.Set(t.Context(), "other", 5, minute).Result())(t)
		for pattern, want := range map[string][]string{
			"*": {"a", "ab", "b", "foreign", "用户锁"}, "a*": {"a", "ab"}, "b": {"b"}, "": nil, "?": {"a", "b"},
		} {
			if got := list(pattern); !slices.Equal(got, want) {
				t.Errorf("%q: got %q, want %q", pattern, got, want)
			}
		}
		for i := range listMax + 100 {
			must(s.rdb.Set(t.Context(), fmt.Sprint("lock:many", i), "t", minute).Result())(t)
		}
		if n := len(list("*")); n != listMax {
			t.Fatalf("%d are listed", n)
		}
		// A prefix isn't a pattern.
		odd := newLocker(t, s.rdb, func(o *Options) { o.Prefix = "*?[l" })
		acquire(t, odd, "odd", "", minute)
		if got := must(odd.List(t.Context(), "*"))(t); len(got) != 1 || got[0].Name != "odd" {
			t.Fatalf("got %v", got)
		}
	})
}
