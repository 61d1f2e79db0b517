package lock

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
	"seckill-proxy/sharding"
)

func TestLifeOfALock(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := locker(s.rdb)

		held := acquire(t, l, "x", "", minute)
		expect(t, held, Result{Acquired, held.Token, held.Fence, minute, 1})
		if !regexp.MustCompile(`^[A-Za-z0-9_-]{22}$`).MatchString(held.Token) || held.Fence <= 0 {
			t.Fatalf("token %q, fence %d", held.Token, held.Fence)
		}
		if value := must(s.rdb.Get(t.Context(), "lock:x").Result())(t); value != held.Token {
			t.Fatalf("lock:x is %q, not the token", value)
		}
		expectTTLs(t, l, s.rdb, "x")

		expect(t, acquire(t, l, "x", "", minute), Result{Outcome: Busy, TTL: minute})
		expect(t, check(t, l, "x", held.Token), Result{Held, held.Token, held.Fence, minute, 1})
		expect(t, check(t, l, "x", "other"), Result{Outcome: NotOwner, TTL: minute})
		expect(t, renew(t, l, "x", "other", time.Hour), Result{Outcome: NotOwner, TTL: minute})
		expect(t, renew(t, l, "x", held.Token, time.Hour), Result{Renewed, held.Token, held.Fence, time.Hour, 1})
		if ttl := check(t, l, "x", held.Token).TTL; ttl <= minute {
			t.Fatalf("%s are left after a renewal for an hour", ttl)
		}
		expectTTLs(t, l, s.rdb, "x")
		expect(t, renew(t, l, "x", held.Token, minute), Result{Renewed, held.Token, held.Fence, minute, 1})
		expect(t, check(t, l, "x", held.Token), Result{Held, held.Token, held.Fence, minute, 1})
		expectTTLs(t, l, s.rdb, "x")

		expect(t, release(t, l, "x", "other"), Result{Outcome: NotOwner, TTL: minute})
		expect(t, release(t, l, "x", held.Token), Result{Released, held.Token, held.Fence, 0, 0})
		expectNoTraces(t, s.rdb)
		expect(t, release(t, l, "x", held.Token), Result{Outcome: Expired})
		expect(t, check(t, l, "x", held.Token), Result{Outcome: Expired})
	})
}

func TestReentrance(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := locker(s.rdb)
		fence := acquire(t, l, "x", "me", time.Hour).Fence

		again := acquire(t, l, "x", "me", minute)
		expect(t, again, Result{Reentered, "me", fence, time.Hour, 2})
		if again.TTL <= minute {
			t.Fatalf("taking it once more shortened the TTL to %s", again.TTL)
		}
		expectTTLs(t, l, s.rdb, "x")

		longer := acquire(t, l, "x", "me", 2*time.Hour)
		expect(t, longer, Result{Reentered, "me", fence, 2 * time.Hour, 3})
		if longer.TTL <= time.Hour {
			t.Fatalf("taking it once more for two hours left %s", longer.TTL)
		}

		expect(t, renew(t, l, "x", "me", minute), Result{Renewed, "me", fence, minute, 3})
		for depth := int64(2); depth >= 1; depth-- {
			expect(t, release(t, l, "x", "me"), Result{Released, "me", fence, minute, depth})
			expect(t, check(t, l, "x", "me"), Result{Held, "me", fence, minute, depth})
			expect(t, acquire(t, l, "x", "you", minute), Result{Outcome: Busy, TTL: minute})
			expectTTLs(t, l, s.rdb, "x")
		}
		expect(t, release(t, l, "x", "me"), Result{Released, "me", fence, 0, 0})
		expectNoTraces(t, s.rdb)
	})
}

