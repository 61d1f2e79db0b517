package proxy_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// Case F3.
func TestTransactionInOnePipeline(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	c.Send("MULTI\r\nPING\r\nEXEC\r\n")
	c.Expect("+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n")
	c.Send("MULTI\r\nSET k v\r\nDISCARD\r\nGET k\r\nMULTI\r\nNOSUCH\r\nEXEC\r\nEXEC\r\nDISCARD\r\nMULTI\r\nMULTI\r\nEXEC\r\n")
	c.Expect(ok + queued + ok + null + ok + "-ERR unknown command 'NOSUCH', with args beginning with: \r\n" +
		"-EXECABORT Transaction discarded because of previous errors.\r\n-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n" +
		ok + "-ERR MULTI calls can not be nested\r\n*0\r\n")
}

// Case F4.
func TestUnwatchAndDiscardEndAWatch(t *testing.T) {
	p := startPair(t)
	c, other := p.dial(t), p.dial(t)
	ends := map[string][]string{
		"UNWATCH":       {"UNWATCH"},
		"MULTI DISCARD": {"MULTI", "DISCARD"},
		"MULTI EXEC":    {"MULTI", "EXEC"},
		"RESET":         {"RESET"},
	}
	for name, end := range ends {
		c.Want(ok, "WATCH", "k")
		for _, command := range end {
			c.Do(command)
		}
		other.Want(ok, "SET", "k", name)
		c.Want(ok, "MULTI")
		c.Want(queued, "GET", "k")
		c.Want("*1\r\n"+rawclient.Bulk(name), "EXEC")
	}
	// Without an end the watch holds, and through custom commands in between.
	c.Want(ok, "WATCH", "k")
	c.Want(noSales, "SECKILL.LIST")
	other.Want(ok, "SET", "k", "changed")
	c.Want(noSales, "SECKILL.LIST")
	c.Want(ok, "MULTI")
	c.Want(queued, "GET", "k")
	c.Want("*-1\r\n", "EXEC")
	// A client that goes away in the middle leaves nothing behind for the next.
	for range 20 {
		gone := p.dial(t)
		gone.Want(ok, "WATCH", "k")
		gone.Want(ok, "MULTI")
		gone.Want(queued, "SET", "k", "gone")
		gone.Close()
		next := p.dial(t)
		next.Want("-ERR EXEC without MULTI\r\n", "EXEC")
		next.Want(ok, "SET", "other", "1")
		next.Close()
	}
	c.Want("$7\r\nchanged\r\n", "GET", "k")
}

// Case F19.
func TestADatabaseNeverLeaks(t *testing.T) {
	p := startPair(t)
	for round := range 50 {
		a := p.dial(t)
		a.Want(ok, "SELECT", "2")
		a.Want(ok, "SET", "k", "v")
		if round%2 == 0 {
			a.Close()
		}
		b := p.dial(t)
		b.Want(null, "GET", "k")
		b.Want(ok, "CLIENT", "SETNAME", "b")
		b.Close()
		b = p.dial(t)
		b.Want(null, "CLIENT", "GETNAME")
		b.Close()
	}
	// Interleaved, without a round trip in between.
	conns := make([]*rawclient.Conn, 16)
	for db := range conns {
		conns[db] = p.dial(t)
		conns[db].Want(ok, "SELECT", fmt.Sprint(db))
		conns[db].Want(ok, "SET", "db", fmt.Sprint("is", db))
	}
	for range 50 {
		for _, c := range conns {
			c.Send("GET db\r\n")
		}
		for db, c := range conns {
			c.Expect(rawclient.Bulk(fmt.Sprint("is", db)))
		}
	}
}

