package proxy_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// TestMalformedInputGetsTheAnswerOfRedis sends the same bytes to Redis and to
// the sidecar. Redis closes the connection after a protocol error, and so must
// the sidecar.
func TestMalformedInputGetsTheAnswerOfRedis(t *testing.T) {
	p := startPair(t)
	inputs := []string{
		"*1\r\n$9223372036854775807\r\n",
		"*1\r\n$9223372036854775808\r\n",
		"*1\r\n$18446744073709551616\r\n",
		"*1\r\n$-1\r\n",
		"*1\r\n$-9223372036854775808\r\n",
		"*1\r\n$536870913\r\n",
		"*1\r\n$\r\n",
		"*1\r\n$x\r\n",
		"*1\r\n$ 4\r\nPING\r\n",
		"*1\r\n$+4\r\nPING\r\n",
		"*1\r\n$04\r\nPING\r\n",
		"*1\r\n$4 \r\nPING\r\n",
		"*1\r\n$4\n\nPING\r\n$4\r\n",
		"*2147483648\r\n",
		"*9223372036854775807\r\n",
		"*9223372036854775808\r\n",
		"*x\r\n",
		"*1x\r\n",
		"*\r\n",
		"* 1\r\n",
		"*+1\r\n",
		"*01\r\n",
		"*1\r\nPING\r\n",
		"*1\r\n:1\r\n",
		"*1\r\n*1\r\n$4\r\nPING\r\n",
		"*1\r\n\r\n",
		"*1\r\n\n\r\n",
		"*2\r\n$4\r\nECHO\r\nx\r\n",
		"PING\r\n*1\r\n$x\r\nPING\r\n",
		"SET k v\r\nGET k\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$-5\r\n",
		"MULTI\r\nSET k2 v\r\n*1\r\n$-5\r\n",
		"PING \"unbalanced\r\n",
		"PING 'unbalanced\r\n",
		"PING \"a\"b\r\n",
		"PING 'a'b\r\n",
		"\"PING\r\n",
		strings.Repeat("x", 64<<10+1),
		"GET " + strings.Repeat("x", 65_600),
		"*" + strings.Repeat("1", 64<<10+1),
		"*1\r\n$" + strings.Repeat("1", 64<<10+1),
		"*" + strings.Repeat("1", 30) + "\r\n",
		"*1\r\n$" + strings.Repeat("1", 30) + "\r\n",
		"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$70000\r\n" + strings.Repeat("v", 70_000) + "\r\n*1\r\n$x\r\n",
		"*3\r\n$3\r\nSET\r\n$70000\r\n" + strings.Repeat("k", 70_000) + "\r\n$x\r\n",
		"*3\r\n$70000\r\n" + strings.Repeat("n", 70_000) + "\r\n$x\r\n",
	}
	// But for NUL, at which Redis's search for the end of the line stops.
	for b := 1; b < 256; b++ {
		inputs = append(inputs, "*1\r\n"+string([]byte{byte(b)})+"4\r\n")
	}
	for _, input := range inputs {
		if strings.HasPrefix(input, "*1\r\n$4\r\n") {
			continue // the one good one of the 256
		}
		c, direct := p.dial(t), p.direct(t)
		direct.Send(input)
		c.Send(input)
		want, got := direct.Rest(), c.Rest()
		if !strings.Contains(want, "-ERR Protocol error: ") {
			t.Errorf("%s: Redis itself answered %q: the case is none", rawclient.Abridged(input), want)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", rawclient.Abridged(input), got, want)
		}
		c.Close()
		direct.Close()
	}
	p.dial(t).Want(pong, "PING")
}

