package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
)

// cluster is several independent servers.
type cluster struct {
	servers []*redistest.Server
	nodes   []*redis.Client
}

const nodeTimeout = 250 * time.Millisecond

func startNodes(t *testing.T, n int) *cluster {
	c := &cluster{}
	for range n {
		server := redistest.Start(t, redistest.Options{})
		node := redis.NewClient(&redis.Options{
			Addr: server.Addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
			DialTimeout: nodeTimeout, ReadTimeout: nodeTimeout, WriteTimeout: nodeTimeout,
		})
		t.Cleanup(func() { node.Close() })
		c.servers, c.nodes = append(c.servers, server), append(c.nodes, node)
	}
	return c
}

func (c *cluster) locker(t *testing.T, changes ...func(*Options)) *Locker {
	opts := DefaultOptions()
	for _, change := range changes {
		change(&opts)
	}
	l := NewQuorum(c.nodes, opts)
	t.Cleanup(l.Close)
	return l
}

// holding counts the servers on which a lock is held.
func (c *cluster) holding(t *testing.T, name string) int {
	t.Helper()
	n := 0
	for _, node := range c.nodes {
		if found, err := node.Exists(context.Background(), "lock:"+name).Result(); err == nil {
			n += int(found)
		}
	}
	return n
}

// onNodes runs a test with three servers and with five.
func onNodes(t *testing.T, test func(t *testing.T, c *cluster)) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { test(t, startNodes(t, n)) })
	}
}

// minority is how many servers may be missing.
func (c *cluster) minority() int { return (len(c.nodes) - 1) / 2 }

// life goes once through what can be done with a lock.
func life(t *testing.T, l *Locker, f *fences) {
	t.Helper()
	held := acquire(t, l, "x", "", minute)
	f.add(t, held)
	expect(t, held, Result{Acquired, held.Token, held.Fence, minute, 1})
	if lost := minute - held.TTL; lost < minute/driftPart {
		t.Fatalf("valid for %s of %s, which leaves nothing for drift", held.TTL, minute)
	}
	if got := acquire(t, l, "x", "", minute); got.Outcome != Busy {
		t.Fatalf("got %+v", got)
	}
	expect(t, acquire(t, l, "x", held.Token, minute), Result{Reentered, held.Token, held.Fence, minute, 2})
	expect(t, check(t, l, "x", held.Token), Result{Held, held.Token, held.Fence, minute, 2})
	expect(t, renew(t, l, "x", held.Token, minute), Result{Renewed, held.Token, held.Fence, minute, 2})
	expect(t, release(t, l, "x", held.Token), Result{Released, held.Token, held.Fence, minute, 1})
	waiting := waitFor(l, Request{Name: "x", TTL: minute, Wait: minute})
	eventually(t, "one waits", func() bool { return l.waited("x") })
	expect(t, release(t, l, "x", held.Token), Result{Released, held.Token, held.Fence, 0, 0})
	next := granted(t, waiting)
	f.add(t, next)
	if info := must(l.Info(t.Context(), "x"))(t); info.State != "HELD" || info.Fence != next.Fence {
		t.Fatalf("got %+v, want fence %d", info, next.Fence)
	}
	if list := must(l.List(t.Context(), "*"))(t); len(list) != 1 || list[0].Name != "x" {
		t.Fatalf("got %+v", list)
	}
	if got := release(t, l, "x", held.Token); got.Outcome != NotOwner {
		t.Fatalf("got %+v", got)
	}
	expect(t, must(l.Force(t.Context(), "x"))(t), Result{Released, "", next.Fence, 0, 0})
	expect(t, release(t, l, "x", next.Token), Result{Outcome: Expired})
}

func TestQuorum(t *testing.T) {
	onNodes(t, func(t *testing.T, c *cluster) {
		var f fences
		life(t, c.locker(t), &f)
		if n := c.holding(t, "x"); n > 0 {
			t.Fatalf("it is held on %d servers", n)
		}
	})
}

func TestQuorumWithAMinorityDown(t *testing.T) {
	onNodes(t, func(t *testing.T, c *cluster) {
		l := c.locker(t)
		var f fences
		for _, down := range c.servers[:c.minority()] {
			down.Kill()
		}
		life(t, l, &f)
		// Others are down, and these are back, without their data.
		for i := range c.minority() {
			c.servers[i].Restart()
			c.servers[len(c.servers)-1-i].Kill()
		}
		life(t, l, &f)
	})
}

func TestQuorumWithAMajorityDown(t *testing.T) {
	onNodes(t, func(t *testing.T, c *cluster) {
		l := c.locker(t)
		held := acquire(t, l, "y", "", minute)
		for _, down := range c.servers[:c.minority()+1] {
			down.Kill()
		}
		for range 3 {
			if got, err := l.Acquire(t.Context(), Request{Name: "x", TTL: minute}); !errors.Is(err, script.ErrNotExecuted) {
				t.Fatalf("got %+v, %v", got, err)
			}
		}
		if n := c.holding(t, "x"); n > 0 {
			t.Fatalf("what nobody has is held on %d servers", n)
		}
		for _, call := range []func() (Result, error){
			func() (Result, error) { return l.Check(t.Context(), "y", held.Token) },
			func() (Result, error) { return l.Renew(t.Context(), "y", held.Token, minute) },
		} {
			if got, err := call(); !errors.Is(err, script.ErrNotExecuted) {
				t.Fatalf("got %+v, %v", got, err)
			}
		}
		if got, err := l.Release(t.Context(), "y", held.Token, nil); !errors.Is(err, script.ErrUncertain) {
			t.Fatalf("got %+v, %v", got, err)
		}
	})
}