func TestAUserNeverLeaks(t *testing.T) {
	p := startPair(t)
	p.direct(t).Want(ok, "ACL", "SETUSER", "alice", "on", ">pw", "~*", "&*", "+@all")
	const (
		anonymous = "$7\r\ndefault\r\n"
		alice     = "$5\r\nalice\r\n"
	)
	for range 50 {
		a, b := p.dial(t), p.dial(t)
		a.Send("AUTH alice pw\r\nACL WHOAMI\r\n")
		b.Send("ACL WHOAMI\r\n")
		a.Expect(ok + alice)
		b.Expect(anonymous)
		a.Want("-WRONGPASS invalid username-password pair or user is disabled.\r\n", "AUTH", "alice", "wrong")
		a.Want(alice, "ACL", "WHOAMI")
		a.Close()
		b.Want(anonymous, "ACL", "WHOAMI")
		b.Close()
	}
	// A user who is deleted is gone, on a direct connection as here.
	a := p.dial(t)
	a.Want(ok, "AUTH", "alice", "pw")
	a.Want(null, "GET", "k")
	p.direct(t).Want(":1\r\n", "ACL", "DELUSER", "alice")
	// The connection that a's commands went by was shared; its end shows when a
	// uses it next, at the latest with the second command.
	got := a.Do("GET", "k")
	if strings.HasPrefix(got, "-UNCERTAIN") {
		a.Send("GET k\r\n")
		got = a.Rest()
	}
	if !strings.HasPrefix(got, "-") {
		t.Errorf("a deleted user still reads: %q", got)
	}
}

// Case F9.
func TestHelloErrorsLeaveTheSessionAsItWas(t *testing.T) {
	server := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", "secret"}})
	c, direct := startSidecar(t, server.Addr).dial(t), rawclient.Dial(t, server.Addr)
	both := func(args ...string) string {
		t.Helper()
		want := direct.Do(args...)
		c.Want(want, args...)
		return want
	}
	both("HELLO", "3", "AUTH", "default", "wrong")
	both("HELLO", "3")
	both("AUTH", "secret")
	both("SET", "k", "v")
	for _, protocol := range []string{"2", "3"} {
		for _, conn := range []*rawclient.Conn{c, direct} {
			conn.Want(ok, "SELECT", "5")
			conn.Do("HELLO", protocol)
		}
		for _, bad := range []string{"HELLO 3 AUTH default wrong", "HELLO 2 AUTH nobody wrong", "HELLO 4", "HELLO 1", "HELLO x", "HELLO 3 AUTH",
			"HELLO 3 AUTH default", "HELLO 3 SETNAME", "HELLO 3 NOSUCH", "HELLO 2 NOSUCH x", "HELLO 3 AUTH default wrong SETNAME n", "HELLO 2 SETNAME \"a b\""} {
			var args []string
			for _, arg := range strings.Split(bad, " ") {
				args = append(args, strings.Trim(arg, `"`))
			}
			if reply := both(args...); !strings.HasPrefix(reply, "-") {
				t.Errorf("%s: Redis answered %q, the case is none", bad, reply)
			}
			both("GET", "none")
			both("CLIENT", "GETNAME")
			both("CONFIG", "GET", "maxmemory")
			both("GET", "k")
		}
	}
	if id, again := c.Do("CLIENT", "ID"), c.Do("CLIENT", "ID"); id != again || !strings.HasPrefix(id, ":") {
		t.Errorf("CLIENT ID is %q, then %q", id, again)
	}
}

// Case F10.
func TestClientSetInfoOnAServerThatLacksIt(t *testing.T) {
	p := startPair(t)
	c, direct := p.dial(t), p.direct(t)
	want := direct.Do("CLIENT", "SETINFO", "LIB-NAME", "x")
	if !strings.HasPrefix(want, "-ERR ") {
		t.Fatalf("Redis 7.0 answers %q", want)
	}
	for range 3 {
		c.Want(want, "CLIENT", "SETINFO", "LIB-NAME", "x")
		c.Want(pong, "PING")
		c.Want(noSales, "SECKILL.LIST")
	}
}

