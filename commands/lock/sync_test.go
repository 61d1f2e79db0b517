package lock

import (
	"testing"
	"time"

	"seckill-proxy/internal/redistest"
)

// With SYNC a lock is Acquired when the replicas have it, and Unconfirmed when not.
func TestSync(t *testing.T) {
	master := redistest.Start(t, redistest.Options{})
	replica := redistest.StartReplica(t, master, redistest.Options{})
	rdb, copied := master.Client(t), replica.Client(t)
	l := newLocker(t, rdb, func(o *Options) { o.SyncTimeout = 10 * time.Second })
	onReplica := func(name, token string) {
		t.Helper()
		if value := must(copied.Get(t.Context(), "lock:"+name).Result())(t); value != token {
			t.Fatalf("the replica has %q", value)
		}
	}
	sync := func(name string, replicas int64, wait time.Duration) Request {
		return Request{Name: name, TTL: minute, Wait: wait, Replicas: replicas}
	}
	held := must(l.Acquire(t.Context(), sync("x", 1, 0)))(t)
	expect(t, held, Result{Acquired, held.Token, held.Fence, minute, 1})
	onReplica("x", held.Token)

	// So is one that was handed over.
	waiting := waitFor(l, sync("x", 1, minute))
	waiters(t, l, "x", 1)
	release(t, l, "x", held.Token)
	onReplica("x", granted(t, waiting).Token)

	replica.Pause()
	hasty := newLocker(t, rdb, func(o *Options) { o.SyncTimeout = 20 * time.Millisecond })
	held = must(hasty.Acquire(t.Context(), sync("y", 1, 0)))(t)
	expect(t, held, Result{Unconfirmed, held.Token, held.Fence, minute, 1})
	expect(t, check(t, hasty, "y", held.Token), Result{Held, held.Token, held.Fence, minute, 1})
	replica.Resume()
}