// TestOddInputThatRedisAccepts has the other half: what looks malformed, and what
// Redis makes of it. An ECHO at the end shows that nothing was lost.
func TestOddInputThatRedisAccepts(t *testing.T) {
	p := startPair(t)
	for _, input := range []string{
		"*0\r\n",
		"*-1\r\n",
		"*-9223372036854775808\r\n",
		"\r\n", "\n", "\r\n\r\n\n\n", "   \r\n", "\t\n",
		"*0\r\n*0\r\n\r\n*-1\r\nPING\r\n*0\r\n",
		"PING\n", "PING\r\n", "  PING  \r\n", "PING\t\"a b\"\r\n", "ECHO \"\\x00\\xff\\n\\\"\"\r\n", "ECHO 'it\\'s'\r\n", "ECHO \"\"\r\n",
		"ECHO \"\\xzz\\q\"\r\n", "ECHO 'a\\nb'\r\n", "ECHO a\"b c\"\r\n", "ECHO \"a\r\" \r\n",
		"PING\r\r\n", "SET k\r\n", "NOSUCH a b\r\n", "nosuch\r\n", "\"\"\r\n", "\"\" a\r\n",
		"*1\r\n$4\r\nPINGxx", "*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n",
		"*1\r\n$0\r\n\r\n",
		"*2\r\n$0\r\n\r\n$1\r\nx\r\n",
		"*1\rx$4\rxPING\r\n",
		"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$0\r\n\r\n",
		"$4\r\n", "+PING\r\n", ":1\r\n", "-ERR\r\n", "_\r\n", "%1\r\n", "GET\x01 x\r\n",
		"ECHO " + strings.Repeat("x", 65_000) + "\r\n",
		strings.Repeat(" ", 65_000) + "PING\r\n",
		"GET / HTTP/1.1\r\n",
	} {
		c, direct := p.dial(t), p.direct(t)
		end := rawclient.Bulk("end")
		for _, conn := range []*rawclient.Conn{direct, c} {
			conn.Send(input + "*2\r\n$4\r\nECHO\r\n$3\r\nend\r\n")
		}
		var want strings.Builder
		for !strings.HasSuffix(want.String(), end) {
			want.WriteString(direct.Reply())
		}
		got := make([]byte, 0, want.Len())
		for len(got) < want.Len() {
			var err error
			if got, err = rawclient.AppendReply(got, c.Reader); err != nil {
				break
			}
		}
		if string(got) != want.String() {
			t.Errorf("%s: got %q, want %q", rawclient.Abridged(input), got, want.String())
		}
		c.Close()
		direct.Close()
	}
}

// TestHTTPIsRefusedAsByRedis has the words with which Redis meets cross protocol
// attacks: it closes the connection in silence.
func TestHTTPIsRefusedAsByRedis(t *testing.T) {
	p := startPair(t)
	for _, input := range []string{"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET k v\r\n", "GET / HTTP/1.1\r\nHost: x\r\nSET k v\r\n", "host:\r\nSET k v\r\n"} {
		c, direct := p.dial(t), p.direct(t)
		direct.Send(input)
		c.Send(input)
		if got, want := c.Rest(), direct.Rest(); got != want {
			t.Errorf("%q: got %q, want %q", input, got, want)
		}
	}
	p.direct(t).Want(":0\r\n", "EXISTS", "k")
}

func TestAnUnauthenticatedClientMayNotSendMuch(t *testing.T) {
	server := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", "secret"}})
	p := startSidecar(t, server.Addr)
	for _, input := range []string{
		"*11\r\n" + strings.Repeat("$1\r\nx\r\n", 11),
		"*2\r\n$4\r\nECHO\r\n$16385\r\n" + strings.Repeat("x", 16385) + "\r\n",
		"SET " + strings.Repeat("x ", 20) + "\r\n",
		"PING\r\nSUBSCRIBE ch\r\nMULTI\r\nEXEC\r\nCOMMAND COUNT\r\nQUIT\r\n",
	} {
		c, direct := p.dial(t), rawclient.Dial(t, server.Addr)
		direct.Send(input)
		c.Send(input)
		direct.HalfClose()
		c.HalfClose()
		got, want := c.Rest(), direct.Rest()
		if !strings.HasPrefix(got, "-") || !strings.HasPrefix(want, "-") || strings.Count(got, "\r\n") != strings.Count(want, "\r\n") {
			t.Errorf("%s: got %q, Redis says %q", rawclient.Abridged(input), got, want)
		}
	}
}