func TestResetAndQuit(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	c.Send("SELECT 3\r\nCLIENT SETNAME n\r\nMULTI\r\nSET k v\r\nRESET\r\nGET k\r\nCLIENT GETNAME\r\nEXEC\r\nDBSIZE\r\n")
	c.Expect(ok + ok + ok + queued + "+RESET\r\n" + null + null + "-ERR EXEC without MULTI\r\n:0\r\n")
	c.Send("HELLO 3\r\nRESET\r\nGET k\r\n")
	c.Reply()
	c.Expect("+RESET\r\n" + null)
	c.Send("SUBSCRIBE ch\r\nRESET\r\nGET k\r\nSECKILL.LIST\r\n")
	c.Expect("*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n+RESET\r\n" + null + noSales)
	for _, quit := range []string{"QUIT\r\n", "*1\r\n$4\r\nquit\r\n", "QUIT now\r\n"} {
		for _, tail := range []string{"", "SET after quit\r\n", "SECKILL.CREATE after 1\r\n", "*1\r\n$-7\r\n"} {
			c, direct := p.dial(t), p.direct(t)
			c.Send("SET k v\r\n" + quit + tail)
			direct.Send("SET k v\r\n" + quit + strings.Replace(tail, "SECKILL", "NOSUCH", 1))
			if got, want := c.Rest(), direct.Rest(); got != want {
				t.Errorf("%q: got %q, want %q", quit+tail, got, want)
			}
		}
	}
	check := p.direct(t)
	check.Want("*1\r\n$1\r\nk\r\n", "KEYS", "*")
	// QUIT works before anything else was sent, in a transaction, and subscribed.
	for _, before := range []string{"", "MULTI\r\n", "SUBSCRIBE ch\r\n", "WATCH k\r\n", "HELLO 3\r\n"} {
		c, direct := p.dial(t), p.direct(t)
		c.Send(before)
		direct.Send(before)
		if before != "" {
			if got, want := c.Reply(), direct.Reply(); digits.ReplaceAllString(got, "N") != digits.ReplaceAllString(want, "N") {
				t.Errorf("%q: got %q, want %q", before, got, want)
			}
		}
		c.Send("QUIT\r\n")
		direct.Send("QUIT\r\n")
		if got, want := c.Rest(), direct.Rest(); got != want {
			t.Errorf("%q and QUIT: got %q, want %q", before, got, want)
		}
	}
}

func TestMonitor(t *testing.T) {
	p := startPair(t)
	m, other := p.dial(t), p.dial(t)
	m.Want(ok, "MONITOR")
	other.Want(ok, "SET", "k", "a\r\nb")
	// Commands with which the sidecar makes connections ready may stand before it.
	for line := ""; !strings.HasSuffix(line, "] \"SET\" \"k\" \"a\\r\\nb\"\r\n"); {
		if line = m.Reply(); !isMonitorLine(line) {
			t.Fatalf("MONITOR shows %q", line)
		}
	}
	// Its own commands are answered between the lines, in order.
	m.Send("PING\r\nSECKILL.CREATE s 1\r\nPING\r\n")
	var replies []string
	for len(replies) < 3 {
		if reply := m.Reply(); !isMonitorLine(reply) {
			replies = append(replies, reply)
		}
	}
	if got, want := strings.Join(replies, ""), pong+created("s")+pong; got != want {
		t.Fatalf("the monitor's own replies: got %q, want %q", got, want)
	}
	m.Send("RESET\r\n")
	for reply := m.Reply(); reply != "+RESET\r\n"; reply = m.Reply() {
		if !isMonitorLine(reply) {
			t.Fatalf("before +RESET: %q", reply)
		}
	}
	other.Want(ok, "SET", "k", "v")
	m.Want(pong, "PING")
	m.Want(rawclient.Bulk("v"), "GET", "k")
}

func isMonitorLine(reply string) bool {
	return len(reply) > 1 && reply[0] == '+' && reply[1] >= '0' && reply[1] <= '9'
}

