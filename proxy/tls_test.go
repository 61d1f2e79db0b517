package proxy_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"seckill-proxy/internal/nettest"
	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
	"seckill-proxy/proxy"
)

// tlsVariable has startPair put TLS on both sides of the sidecar.
const tlsVariable = "TEST_TLS"

// TestOverTLS does what other tests do, over TLS: to Redis and from clients.
func TestOverTLS(t *testing.T) {
	t.Setenv(tlsVariable, "1")
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"corpus", TestCorpusIsAnsweredAsByRedis},
		{"random commands", TestRandomCommandsAreAnsweredAsByRedis},
		{"half-closed clients", TestAHalfClosedClientGetsAllReplies},
		{"long pipeline", TestBackpressureOfALongPipeline},
		{"blocked clients that die", TestABlockedClientThatDiesTakesNothing},
		{"locks of clients that die", TestL2_AutoLocksEndWithTheirConnection},
		{"Redis down", TestUpstreamDownIsAnErrorAndBackUpIsBackToWork},
		{"Redis killed", TestUpstreamKilledWithCommandsOutstanding},
		{"connections killed", TestConnectionsOfTheSidecarAreKilled},
		{"idle clients", TestIdleClientsAreDisconnected},
		{"MONITOR", TestMonitor},
		{"RESET and QUIT", TestResetAndQuit},
		{"shutdown at its bound", TestShutdownCutsWhatWaitsAtItsBound},
		{"shutdown though Redis reads nothing", TestShutdownThoughRedisReadsNothing},
	} {
		t.Run(test.name, test.run)
	}
}

func newTLSPair(t testing.TB, redisArgs []string, changes ...func(*setup)) pair {
	t.Helper()
	certificates := redistest.NewCertificates(t)
	server := redistest.Start(t, redistest.Options{TLS: certificates, Args: redisArgs})
	p := startTLSSidecar(t, server.Addr, certificates, append(changes, func(s *setup) { s.upstream.TLS = certificates.Client() })...)
	p.addr = bridge(t, p.addr, certificates.Client())
	return pair{p, server, bridge(t, server.Addr, certificates.Client())}
}

// startTLSSidecar is startSidecar for clients with TLS.
func startTLSSidecar(t testing.TB, upstreamAddr string, certificates *redistest.Certificates, changes ...func(*setup)) *sidecar {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(certificates.CertFile, certificates.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	return startSidecar(t, upstreamAddr, append(changes, func(s *setup) { s.listener = proxy.ListenTLS(ln, config) })...)
}

// bridge lets clients without TLS in to a server with it. What one side does, down to
// how it leaves, the other sees.
func bridge(t testing.TB, addr string, config *tls.Config) string {
	t.Helper()
	bridged, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
		secured, err := tls.Dial("tcp", addr, config)
		if err != nil {
			return
		}
		defer secured.Close()
		socket := secured.NetConn().(*net.TCPConn)
		left := make(chan struct{})
		go func() {
			defer close(left)
			if _, err := io.Copy(secured, rd); err != nil {
				_ = socket.SetLinger(0) // a reset is passed on as one
				socket.Close()
				return
			}
			_ = secured.CloseWrite()
			_ = socket.CloseWrite()
		}()
		_, _ = io.Copy(conn, secured)
		conn.Close()
		<-left
	})
	return bridged
}

