package proxy_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// A pause of writes that a client of the sidecar asks for holds up each client that
// writes, and none that reads.
func TestAPauseOfWritesHoldsUpNoReads(t *testing.T) {
	const pause = "CLIENT PAUSE 60000 WRITE\r\n"
	for name, begin := range map[string]string{"alone": pause, "in a transaction": "MULTI\r\n" + pause + "EXEC\r\n"} {
		t.Run(name, func(t *testing.T) {
			p := startPair(t)
			direct, c, reader := p.direct(t), p.dial(t), p.dial(t)
			reader.Want(ok, "SET", "k", "v")
			c.Send(begin)
			for range strings.Count(begin, "\r\n") {
				c.Reply()
			}
			writers := map[string]*rawclient.Conn{"SET a 1\r\n": nil, "SET b 2\r\n": nil, "PUBLISH ch m\r\n": nil, "PFCOUNT h\r\n": nil, "EVAL \"return 1\" 0\r\n": nil, "EVAL \"return 2\" 0\r\n": nil}
			for command := range writers {
				writers[command] = p.dial(t)
				writers[command].Send(command)
			}
			blockedClients(t, direct, len(writers))
			for _, other := range []*rawclient.Conn{reader, c, p.dial(t)} {
				other.Want(rawclient.Bulk("v"), "GET", "k")
				wantPrefix(t, other, "-ERR wrong number of arguments", "SET", "k")
			}
			c.Want(ok, "CLIENT", "UNPAUSE")
			for command, writer := range writers {
				if got := writer.Reply(); got[0] != '+' && got[0] != ':' {
					t.Errorf("%q: got %q", command, got)
				}
				writer.Want(rawclient.Bulk("v"), "GET", "k")
			}
		})
	}
}

// Others' commands go round a lane on which Redis holds a write back, though the
// sidecar knows nothing of the pause.
func TestAStuckLaneIsGoneRound(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	direct.Want(ok, "SET", "k", "v")
	direct.Want(ok, "CLIENT", "PAUSE", "60000", "WRITE")
	writer := p.dial(t)
	writer.Send("SET k w\r\nGET k\r\n")
	blockedClients(t, direct, 1)
	var waiting []*rawclient.Conn // those who came too early
	eventually(t, "a client that reads is answered", func() bool {
		c := p.dial(t)
		c.Send("GET k\r\n")
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Reader.Peek(1); err != nil {
			waiting = append(waiting, c)
			return false
		}
		c.Expect(rawclient.Bulk("v"))
		c.Want(rawclient.Bulk("v"), "GET", "k")
		return true
	})
	direct.Want(ok, "CLIENT", "UNPAUSE")
	writer.Expect(ok + rawclient.Bulk("w"))
	for _, c := range waiting {
		c.Expect(rawclient.Bulk("w")) // behind the write
	}
}

// However many clients find the lane stuck, few of them go round it; the others
// wait, and all are answered in the end.
func TestFewGoRoundAStuckLane(t *testing.T) {
	p := startPair(t)
	direct, c := p.direct(t), p.dial(t)
	c.Want(ok, "CLIENT", "PAUSE", "60000", "WRITE")
	clients := make([]*rawclient.Conn, 500)
	for i := range clients {
		clients[i] = p.dial(t)
		clients[i].SendCommand("SET", fmt.Sprint("k", i), fmt.Sprint("v", i))
	}
	const detours = 16
	blockedClients(t, direct, detours+1) // and the lane
	c.Want(ok, "CLIENT", "UNPAUSE")
	for i, client := range clients {
		client.Expect(ok)
		client.Want(rawclient.Bulk(fmt.Sprint("v", i)), "GET", fmt.Sprint("k", i))
	}
	connections := strings.Count(direct.Do("CLIENT", "LIST"), "\n")
	if most := 2*detours + 3; connections > most { // one may be opened while another is being given back
		t.Errorf("%d connections to Redis, want at most %d", connections, most)
	}
}

// A client that is gone is forgotten though its session waits for Redis, which
// reads nothing, to take what it sent.
func TestAClientThatSentMoreThanRedisReadsIsForgotten(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	p := startSidecar(t, server.Addr, func(s *setup) {
		s.limits.Clients = 1
		s.limits.Linger = 10 * time.Millisecond
	})
	c := p.dial(t)
	c.Send(strings.Repeat("PING\r\n", 10))
	c.Expect(strings.Repeat(pong, 10)) // now the sidecar knows that replies are small, and takes much at a time
	server.Pause()
	defer server.Resume()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		command := rawclient.Encode("SET", "k", strings.Repeat("v", 32<<10))
		for {
			if _, err := io.WriteString(c.TCPConn, command); err != nil {
				return
			}
		}
	}()
	if err := c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)); err != nil { // long after nobody reads it any more
		t.Fatal(err)
	}
	<-sent
	if err := c.SetLinger(0); err != nil { // the end doesn't queue behind what wasn't read
		t.Fatal(err)
	}
	c.Close()
	eventually(t, "there is room for another client", func() bool {
		next := p.dial(t)
		defer next.Close()
		_, _ = next.Write([]byte("SECKILL.BUY\r\n")) // answered without Redis, unless the client is turned away
		reply, err := next.TryReply()
		return err == nil && strings.HasPrefix(reply, "-ERR wrong number of arguments")
	})
}