func TestClientReply(t *testing.T) {
	p := startPair(t)
	c, direct := p.dial(t), p.direct(t)
	for _, script := range []string{
		"CLIENT REPLY SKIP|PING|PING",
		"CLIENT REPLY SKIP|CLIENT REPLY SKIP|PING|ECHO a",
		"CLIENT REPLY OFF|PING|CLIENT REPLY SKIP|PING|PING|CLIENT REPLY ON|PING",
		"CLIENT REPLY SKIP|CLIENT REPLY ON|PING",
		"CLIENT REPLY OFF|CLIENT REPLY OFF|CLIENT REPLY ON|CLIENT REPLY ON|PING",
		"CLIENT REPLY|CLIENT REPLY x|CLIENT REPLY ON y|PING",
		"CLIENT REPLY SKIP|NOSUCH|GET|PING",
		"CLIENT REPLY OFF|MULTI|SET k v|GET k|EXEC|CLIENT REPLY ON|GET k",
		"CLIENT REPLY SKIP|MULTI|SET k v|EXEC|PING",
		"MULTI|SET k v|CLIENT REPLY ON|GET k|EXEC|PING",
		"CLIENT REPLY OFF|RESET|PING",
		"CLIENT REPLY SKIP|RESET|PING",
		"CLIENT REPLY OFF|SUBSCRIBE ch|PING|CLIENT REPLY ON|UNSUBSCRIBE ch|PING|CLIENT REPLY ON",
		"CLIENT REPLY SKIP|SUBSCRIBE ch|UNSUBSCRIBE|PING|PING",
		"CLIENT REPLY OFF|SELECT 3|SET k v|CLIENT REPLY ON|DBSIZE|SELECT 0|DBSIZE",
	} {
		raw := strings.ReplaceAll(script, "|", "\r\n") + "\r\nECHO end\r\n"
		end := rawclient.Bulk("end")
		var want strings.Builder
		direct.Send(raw)
		for !strings.HasSuffix(want.String(), end) {
			want.WriteString(direct.Reply())
		}
		c.Send(raw)
		c.Expect(want.String())
		p.direct(t).Want(ok, "FLUSHALL")
	}
}

func TestReplicationPasses(t *testing.T) {
	p := startPair(t)
	writer := p.direct(t)
	writer.Want(ok, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
	for _, diskless := range []string{"yes", "no"} {
		for _, sync := range []string{"PSYNC ? -1", "SYNC"} {
			t.Run(sync+" diskless "+diskless, func(t *testing.T) {
				writer.Want(ok, "CONFIG", "SET", "repl-diskless-sync", diskless)
				c := p.dial(t)
				c.Want(pong, "PING")
				c.Want(ok, "REPLCONF", "capa", "eof", "capa", "psync2")
				c.Send(sync + "\r\n")
				// The stream is no RESP: its end is recognised by a write that the
				// replica has to see, before or after the snapshot.
				marker := fmt.Sprint("marker-of-", strings.Fields(sync)[0], "-", diskless)
				var stream strings.Builder
				buf := make([]byte, 64<<10)
				for deadline := time.Now().Add(rawclient.Patience); !strings.Contains(stream.String(), marker); {
					// A replica is sent what follows a snapshot of unknown length
					// once it has acknowledged that, so it does so again and again.
					if err := c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
						t.Fatal(err)
					}
					n, err := c.Reader.Read(buf)
					stream.Write(buf[:n])
					if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(deadline) {
						t.Fatalf("the stream ended: %v; it was %s", err, rawclient.Abridged(stream.String()))
					}
					if strings.Contains(stream.String(), "REDIS0010") {
						c.Send("REPLCONF ACK 0\r\n")
						writer.Want(ok, "SET", "k", marker)
					}
				}
				if !strings.Contains(stream.String(), "REDIS0010") {
					t.Fatalf("no snapshot in %s", rawclient.Abridged(stream.String()))
				}
				// An error of the sidecar's would be a command of the master's.
				writer.Want(":1\r\n", "CLIENT", "KILL", "TYPE", "replica")
				if rest := c.Rest(); strings.Contains(rest, "UNCERTAIN") {
					t.Errorf("the stream ends with %s", rawclient.Abridged(rest))
				}
			})
		}
	}
}

