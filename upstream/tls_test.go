package upstream

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"seckill-proxy/internal/nettest"
	"seckill-proxy/internal/redistest"
)

// silentOverTLS is silent with TLS: until go is closed, it reads nothing behind the
// greeting, which has a PING of the handshake and one of the Mux.
func silentOverTLS(t *testing.T, certificates *redistest.Certificates, until <-chan struct{}) Options {
	t.Helper()
	own, err := tls.LoadX509KeyPair(certificates.CertFile, certificates.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	opts := fakeRedis(t, func(conn net.Conn, rd *bufio.Reader) {
		secured := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12})
		defer secured.Close()
		for range 2 {
			if _, err := io.ReadFull(secured, make([]byte, len("*1\r\n$4\r\nPING\r\n"))); err != nil {
				return
			}
			if _, err := io.WriteString(secured, "+PONG\r\n"); err != nil {
				return
			}
		}
		<-until
		echo(secured, bufio.NewReader(secured))
	})
	opts.TLS = certificates.Client()
	return opts
}

// As without TLS, a server that reads nothing holds up nobody for longer than he wants
// to wait, and gets everything once it reads.
func TestMuxInFrontOfATLSServerThatReadsNothing(t *testing.T) {
	certificates := redistest.NewCertificates(t)
	reads := make(chan struct{})
	m := newTestMux(t, silentOverTLS(t, certificates, reads))
	r := newRecorder()
	n := fill(t, m, r)
	close(reads)
	submit(t, m, r, "last")
	r.wait(n + 1)
	if want := strings.Repeat("+"+strings.Repeat("x", 64<<10)+"\r\n", n) + "+last\r\n"; r.got != want || r.lost != 0 {
		t.Errorf("%d bytes came, want %d; %d replies are lost", len(r.got), len(want), r.lost)
	}

	never := make(chan struct{})
	defer close(never)
	m = newTestMux(t, silentOverTLS(t, certificates, never))
	r = newRecorder()
	n = fill(t, m, r)
	m.Close()
	if r.wait(n); r.lost != n || !r.sent {
		t.Errorf("%d of %d replies are lost, the first may have been sent: %t", r.lost, n, r.sent)
	}
}

// A connection that ended while it was idle is found out before anything is sent by
// it, so Redis's restart costs nobody a reply.
func TestControlPlaneAfterARestart(t *testing.T) {
	for name, certificates := range map[string]*redistest.Certificates{"plain": nil, "TLS": redistest.NewCertificates(t)} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, redistest.Options{TLS: certificates})
			target := New(Options{Network: "tcp", Address: server.Addr, TLS: certificates.Client(),
				DialTimeout: 10 * time.Second, ScriptTimeout: 10 * time.Second, BackoffMin: 1, BackoffMax: 1})
			client := target.Client(Identity{}, 0)
			defer client.Close()
			for range 3 {
				if err := client.Ping(t.Context()).Err(); err != nil {
					t.Errorf("after a restart: %v", err)
				}
				server.Restart()
			}
			if idle := client.PoolStats().TotalConns; idle != 1 {
				t.Errorf("%d connections, want 1", idle)
			}
		})
	}
}

// A server that accepts and says nothing is given up in time.
func TestHandshakeWithASilentServer(t *testing.T) {
	over := make(chan struct{})
	addr, _ := nettest.Serve(t, func(net.Conn, *bufio.Reader) { <-over })
	defer close(over)
	target := New(Options{Network: "tcp", Address: addr, TLS: redistest.NewCertificates(t).Client(), DialTimeout: 50 * time.Millisecond, BackoffMin: 1, BackoffMax: 1})
	if err := target.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "TLS: ") {
		t.Errorf("got %v", err)
	}
}
