package proxy_test

import (
	"fmt"
	"strings"
	"testing"

	"seckill-proxy/internal/rawclient"
)

// What makes a connection another user's without the sidecar being able to read
// how must not make that user of the next client.
func TestAUserNeverLeaksByACommandThatIsNotRead(t *testing.T) {
	p := startPair(t)
	long := strings.Repeat("p", 2*64<<10) // longer than what the sidecar looks into
	p.direct(t).Want(ok, "ACL", "SETUSER", "alice", "on", ">pw", ">"+long, "~*", "&*", "+@all")
	for name, args := range map[string][]string{
		"refused after AUTH":           {"HELLO", "2", "AUTH", "alice", "pw", "NOSUCH"},
		"refused after AUTH, a name":   {"HELLO", "2", "AUTH", "alice", "pw", "SETNAME", "a b"},
		"refused after AUTH, a second": {"HELLO", "2", "AUTH", "alice", "pw", "AUTH", "nobody", "x"},
		"a long password":              {"AUTH", "alice", long},
		"a long password in HELLO":     {"HELLO", "2", "AUTH", "alice", long},
		"a long name in HELLO":         {"HELLO", "2", "AUTH", "alice", "pw", "SETNAME", long},
	} {
		for _, multi := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in MULTI %v", name, multi), func(t *testing.T) {
				c, direct := p.dial(t), p.direct(t)
				for _, conn := range []*rawclient.Conn{c, direct} {
					if multi {
						conn.Want(ok, "MULTI")
						conn.Want(queued, args...)
						conn.Do("EXEC")
					} else {
						conn.Do(args...)
					}
					conn.Want("$5\r\nalice\r\n", "ACL", "WHOAMI")
				}
				for range 3 {
					p.dial(t).Want("$7\r\ndefault\r\n", "ACL", "WHOAMI")
				}
				c.Want("$5\r\nalice\r\n", "ACL", "WHOAMI")
			})
		}
	}
}

// A session stays in the database that it selected, also as a user who could not
// have selected it, and keeps its name as one who may not set it.
func TestAUserKeepsWhatItMayNotAskFor(t *testing.T) {
	p := startPair(t)
	p.direct(t).Want(ok, "ACL", "SETUSER", "alice", "on", ">pw", "~*", "&*", "+@all", "-select", "-client")
	c := p.dial(t)
	c.Want(ok, "SELECT", "9")
	c.Want(ok, "SET", "k", "nine")
	c.Want(ok, "AUTH", "alice", "pw")
	for range 3 {
		p.dial(t).Want(ok, "CLIENT", "SETNAME", "other") // takes a connection that is free
		c.Want("$4\r\nnine\r\n", "GET", "k")
		c.Send("MULTI\r\nGET k\r\nEXEC\r\n")
		c.Expect(ok + queued + "*1\r\n$4\r\nnine\r\n")
	}
	named := p.dial(t)
	named.Do("HELLO", "2", "AUTH", "alice", "pw", "SETNAME", "name")
	p.dial(t).Do("HELLO", "2", "AUTH", "alice", "pw", "SETNAME", "other")
	named.Send("MULTI\r\nPING\r\nEXEC\r\n")
	named.Expect(ok + queued + "*1\r\n" + pong)
}

// Invalidations go to whom the client named by its id, for as long as that one
// hasn't been told that it is gone.
func TestTrackingThatIsRedirected(t *testing.T) {
	p := startPair(t)
	writer := p.direct(t)
	for range 20 {
		target, reader := p.dial(t), p.dial(t)
		for _, c := range []*rawclient.Conn{target, reader} {
			wantPrefix(t, c, "%", "HELLO", "3")
		}
		id := strings.Trim(target.Do("CLIENT", "ID"), ":\r\n")
		reader.Want(ok, "CLIENT", "TRACKING", "ON", "REDIRECT", id)
		reader.Do("GET", "k")
		writer.Want(ok, "SET", "k", "1")
		target.Expect(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n")

		reader.Do("GET", "k")
		target.Want(ok, "QUIT")
		writer.Want(ok, "SET", "k", "2")
		reader.Expect(">2\r\n$21\r\ntracking-redir-broken\r\n:" + id + "\r\n")
		reader.Want(pong, "PING")
		target.ExpectClosed()
	}
}
