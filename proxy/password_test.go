package proxy_test

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// Where the sidecar demands a password, a client meets what it would meet in front of
// a Redis that demands it.
func TestAPasswordOfTheSidecarIsAskedForAsByRedis(t *testing.T) {
	const password = "open, sesame"
	protected := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", password}})
	p := startPair(t, demanding(password))
	for _, conversation := range [][]string{
		{"GET k", "AUTH wrong", "GET k", "AUTH " + quoted(password), "GET k", "AUTH wrong", "GET k"},
		{"AUTH default " + quoted(password), "SET k v", "GET k", "DEL k"},
		{"AUTH nobody " + quoted(password), "GET k"},
		{"AUTH", "AUTH a b c d", "AUTH default " + quoted(password), "AUTH a b c", "GET k"},
		{"HELLO", "HELLO 3", "HELLO 2 SETNAME n", "GET k"},
		{"HELLO 3 AUTH default wrong", "HELLO 3 AUTH nobody " + quoted(password), "HELLO 7 AUTH default " + quoted(password), "GET k"},
		{"HELLO 2 AUTH default " + quoted(password) + " SETNAME n", "CLIENT GETNAME", "GET k"},
		{"hello 3 setname n auth default " + quoted(password), "CLIENT GETNAME", "GET k", "HELLO 2"},
		{"HELLO 2 AUTH default " + quoted(password) + " NOSUCH AUTH x y"},
		{"HELLO 2 AUTH default"},
		{"RESET", "GET k", "AUTH " + quoted(password), "RESET", "GET k", "HELLO 2", "AUTH " + quoted(password), "GET k"},
		{"QUIT"},
		{"AUTH " + quoted(password), "HELLO 3 AUTH default wrong", "HELLO 9", "HELLO 3 SETNAME", "HELLO 3", "GET k"},
		{"AUTH " + quoted(password), "CLIENT REPLY OFF", "AUTH wrong", "AUTH " + quoted(password), "CLIENT REPLY ON", "GET k"},
		{"SUBSCRIBE ch", "MULTI", "EXEC", "EVAL \"return 1\" 0", "CLIENT ID", "ACL WHOAMI"},
		{"POST / HTTP/1.1", "GET k"},
		{"*11\r\n" + strings.Repeat("$1\r\nx\r\n", 11)},
		{"*2\r\n$4\r\nAUTH\r\n$16385\r\n" + strings.Repeat("x", 16385)},
	} {
		raw := strings.Join(conversation, "\r\n") + "\r\n"
		answers := func(addr string) string {
			c := rawclient.Dial(t, addr)
			c.Send(raw)
			c.HalfClose()
			rest := strings.ReplaceAll(c.Rest(), "HELLO <proto> AUTH", "HELLO AUTH") // Redis 7.0 has no <proto>
			return idInHello.ReplaceAllString(rest, "${1}N")
		}
		if want, got := answers(protected.Addr), answers(p.addr); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", rawclient.Abridged(raw), rawclient.Abridged(got), rawclient.Abridged(want))
		}
	}
}

// idInHello is the connection's id in a reply to HELLO.
var idInHello = regexp.MustCompile(`(\$2\r\nid\r\n:)\d+`)

// What is longer than the sidecar keeps is refused as well, and none of it goes on.
func TestAStrangerSendsNothingLong(t *testing.T) {
	p := startPair(t, demanding("secret"))
	for _, name := range []string{"SET", "AUTH", "SECKILL.BUY"} {
		c := p.dial(t)
		_, _ = io.WriteString(c, rawclient.Encode(name, strings.Repeat("x", 200_000))) // it is closed meanwhile
		if got := c.Rest(); got != "-ERR Protocol error: unauthenticated bulk length\r\n" {
			t.Errorf("%s: got %s", name, rawclient.Abridged(got))
		}
	}
}

// demanding has the sidecar demand a password.
func demanding(password string) func(*setup) {
	return func(s *setup) { s.password = password }
}

func quoted(s string) string { return fmt.Sprintf("%q", s) }

// Redis sees the sidecar's own credentials, and never what clients give.
func TestRedisNeverSeesThePasswordOfTheSidecar(t *testing.T) {
	server := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", "of-redis"}})
	core, logged := observer.New(zap.DebugLevel)
	p := startSidecar(t, server.Addr, demanding("of-sidecar"), func(s *setup) { s.upstream.Password, s.log = "of-redis", zap.New(core) })
	monitor := rawclient.Dial(t, server.Addr)
	monitor.Want(ok, "AUTH", "of-redis")
	monitor.Want(ok, "MONITOR")

	c := p.dial(t)
	for range 3 {
		for _, command := range []string{"GET k", "SECKILL.CREATE s 1", "LOCK.ACQUIRE l 1000", "MULTI", "BLPOP q 0", "SUBSCRIBE ch"} {
			c.Want("-NOAUTH Authentication required.\r\n", strings.Fields(command)...)
		}
	}
	c.Want("-WRONGPASS invalid username-password pair or user is disabled.\r\n", "AUTH", "of-redis")
	c.Want(ok, "AUTH", "of-sidecar")
	wantPrefix(t, c, "*4\r\n:200\r\n", "SECKILL.CREATE", "s", "1")
	c.Want("$7\r\ndefault\r\n", "ACL", "WHOAMI")

	// What can't be answered here in its place isn't sent either.
	bare := "-ERR wrong number of arguments for 'auth' command\r\n"
	c.Want(ok, "MULTI")
	c.Want(bare, "AUTH", "of-sidecar")
	c.Want(bare, "HELLO", "2", "AUTH", "default", "of-sidecar")
	c.Want("-EXECABORT Transaction discarded because of previous errors.\r\n", "EXEC")
	c.Want("*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n", "SUBSCRIBE", "ch")
	c.Want(bare, "AUTH", "of-sidecar")
	c.Want("+RESET\r\n", "RESET")
	c.Send("GET k\r\nHELLO 3 AUTH default of-sidecar NOSUCH of-sidecar\r\nHELLO 3 AUTH of-sidecar\r\nGET k\r\n")
	c.Expect("-NOAUTH Authentication required.\r\n-ERR Syntax error in HELLO option 'NOSUCH'\r\n-ERR Syntax error in HELLO option 'AUTH'\r\n" + null)
	long := strings.Repeat("of-sidecar", 10_000)
	wantPrefix(t, c, "-WRONGPASS ", "AUTH", long)
	wantPrefix(t, c, "-ERR HELLO is too long", "HELLO", "3", "AUTH", "default", long)

	// All of it comes before this in what Redis was sent.
	c.Want("$3\r\nend\r\n", "ECHO", "end")
	var seen strings.Builder
	for !strings.Contains(seen.String(), `"ECHO" "end"`) {
		seen.WriteString(monitor.Reply())
	}
	if strings.Contains(seen.String(), "of-sidecar") {
		t.Errorf("Redis was sent:\n%s", &seen)
	}
	for _, entry := range logged.All() {
		if text := fmt.Sprint(entry.Message, entry.ContextMap()); strings.Contains(text, "of-sidecar") || strings.Contains(text, "of-redis") {
			t.Errorf("the log has: %s", text)
		}
	}
	if n := logged.FilterMessage("a client gave a wrong password").Len(); n != 1 {
		t.Errorf("%d lines tell of wrong passwords, want 1", n)
	}
}