// dialTLS connects to a sidecar with TLS.
func dialTLS(t testing.TB, addr string, config *tls.Config) *tls.Conn {
	t.Helper()
	dialer := net.Dialer{Timeout: rawclient.Patience}
	conn, err := tls.DialWithDialer(&dialer, "tcp", addr, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(rawclient.Patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// The end is told within TLS, so that nobody else can pretend it and OpenSSL doesn't
// complain: by Redis to the sidecar, and by the sidecar to its clients.
func TestTheEndOfATLSConnectionIsTold(t *testing.T) {
	certificates := redistest.NewCertificates(t)
	p := startTLSSidecar(t, nettest.Dead(t), certificates)
	for say, want := range map[string]string{
		"QUIT\r\n":        ok,
		"*x\r\n":          "-ERR Protocol error: invalid multibulk length\r\n",
		"GET k\r\n*x\r\n": "-UNAVAILABLE ",
	} {
		c := dialTLS(t, p.addr, certificates.Client())
		if _, err := io.WriteString(c, say); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); !strings.HasPrefix(string(got), want) || err != nil {
			t.Errorf("%q: got %q, %v", say, got, err)
		}
	}
	idle := dialTLS(t, p.addr, certificates.Client())
	if err := idle.Handshake(); err != nil {
		t.Fatal(err)
	}
	silent := rawclient.Dial(t, p.addr) // the shutdown doesn't wait for his handshake
	p.stop()
	silent.Rest()
	if got, err := io.ReadAll(idle); len(got) > 0 || err != nil {
		t.Errorf("at the shutdown: got %q, %v", got, err)
	}
}

// Who doesn't shake hands, or not with TLS, is closed, in time and without a word,
// and nobody waits for him.
func TestHandshakesThatFail(t *testing.T) {
	certificates := redistest.NewCertificates(t)
	core, logged := observer.New(zap.DebugLevel)
	server := redistest.Start(t, redistest.Options{})
	p := startTLSSidecar(t, server.Addr, certificates, func(s *setup) {
		s.limits.Handshake, s.log = 300*time.Millisecond, zap.New(core)
	})
	hello := recordedHello(t, certificates.Client())
	random := newRandom(t)
	noise := make([]byte, 4096)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	openings := map[string]string{
		"nothing":              "",
		"half a hello":         hello[:len(hello)/2],
		"a hello":              hello,
		"plain text":           "PING\r\n",
		"HTTP":                 "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"noise":                string(noise),
		"noise behind a hello": hello + string(noise),
		"an absurd length":     "\x16\x03\x01\xff\xff",
		"alert":                "\x15\x03\x01\x00\x02\x02\x28",
	}
	var clients []*rawclient.Conn
	for name, say := range openings {
		c := rawclient.Dial(t, p.addr)
		c.Send(say)
		clients = append(clients, c)
		if err := quitOverTLS(p.addr, certificates.Client()); err != nil {
			t.Errorf("%s: another client got %v", name, err)
		}
	}
	for _, c := range clients {
		if rest := c.Rest(); strings.Contains(rest, "PONG") || strings.Contains(rest, "ERR") {
			t.Errorf("got %q", rest)
		}
	}
	if logged.FilterMessageSnippet("shake hands").Len() != 1 {
		t.Errorf("logged %v, want one line for all of them", logged.All())
	}
}

func TestClientsThatShakeHandsCount(t *testing.T) {
	certificates := redistest.NewCertificates(t)
	p := startTLSSidecar(t, nettest.Dead(t), certificates, func(s *setup) { s.limits.Clients = 3 })
	var silent []*rawclient.Conn
	for range 3 {
		silent = append(silent, rawclient.Dial(t, p.addr))
	}
	rawclient.Dial(t, p.addr).ExpectClosed()
	for _, c := range silent {
		c.Close()
	}
	eventually(t, "there is room again", func() bool { return quitOverTLS(p.addr, certificates.Client()) == nil })
}

// quitOverTLS connects and says QUIT.
func quitOverTLS(addr string, config *tls.Config) error {
	dialer := net.Dialer{Timeout: rawclient.Patience}
	c, err := tls.DialWithDialer(&dialer, "tcp", addr, config)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "QUIT\r\n"); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && string(got) != ok {
		err = fmt.Errorf("QUIT: got %q", got)
	}
	return err
}

// recordedHello is how a client opens a handshake.
func recordedHello(t testing.TB, config *tls.Config) string {
	t.Helper()
	hello := make([]byte, 4096)
	here, there := nettest.Pair(t)
	config.ServerName = "localhost"
	client := tls.Client(here, config)
	ended := make(chan error)
	go func() { ended <- client.Handshake() }()
	n, err := there.Read(hello)
	if err != nil {
		t.Fatal(err)
	}
	there.Close()
	<-ended
	return string(hello[:n])
}

// Bytes that are changed on their way end the connection, and are never a command.
func TestRecordsThatWereTamperedWith(t *testing.T) {
	certificates := redistest.NewCertificates(t)
	server := redistest.Start(t, redistest.Options{})
	p := startTLSSidecar(t, server.Addr, certificates)
	socket, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	way := &tamperer{Conn: socket}
	config := certificates.Client()
	config.ServerName = "localhost"
	c := tls.Client(way, config)
	if err := c.SetDeadline(time.Now().Add(rawclient.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "SET k 1\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.LimitReader(c, int64(len(ok)))); string(got) != ok || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	way.tampers = true
	if _, err := io.WriteString(c, "SET k 2\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %q, %v; want nothing and an end", got, err)
	}
	rawclient.Dial(t, server.Addr).Want("$1\r\n1\r\n", "GET", "k")
}

// tamperer changes what is written.
type tamperer struct {
	net.Conn
	tampers bool
}

func (c *tamperer) Write(b []byte) (int, error) {
	if c.tampers {
		b = slices.Clone(b)
		b[len(b)-1] ^= 1
	}
	return c.Conn.Write(b)
}

// A Redis whose certificate isn't right is as good as none, and the error says why.
func TestRedisWithAWrongCertificate(t *testing.T) {
	certificates, others := redistest.NewCertificates(t), redistest.NewCertificates(t)
	demanding := redistest.Start(t, redistest.Options{TLS: certificates, Args: []string{"--tls-auth-clients", "yes"}})
	plain := redistest.Start(t, redistest.Options{})
	named := certificates.Client()
	named.ServerName = "redis.example.com"
	alone := certificates.Client()
	alone.Certificates = nil
	for name, test := range map[string]struct {
		addr   string
		config *tls.Config
		want   string // in the error
	}{
		"of another authority":           {demanding.Addr, others.Client(), "certificate signed by unknown authority"},
		"of another name":                {demanding.Addr, named, "redis.example.com"},
		"without TLS":                    {plain.Addr, certificates.Client(), "TLS: "}, // it waits for the end of a line
		"that demands one of the client": {demanding.Addr, alone, "TLS: "},
	} {
		t.Run(name, func(t *testing.T) {
			p := startSidecar(t, test.addr, func(s *setup) {
				s.upstream.TLS, s.upstream.DialTimeout = test.config, 500*time.Millisecond
			})
			if reply := p.dial(t).Do("LOCK.ACQUIRE", "l", "1000"); !strings.HasPrefix(reply, "*6\r\n:503\r\n") {
				t.Errorf("LOCK.ACQUIRE: %q", reply)
			}
			for _, command := range []string{"GET", "SUBSCRIBE"} {
				if reply := p.dial(t).Do(command, "k"); !strings.HasPrefix(reply, "-UNAVAILABLE ") || !strings.Contains(reply, test.want) {
					t.Errorf("%s: got %q, want %q in it", command, reply, test.want)
				}
			}
		})
	}
	localhost := certificates.Client()
	localhost.ServerName = "localhost"
	p := startSidecar(t, demanding.Addr, func(s *setup) { s.upstream.TLS = localhost })
	p.dial(t).Want(pong, "PING")
}
