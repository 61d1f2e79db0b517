// Package pump reads connections with as few system calls as can be.
//
// Go's Read asks the socket first and waits when it has nothing, so a client
// that sends one command at a time costs two calls for each: one that brings the
// command, one that learns that there is no more. But a read that returned less
// than it had room for has just learned that. The pump doesn't ask again then: it
// stays inside one RawConn.Read, whose waiting remembers what arrives meanwhile.
//
// One thing such a read can't tell is that the stream ended right behind the
// bytes that it returned, so connections are watched for hang-ups.
package pump

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"seckill-proxy/internal/hangup"
	"seckill-proxy/internal/rawio"
)

// Reader is what becomes of the bytes of a connection.
type Reader interface {
	// Room returns where the next bytes are to be read to. It is called when
	// there probably are some, so an idle connection needs no buffer.
	Room() []byte
	// Got is called with the number of bytes read, at least one. Its error ends
	// the reading.
	Got(n int) error
	// Idle is called when nothing more is there to read. What Room returned will
	// not be used.
	Idle()
	// HungUp is called when the other side has closed the connection or its
	// sending half, as soon as that is known: from another goroutine, maybe
	// before the last bytes were read. It must not wait.
	HungUp()
}

// Run reads conn until it ends. It returns the error of Got, io.EOF at the end of
// the stream, or what ended it otherwise: os.ErrDeadlineExceeded after the read
// deadline of conn.
func Run(conn net.Conn, hangups *hangup.Watcher, reader Reader) error {
	socket, ok := conn.(syscall.Conn)
	if !ok || hangups == nil {
		defer hangups.Watch(conn, reader.HungUp)() // it may have a socket below its TLS
		return plain(conn, reader)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return plain(conn, reader)
	}
	var hungUp atomic.Bool
	defer hangups.Watch(conn, func() {
		hungUp.Store(true)
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // ends the wait
		reader.HungUp()
	})()
	var result error
	err = raw.Read(func(fd uintptr) bool {
		for {
			b := reader.Room()
			n, err := rawio.Read(fd, b)
			switch {
			case err == syscall.EAGAIN:
				reader.Idle()
				return false
			case err != nil:
				result = &net.OpError{Op: "read", Net: conn.LocalAddr().Network(), Err: os.NewSyscallError("read", err)}
				return true
			case n == 0:
				result = io.EOF
				return true
			}
			if result = reader.Got(n); result != nil {
				return true
			}
			if n < len(b) && !hungUp.Load() {
				reader.Idle()
				return false
			}
		}
	})
	if result != nil {
		return result
	}
	if hungUp.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		_ = conn.SetReadDeadline(time.Time{})
		return plain(conn, reader)
	}
	return err
}

// plain is Run where the socket can't be had, or its end is near.
func plain(conn net.Conn, reader Reader) error {
	for {
		n, err := conn.Read(reader.Room())
		if n > 0 {
			if err := reader.Got(n); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}