// The record says of the holder what keys.go documents.
func TestCompanionRecord(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l, ctx := locker(s.rdb), t.Context()
		record := must(l.keys("x"))(t).record
		fence := fmt.Sprint(acquire(t, l, "x", "me", time.Hour).Fence)
		since := must(s.rdb.HGet(ctx, record, "acquired_at").Result())(t)
		if now := must(s.rdb.Time(ctx).Result())(t).UnixMilli(); must(strconv.ParseInt(since, 10, 64))(t) > now || len(since) != 13 {
			t.Fatalf("acquired at %s, now it is %d", since, now)
		}
		expectRecord := func(depth, ttl string) {
			t.Helper()
			want := map[string]string{"token": "me", "mode": "exclusive", "wakes": "1", "fence": fence, "depth": depth, "ttl_ms": ttl, "acquired_at": since}
			if got := must(s.rdb.HGetAll(ctx, record).Result())(t); !maps.Equal(got, want) {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
		expectRecord("1", "3600000")
		acquire(t, l, "x", "me", 2*time.Hour)
		expectRecord("2", "7200000")
		renew(t, l, "x", "me", minute)
		expectRecord("2", "60000")
		release(t, l, "x", "me")
		expectRecord("1", "60000")
	})
}

// A lock that lapsed and was taken by another isn't given back by who had it.
func TestL1_ReleaseAfterExpiryLeavesTheNextHolder(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := locker(s.rdb)
		first := acquire(t, l, "x", "", 100*time.Millisecond)
		s.waitLapsed("lock:x")
		second := acquire(t, l, "x", "", minute)
		if second.Outcome != Acquired || second.Fence <= first.Fence {
			t.Fatalf("got %+v after %+v lapsed", second, first)
		}
		expect(t, release(t, l, "x", first.Token), Result{Outcome: NotOwner, TTL: minute})
		expect(t, renew(t, l, "x", first.Token, minute), Result{Outcome: NotOwner, TTL: minute})
		expect(t, check(t, l, "x", second.Token), Result{Held, second.Token, second.Fence, minute, 1})
	})
}

func TestL6_RenewalBringsNoLockBack(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := locker(s.rdb)
		held := acquire(t, l, "x", "", 50*time.Millisecond)
		s.waitLapsed("lock:x")
		expect(t, renew(t, l, "x", held.Token, minute), Result{Outcome: Expired})
		expect(t, release(t, l, "x", held.Token), Result{Outcome: Expired})
		s.waitLapsed(must(l.keys("x"))(t).record)
		expectNoTraces(t, s.rdb)
	})
}

func TestL7_ScriptFlushGoesUnnoticed(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := locker(s.rdb)
		flush := func() { must(s.rdb.ScriptFlush(t.Context()).Result())(t) }
		fence := acquire(t, l, "x", "me", minute).Fence
		flush()
		expect(t, renew(t, l, "x", "me", minute), Result{Renewed, "me", fence, minute, 1})
		flush()
		expect(t, check(t, l, "x", "me"), Result{Held, "me", fence, minute, 1})
		flush()
		expect(t, acquire(t, l, "x", "me", minute), Result{Reentered, "me", fence, minute, 2})
		flush()
		expect(t, release(t, l, "x", "me"), Result{Released, "me", fence, minute, 1})
	})
}

var oddNames = []string{
	"x", "用户锁", "🔒", "a}b{", "a{b}c", "{}", "{", "}", "a b\r\n", "\x00", "\xff\xfe",
	strings.Repeat("n", 256), "*", "held:x",
}

func TestL8_OddNamesAndTokens(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l := locker(s.rdb)
		for i, name := range oddNames {
			token := oddNames[len(oddNames)-1-i]
			held := acquire(t, l, name, token, minute)
			expect(t, held, Result{Acquired, token, held.Fence, minute, 1})
			expectTTLs(t, l, s.rdb, name)
			expect(t, acquire(t, l, name, token+"x", minute), Result{Outcome: Busy, TTL: minute})
			expect(t, acquire(t, l, name, token, minute), Result{Reentered, token, held.Fence, minute, 2})
		}
		for i, name := range oddNames {
			token := oddNames[len(oddNames)-1-i]
			fence := renew(t, l, name, token, minute).Fence
			expect(t, release(t, l, name, token), Result{Released, token, fence, minute, 1})
			expect(t, release(t, l, name, token), Result{Released, token, fence, 0, 0})
		}
		expectNoTraces(t, s.rdb)
	})
}