func TestAReplicaBehindTheSidecarFollows(t *testing.T) {
	p := startPair(t)
	writer := p.direct(t)
	writer.Want(ok, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
	replica := rawclient.Dial(t, redistest.Start(t, redistest.Options{}).Addr)
	host, port, _ := strings.Cut(p.addr, ":")
	replica.Want(ok, "REPLICAOF", host, port)
	writer.Want(ok, "SET", "k", "v")
	eventually(t, "the replica has the key", func() bool { return replica.Do("GET", "k") == "$1\r\nv\r\n" })
	writer.Want(ok, "SET", "k", "w")
	eventually(t, "the replica follows", func() bool { return replica.Do("GET", "k") == "$1\r\nw\r\n" })
	writer.Want(":1\r\n", "WAIT", "1", "0")
	replica.Want(ok, "REPLICAOF", "NO", "ONE")
}

func TestABlockedClientThatDiesTakesNothing(t *testing.T) {
	p := startPair(t)
	direct, pusher := p.direct(t), p.dial(t)
	deaths := map[string]func(*rawclient.Conn){
		"close":      func(c *rawclient.Conn) { c.Close() },
		"reset":      func(c *rawclient.Conn) { c.Reset() },
		"half-close": func(c *rawclient.Conn) { c.HalfClose() },
	}
	waits := map[string]string{
		"BLPOP":           "BLPOP q 0\r\n",
		"BRPOP":           "BRPOP q 0\r\n",
		"BLMOVE":          "BLMOVE q d LEFT RIGHT 0\r\n",
		"BRPOPLPUSH":      "BRPOPLPUSH q d 0\r\n",
		"BLMPOP":          "BLMPOP 0 2 p q LEFT\r\n",
		"BZPOPMIN":        "BZPOPMIN z 0\r\n",
		"BZPOPMAX":        "BZPOPMAX z 0\r\n",
		"BZMPOP":          "BZMPOP 0 1 z MIN\r\n",
		"XREADGROUP":      "XREADGROUP GROUP g c BLOCK 0 STREAMS s >\r\n",
		"XREAD":           "XREAD BLOCK 0 STREAMS s $\r\n",
		"after others":    "PING\r\nGET q\r\nBLPOP q 0\r\n",
		"others after":    "BLPOP q 0\r\nPING\r\nLPUSH q behind\r\n",
		"many after":      "BLPOP q 0\r\n" + strings.Repeat("PING\r\n", 20_000),
		"custom after":    "BLPOP q 0\r\nSECKILL.LIST\r\n",
		"CLIENT after":    "BLPOP q 0\r\nCLIENT REPLY OFF\r\n",
		"QUIT after":      "BLPOP q 0\r\nQUIT\r\n",
		"SUBSCRIBE after": "BLPOP q 0\r\nSUBSCRIBE ch\r\n",
		"COMMAND after":   "BLPOP q 0\r\nCOMMAND COUNT\r\n",
		"MULTI after":     "BLPOP q 0\r\nMULTI\r\nSECKILL.LIST\r\nEXEC\r\n",
		"RESP3":           "HELLO 3\r\nBLPOP q 0\r\n",
		"a half command":  "BLPOP q 0\r\n*2\r\n$3\r\nGET",
	}
	for death, die := range deaths {
		for wait, raw := range waits {
			t.Run(wait+" "+death, func(t *testing.T) {
				direct.Want(ok, "FLUSHALL")
				direct.Want(ok, "XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
				c := p.dial(t)
				c.Send(raw)
				blockedClients(t, direct, 1)
				die(c)
				blockedClients(t, direct, 0)
				pusher.Want(":1\r\n", "RPUSH", "q", "element")
				pusher.Want(":1\r\n", "ZADD", "z", "1", "member")
				pusher.Do("XADD", "s", "1-1", "f", "v")
				direct.Want("*1\r\n$7\r\nelement\r\n", "LRANGE", "q", "0", "-1")
				direct.Want(":1\r\n", "ZCARD", "z")
				direct.Want("*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n", "XPENDING", "s", "g")
				direct.Want(":0\r\n", "EXISTS", "d")
			})
		}
	}
}

// Case F7.
func TestWaitsEndAsOnADirectConnection(t *testing.T) {
	p := startPair(t)
	a, b, direct := p.dial(t), p.dial(t), p.direct(t)
	// Served by another client.
	a.Send("BLPOP q 0\r\nPING\r\nSECKILL.LIST\r\n")
	blockedClients(t, direct, 1)
	b.Want(":1\r\n", "LPUSH", "q", "v")
	a.Expect("*2\r\n$1\r\nq\r\n$1\r\nv\r\n" + pong + noSales)
	// Unblocked by CLIENT UNBLOCK, which needs the id that CLIENT ID told.
	id := strings.TrimSuffix(strings.TrimPrefix(a.Do("CLIENT", "ID"), ":"), "\r\n")
	a.Send("BLPOP q 0\r\n")
	blockedClients(t, direct, 1)
	b.Want(":1\r\n", "CLIENT", "UNBLOCK", id, "ERROR")
	a.Expect("-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n")
	// By its own timeout.
	a.Want("*-1\r\n", "BLPOP", "q", "0.01")
	a.Want(":0\r\n", "WAIT", "1", "10")
	// In a transaction nothing waits.
	a.Send("MULTI\r\nBLPOP q 0\r\nEXEC\r\n")
	a.Expect(ok + queued + "*1\r\n*-1\r\n")
	// A key that is overwritten by another type.
	a.Send("XREADGROUP GROUP g c BLOCK 0 STREAMS s >\r\n")
	if got := a.Reply(); !strings.HasPrefix(got, "-NOGROUP ") {
		t.Fatalf("XREADGROUP without a group: %q", got)
	}
}

// Case F16.
func TestAHalfClosedClientGetsAllReplies(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	direct.Want(ok, "SET", "big", strings.Repeat("x", 1<<20))
	direct.Want(":2\r\n", "RPUSH", "q", "1", "2")
	direct.Do("XADD", "s", "1-1", "f", "v")
	pipelines := map[string]struct{ send, want string }{
		"plain":                   {"PING\r\nGET none\r\nECHO x\r\n", pong + null + rawclient.Bulk("x")},
		"no newline":              {"PING\r\nPING", pong},
		"half array":              {"PING\r\n*2\r\n$3\r\nGET", pong},
		"custom":                  {"PING\r\nSECKILL.LIST\r\nPING\r\n", pong + noSales + pong},
		"big replies":             {strings.Repeat("GET big\r\n", 8), strings.Repeat(rawclient.Bulk(strings.Repeat("x", 1<<20)), 8)},
		"slow script":             {"EVAL \"local t = redis.call('TIME') repeat local u = redis.call('TIME') until (u[1]-t[1])*1000000+u[2]-t[2] > 100000 return 1\" 0\r\nPING\r\n", ":1\r\n" + pong},
		"many":                    {strings.Repeat("PING\r\n", 20_000), strings.Repeat(pong, 20_000)},
		"a pop that needn't wait": {"BLPOP q 0\r\nPING\r\n", "*2\r\n$1\r\nq\r\n$1\r\n1\r\n" + pong},
		"WAIT for nobody":         {"WAIT 0 0\r\nPING\r\n", ":0\r\n" + pong},
		"XREAD without BLOCK":     {"XREAD STREAMS s 0\r\n", "*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"},
		"subscription":            {"SUBSCRIBE ch\r\nPING\r\nUNSUBSCRIBE\r\nPING\r\n", "*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n*2\r\n$4\r\npong\r\n$0\r\n\r\n*3\r\n$11\r\nunsubscribe\r\n$2\r\nch\r\n:0\r\n" + pong},
		"still subscribed":        {"PING\r\nSUBSCRIBE ch\r\n", pong + "*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n"},
		"transaction":             {"MULTI\r\nPING\r\nEXEC\r\nMULTI\r\nPING\r\n", ok + queued + "*1\r\n+PONG\r\n" + ok + queued},
	}
	for name, pl := range pipelines {
		t.Run(name, func(t *testing.T) {
			c := p.dial(t)
			// The reader runs before everything is sent, so that nothing has to be
			// buffered.
			got := make(chan string)
			go func() {
				var rest []byte
				buf := make([]byte, 64<<10)
				for {
					n, err := c.Read(buf)
					rest = append(rest, buf[:n]...)
					if err != nil {
						got <- string(rest)
						return
					}
				}
			}()
			c.Send(pl.send)
			c.HalfClose()
			if got := <-got; got != pl.want {
				t.Fatalf("got %s (%d bytes), want %s (%d bytes)", rawclient.Abridged(got), len(got), rawclient.Abridged(pl.want), len(pl.want))
			}
		})
	}
}

func TestShutdownCommand(t *testing.T) {
	p := startPair(t)
	c, other := p.dial(t), p.dial(t)
	other.Want(pong, "PING")
	wantPrefix(t, c, "-ERR No shutdown in progress", "SHUTDOWN", "ABORT")
	wantPrefix(t, c, "-ERR syntax error", "SHUTDOWN", "NOSUCH")
	c.Want(pong, "PING")
	c.SendCommand("SHUTDOWN", "NOSAVE")
	c.ExpectClosed()
}

// TestAScriptThatDoesNotEndCanBeKilled needs the way to Redis that SCRIPT KILL
// takes to be free, also for a session that isn't in the first database.
func TestAScriptThatDoesNotEndCanBeKilled(t *testing.T) {
	p := startPair(t)
	p.direct(t).Want(ok, "CONFIG", "SET", "busy-reply-threshold", "1")
	for _, endless := range [][]string{
		{"EVAL", "while true do end", "0"},
		{"FCALL", "endless", "0"},
		{"MULTI"},
	} {
		a, b, watcher := p.dial(t), p.dial(t), p.dial(t)
		watcher.Want(pong, "PING")
		b.Want(ok, "SELECT", "2")
		b.Want(ok, "CLIENT", "SETNAME", "killer")
		kill := "SCRIPT"
		switch endless[0] {
		case "FCALL":
			kill = "FUNCTION"
			a.Want("$3\r\nlib\r\n", "FUNCTION", "LOAD", "#!lua name=lib\nredis.register_function('endless', function() while true do end end)")
		case "MULTI":
			a.Want(ok, "MULTI")
			a.Want(queued, "EVAL", "while true do end", "0")
			endless = []string{"EXEC"}
		}
		a.SendCommand(endless...)
		eventually(t, "Redis is busy", func() bool { return strings.HasPrefix(watcher.Do("GET", "k"), "-BUSY ") })
		// Until the script looks up, its killer may be told to wait.
		b.Want(ok, kill, "KILL")
		if got := a.Reply(); !strings.Contains(got, "Script killed by user") && !strings.Contains(got, "killed") {
			t.Errorf("%v: the killed script answered %q", endless, got)
		}
		b.Want(null, "GET", "k")
		a.Want(pong, "PING")
		a.Close()
		b.Close()
		watcher.Close()
	}
}

// A connection that a session had only for CLIENT REPLY SKIP isn't closed by its QUIT
// in the hands of the next one.
func TestQuitBehindASkippedReply(t *testing.T) {
	p := startPair(t)
	for range 50 {
		c := p.dial(t)
		c.Send(rawclient.Encode("CLIENT", "REPLY", "SKIP") + rawclient.Encode("SECKILL.BUY") + rawclient.Encode("QUIT"))
		c.Expect(ok)
		p.dial(t).Want(ok, "CLIENT", "SETNAME", "n")
	}
}
