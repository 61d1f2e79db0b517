//go:build linux

package hangup

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"seckill-proxy/internal/nettest"
)

func TestWatch(t *testing.T) {
	defer goleak.VerifyNone(t)
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for name, leave := range map[string]func(there *net.TCPConn) error{
		"close":      func(there *net.TCPConn) error { return there.Close() },
		"half close": func(there *net.TCPConn) error { return there.CloseWrite() },
		"unread bytes": func(there *net.TCPConn) error {
			if _, err := there.Write(make([]byte, 1000)); err != nil {
				return err
			}
			return there.Close()
		},
		"reset": func(there *net.TCPConn) error {
			if err := there.SetLinger(0); err != nil {
				return err
			}
			return there.Close()
		},
	} {
		for _, before := range []bool{true, false} {
			here, there := nettest.Pair(t)
			gone := make(chan struct{})
			if before {
				if err := leave(there); err != nil {
					t.Fatal(err)
				}
			}
			stop := w.Watch(here, func() { close(gone) })
			if !before {
				if err := leave(there); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-gone:
			case <-time.After(10 * time.Second):
				t.Errorf("%s (before the watch: %t) goes unnoticed", name, before)
			}
			stop()
		}
	}
}

// Below TLS it is the socket's end that counts, whether or not TLS has told it.
func TestWatchBelowTLS(t *testing.T) {
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	here, there := nettest.Pair(t)
	gone := make(chan struct{})
	defer w.Watch(tls.Server(here, &tls.Config{MinVersion: tls.VersionTLS12}), func() { close(gone) })()
	there.Close()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("the end goes unnoticed")
	}
}

func TestStoppedWatchIsSilent(t *testing.T) {
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	here, there := nettest.Pair(t)
	w.Watch(here, func() { t.Error("a stopped watch calls") })()
	there.Close()
	// An event of a later watch comes after one of the stopped watch would have.
	other, end := nettest.Pair(t)
	end.Close()
	gone := make(chan struct{})
	defer w.Watch(other, func() { close(gone) })()
	<-gone
	if len(w.watched) != 0 {
		t.Errorf("%d watches are kept", len(w.watched))
	}
	w.Watch(new(int), func() {})()
}