func FuzzKeysShareASlot(f *testing.F) {
	for _, name := range oddNames {
		f.Add(name)
	}
	withPrefix := New(nil, DefaultOptions())
	bare := DefaultOptions()
	bare.Prefix = ""
	withoutPrefix := New(nil, bare)
	f.Fuzz(func(t *testing.T, name string) {
		for _, l := range []*Locker{withPrefix, withoutPrefix} {
			k, err := l.keys(name)
			if errors.Is(err, ErrReservedName) && l == withoutPrefix && strings.HasPrefix(name, "lockmeta:") {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			slot := sharding.Slot(k.lock)
			if sharding.Slot(k.record) != slot || sharding.Slot(k.fence) != slot {
				t.Fatalf("%q: keys in different slots: %+v", name, k)
			}
			if k.lock == k.record || k.lock == k.fence || k.record == k.fence {
				t.Fatalf("%q: one key for two things: %+v", name, k)
			}
		}
	})
}

// A key that isn't a lock is called what it is, and left alone.
func TestL9_KeysThatAreNoLocks(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l, ctx := locker(s.rdb), t.Context()

		must(s.rdb.RPush(ctx, "lock:list", "a").Result())(t)
		must(s.rdb.HSet(ctx, "lock:hash", "a", "b").Result())(t)
		must(s.rdb.Expire(ctx, "lock:hash", minute).Result())(t)
		for _, name := range []string{"list", "hash"} {
			expect(t, acquire(t, l, name, "", minute), Result{Outcome: WrongType})
			expect(t, release(t, l, name, "a"), Result{Outcome: WrongType})
			expect(t, renew(t, l, name, "a", minute), Result{Outcome: WrongType})
			expect(t, check(t, l, name, "a"), Result{Outcome: WrongType})
		}
		if n := must(s.rdb.Exists(ctx, "lock:list", "lock:hash").Result())(t); n != 2 {
			t.Fatalf("%d of 2 keys are left", n)
		}

		must(s.rdb.Set(ctx, "lock:stock", "100", 0).Result())(t)
		expect(t, acquire(t, l, "stock", "", minute), Result{Outcome: NoTTL})
		expect(t, acquire(t, l, "stock", "100", minute), Result{Outcome: NoTTL})
		expect(t, release(t, l, "stock", "1"), Result{Outcome: NotOwner})
		expect(t, renew(t, l, "stock", "1", minute), Result{Outcome: NotOwner})
		expect(t, check(t, l, "stock", "1"), Result{Outcome: NotOwner})
		expect(t, check(t, l, "stock", "100"), Result{NoTTL, "100", 0, 0, 1})
		if value := must(s.rdb.Get(ctx, "lock:stock").Result())(t); value != "100" {
			t.Fatalf("lock:stock became %q", value)
		}
		if ttl := must(s.rdb.PTTL(ctx, "lock:stock").Result())(t); ttl != -1 {
			t.Fatalf("lock:stock got a TTL of %s", ttl)
		}
	})
}

// Whoever knows the token of a lock that lost its TTL, or never got one, can
// end that state.
func TestHolderEndsALockWithoutTTL(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		l, ctx := locker(s.rdb), t.Context()

		must(s.rdb.SetNX(ctx, "lock:theirs", "tok", 0).Result())(t)
		expect(t, renew(t, l, "theirs", "tok", minute), Result{Renewed, "tok", 0, minute, 1})
		expect(t, check(t, l, "theirs", "tok"), Result{Held, "tok", 0, minute, 1})

		fence := acquire(t, l, "ours", "tok", minute).Fence
		acquire(t, l, "ours", "tok", minute)
		must(s.rdb.Persist(ctx, "lock:ours").Result())(t)
		expect(t, check(t, l, "ours", "tok"), Result{NoTTL, "tok", fence, 0, 2})
		expect(t, release(t, l, "ours", "tok"), Result{Released, "tok", fence, 0, 1})
		expect(t, release(t, l, "ours", "tok"), Result{Released, "tok", fence, 0, 0})
		again := acquire(t, l, "ours", "", minute)
		expect(t, again, Result{Acquired, again.Token, again.Fence, minute, 1})
	})
}

