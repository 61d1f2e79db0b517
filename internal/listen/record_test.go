package listen

import (
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds how long a test hangs when something doesn't come.
const patience = 30 * time.Second

// call is one callback of a Listener.
type call struct {
	kind    string // "message", "heard" or "lost"
	channel string
	payload string
	until   time.Time
}

// record keeps the callbacks in their order.
type record struct {
	mu    sync.Mutex
	calls []call
	more  chan struct{} // closed and replaced with each callback
}

func newRecord() *record { return &record{more: make(chan struct{})} }

func (r *record) add(c call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
	close(r.more)
	r.more = make(chan struct{})
}

// options are those of most tests: quick, with a record of what happens.
func (r *record) options(channels ...string) Options {
	return Options{
		Channels:     channels,
		PingEvery:    5 * time.Millisecond,
		SilenceMax:   400 * time.Millisecond,
		BackoffMin:   time.Millisecond,
		BackoffMax:   20 * time.Millisecond,
		RefusedEvery: 20 * time.Millisecond,
		OnMessage:    func(channel, payload string) { r.add(call{kind: "message", channel: channel, payload: payload}) },
		OnHeard:      func(until time.Time) { r.add(call{kind: "heard", until: until}) },
		OnLost:       func() { r.add(call{kind: "lost"}) },
	}
}

// wait returns the first callback that is so, and its index.
func (r *record) wait(t *testing.T, what string, so func(call) bool) (call, int) {
	t.Helper()
	return r.waitFrom(t, 0, what, so)
}

// waitFrom is wait for a callback with the index from or a later one.
func (r *record) waitFrom(t *testing.T, from int, what string, so func(call) bool) (call, int) {
	t.Helper()
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		more := r.more
		if from < len(r.calls) {
			if i := slices.IndexFunc(r.calls[from:], so); i >= 0 {
				defer r.mu.Unlock()
				return r.calls[from+i], from + i
			}
		}
		r.mu.Unlock()
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("there came no %s", what)
		}
	}
}

// waitHeard returns the index of the first proof for a time after now.
func (r *record) waitHeard(t *testing.T) int {
	t.Helper()
	now := time.Now()
	_, i := r.wait(t, "proof for the present", func(c call) bool { return c.kind == "heard" && c.until.After(now) })
	return i
}

// all returns the callbacks up to now.
func (r *record) all() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

func (r *record) len() int { return len(r.all()) }

// check holds what is true of any run: nothing is heard before the first OnLost,
// and proofs grow.
func (r *record) check(t *testing.T) {
	t.Helper()
	var heard time.Time
	lost := false
	for i, c := range r.all() {
		switch {
		case c.kind == "lost":
			lost = true
		case c.kind == "heard" && !lost:
			t.Errorf("callback %d: heard before the first OnLost", i)
		case c.kind == "heard" && c.until.Before(heard):
			t.Errorf("callback %d: heard until %s after %s", i, c.until, heard)
		case c.kind == "heard":
			heard = c.until
		}
	}
}

func isLost(c call) bool { return c.kind == "lost" }

func isMessage(payload string) func(call) bool {
	return func(c call) bool { return c.kind == "message" && c.payload == payload }
}
