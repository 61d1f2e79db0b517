// Package rawclient is a RESP client for tests that compare bytes: it sends what
// it is told to, however malformed, and returns replies exactly as they came. It
// shares no code with the sidecar, so that the two can't be wrong in the same
// way.
package rawclient

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Patience is how long a client waits for bytes that must come. It only bounds
// how long a broken server makes a test hang.
const Patience = 10 * time.Second

// Conn is a connection of a test. Methods without an error result end the test
// when something goes wrong, and belong to the test's own goroutine.
type Conn struct {
	*net.TCPConn
	Reader *bufio.Reader

	t testing.TB
}

// Dial connects to a TCP address. The connection is closed when the test ends.
func Dial(t testing.TB, addr string) *Conn {
	t.Helper()
	c, err := Connect(addr)
	if err != nil {
		t.Fatalf("connecting to %s: %v", addr, err)
	}
	t.Cleanup(func() { c.Close() })
	c.t = t
	return c
}

// Connect connects outside of the test's goroutine. The caller closes the
// connection, and uses only those methods that return an error.
func Connect(addr string) (*Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, Patience)
	if err != nil {
		return nil, err
	}
	return &Conn{TCPConn: conn.(*net.TCPConn), Reader: bufio.NewReaderSize(conn, 4<<10)}, nil
}

// Encode returns a command as an array of bulk strings.
func Encode(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b.String()
}

// Bulk returns a bulk string.
func Bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// Send writes bytes as they are.
func (c *Conn) Send(raw string) {
	c.t.Helper()
	if err := c.SetWriteDeadline(time.Now().Add(Patience)); err != nil {
		c.t.Fatal(err)
	}
	if _, err := io.WriteString(c.TCPConn, raw); err != nil {
		c.t.Fatalf("sending %s: %v", Abridged(raw), err)
	}
}

// SendCommand writes one command.
func (c *Conn) SendCommand(args ...string) {
	c.t.Helper()
	c.Send(Encode(args...))
}

// Do sends one command and returns the bytes of the next reply, which may be a
// push that nobody asked for.
func (c *Conn) Do(args ...string) string {
	c.t.Helper()
	c.SendCommand(args...)
	reply, err := c.TryReply()
	if err != nil {
		c.t.Fatalf("%s: no reply: %v (%s came)", Abridged(strings.Join(args, " ")), err, Abridged(reply))
	}
	return reply
}

// Want sends one command and fails the test unless the next reply is want, byte
// for byte.
func (c *Conn) Want(want string, args ...string) {
	c.t.Helper()
	if got := c.Do(args...); got != want {
		c.t.Fatalf("%s: got %s, want %s", Abridged(strings.Join(args, " ")), Abridged(got), Abridged(want))
	}
}

// Reply returns the bytes of the next reply.
func (c *Conn) Reply() string {
	c.t.Helper()
	reply, err := c.TryReply()
	if err != nil {
		c.t.Fatalf("no reply: %v (%s came)", err, Abridged(reply))
	}
	return reply
}

// TryReply returns the bytes of the next reply. With an error they are what came
// of it.
func (c *Conn) TryReply() (string, error) {
	if err := c.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		return "", err
	}
	reply, err := AppendReply(nil, c.Reader)
	return string(reply), err
}

// Expect reads as many bytes as want has and fails the test unless they are the
// same.
func (c *Conn) Expect(want string) {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		c.t.Fatal(err)
	}
	got := make([]byte, len(want))
	n, err := io.ReadFull(c.Reader, got)
	if string(got[:n]) != want {
		c.t.Fatalf("got %s (%v), want %s", Abridged(string(got[:n])), err, Abridged(want))
	}
}

// Rest returns everything until the server closes the connection, which must
// happen.
func (c *Conn) Rest() string {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		c.t.Fatal(err)
	}
	rest, err := io.ReadAll(c.Reader)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
		c.t.Fatalf("waiting for the connection to be closed: %v (%s came)", err, Abridged(string(rest)))
	}
	return string(rest)
}

// ExpectClosed fails the test unless the server closes the connection and sends
// nothing before.
func (c *Conn) ExpectClosed() {
	c.t.Helper()
	if rest := c.Rest(); rest != "" {
		c.t.Fatalf("%s came before the connection was closed, want nothing", Abridged(rest))
	}
}

// HalfClose tells the server that nothing more will be sent.
func (c *Conn) HalfClose() {
	c.t.Helper()
	// The other side may have closed it already.
	if err := c.CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
		c.t.Fatal(err)
	}
}

// Reset closes the connection with a RST, as the kernel does for a process that
// died with unread bytes.
func (c *Conn) Reset() {
	c.t.Helper()
	if err := c.SetLinger(0); err != nil {
		c.t.Fatal(err)
	}
	c.Close()
}

// AppendReply reads one RESP2 or RESP3 reply and appends its bytes to dst.
func AppendReply(dst []byte, rd *bufio.Reader) ([]byte, error) {
	head, err := rd.ReadBytes('\n')
	dst = append(dst, head...)
	if err != nil {
		return dst, err
	}
	if len(head) < 3 || head[len(head)-2] != '\r' {
		return dst, fmt.Errorf("no RESP: %q", head)
	}
	switch head[0] {
	case '+', '-', ':', '_', ',', '#', '(':
		return dst, nil
	}
	n, err := strconv.Atoi(string(head[1 : len(head)-2]))
	if err != nil {
		return dst, fmt.Errorf("no RESP: %q", head)
	}
	elements := n
	switch head[0] {
	case '$', '=', '!':
		if n < 0 {
			return dst, nil
		}
		from := len(dst)
		dst = append(dst, make([]byte, n+2)...)
		got, err := io.ReadFull(rd, dst[from:])
		return dst[:from+got], err
	case '*', '~', '>':
	case '%':
		elements = 2 * n
	case '|': // attributes, and the reply that they stand before
		elements = 2*n + 1
	default:
		return dst, fmt.Errorf("no RESP: %q", head)
	}
	for range elements {
		if dst, err = AppendReply(dst, rd); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// Abridged quotes bytes for a message, without most of them when they are many.
func Abridged(s string) string {
	const most = 600
	if len(s) <= most {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%q… (%d bytes) …%q", s[:most/2], len(s), s[len(s)-most/2:])
}
