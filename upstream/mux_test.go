package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"seckill-proxy/internal/hangup"
	"seckill-proxy/internal/nettest"
)

// A pool of go-redis that was closed while it tried to connect goes on sleeping for
// a second.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// fakeRedis is a server that serves each connection with serve, until the test
// ends.
func fakeRedis(t *testing.T, serve func(conn net.Conn, rd *bufio.Reader)) Options {
	t.Helper()
	hangups, err := hangup.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hangups.Close)
	addr, _ := nettest.Serve(t, serve)
	return Options{
		Network: "tcp", Address: addr, DialTimeout: 10 * time.Second,
		BackoffMin: time.Millisecond, BackoffMax: time.Millisecond, Hangups: hangups,
	}
}

// echo answers "x\r\n" with "+x\r\n", and PING as a server does that wants no
// authentication; "die" ends it.
func echo(conn net.Conn, rd *bufio.Reader) {
	for {
		line, err := rd.ReadString('\n')
		if err != nil || line == "die\r\n" {
			return
		}
		switch {
		case line == "*1\r\n": // of PING
			_, _ = rd.ReadString('\n')
			_, _ = rd.ReadString('\n')
			line = "PONG\r\n"
		case line == "half\r\n":
			_, _ = io.WriteString(conn, "$100\r\nabc")
			return
		case line == "twice\r\n":
			_, _ = io.WriteString(conn, "+twice\r\n+twice\r\n")
			continue
		}
		if _, err := io.WriteString(conn, "+"+line); err != nil {
			return
		}
	}
}

// recorder is a Sink that keeps what it is told.
type recorder struct {
	mu      sync.Mutex
	changed sync.Cond
	got     string
	ended   int
	lost    int
	torn    bool
	sent    bool
}

func newRecorder() *recorder {
	r := &recorder{}
	r.changed.L = &r.mu
	return r
}

func (r *recorder) Replies(b []byte, ended int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got += string(b)
	r.ended += ended
	r.changed.Broadcast()
}

func (r *recorder) Lost(n int, torn, sent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost, r.torn, r.sent = r.lost+n, r.torn || torn, r.sent || sent
	r.changed.Broadcast()
}

// wait waits until n replies have come or are lost.
func (r *recorder) wait(n int) *recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.ended+r.lost < n {
		r.changed.Wait()
	}
	return r
}

func newTestMux(t *testing.T, opts Options) *Mux {
	t.Helper()
	target := New(opts)
	m := NewMux(target, target.Profile())
	t.Cleanup(m.Close)
	return m
}

func submit(t *testing.T, m *Mux, sink Sink, commands ...string) {
	t.Helper()
	if err := m.Submit(context.Background(), sink, []byte(strings.Join(commands, "\r\n")+"\r\n"), len(commands)); err != nil {
		t.Fatal(err)
	}
}

func TestMuxGivesEachSinkItsOwnReplies(t *testing.T) {
	m := newTestMux(t, fakeRedis(t, echo))
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			r, want := newRecorder(), ""
			for n := range 50 {
				name := fmt.Sprint(i, "-", n)
				submit(t, m, r, name, name+"b")
				want += "+" + name + "\r\n+" + name + "b\r\n"
			}
			if r.wait(100); r.got != want || r.lost != 0 {
				t.Errorf("sink %d got %q, %d lost", i, r.got, r.lost)
			}
		})
	}
	all.Wait()
}

func TestMuxTellsWhatIsLostAndConnectsAgain(t *testing.T) {
	m := newTestMux(t, fakeRedis(t, echo))
	a, b := newRecorder(), newRecorder()
	submit(t, m, a, "1", "die", "2")
	if a.wait(3); a.got != "+1\r\n" || a.lost != 2 || a.torn || !a.sent {
		t.Errorf("got %+v", a)
	}
	submit(t, m, b, "3", "half")
	if b.wait(2); b.got != "+3\r\n$100\r\nabc" || b.lost != 1 || !b.torn || !b.sent {
		t.Errorf("got %+v", b)
	}
	c := newRecorder()
	submit(t, m, c, "4")
	if c.wait(1); c.got != "+4\r\n" {
		t.Errorf("got %+v", c)
	}
}

