package proxy

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"seckill-proxy/internal/rawio"
)

// A test can't have a host vanish; what the kernel was asked to do it can see.
func TestProbe(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// As sessions have it: wrapped, and below TLS. Each with a time of its own, so that
	// nothing done shows.
	wrapped := rawio.Wrap(conn)
	clients := []net.Conn{conn, wrapped, tls.Server(wrapped, &tls.Config{MinVersion: tls.VersionTLS12})}
	for within, every := range map[time.Duration]int{10 * time.Millisecond: 1, 8 * time.Second: 2, time.Minute: 15} {
		probe(clients[every%len(clients)], within)
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		options := map[string]struct{ level, option, want int }{
			"SO_KEEPALIVE":     {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			"TCP_KEEPIDLE":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, every},
			"TCP_KEEPINTVL":    {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, every},
			"TCP_KEEPCNT":      {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, probeCount},
			"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, every * (probeCount + 1) * 1000},
		}
		if err := raw.Control(func(fd uintptr) {
			for name, o := range options {
				if got, err := unix.GetsockoptInt(int(fd), o.level, o.option); err != nil || got != o.want {
					t.Errorf("within %s: %s is %d (%v), want %d", within, name, got, err, o.want)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	pipe, other := net.Pipe()
	defer other.Close()
	probe(pipe, time.Second)
	pipe.Close()
}
