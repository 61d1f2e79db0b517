package lock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
)

// This file checks histories of many clients with a tool made for that, porcupine:
// is there an order of all that happened, each at some moment between its call and
// its return, in which one at a time has the lock, and fences grow?

// event is the input of an operation on one lock.
type event struct {
	name  string
	what  happening
	token string
	fence int64
}

// happening is what an event is.
type happening string

const (
	acquired   happening = "acquired"     // it did
	mayAcquire happening = "may acquire"  // it did or didn't: no reply came
	released   happening = "released"     // it did
	mayRelease happening = "may release"  // it did or didn't
	wasNotHeld happening = "was not held" // a release found it so
	lapsed     happening = "lapsed"       // at the end of its TTL, if it was still held then
)

// lockState is the state of one lock.
type lockState struct {
	token string // "" when it is free
	fence int64  // the last one known
}

// step returns the states that an event can lead to; none: it can't have happened.
func (h lockState) step(e event) []lockState {
	free := lockState{"", h.fence}
	switch e.what {
	case acquired:
		if h.token == "" && e.fence > h.fence {
			return []lockState{{e.token, e.fence}}
		}
	case mayAcquire:
		if h.token == "" {
			return []lockState{h, {e.token, h.fence}}
		}
		return []lockState{h}
	case released:
		if h.token == e.token {
			return []lockState{free}
		}
	case mayRelease, lapsed:
		if h.token != e.token {
			return []lockState{h}
		}
		if e.what == lapsed {
			return []lockState{free}
		}
		return []lockState{h, free}
	case wasNotHeld:
		if h.token != e.token {
			return []lockState{h}
		}
	}
	return nil
}

// exclusion is the model of locks.
func exclusion() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{lockState{}} },
		Step: func(state, input, _ any) []any {
			var next []any
			for _, h := range state.(lockState).step(input.(event)) {
				next = append(next, h)
			}
			return next
		},
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byName := map[string][]porcupine.Operation{}
			for _, op := range history {
				name := op.Input.(event).name
				byName[name] = append(byName[name], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range byName {
				parts = append(parts, part)
			}
			return parts
		},
		DescribeOperation: func(input, _ any) string { return fmt.Sprint(input) },
	}
	return model.ToModel()
}

// history is what clients have seen.
type history struct {
	mu  sync.Mutex
	ops []porcupine.Operation
}

// never is the return of what may happen any time.
const never = math.MaxInt64

func clock() int64 { return time.Now().UnixMicro() }

// saw adds an event that happened between two times, in Unix microseconds.
func (h *history) saw(client int, e event, from, to int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: e, Call: from, Return: to})
}

// A fence is the time of the server at which it was drawn, in microseconds. The
// server's clock is ours here, and no fence was drawn from the counter in advance,
// so it tells when a hold began and when it lapses; with this much to spare.
const slack = 5_000

// turn has a client take a lock once, hold it for a while, maybe longer than it
// lasts, and give it back.
//
// With replicas they have a lock that is acquired. One that they may not have may be
// lost at any time, when a master is.
func (h *history) turn(client int, l *Locker, name, token string, ttl time.Duration, replicas int64) {
	e := event{name: name, token: token}
	as := func(what happening) event {
		e := e
		e.what = what
		return e
	}
	req := Request{Name: name, Token: token, TTL: ttl, Wait: rand.N(2 * ttl), Replicas: replicas}
	from := clock()
	got, err := l.Acquire(context.Background(), req)
	to := clock()
	switch {
	case errors.Is(err, script.ErrUncertain):
		h.saw(client, as(mayAcquire), from, never)
		h.saw(client, as(lapsed), from+ttl.Microseconds(), never)
	case err != nil || got.Outcome != Acquired && got.Outcome != Unconfirmed:
		time.Sleep(rand.N(ttl / 10)) // not executed, or in vain
		return
	default:
		e.fence = got.Fence
		h.saw(client, as(acquired), from, to)
		hold := rand.N(ttl / 10)
		if rand.IntN(8) == 0 {
			hold += ttl
		}
		time.Sleep(hold)
	}
	// With replicas it was written once more, until now.
	earliest, latest := e.fence+ttl.Microseconds(), e.fence+ttl.Microseconds()
	if replicas > 0 {
		latest = max(latest, to+ttl.Microseconds())
	}
	if got.Outcome == Unconfirmed {
		earliest = from
	}
	from = clock()
	gone, err := l.Release(context.Background(), name, token, nil)
	to = clock()
	switch {
	case err == nil && gone.Outcome == Released:
		h.saw(client, as(released), from, to)
	case err == nil:
		h.saw(client, as(wasNotHeld), from, to)
		fallthrough
	default:
		if errors.Is(err, script.ErrUncertain) {
			h.saw(client, as(mayRelease), from, never)
		}
		if e.fence > 0 {
			h.saw(client, as(lapsed), earliest-slack, latest+slack)
		}
	}
}

