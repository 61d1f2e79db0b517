package pump

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"seckill-proxy/internal/hangup"
	"seckill-proxy/internal/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func watcher(t *testing.T) *hangup.Watcher {
	t.Helper()
	w, err := hangup.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// sink keeps what it reads.
type sink struct {
	buf    []byte
	all    []byte
	err    error // of Got
	hungUp chan struct{}
}

func newSink(size int) *sink {
	return &sink{buf: make([]byte, size), hungUp: make(chan struct{}, 1)}
}

func (s *sink) Room() []byte { return s.buf }

func (s *sink) Got(n int) error {
	s.all = append(s.all, s.buf[:n]...)
	return s.err
}

func (s *sink) Idle() {}

func (s *sink) HungUp() { s.hungUp <- struct{}{} }

// The end of the stream may come with the last bytes, after them, or after a
// while; it must never be missed.
func TestRunReadsToTheEnd(t *testing.T) {
	w := watcher(t)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		here, there := nettest.Pair(t)
		sent := make([]byte, random.IntN(200))
		for i := range sent {
			sent[i] = byte(random.Uint32())
		}
		cut := random.IntN(len(sent) + 1)
		go func() {
			_, _ = there.Write(sent[:cut])
			if round%3 == 0 {
				time.Sleep(time.Millisecond) // lets the reader go to sleep in between, most times
			}
			_, _ = there.Write(sent[cut:])
			if round%2 == 0 {
				there.CloseWrite()
			} else {
				there.Close()
			}
		}()
		got := newSink(1 + random.IntN(100))
		err := Run(here, w, got)
		if err != io.EOF || !bytes.Equal(got.all, sent) {
			t.Fatalf("round %d: %d of %d bytes, %v", round, len(got.all), len(sent), err)
		}
		here.Close()
	}
}

func TestRunWithoutASocket(t *testing.T) {
	here, there := net.Pipe()
	go func() {
		_, _ = there.Write([]byte("hello"))
		there.Close()
	}()
	got := newSink(3)
	if err := Run(here, watcher(t), got); string(got.all) != "hello" || err != io.EOF {
		t.Errorf("got %q, %v", got.all, err)
	}
}

func TestRunEnds(t *testing.T) {
	w := watcher(t)
	here, there := nettest.Pair(t)
	stop := errors.New("stop")
	if _, err := there.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	stopping := newSink(10)
	stopping.err = stop
	if err := Run(here, w, stopping); err != stop {
		t.Errorf("got %v, want the error of Got", err)
	}
	if err := here.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := Run(here, w, newSink(10)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	if err := here.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- Run(here, w, newSink(10))
	}()
	here.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	here, there = nettest.Pair(t)
	if err := there.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	there.Close()
	if err := Run(here, w, newSink(10)); err == nil || err == io.EOF {
		t.Errorf("after a reset: %v", err)
	}
}

// A reader that is busy with what it got hears of the end all the same.
func TestHungUpIsToldWhileGotRuns(t *testing.T) {
	here, there := nettest.Pair(t)
	busy := &busyReader{sink: newSink(1)}
	if _, err := there.Write([]byte("xy")); err != nil {
		t.Fatal(err)
	}
	there.Close()
	if err := Run(here, watcher(t), busy); err != io.EOF || string(busy.all) != "xy" {
		t.Errorf("got %q, %v", busy.all, err)
	}
}

type busyReader struct{ *sink }

func (b *busyReader) Got(n int) error {
	if len(b.all) == 0 {
		<-b.hungUp
	}
	return b.sink.Got(n)
}