func TestReservedNames(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s *store) {
		opts := DefaultOptions()
		opts.Prefix = ""
		l, ctx := New(s.rdb, opts), t.Context()

		held := acquire(t, l, "lock", "", minute)
		expect(t, held, Result{Acquired, held.Token, held.Fence, minute, 1})
		if value := must(s.rdb.Get(ctx, "lock").Result())(t); value != held.Token {
			t.Fatalf("the key is %q, not the token", value)
		}

		reserved := must(l.keys("lock"))(t).record
		_, acquireErr := l.Acquire(ctx, Request{Name: reserved, TTL: minute})
		_, releaseErr := l.Release(ctx, reserved, "t", nil)
		_, renewErr := l.Renew(ctx, reserved, "t", minute)
		_, checkErr := l.Check(ctx, reserved, "t")
		for _, err := range []error{acquireErr, releaseErr, renewErr, checkErr} {
			if !errors.Is(err, ErrReservedName) {
				t.Fatalf("got %v", err)
			}
		}
	})
}

func TestOptions(t *testing.T) {
	with := func(change func(*Options)) Options {
		o := DefaultOptions()
		change(&o)
		return o
	}
	prefixes := func(lock, companion string) Options {
		return with(func(o *Options) { o.Prefix, o.CompanionPrefix = lock, companion })
	}
	valid := []Options{
		DefaultOptions(),
		prefixes("", "lockmeta:"),
		prefixes("shop:lock:", "shop:meta:"),
		with(func(o *Options) { o.TTLMax = time.Millisecond }),
		with(func(o *Options) { o.LongHoldPercent = 0 }),
	}
	for _, o := range valid {
		if err := o.Validate(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	invalid := map[string]Options{
		"braces":       prefixes("{lock}:", "lockmeta:"),
		"brace":        prefixes("lock:", "lock}meta:"),
		"empty":        prefixes("lock:", ""),
		"both empty":   prefixes("", ""),
		"equal":        prefixes("lock:", "lock:"),
		"begins with":  prefixes("lock", "lockmeta:"),
		"begins with2": prefixes("lock:meta:", "lock:"),
		"zero TTL":     with(func(o *Options) { o.TTLMax = 0 }),
		"odd TTL":      with(func(o *Options) { o.TTLMax = time.Second + 1 }),
		"no wait":      with(func(o *Options) { o.WaitMax = 0 }),
		"no queue":     with(func(o *Options) { o.QueueMax = 0 }),
		"no names":     with(func(o *Options) { o.NamesMax = 0 }),
		"none kept":    with(func(o *Options) { o.AutoMax = 0 }),
		"no hold":      with(func(o *Options) { o.Hold = 0 }),
		"no SYNC":      with(func(o *Options) { o.SyncTimeout = 0 }),
		"percent":      with(func(o *Options) { o.LongHoldPercent = 101 }),
	}
	for what, o := range invalid {
		if err := o.Validate(); err == nil {
			t.Errorf("%s: %+v is accepted", what, o)
		}
	}
}

// On a full Redis nothing new is taken, but what is held can be kept, checked
// and given back, level by level.
func TestFullRedis(t *testing.T) {
	rdb := redistest.Start(t, redistest.Options{}).Client(t)
	l, ctx := newLocker(t, rdb), t.Context()
	fence := acquire(t, l, "x", "me", minute).Fence
	acquire(t, l, "x", "me", minute)
	waiting := waitFirst(t, l, 1)

	must(rdb.ConfigSet(ctx, "maxmemory", "1").Result())(t)
	if _, err := l.Acquire(ctx, Request{Name: "y", TTL: minute}); !errors.Is(err, script.ErrNotExecuted) {
		t.Fatalf("got %v", err)
	}
	if _, err := l.Acquire(ctx, Request{Name: "x", Token: "me", TTL: minute}); !errors.Is(err, script.ErrNotExecuted) {
		t.Fatalf("got %v", err)
	}
	expect(t, check(t, l, "x", "me"), Result{Held, "me", fence, minute, 2})
	expect(t, renew(t, l, "x", "me", minute), Result{Renewed, "me", fence, minute, 2})
	expectTTLs(t, l, rdb, "x")
	expect(t, release(t, l, "x", "me"), Result{Released, "me", fence, minute, 1})
	expectTTLs(t, l, rdb, "x")
	expect(t, release(t, l, "x", "me"), Result{Released, "me", fence, 0, 0})
	next := granted(t, waiting[0])
	expect(t, release(t, l, "x", next.Token), Result{Released, next.Token, next.Fence, 0, 0})
	expectNoTraces(t, rdb)
}

// The rights that keys.go names are enough, those for speed (+mget) not counted, and without those on the companion
// keys nothing is done at all.
func TestRightsOfAnACLUser(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	rdb, ctx := server.Client(t), t.Context()
	commands := strings.Fields("+evalsha +eval +pttl +get +set +time +hmget +hget +hset +hdel +pexpire +del +exists +zadd +zrem " +
		"+zrange +zcard +zscore +zcount +zrangebyscore +publish +subscribe +ping +wait +scan")
	user := func(name string, rules ...string) *Locker {
		args := []any{"ACL", "SETUSER", name, "on", ">pw"}
		for _, rule := range append(rules, commands...) {
			args = append(args, rule)
		}
		must(rdb.Do(ctx, args...).Result())(t)
		as := redis.NewClient(&redis.Options{Addr: server.Addr, Username: name, Password: "pw", MaxRetries: -1})
		t.Cleanup(func() { as.Close() })
		return newLocker(t, as)
	}

	for _, l := range []*Locker{user("enough", "~lock:*", "~lockmeta:*", "&lockmeta:*"), user("quiet", "~lock:*", "~lockmeta:*")} {
		fence := acquire(t, l, "x", "me", minute).Fence
		expect(t, acquire(t, l, "x", "me", minute), Result{Reentered, "me", fence, minute, 2})
		expect(t, renew(t, l, "x", "me", minute), Result{Renewed, "me", fence, minute, 2})
		expect(t, check(t, l, "x", "me"), Result{Held, "me", fence, minute, 2})
		expect(t, release(t, l, "x", "me"), Result{Released, "me", fence, minute, 1})
		waiting := waitFor(l, Request{Name: "x", TTL: minute, Wait: minute})
		waiters(t, l, "x", 1)
		expect(t, release(t, l, "x", "me"), Result{Released, "me", fence, 0, 0})
		granted := <-waiting
		expect(t, granted.Result, Result{Acquired, granted.Token, granted.Fence, minute, 1})
		must(l.Renew(ctx, "x", granted.Token, time.Second))(t)
		shared := waitFor(l, Request{Name: "x", TTL: minute, Wait: minute, Mode: Shared})
		got := <-shared // by expiry
		must(l.Info(ctx, "x"))(t)
		must(l.List(ctx, "*"))(t)
		expect(t, renew(t, l, "x", got.Token, minute), Result{Renewed, got.Token, got.Fence, minute, 1})
		expect(t, release(t, l, "x", got.Token), Result{Released, got.Token, got.Fence, 0, 0})
		all := must(l.AcquireAll(ctx, MultiRequest{Names: []string{"a", "b"}, TTL: minute}))(t)
		expect(t, release(t, l, "a", all.Token), Result{Released, all.Token, all.Fence, 0, 0})
		expect(t, must(l.Force(ctx, "b"))(t), Result{Released, "", all.Fence, 0, 0})
	}

	_, err := user("short", "~lock:*").Acquire(ctx, Request{Name: "y", TTL: minute})
	var answered redis.Error
	if !errors.As(err, &answered) || !strings.HasPrefix(answered.Error(), "NOPERM") {
		t.Fatalf("got %v", err)
	}
	expectNoTraces(t, rdb)
}