// A server that stands still costs time, which counts, and no more.
func TestQuorumWithASlowServer(t *testing.T) {
	onNodes(t, func(t *testing.T, c *cluster) {
		l := c.locker(t)
		var f fences
		c.servers[0].Pause()
		life(t, l, &f)
		// What takes longer than it lasts isn't taken.
		if got, err := l.Acquire(t.Context(), Request{Name: "short", TTL: nodeTimeout / 2}); !errors.Is(err, script.ErrNotExecuted) {
			t.Fatalf("got %+v, %v", got, err)
		}
		c.servers[0].Resume()
		if n := c.holding(t, "short"); n > 1 { // on the one that stood still, for its TTL
			t.Fatalf("what nobody has is held on %d servers", n)
		}
	})
}

// A minority that lost its data can't give the lock to another.
func TestQuorumWithServersThatLostTheirData(t *testing.T) {
	onNodes(t, func(t *testing.T, c *cluster) {
		l := c.locker(t)
		held := acquire(t, l, "x", "", minute)
		for _, node := range c.nodes[:c.minority()] {
			must(node.FlushAll(t.Context()).Result())(t)
		}
		if got := acquire(t, l, "x", "", minute); got.Outcome != Busy {
			t.Fatalf("got %+v", got)
		}
		expect(t, check(t, l, "x", held.Token), Result{Held, held.Token, held.Fence, minute, 1})
		expect(t, renew(t, l, "x", held.Token, minute), Result{Renewed, held.Token, held.Fence, minute, 1})
		// With one more the lock is lost, and said to be.
		must(c.nodes[c.minority()].FlushAll(t.Context()).Result())(t)
		expect(t, check(t, l, "x", held.Token), Result{Outcome: Expired})
		expect(t, renew(t, l, "x", held.Token, minute), Result{Outcome: Expired})
		expect(t, release(t, l, "x", held.Token), Result{Outcome: Expired})
		if next := acquire(t, l, "x", "", minute); next.Outcome != Acquired {
			t.Fatalf("got %+v", next)
		}
	})
}

// Fences grow through majorities, though single servers know of no clock that does.
func TestQuorumFencesGrowThroughMajorities(t *testing.T) {
	t.Parallel()
	onNodes(t, func(t *testing.T, c *cluster) {
		l := c.locker(t)
		k := must(l.keys("x"))(t)
		var f fences
		for round := range 3 * len(c.nodes) {
			// One server is an hour ahead, and takes no part the next time.
			ahead := c.nodes[round%len(c.nodes)]
			must(ahead.Set(t.Context(), k.fence, time.Now().Add(time.Duration(round+1)*time.Hour).UnixMicro(), 0).Result())(t)
			held := acquire(t, l, "x", "", minute)
			f.add(t, held)
			release(t, l, "x", held.Token)
			c.servers[round%len(c.nodes)].Pause()
			held = acquire(t, l, "x", "", minute)
			f.add(t, held)
			release(t, l, "x", held.Token)
			c.servers[round%len(c.nodes)].Resume()
			// It may have taken the lock late, for one who doesn't know.
			must(ahead.Ping(t.Context()).Result())(t)
			must(ahead.Del(t.Context(), k.lock, k.record).Result())(t)
		}
	})
}

func TestQuorumExcludes(t *testing.T) {
	onNodes(t, func(t *testing.T, c *cluster) {
		var (
			wait   sync.WaitGroup
			inside int // guarded by the lock under test
			f      fences
		)
		for range 2 {
			l := c.locker(t)
			for range 4 {
				wait.Go(func() {
					for range 10 {
						got, err := l.Acquire(context.Background(), Request{Name: "x", TTL: minute, Wait: minute})
						if err != nil || got.Outcome != Acquired {
							t.Errorf("got %+v, %v", got, err)
							return
						}
						inside++
						if got.Fence <= f.last {
							t.Errorf("fence %d after %d", got.Fence, f.last)
						}
						f.last = got.Fence
						if _, err := l.Release(context.Background(), "x", got.Token, nil); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wait.Wait()
		if inside != 80 {
			t.Fatalf("%d times, want 80", inside)
		}
	})
}

func TestQuorumKeepsAndShares(t *testing.T) {
	onNodes(t, func(t *testing.T, c *cluster) {
		var o observed
		l := c.locker(t, observe(&o))
		var ties Ties
		const ttl = 600 * time.Millisecond
		held := keepFor(t, l, &ties, "x", "", ttl, 0)
		c.servers[0].Kill()
		time.Sleep(2 * ttl)
		expect(t, check(t, l, "x", held.Token), Result{Held, held.Token, held.Fence, ttl, 1})
		ties.Release()
		o.lost(t)
		if n := c.holding(t, "x"); n > 0 {
			t.Fatalf("it is held on %d servers", n)
		}
		acquireAs(t, l, Shared, 0, "a", minute)
		if got := acquireAs(t, l, Shared, 0, "b", minute); got.Outcome != Acquired {
			t.Fatalf("got %+v", got)
		}
		if got := acquire(t, l, "x", "c", minute); got.Outcome != Busy {
			t.Fatalf("got %+v", got)
		}
		for _, call := range []func() (Result, error){
			func() (Result, error) {
				return l.Acquire(t.Context(), Request{Name: "y", TTL: minute, Mode: Permits, Most: 2})
			},
			func() (Result, error) {
				return l.Acquire(t.Context(), Request{Name: "y", TTL: minute, Replicas: 1})
			},
			func() (Result, error) { return acquireAll(l, 0, "y", "z") },
		} {
			if got, err := call(); !errors.Is(err, ErrQuorum) {
				t.Fatalf("got %+v, %v", got, err)
			}
		}
	})
}
