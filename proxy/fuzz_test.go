package proxy_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"seckill-proxy/internal/nettest"
	"seckill-proxy/internal/rawclient"
)

// FuzzSession gives a session random bytes from its client and random replies
// from its Redis. Whatever they are, nothing panics, Shutdown ends the session, no
// goroutine is left, and what the client was sent is bounded.
func FuzzSession(f *testing.F) {
	for _, client := range []string{
		"PING\r\n", "*1\r\n$4\r\nPING\r\n", "MULTI\r\nSECKILL.LIST\r\nEXEC\r\n", "SUBSCRIBE a b\r\nUNSUBSCRIBE\r\nGET x\r\n",
		"HELLO 3\r\nCLIENT TRACKING ON\r\nGET a\r\n", "CLIENT REPLY SKIP\r\nPING\r\nCLIENT REPLY OFF\r\nGET a\r\nCLIENT REPLY ON\r\n",
		"MONITOR\r\nPING\r\n", "BLPOP q 0\r\nSECKILL.LIST\r\n", "COMMAND\r\nCOMMAND COUNT\r\nCOMMAND DOCS\r\nCOMMAND INFO get seckill.buy\r\n",
		"RESET\r\nQUIT\r\n", "WATCH a\r\nMULTI\r\nSELECT 3\r\nEXEC\r\nSECKILL.BUY a b\r\n", "*1\r\n$9223372036854775807\r\n", "*1000000000\r\n",
		"SYNC\r\nPING\r\n", "WAIT 0 0\r\nSHUTDOWN\r\n", "AUTH a b\r\nSELECT 1\r\nLOCK.ACQUIRE a 1000\r\n", "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$70000\r\n" + strings.Repeat("x", 70_000),
	} {
		for _, redis := range []string{
			"+OK\r\n", "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n", "-ERR unknown command\r\n", ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
			"$5\r\nhello\r\n", "garbage", "$9223372036854775807\r\n", "*-1\r\n", ":5\r\n%1\r\n+a\r\n*0\r\n", "",
		} {
			f.Add([]byte(client), []byte(redis), uint8(len(client)))
		}
	}
	f.Fuzz(func(t *testing.T, fromClient, fromRedis []byte, cut uint8) {
		ignore := goleak.IgnoreCurrent()
		addr, stop := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) { sayWhatever(conn, rd, fromRedis) })
		p := startSidecar(t, addr, func(s *setup) {
			s.upstream.DialTimeout, s.upstream.ScriptTimeout = 20*time.Millisecond, 20*time.Millisecond
			s.limits.Linger, s.limits.PinnedWait = 20*time.Millisecond, 20*time.Millisecond
			s.limits.ClientOutput, s.limits.Output = 1<<20, 1<<20
		})
		client := p.dial(t)
		var received int64
		reading := make(chan struct{})
		go func() {
			defer close(reading)
			received, _ = io.Copy(io.Discard, client.TCPConn)
		}()
		first := min(int(cut), len(fromClient))
		if err := client.SetWriteDeadline(time.Now().Add(rawclient.Patience)); err != nil {
			t.Fatal(err)
		}
		for _, piece := range [][]byte{fromClient[:first], fromClient[first:]} {
			if _, err := client.Write(piece); err != nil {
				break // closed, for what it sent
			}
		}
		client.Close()
		<-reading
		// A Redis that says whatever it likes may leave a session waiting.
		bound, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		p.server.Shutdown(bound)
		cancel()
		p.stop()
		stop()
		// An error of the sidecar's own for each command, at most as many as there
		// are lines, and what its Redis said, by as many connections as it likes.
		if most := int64(1<<20 + 400*(len(fromClient)+1)); received > most {
			t.Errorf("the client was sent %d bytes for %d", received, len(fromClient))
		}
		goleak.VerifyNone(t, ignore)
	})
}

// sayWhatever is a Redis that answers whatever comes with the next piece of what
// it has to say, again and again.
func sayWhatever(conn net.Conn, rd *bufio.Reader, say []byte) {
	buf := make([]byte, 4096)
	for at := 0; ; {
		if _, err := rd.Read(buf); err != nil {
			return
		}
		if len(say) == 0 {
			return
		}
		n := min(64, len(say)-at)
		if err := conn.SetWriteDeadline(time.Now().Add(rawclient.Patience)); err != nil {
			return
		}
		if _, err := conn.Write(say[at : at+n]); err != nil {
			return
		}
		at = (at + n) % len(say)
	}
}
