package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"

	"seckill-proxy/internal/rawio"
)

// secure shakes hands on a connection to Redis at an address, where TLS is
// configured. On an error the connection is closed.
func (t *Target) secure(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	config := t.opts.TLS
	if config == nil {
		return conn, nil
	}
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			conn.Close()
			return nil, err
		}
		config = config.Clone()
		config.ServerName = host
	}
	secured := tls.Client(conn, config)
	err := secured.HandshakeContext(ctx)
	if err == nil {
		// In TLS 1.3 a server says only behind the handshake that it wants
		// another certificate.
		err = greet(ctx, secured, [][][]byte{{[]byte("PING")}})
	}
	if err != nil && !IsRefusal(err) { // who isn't authenticated is refused
		conn.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return secured, nil
}

// pooled lets go-redis see whether a connection with TLS has ended while it was idle,
// as it does of others. Otherwise what is sent next would be lost, and nobody could
// say that it was not executed.
func pooled(conn net.Conn) net.Conn {
	if secured, ok := conn.(*tls.Conn); ok {
		return idleTLS{secured}
	}
	return conn
}

type idleTLS struct{ *tls.Conn }

// SyscallConn implements syscall.Conn, for go-redis's check.
func (c idleTLS) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.NetConn().(*rawio.Conn).SyscallConn()
	return idleSocket{raw}, err
}

type idleSocket struct{ syscall.RawConn }

var errNotIdle = errors.New("the connection has ended, or something came that nobody asked for")

// Read is where go-redis would look into the socket. It would take any byte for one
// of Redis's, but they are TLS's, and without a command under way they are its end.
func (s idleSocket) Read(func(fd uintptr) bool) error {
	result := errNotIdle
	err := s.Control(func(fd uintptr) {
		if _, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT); err == syscall.EAGAIN {
			result = nil
		}
	})
	if err != nil {
		return err
	}
	return result
}
