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

// A HELLO that Redis refused may have changed the user before: until that is clear
// again, custom commands run as nobody.
func TestCustomCommandsAfterARefusedHello(t *testing.T) {
	p := startPair(t)
	p.direct(t).Want(ok, "ACL", "SETUSER", "alice", "on", ">pw", "~app:*", "&*", "+@all")
	for refused, who := range map[string]string{
		"HELLO 2 AUTH alice pw NOSUCH\r\n":                  "alice",
		"HELLO 2 AUTH alice pw SETNAME \"a b\"\r\n":         "alice",
		"HELLO 2 AUTH alice pw AUTH nobody x\r\n":           "alice",
		"HELLO 2 AUTH alice wrong\r\n":                      "default",
		"HELLO 2 SETNAME n AUTH alice wrong\r\n":            "default",
		"HELLO 2 NOSUCH AUTH alice pw\r\n":                  "default",
		"HELLO 2 SETNAME \"a b\" AUTH alice pw\r\n":         "default",
		"HELLO 2 SETNAME \"a b\"\r\n":                       "default",
		"HELLO 7 AUTH alice pw\r\n":                         "default",
		"MULTI\r\nHELLO 2 AUTH alice pw NOSUCH\r\nEXEC\r\n": "alice",
	} {
		c := p.dial(t)
		c.Send(refused)
		for range strings.Count(refused, "\r\n") {
			c.Reply()
		}
		c.Want(rawclient.Bulk(who), "ACL", "WHOAMI")
		got := c.Do("SECKILL.CREATE", "s", "1")
		if who == "alice" && !strings.HasPrefix(got, "-ERR a HELLO was refused") || who == "default" && got[0] == '*' && !strings.Contains(got, ":200") && !strings.Contains(got, ":409") {
			t.Errorf("%q: a custom command got %q", refused, got)
		}
		c.Want(ok, "AUTH", "alice", "pw")
		wantPrefix(t, c, "-NOPERM", "SECKILL.CREATE", "s", "1")
		c.Want("+RESET\r\n", "RESET")
		wantPrefix(t, c, "*", "SECKILL.CREATE", "s", "1")
	}
}

// A name can be taken off by HELLO too.
func TestHelloTakesANameOff(t *testing.T) {
	p := startPair(t)
	for _, c := range []*rawclient.Conn{p.direct(t), p.dial(t)} {
		c.Want(ok, "CLIENT", "SETNAME", "n")
		c.Do("HELLO", "2", "SETNAME", "")
		c.Want(null, "CLIENT", "GETNAME")
		c.Send("MULTI\r\nCLIENT GETNAME\r\nEXEC\r\n")
		c.Expect(ok + queued + "*1\r\n" + null)
	}
}
