package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
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
		if brokeOff(err) {
			return nil, fmt.Errorf("TLS: %w; does the port speak TLS? want redis in place of rediss in the URL if not", err)
		}
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return secured, nil
}

// brokeOff reports errors of a handshake that are those of a server without TLS:
// it waits for the end of a line, or answers without TLS, or hangs up.
func brokeOff(err error) bool {
	var header tls.RecordHeaderError
	var timeout net.Error
	return errors.As(err, &header) || errors.As(err, &timeout) && timeout.Timeout() || hungUp(err)
}

// hungUp reports that the other side ended the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// hint adds to an error of a greeting without TLS that the port may want TLS: such
// a server hangs up.
func (t *Target) hint(err error) error {
	if t.opts.TLS != nil || t.opts.Network != "tcp" || !hungUp(err) {
		return err
	}
	return fmt.Errorf("%w; does the port want TLS? want rediss in place of redis in the URL if so", err)
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