// Clients of two sidecars, while Redis is paused, killed and restarted, and forgets
// its scripts.
func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AppendOnly: true, Args: []string{"--appendfsync", "always"}})
	rdb := redis.NewClient(&redis.Options{
		Addr: server.Addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: 100 * time.Millisecond, ReadTimeout: 300 * time.Millisecond, WriteTimeout: 300 * time.Millisecond,
	})
	t.Cleanup(func() { rdb.Close() })
	sidecars := []*Locker{newLocker(t, rdb), newLocker(t, rdb)}
	h := record(sidecars, []string{"a", "b", "c"}, 0)
	const ttl = recordedTTL
	for round := range 6 {
		time.Sleep(ttl + rand.N(2*ttl))
		switch round % 3 {
		case 0:
			server.Pause()
			time.Sleep(rand.N(2 * ttl))
			server.Resume()
		case 1:
			server.Kill()
			server.Restart()
		case 2:
			_ = rdb.ScriptFlush(context.Background()).Err()
			_ = rdb.Do(context.Background(), "CLIENT", "KILL", "TYPE", "normal").Err()
		}
	}
	time.Sleep(ttl)
	h.check(t)
}

// recording is a history that is being made.
type recording struct {
	history
	end  chan struct{}
	wait sync.WaitGroup
}

const recordedTTL = 200 * time.Millisecond

// record has clients of several sidecars take locks again and again.
func record(sidecars []*Locker, names []string, replicas int64) *recording {
	h := &recording{end: make(chan struct{})}
	for client := range 3 * len(names) {
		h.wait.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-h.end:
					return
				default:
					h.turn(client, sidecars[client%len(sidecars)], names[client%len(names)], fmt.Sprintf("%d-%d", client, i), recordedTTL, replicas)
				}
			}
		})
	}
	return h
}

// check ends it, and looks whether it is possible.
func (h *recording) check(t *testing.T) {
	t.Helper()
	close(h.end)
	h.wait.Wait()
	seen := map[happening]int{}
	for _, op := range h.ops {
		seen[op.Input.(event).what]++
	}
	t.Logf("%d events: %v", len(h.ops), seen)
	if seen[acquired] < 20 {
		t.Fatal("too little happened")
	}
	if result := porcupine.CheckOperationsTimeout(exclusion(), h.ops, time.Minute); result != porcupine.Ok {
		slices.SortFunc(h.ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		for _, op := range h.ops {
			t.Logf("%+v", op)
		}
		t.Fatalf("the history is %s", result)
	}
}

// The check itself finds what it has to find.
func TestTheCheckFindsTwoHolders(t *testing.T) {
	hold := func(h *history, token string, fence, from, to int64) {
		h.saw(0, event{"x", acquired, token, fence}, from, from+1)
		h.saw(0, event{"x", released, token, fence}, to, to+1)
	}
	for what, test := range map[string]struct {
		second, fence int64
		want          porcupine.CheckResult
	}{
		"one after the other": {20, 2, porcupine.Ok},
		"at the same time":    {5, 2, porcupine.Illegal},
		"an old fence":        {20, 1, porcupine.Illegal},
	} {
		var h history
		hold(&h, "a", 1, 0, 10)
		hold(&h, "b", test.fence, test.second, test.second+30)
		if got := porcupine.CheckOperationsTimeout(exclusion(), h.ops, time.Minute); got != test.want {
			t.Errorf("%s: %s, want %s", what, got, test.want)
		}
	}
}