// A reply that nobody asked for puts all that follow in doubt. It is no answer to
// a command that was sent after it came.
func TestMuxTrustsNoConnectionThatSaysTooMuch(t *testing.T) {
	m := newTestMux(t, fakeRedis(t, echo))
	for range 200 {
		r := newRecorder()
		submit(t, m, r, "twice")
		r.wait(1)
		next := newRecorder()
		submit(t, m, next, "mine")
		if next.wait(1); next.got != "+mine\r\n" && (next.lost != 1 || next.got != "") {
			t.Fatalf("got %+v", next)
		}
	}
}

func TestMuxErrors(t *testing.T) {
	down := newTestMux(t, Options{Network: "tcp", Address: nettest.Dead(t), DialTimeout: 10 * time.Second, BackoffMin: time.Hour, BackoffMax: time.Hour})
	for range 3 {
		if err := down.Submit(context.Background(), newRecorder(), []byte("x\r\n"), 1); !errors.Is(err, ErrDown) {
			t.Errorf("while Redis is down: %v", err)
		}
	}
	barred := newTestMux(t, fakeRedis(t, func(conn net.Conn, rd *bufio.Reader) {
		for {
			if _, err := rd.ReadString('\n'); err != nil {
				return
			}
			_, _ = rd.Discard(rd.Buffered())
			_, _ = io.WriteString(conn, "-NOAUTH Authentication required.\r\n")
		}
	}))
	if err := barred.Submit(context.Background(), newRecorder(), []byte("x\r\n"), 1); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("where authentication is required: %v", err)
	}
	closed := newTestMux(t, fakeRedis(t, echo))
	r := newRecorder()
	submit(t, closed, r, "1")
	r.wait(1)
	closed.Close()
	if err := closed.Submit(context.Background(), r, []byte("x\r\n"), 1); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// silent is a server that answers PING, reads nothing else until go is closed,
// and then answers as echo does.
func silent(until <-chan struct{}) func(conn net.Conn, rd *bufio.Reader) {
	return func(conn net.Conn, _ *bufio.Reader) {
		ping := make([]byte, len("*1\r\n$4\r\nPING\r\n"))
		if _, err := io.ReadFull(conn, ping); err != nil {
			return
		}
		if _, err := io.WriteString(conn, "+PONG\r\n"); err != nil {
			return
		}
		<-until
		echo(conn, bufio.NewReader(conn))
	}
}

// fill submits lines until the Mux takes no more, which ends the wait of the last
// one, and returns how many it took.
func fill(t *testing.T, m *Mux, sink Sink) (replies int) {
	t.Helper()
	line := []byte(strings.Repeat("x", 64<<10) + "\r\n")
	for {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(100*time.Millisecond, cancel) // long after all that can be taken was
		err := m.Submit(ctx, sink, line, 1)
		cancel()
		switch {
		case errors.Is(err, context.Canceled):
			return replies
		case err != nil:
			t.Fatal(err)
		}
		replies++
	}
}

// A server that reads nothing holds up nobody for longer than he wants to wait, and
// gets everything once it reads.
func TestMuxInFrontOfAServerThatReadsNothing(t *testing.T) {
	reads := make(chan struct{})
	m := newTestMux(t, fakeRedis(t, silent(reads)))
	r := newRecorder()
	n := fill(t, m, r)
	close(reads)
	submit(t, m, r, "last")
	r.wait(n + 1)
	if want := strings.Repeat("+"+strings.Repeat("x", 64<<10)+"\r\n", n) + "+last\r\n"; r.got != want || r.lost != 0 {
		t.Errorf("%d bytes came, want %d; %d replies are lost", len(r.got), len(want), r.lost)
	}
}

