package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"seckill-proxy/internal/rawio"
	"seckill-proxy/internal/resp"
	"seckill-proxy/internal/script"
)

// Report is what a server says of itself.
type Report struct {
	Address string
	Barred  bool // it wants clients to authenticate, and the sidecar itself doesn't

	Mode string // "standalone", "cluster" or "sentinel", "" where it doesn't say
	Role string // "master" or "replica", "" where it doesn't say

	scheme string // "redis", or "rediss" where it is reached by TLS
	listed string // its address, as one that stands in a URL
}

// String says that it answers, and whether it wants more.
func (r Report) String() string {
	if r.Barred {
		return r.Address + " answers, and wants clients to authenticate"
	}
	return r.Address + " answers"
}

// CheckSingle returns an error where the server doesn't serve by itself all that
// is asked of it: a node of a cluster, a sentinel, or a replica. What doesn't say
// what it is passes.
func (r Report) CheckSingle() error {
	switch {
	case r.Mode == "cluster":
		return fmt.Errorf("%s is a node of a cluster: want %s+cluster://%s", r.Address, r.scheme, r.listed)
	case r.Mode == "sentinel":
		return fmt.Errorf("%s is a sentinel: want %s+sentinel://%s/master, with what the sentinels call the master", r.Address, r.scheme, r.listed)
	case r.Role == "replica":
		return fmt.Errorf("%s is a replica, which refuses writes: want its master", r.Address)
	}
	return nil
}

// CheckNode returns an error where the server is no node of a cluster. What
// doesn't say what it is passes.
func (r Report) CheckNode() error {
	if r.Mode == "" || r.Mode == "cluster" {
		return nil
	}
	return fmt.Errorf("%s is no node of a cluster: its mode is %s", r.Address, r.Mode)
}

// Inquire asks a server what it is, with the rights of the sidecar itself. It says
// so by HELLO, which every user may send, but nobody who has yet to authenticate.
// Errors are those of Ping.
func (t *Target) Inquire(ctx context.Context) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*t.opts.DialTimeout) // to connect, and to be answered
	defer cancel()
	conn, err := t.Dial(ctx, t.Profile())
	if err != nil {
		return Report{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { rawio.Shut(conn) })() // ends a read that waits
	r := Report{Address: t.Address(), scheme: "redis", listed: "host:port"}
	if t.opts.TLS != nil {
		r.scheme = "rediss"
	}
	if t.opts.Network == "tcp" {
		r.listed = r.Address
	}
	if r.Barred, err = t.ping(ctx, conn); err != nil || r.Barred {
		return r, err
	}
	said, err := call(conn, "HELLO", "2")
	var refused answered
	if err != nil && !errors.As(err, &refused) {
		return r, downAt(r.Address, err)
	}
	fields := pairs(said) // none where HELLO was refused
	r.Mode, _ = fields["mode"].(string)
	r.Role, _ = fields["role"].(string)
	return r, nil
}

// Ping reports whether Redis answers, for readiness. Errors are Redis's own, or
// wrap ErrDown.
func (t *Target) Ping(ctx context.Context) error {
	conn, err := t.Dial(ctx, t.Profile())
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, t.opts.DialTimeout)
	defer cancel()
	_, err = t.ping(ctx, conn)
	return err
}

// ping has Redis answer on a connection. One that wants clients to bring their own
// password answers, and so does one where the sidecar's user may not send PING.
func (t *Target) ping(ctx context.Context, conn net.Conn) (barred bool, err error) {
	err = greet(ctx, conn, [][][]byte{{[]byte("PING")}})
	var refused refusal
	switch {
	case err == nil:
		return false, nil
	case !errors.As(err, &refused):
		return false, downAt(t.Address(), t.hint(err))
	case strings.HasPrefix(string(refused), "NOAUTH"):
		return true, nil
	case strings.HasPrefix(string(refused), "NOPERM"):
		return false, nil
	}
	return false, answered(refused)
}

// IsLasting reports a refusal that doesn't pass by itself, such as of a wrong
// password, unlike that of a server that loads.
func IsLasting(err error) bool { return IsRefusal(err) && !script.Refused(err) }

// call sends a command and returns its reply as readReply does.
func call(conn net.Conn, command ...string) (any, error) {
	words := make([][]byte, len(command))
	for i, word := range command {
		words[i] = []byte(word)
	}
	if _, err := conn.Write(resp.AppendCommand(nil, words)); err != nil {
		return nil, err
	}
	return readReply(bufio.NewReaderSize(conn, 16<<10), replyDepth)
}
