package rawio

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"seckill-proxy/internal/nettest"
)

// wrapped is nettest.Pair, both ends wrapped.
func wrapped(t *testing.T) (here, there *Conn) {
	t.Helper()
	a, b := nettest.Pair(t)
	return Wrap(a).(*Conn), Wrap(b).(*Conn)
}

// Far more than a socket holds passes in both directions at a time.
func TestBytesPass(t *testing.T) {
	here, there := wrapped(t)
	var all sync.WaitGroup
	for i, ends := range [][2]*Conn{{here, there}, {there, here}} {
		sent := make([]byte, 8<<20)
		random := rand.New(rand.NewPCG(uint64(i), 0))
		for j := range sent {
			sent[j] = byte(random.Uint32())
		}
		all.Go(func() {
			if n, err := ends[0].Write(sent); n != len(sent) || err != nil {
				t.Errorf("wrote %d bytes of %d, %v", n, len(sent), err)
			}
			if err := ends[0].CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			got, err := io.ReadAll(ends[1])
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("read %d bytes of %d, %v", len(got), len(sent), err)
			}
		})
	}
	all.Wait()
}

// What one Write writes stays together, and a Write that is answered before it
// has returned doesn't disturb the next.
func TestWritesOfMany(t *testing.T) {
	here, there := wrapped(t)
	const writers, each = 8, 500
	var all sync.WaitGroup
	for i := range writers {
		word := bytes.Repeat([]byte{byte('a' + i)}, 1000)
		all.Go(func() {
			for range each {
				if n, err := here.Write(word); n != len(word) || err != nil {
					t.Errorf("wrote %d bytes, %v", n, err)
					return
				}
			}
		})
	}
	word := make([]byte, 1000)
	for i := range writers * each {
		if _, err := io.ReadFull(there, word); err != nil {
			t.Fatal(err)
		}
		if bytes.Count(word, word[:1]) != len(word) {
			t.Fatalf("word %d is mixed: %q", i, word)
		}
	}
	all.Wait()
}

func TestTryWriteDoesNotWait(t *testing.T) {
	here, there := wrapped(t)
	chunk := make([]byte, 1<<20)
	sent := 0
	for {
		n, err := here.TryWrite(chunk)
		if err != nil {
			t.Fatal(err)
		}
		sent += n
		if n < len(chunk) {
			break
		}
	}
	if n, err := here.TryWrite(chunk); n != 0 || err != nil {
		t.Errorf("a full socket took %d bytes, %v", n, err)
	}
	if n, err := io.ReadFull(there, make([]byte, sent)); n != sent || err != nil {
		t.Errorf("read %d bytes of %d, %v", n, sent, err)
	}
}

func TestEnds(t *testing.T) {
	here, there := wrapped(t)
	if err := here.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := here.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading after the deadline: %v", err)
	}
	if _, err := here.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("writing after the deadline: %v", err)
	}
	if err := here.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}

	if err := there.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if _, err := here.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("reading behind the end: %v", err)
	}
	if _, err := there.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("writing after Shutdown: %v", err)
	}

	here.Close()
	if _, err := here.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reading after Close: %v", err)
	}
	if _, err := here.TryWrite([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("writing after Close: %v", err)
	}
	if err := here.Shutdown(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Shutdown after Close: %v", err)
	}

	broken, other := nettest.Pair(t)
	if err := other.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	other.Close()
	if _, err := Wrap(broken).Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reading after a reset: %v", err)
	}
}

// A Read that waits ends with the connection, whichever way that ends.
func TestAWaitingReadEnds(t *testing.T) {
	for name, end := range map[string]func(here *Conn) error{"Close": (*Conn).Close, "Shutdown": (*Conn).Shutdown} {
		here, _ := wrapped(t)
		ended := make(chan error)
		go func() {
			_, err := here.Read(make([]byte, 1))
			ended <- err
		}()
		if err := end(here); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := <-ended; err != io.EOF && !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s ends the read with %v", name, err)
		}
	}
}

// Shut ends a Write that waits for a peer who reads nothing, also one of TLS, which
// Close would want to tell of the end.
func TestShutDoesNotWait(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	raw, _ := wrapped(t)
	below, _ := wrapped(t)
	for name, conn := range map[string]net.Conn{"socket": raw, "TLS": tls.Client(below, &tls.Config{ServerName: "x", MinVersion: tls.VersionTLS12}), "pipe": a} {
		ended := make(chan error)
		go func() {
			var err error
			for err == nil { // with TLS it is the first that waits, for the handshake
				_, err = conn.Write(make([]byte, 1<<20))
			}
			ended <- err
		}()
		Shut(conn)
		if err := <-ended; err == nil {
			t.Errorf("%s: Write goes on", name)
		}
		conn.Close()
	}
}

func TestWhatHasNoSocketIsLeftAsItIs(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	if Wrap(here) != here {
		t.Error("it is wrapped")
	}
	here.Close()
}