func TestMuxCloseDoesNotWaitForAServerThatReadsNothing(t *testing.T) {
	reads := make(chan struct{})
	m := newTestMux(t, fakeRedis(t, silent(reads)))
	defer close(reads)
	r := newRecorder()
	n := fill(t, m, r)
	m.Close()
	if r.wait(n); r.lost != n || !r.sent {
		t.Errorf("%d of %d replies are lost, the first may have been sent: %t", r.lost, n, r.sent)
	}
}

// A lane counts as stuck while the oldest reply is overdue, and no longer.
func TestMuxIsStuckUntilItIsAnswered(t *testing.T) {
	answers := make(chan struct{})
	m := newTestMux(t, fakeRedis(t, silent(answers)))
	if m.Stuck() {
		t.Error("it is stuck before it was used")
	}
	r := newRecorder()
	submit(t, m, r, "1")
	for !m.Stuck() {
		time.Sleep(time.Millisecond)
	}
	close(answers)
	r.wait(1)
	submit(t, m, r, "2")
	if r.wait(2); r.got != "+1\r\n+2\r\n" {
		t.Errorf("got %+v", r)
	}
	for m.Stuck() { // the last reply is handed over before it is counted
		time.Sleep(time.Millisecond)
	}
}

func TestMuxIsStuckWhileRedisPauses(t *testing.T) {
	m := newTestMux(t, fakeRedis(t, echo))
	m.target.Pause(time.Hour)
	if !m.Stuck() {
		t.Error("it isn't stuck in a pause")
	}
	m.target.Pause(0)
	if m.Stuck() {
		t.Error("it is stuck after a pause")
	}
}

// batch is a Batch that counts what landed.
type batch struct {
	mu     sync.Mutex
	landed int
}

func (b *batch) Landed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.landed++
}

func (b *batch) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.landed
}

func TestMuxSubmitsEachWithASinkOfItsOwn(t *testing.T) {
	m := newTestMux(t, fakeRedis(t, echo))
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			b := &batch{}
			var commands []Single
			var sinks []*recorder
			for n := range 50 {
				r := newRecorder()
				sinks = append(sinks, r)
				commands = append(commands, Single{Sink: r, Command: fmt.Appendf(nil, "%d-%d\r\n", i, n)})
			}
			if err := m.SubmitEach(context.Background(), b, commands); err != nil {
				t.Error(err)
				return
			}
			for n, r := range sinks {
				if r.wait(1); r.got != fmt.Sprintf("+%d-%d\r\n", i, n) || r.lost != 0 {
					t.Errorf("sink %d-%d got %q, %d lost", i, n, r.got, r.lost)
				}
			}
			for deadline := time.Now().Add(10 * time.Second); b.count() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Error("the batch wasn't told that its replies are there")
					return
				}
			}
		})
	}
	all.Wait()
	if !m.Idle() {
		t.Error("it isn't idle when all is answered")
	}
}

func TestMuxTellsABatchOfItsLoss(t *testing.T) {
	m := newTestMux(t, fakeRedis(t, echo))
	b := &batch{}
	first, second := newRecorder(), newRecorder()
	if err := m.SubmitEach(context.Background(), b, []Single{{first, []byte("die\r\n")}, {second, []byte("x\r\n")}}); err != nil {
		t.Fatal(err)
	}
	if first.wait(1); first.lost != 1 {
		t.Errorf("the first lost %d", first.lost)
	}
	if second.wait(1); second.lost != 1 {
		t.Errorf("the second lost %d", second.lost)
	}
	m.Close()
	if b.count() != 1 {
		t.Errorf("the batch was told %d times, want once for all that was lost together", b.count())
	}
	if err := m.SubmitEach(context.Background(), b, []Single{{first, []byte("x\r\n")}}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
