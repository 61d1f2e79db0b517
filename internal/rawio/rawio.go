// Package rawio reads and writes sockets by system calls that the Go scheduler
// isn't told of.
//
// One that it is told of may lose its processor to another thread when it takes
// more than 20 µs, as a write to a socket of the same machine does when the
// machine is busy. It also keeps the scheduler's monitor awake, which then looks
// around tens of thousands of times in a second. Where one processor carries
// everything, both together took a third of the sidecar's time. A call on a socket
// that doesn't block has no need of such care.
package rawio

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// Conn is a net.Conn that uses its socket that way.
type Conn struct {
	net.Conn
	raw syscall.RawConn

	in, out transfer
}

// transfer is a Read or a Write under way: kept in the Conn so that it needs no
// closure of its own.
type transfer struct {
	mu   sync.Mutex // held until it has ended: bytes may be answered before that
	b    []byte
	n    int   // bytes of b that are done
	err  error // of the socket
	once bool  // don't wait for the socket
	step func(fd uintptr) (done bool)
}

// Wrap returns conn as a *Conn where it has a socket, else conn itself.
func Wrap(conn net.Conn) net.Conn {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return conn
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return conn
	}
	c := &Conn{Conn: conn, raw: raw}
	c.in.step = c.in.read
	c.out.step = c.out.write
	return c
}

// NetConn returns the connection that was wrapped, as that of a tls.Conn does.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Shut ends a connection at once. Where it has a socket, of its own or below its
// TLS, that doesn't wait for a Read or a Write, and the connection remains to be
// closed.
func Shut(conn net.Conn) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn() // Close would tell the other side, and may wait for that
	}
	if socket, ok := conn.(*Conn); ok {
		_ = socket.Shutdown() // an error says that it has ended
		return
	}
	conn.Close()
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.b, c.in.n, c.in.err = b, 0, nil
	err := c.raw.Read(c.in.step)
	c.in.b = nil
	switch {
	case err != nil:
		return 0, err
	case c.in.err != nil:
		return 0, c.failed("read", c.in.err)
	case c.in.n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return c.in.n, nil
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) { return c.write(b, false) }

// TryWrite writes what the socket takes at once, maybe nothing.
func (c *Conn) TryWrite(b []byte) (int, error) { return c.write(b, true) }

func (c *Conn) write(b []byte, once bool) (int, error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.b, c.out.n, c.out.err, c.out.once = b, 0, nil, once
	err := c.raw.Write(c.out.step)
	c.out.b = nil
	if err == nil && c.out.err != nil {
		err = c.failed("write", c.out.err)
	}
	return c.out.n, err
}

func (c *Conn) failed(call string, err error) error {
	return &net.OpError{Op: call, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(call, err)}
}

func (t *transfer) read(fd uintptr) bool {
	t.n, t.err = Read(fd, t.b)
	return t.err != syscall.EAGAIN
}

func (t *transfer) write(fd uintptr) bool {
	for t.n < len(t.b) {
		n, err := Write(fd, t.b[t.n:])
		if err == syscall.EAGAIN {
			return t.once
		}
		if err != nil {
			t.err = err
			return true
		}
		t.n += n
	}
	return true
}

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// CloseWrite ends the stream to the other side.
func (c *Conn) CloseWrite() error { return c.shutdown(syscall.SHUT_WR) }

// Shutdown ends both streams. Unlike Close it doesn't wait for a Read or a Write.
func (c *Conn) Shutdown() error { return c.shutdown(syscall.SHUT_RDWR) }

func (c *Conn) shutdown(how int) error {
	var err error
	if gone := c.raw.Control(func(fd uintptr) { err = syscall.Shutdown(int(fd), how) }); gone != nil {
		return gone
	}
	return err
}

// Read reads from a socket that doesn't block. 0 bytes are the end of the stream;
// syscall.EAGAIN says that nothing is there yet.
func Read(fd uintptr, b []byte) (int, error) {
	for {
		if n, err := read(fd, b); err != syscall.EINTR {
			return n, err
		}
	}
}

// Write writes what a socket that doesn't block takes; syscall.EAGAIN says that
// this is nothing.
func Write(fd uintptr, b []byte) (int, error) {
	for {
		if n, err := write(fd, b); err != syscall.EINTR {
			return n, err
		}
	}
}
