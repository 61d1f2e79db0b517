package lock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
)

const minute = time.Minute

// store is a Redis to test on, and a way to let its TTLs lapse.
type store struct {
	t   *testing.T
	rdb *redis.Client
	// waitLapsed returns when the key has lapsed.
	waitLapsed func(key string)
	// pass lets so much time pass for TTLs, if it doesn't pass by itself.
	pass func(d time.Duration)
}

// onEveryStore runs a test on a real redis-server and on the embedded store.
func onEveryStore(t *testing.T, test func(t *testing.T, s *store)) {
	t.Run("redis", func(t *testing.T) {
		rdb := redistest.Start(t, redistest.Options{}).Client(t)
		test(t, &store{t: t, rdb: rdb, pass: func(time.Duration) {}, waitLapsed: func(key string) { waitGone(t, rdb, key) }})
	})
	t.Run("embedded", func(t *testing.T) {
		server := miniredis.RunT(t)
		rdb := client(t, server.Addr())
		test(t, &store{t: t, rdb: rdb, pass: server.FastForward, waitLapsed: func(key string) {
			server.FastForward(server.TTL(key))
			waitGone(t, rdb, key)
		}})
	})
}

func client(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// waitGone returns when the key doesn't exist. It hangs, until the test's
// deadline, when that never comes true.
func waitGone(t *testing.T, rdb *redis.Client, key string) {
	t.Helper()
	for must(rdb.Exists(t.Context(), key).Result())(t) != 0 {
		time.Sleep(time.Millisecond)
	}
}

// must returns the value of a call that may not fail.
func must[V any](value V, err error) func(t *testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// locker is a Locker for tests in which nobody waits.
func locker(rdb redis.UniversalClient) *Locker { return New(rdb, DefaultOptions()) }

// newLocker is a Locker, closed at the end of the test. Two of them are two
// sidecars. It doesn't look now and then though nothing happened, so a wake-up
// that is lost stays so.
func newLocker(t *testing.T, rdb redis.UniversalClient, changes ...func(*Options)) *Locker {
	opts := DefaultOptions()
	for _, change := range changes {
		change(&opts)
	}
	l := New(rdb, opts)
	l.lookMax = time.Hour
	t.Cleanup(l.Close)
	return l
}

// outcome is what a call returned.
type outcome struct {
	Result
	err error
}

// waitFor acquires in the background.
func waitFor(l *Locker, req Request) <-chan outcome { return waitIn(context.Background(), l, req) }

func waitIn(ctx context.Context, l *Locker, req Request) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		result, err := l.Acquire(ctx, req)
		done <- outcome{result, err}
	}()
	return done
}

// waiters returns when n wait for a lock, and the head has been told that it has to.
func waiters(t *testing.T, l *Locker, name string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d waiters", n), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		q := l.queues[name]
		return n == 0 && q == nil || q != nil && q.waiters.Len() == n && q.head().waited && !q.head().looking && !q.lookAt.IsZero()
	})
}

// hears returns when a Locker, for which somebody waits, hears messages.
func hears(t *testing.T, l *Locker) {
	t.Helper()
	eventually(t, "messages are heard", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.hears()
	})
}

// eventually waits until a condition holds that nothing announces.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
	}
}

func acquire(t *testing.T, l *Locker, name, token string, ttl time.Duration) Result {
	t.Helper()
	return must(l.Acquire(context.Background(), Request{Name: name, Token: token, TTL: ttl}))(t)
}

func release(t *testing.T, l *Locker, name, token string) Result {
	t.Helper()
	return must(l.Release(context.Background(), name, token, nil))(t)
}

func renew(t *testing.T, l *Locker, name, token string, ttl time.Duration) Result {
	t.Helper()
	return must(l.Renew(context.Background(), name, token, ttl))(t)
}

func check(t *testing.T, l *Locker, name, token string) Result {
	t.Helper()
	return must(l.Check(context.Background(), name, token))(t)
}

// expect compares a result with what it should be. A TTL may have run down a
// little since; that it isn't longer than expected, and zero where zero is
// expected, is compared. want.Fence 0 means none.
func expect(t *testing.T, got, want Result) {
	t.Helper()
	ttlFits := got.TTL <= want.TTL && (got.TTL > 0) == (want.TTL > 0)
	if got.Outcome != want.Outcome || got.Token != want.Token || got.Fence != want.Fence || got.Depth != want.Depth || !ttlFits {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

// readTTLs reads two TTLs in the same moment.
var readTTLs = redis.NewScript(`return {redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2])}`)

// expectTTLs checks that a lock is held, and that its record lapses with it, but not before.
func expectTTLs(t *testing.T, l *Locker, rdb *redis.Client, name string) {
	t.Helper()
	k := must(l.keys(name))(t)
	ttls := must(readTTLs.Run(t.Context(), rdb, []string{k.lock, k.record}).Int64Slice())(t)
	// Redis 6.2 gives each command of a script its own time.
	if ttls[0] <= 0 || ttls[1] <= ttls[0] || ttls[1]-ttls[0] > 10 {
		t.Fatalf("PTTL of %q and its record: %d", k.lock, ttls)
	}
}

// expectNoTraces checks that no lock and no companion record exists.
func expectNoTraces(t *testing.T, rdb *redis.Client) {
	t.Helper()
	for _, pattern := range []string{"lock:*", "lockmeta:*:held:*"} {
		if left := must(rdb.Keys(t.Context(), pattern).Result())(t); len(left) > 0 {
			t.Fatalf("keys are left: %q", left)
		}
	}
}