// TestAnArrayOfABillionIsWaitedFor shows that a huge length is only a number: it
// takes neither memory nor time, and the client may send what it announced.
func TestAnArrayOfABillionIsWaitedFor(t *testing.T) {
	p := startPair(t)
	c, other := p.dial(t), p.dial(t)
	before := heap()
	c.Send("*1000000000\r\n$4\r\nPING\r\n")
	other.Want(pong, "PING")
	c.Send(strings.Repeat("$1\r\nx\r\n", 10_000))
	other.Want(pong, "PING")
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	c.HalfClose()
	c.ExpectClosed()
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestEndlessLines sends lines that never end. What is sent beyond the limit may
// be answered by a RST, so only the end of the connection is certain, and that
// the sidecar didn't keep what it was sent.
func TestEndlessLines(t *testing.T) {
	p := startPair(t)
	for _, start := range []string{"", "*", "*1\r\n$", "*2\r\n$4\r\nECHO\r\n$", "PING\r\nECHO \""} {
		c := p.dial(t)
		c.Send(start)
		chunk := bytes.Repeat([]byte("1"), 64<<10)
		sent := 0
		var err error
		for err == nil && sent < 256<<20 {
			var n int
			n, err = c.Write(chunk)
			sent += n
		}
		if err == nil {
			t.Fatalf("%q: %d bytes of one line were taken", start, sent)
		}
		c.Close()
	}
	p.dial(t).Want(pong, "PING")
}

// Case F17.
func TestCommandsInOneByteSegments(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	if err := c.SetNoDelay(true); err != nil {
		t.Fatal(err)
	}
	value := strings.Repeat("0123456789", 100)
	raw := rawclient.Encode("SET", "k", value) + "GET k\r\n" + rawclient.Encode("SECKILL.CREATE", "s", "3") +
		"SECKILL.INFO nothing\r\n" + rawclient.Encode("MULTI") + rawclient.Encode("GET", "k") + rawclient.Encode("EXEC")
	for i := range len(raw) {
		c.Send(raw[i : i+1])
	}
	c.Expect(ok + rawclient.Bulk(value) + created("s"))
	if got := c.Reply(); !strings.HasPrefix(got, "*3\r\n:404\r\n") {
		t.Fatalf("SECKILL.INFO: %q", got)
	}
	c.Expect(ok + queued + "*1\r\n" + rawclient.Bulk(value))
}

// TestAMillionArguments shows that the work and the memory for one command grow
// no faster than the command: ten times the arguments may not take more than
// ten times the memory, with room for what doubles.
// (Case F17)
func TestAMillionArguments(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	taken := func(pairs int) uint64 {
		var b strings.Builder
		fmt.Fprintf(&b, "*%d\r\n$4\r\nMSET\r\n", 2*pairs+1)
		for i := range pairs {
			key := fmt.Sprint("k", i)
			fmt.Fprintf(&b, "$%d\r\n%s\r\n$1\r\nv\r\n", len(key), key)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		// Another goroutine sends, in case the reply comes before the end.
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			c.Send(b.String())
		}()
		c.Expect(ok)
		<-sent
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	small := taken(50_000)
	large := taken(500_000)
	c.Want(":500000\r\n", "DBSIZE")
	if large > 20*max(small, 1<<20) {
		t.Errorf("50,000 pairs took %d bytes of memory, 500,000 took %d", small, large)
	}
	// Inside a transaction, and as a custom command, which has a limit.
	c.Want(ok, "MULTI")
	c.Want(queued, append([]string{"DEL"}, strings.Split(strings.Repeat("k1 ", 100_000)+"k2", " ")...)...)
	c.Want("*1\r\n:2\r\n", "EXEC")
	got := c.Do(append([]string{"SECKILL.BUY"}, make([]string, 100_000)...)...)
	if !strings.HasPrefix(got, "-ERR ") {
		t.Errorf("SECKILL.BUY with 100,000 arguments: %q", got)
	}
	c.Want(noSales, "SECKILL.LIST")
}

// failingListener is a listener that is out of file descriptors for a while.
type failingListener struct {
	net.Listener

	mu       sync.Mutex
	failures int // to come
	attempts int
}

func (l *failingListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	l.attempts++
	fails := l.failures > 0
	if fails {
		l.failures--
	}
	l.mu.Unlock()
	if fails {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func (l *failingListener) counts() (failures, attempts int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures, l.attempts
}

func TestFailingAcceptsAreWaitedOut(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	failing := &failingListener{Listener: ln, failures: 8}
	server := redistest.Start(t, redistest.Options{})
	p := startSidecar(t, server.Addr, func(s *setup) { s.listener = failing })
	c := p.dial(t)
	c.Want(pong, "PING")
	if failures, attempts := failing.counts(); failures != 0 || attempts < 9 || attempts > 10 {
		t.Errorf("after the first client: %d failures left, %d attempts", failures, attempts)
	}
}

// TestOutOfFileDescriptors opens more connections than the process may have.
func TestOutOfFileDescriptors(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	p := startProgram(t, server.Addr, []string{"sh", "-c", `ulimit -n 40; exec "$@"`, "sh"})
	conns := []*rawclient.Conn{p.dial(t)}
	conns[0].Want(pong, "PING")
	conns[0].Want(ok, "WATCH", "k") // from here on it needs no other connection
	for range 100 {
		conns = append(conns, p.dial(t)) // accepted by the kernel at least
	}
	// However long the process is out of descriptors, it may not use the
	// processor for it: it retries at most once in a few milliseconds.
	before := p.cpuTicks()
	conns[0].Want(":0\r\n", "WAIT", "1", "500") // half a second, told by Redis
	if used := p.cpuTicks() - before; used > 20 {
		t.Errorf("out of descriptors, the process used %d ticks of processor time in half a second", used)
	}
	for _, c := range conns[1:] {
		c.Close()
	}
	p.dial(t).Want(pong, "PING")
	conns[0].Want(pong, "PING")
}

func TestTooManyClientsAreRefusedInTheWordsOfRedis(t *testing.T) {
	p := startPair(t, func(s *setup) { s.limits.Clients = 2 })
	a, b := p.dial(t), p.dial(t)
	a.Want(pong, "PING")
	b.Want(pong, "PING")
	if got := p.dial(t).Rest(); got != "-ERR max number of clients reached\r\n" {
		t.Errorf("the third client got %q", got)
	}
	b.Close()
	eventually(t, "there is room again", func() bool {
		c := p.dial(t)
		defer c.Close()
		if _, err := c.Write([]byte("PING\r\n")); err != nil {
			return false
		}
		reply, err := c.TryReply()
		return err == nil && reply == pong
	})
	a.Want(pong, "PING")
}

// TestAClientThatOnlyConnects takes nothing but its own connection.
func TestAClientThatOnlyConnects(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	before := direct.Do("INFO", "clients")
	var conns []*rawclient.Conn
	for range 50 {
		conns = append(conns, p.dial(t))
	}
	conns[49].Send("\r\n*0\r\n")
	p.dial(t).Do("SECKILL.LIST") // by now they are accepted
	after := direct.Do("INFO", "clients")
	if n := connected(t, after) - connected(t, before); n > 10 {
		t.Errorf("50 silent clients made %d connections to Redis", n)
	}
	for _, c := range conns {
		c.Close()
	}
}

func connected(t testing.TB, info string) int {
	t.Helper()
	_, rest, found := strings.Cut(info, "\r\nconnected_clients:")
	var n int
	if _, err := fmt.Sscanf(rest, "%d", &n); err != nil || !found {
		t.Fatal(errors.Join(err, fmt.Errorf("INFO is %q", info)))
	}
	return n
}
