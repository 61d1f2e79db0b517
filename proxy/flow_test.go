package proxy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// longVariable asks for the tests that move gigabytes. Names that begin with
// SECKILL_ are the configuration's.
const longVariable = "TEST_LONG"

// fill makes a value of so many bytes without sending them.
func fill(t testing.TB, c *rawclient.Conn, key string, size int) {
	t.Helper()
	c.Want(fmt.Sprintf(":%d\r\n", size), "SETRANGE", key, fmt.Sprint(size-1), "x")
}

// TestAClientThatWritesEverythingFirst pipelines 200,000 GETs of a 10 KB value
// and reads only then. The sidecar may not hold the 2 GB, nor be stuck.
//
// Without the variable there are 20,000.
// (Case F13)
func TestAClientThatWritesEverythingFirst(t *testing.T) {
	commands, size := 20_000, 10_000
	if os.Getenv(longVariable) != "" {
		commands = 200_000
	}
	server := redistest.Start(t, redistest.Options{})
	p := startProgram(t, server.Addr, nil)
	c, other := p.dial(t), p.dial(t)
	fill(t, other, "k", size)
	idle := p.peakMemory()
	if _, err := io.WriteString(c, strings.Repeat("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", commands)); err != nil {
		t.Fatal(err)
	}
	// Others are served meanwhile.
	for range 100 {
		other.Want(fmt.Sprintf(":%d\r\n", size), "STRLEN", "k")
		other.Want(noSales, "SECKILL.LIST")
	}
	want := []byte(rawclient.Bulk(strings.Repeat("\x00", size-1) + "x"))
	got := make([]byte, len(want))
	for i := range commands {
		if i%1000 == 0 {
			if err := c.SetReadDeadline(time.Now().Add(rawclient.Patience)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.ReadFull(c.Reader, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("reply %d: %s, %v", i, rawclient.Abridged(string(got)), err)
		}
	}
	c.Want(pong, "PING")
	if grown := p.peakMemory() - idle; grown > 100<<20 {
		t.Errorf("the sidecar's memory grew by %d MB", grown>>20)
	}
}

// TestASlowReaderOfALargeValueHoldsUpNobody: one client reads 100 MB in small
// pieces, and between any two of them others are served.
// (Case F14)
func TestASlowReaderOfALargeValueHoldsUpNobody(t *testing.T) {
	const size = 100 << 20
	server := redistest.Start(t, redistest.Options{Args: []string{"--hz", "500"}})
	p := startProgram(t, server.Addr, nil)
	slow, other := p.dial(t), p.dial(t)
	fill(t, other, "big", size)
	other.Want(ok, "SET", "k", "v")
	idle := p.peakMemory()
	if err := slow.SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	slow.Send("GET big\r\nGET k\r\nPING\r\n")
	slow.Expect(fmt.Sprintf("$%d\r\n", size))
	const pieces = 100
	for range pieces {
		if err := slow.SetReadDeadline(time.Now().Add(rawclient.Patience)); err != nil {
			t.Fatal(err)
		}
		if n, err := io.CopyN(io.Discard, slow.Reader, size/pieces); err != nil {
			t.Fatalf("after %d bytes of a piece: %v", n, err)
		}
		other.Want("$1\r\nv\r\n", "GET", "k")
		other.Want("*1\r\n$1\r\nk\r\n", "KEYS", "k")
		other.Want(noSales, "SECKILL.LIST")
		other.Want("*-1\r\n", "BLPOP", "none", "0.001")
	}
	slow.Expect("\r\n$1\r\nv\r\n" + pong)
	if grown := p.peakMemory() - idle; grown > 300<<20 {
		t.Errorf("for a value of 100 MB the sidecar's memory grew by %d MB", grown>>20)
	}
}

// TestManyClientsThatDoNotRead: what the sidecar holds for all of them together
// is bounded too. They are closed or wait; the others work.
func TestManyClientsThatDoNotRead(t *testing.T) {
	const clients, size, limit = 50, 1 << 20, 64 << 20
	server := redistest.Start(t, redistest.Options{})
	p := startProgram(t, server.Addr, nil, fmt.Sprint("SECKILL_LIMITS_OUTPUT_BYTES_MAX=", limit))
	other := p.dial(t)
	fill(t, other, "k", size)
	idle := p.peakMemory()
	for range clients {
		c := p.dial(t)
		if err := c.SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		c.Send(strings.Repeat("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", 40))
	}
	for range 300 {
		other.Want(fmt.Sprintf(":%d\r\n", size), "STRLEN", "k")
	}
	if grown := p.peakMemory() - idle; grown > 4*limit {
		t.Errorf("%d clients that don't read made the sidecar's memory grow by %d MB, with a limit of %d MB", clients, grown>>20, limit>>20)
	}
}

// TestTheLargestValuePasses sends 512 MB, Redis's limit, and gets them back.
// Without the variable it is 64 MB.
func TestTheLargestValuePasses(t *testing.T) {
	size := 64 << 20
	if os.Getenv(longVariable) != "" {
		size = 512 << 20
	}
	server := redistest.Start(t, redistest.Options{})
	p := startProgram(t, server.Addr, nil)
	c, other := p.dial(t), p.dial(t)
	other.Want(pong, "PING")
	idle := p.peakMemory()
	c.Send(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", size))
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	for sent := 0; sent < size; sent += len(chunk) {
		if err := c.SetWriteDeadline(time.Now().Add(rawclient.Patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(chunk); err != nil {
			t.Fatal(err)
		}
		if sent%(16<<20) == 0 {
			other.Want(pong, "PING")
		}
	}
	c.Send("\r\n")
	c.Expect(ok)
	other.Want(fmt.Sprintf(":%d\r\n", size), "STRLEN", "k")
	c.Send("GET k\r\n")
	c.Expect(fmt.Sprintf("$%d\r\n", size))
	got := make([]byte, len(chunk))
	for read := 0; read < size; read += len(chunk) {
		if err := c.SetReadDeadline(time.Now().Add(rawclient.Patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c.Reader, got); err != nil || !bytes.Equal(got, chunk) {
			t.Fatalf("the value is not the same after %d bytes: %v", read, err)
		}
	}
	c.Expect("\r\n")
	if grown := p.peakMemory() - idle; grown > 2*size {
		t.Errorf("for %d MB the sidecar's memory grew by %d MB", size>>20, grown>>20)
	}
	// One byte more is refused, in the words of Redis.
	direct := rawclient.Dial(t, server.Addr)
	tooBig := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", 512<<20+1)
	c.Send(tooBig)
	direct.Send(tooBig)
	if got, want := c.Rest(), direct.Rest(); got != want {
		t.Errorf("a value above the limit: got %q, want %q", got, want)
	}
}

// TestRedisRefusesWhatTheSidecarAllows: its limit may be lower than ours, and it
// says so before the argument was sent. Other clients don't notice.
// (Case F2)
func TestRedisRefusesWhatTheSidecarAllows(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	direct.Want(ok, "CONFIG", "SET", "proto-max-bulk-len", "1048576")
	other := p.dial(t)
	for _, size := range []int{1<<20 + 1, 4 << 20} {
		value := strings.Repeat("v", size)
		for _, command := range [][]string{{"SET", "k", value}, {"ECHO", value}, {"EVAL", "return 1", "0", value}} {
			c := p.dial(t)
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				// The connection may be closed before everything was sent.
				_, _ = io.WriteString(c, "PING\r\n"+rawclient.Encode(command...))
			}()
			for i := range 20 {
				other.Want(rawclient.Bulk(fmt.Sprint(i)), "ECHO", fmt.Sprint(i))
			}
			c.Expect(pong)
			if got, err := c.TryReply(); err == nil && got != "-ERR Protocol error: invalid bulk length\r\n" && !strings.HasPrefix(got, "-UNCERTAIN ") {
				t.Errorf("%s with %d bytes: got %q", command[0], size, got)
			}
			<-sent
			// Redis closes the connection. Where the sidecar doesn't, it is in step.
			if _, err := io.WriteString(c, rawclient.Encode("ECHO", "x")); err == nil {
				if got, err := c.TryReply(); err == nil && got != rawclient.Bulk("x") || err != nil && strings.Contains(describe(err), "nothing") {
					t.Errorf("%s with %d bytes, then ECHO: got %q, %v", command[0], size, got, err)
				}
			}
			c.Close()
		}
	}
	other.Want(ok, "SET", "k", "v")
}

// TestBackpressureOfALongPipeline has a client that reads and writes at the same
// time, more than any buffer holds, and replies in exact order.
func TestBackpressureOfALongPipeline(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	const commands = 50_000
	sent := make(chan error, 1)
	go func() {
		w := bufio.NewWriter(c)
		for i := range commands {
			switch i % 5 {
			case 3:
				fmt.Fprintf(w, "EVAL \"return ARGV[1]\" 0 %d\r\n", i)
			default:
				fmt.Fprintf(w, "ECHO %d\r\n", i)
			}
		}
		sent <- w.Flush()
	}()
	for i := range commands {
		if got, err := c.TryReply(); got != rawclient.Bulk(fmt.Sprint(i)) {
			t.Fatalf("reply %d is %q, %v", i, got, err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// TestEffectsThatWaitAreBounded: what the sidecar remembers of commands that
// change the session is bounded too, while the client reads no reply.
func TestEffectsThatWaitAreBounded(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	for _, line := range []string{"SELECT 1\r\n", "WATCH k\r\n", "NOSUCH\r\n"} {
		p := startProgram(t, server.Addr, nil)
		c, other := p.dial(t), p.dial(t)
		other.Want(pong, "PING")
		idle := p.peakMemory()
		burst := []byte(strings.Repeat(line, 10_000))
		for range 60 {
			if err := c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(burst); err != nil {
				break // the sidecar waits for the client to read
			}
		}
		other.Want(pong, "PING")
		if grown := p.peakMemory() - idle; grown > 32<<20 {
			t.Errorf("%q: the sidecar's memory grew by %d MB", line, grown>>20)
		}
	}
}
