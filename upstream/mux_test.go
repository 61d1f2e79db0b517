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
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeRedis answers each connection with serve, until the test ends.
func fakeRedis(t *testing.T, serve func(conn net.Conn, rd *bufio.Reader)) Options {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				serve(conn, bufio.NewReader(conn))
			})
		}
	})
	hangups, err := hangup.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ln.Close()
		running.Wait()
		hangups.Close()
	})
	return Options{
		Network: "tcp", Address: ln.Addr().String(), DialTimeout: 10 * time.Second,
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
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	down := newTestMux(t, Options{Network: "tcp", Address: ln.Addr().String(), DialTimeout: 10 * time.Second, BackoffMin: time.Hour, BackoffMax: time.Hour})
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
