package proxy_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// F12: a Redis that was made a replica refuses writes; when it is a master again,
// they work, by the same connections.
func TestReadOnlyIsNotSticky(t *testing.T) {
	p := startPair(t)
	direct, c := p.direct(t), p.dial(t)
	c.Want(created("s"), "SECKILL.CREATE", "s", "5")
	direct.Want(ok, "REPLICAOF", "127.0.0.1", "1")
	for range 3 {
		wantPrefix(t, c, "-READONLY ", "SET", "k", "v")
		wantPrefix(t, c, "*5\r\n:503\r\n", "SECKILL.BUY", "s", "u")
		c.Want(null, "GET", "k")
	}
	direct.Want(ok, "REPLICAOF", "NO", "ONE")
	c.Want(ok, "SET", "k", "v")
	wantPrefix(t, c, "*5\r\n:200\r\n", "SECKILL.BUY", "s", "u")
}

// F18: while Redis is told to pause writes, a write waits; and then it is done.
func TestAPauseIsAPause(t *testing.T) {
	p := startPair(t)
	direct, c := p.direct(t), p.dial(t)
	c.Want(pong, "PING")
	direct.Want(ok, "CLIENT", "PAUSE", "1000000", "WRITE")
	c.SendCommand("SET", "k", "v")
	eventually(t, "Redis holds the write back", func() bool {
		return strings.Contains(direct.Do("INFO", "clients"), "blocked_clients:1")
	})
	direct.Want(null, "GET", "k")
	direct.Want(ok, "CLIENT", "UNPAUSE")
	c.Expect(ok)
	direct.Want("$1\r\nv\r\n", "GET", "k")
}

// A client that is silent for too long is disconnected, but not one that waits for
// something.
func TestIdleClientsAreDisconnected(t *testing.T) {
	p := startPair(t, func(s *setup) { s.limits.IdleTimeout = 50 * time.Millisecond })
	blocked, listening := p.dial(t), p.dial(t)
	blocked.SendCommand("BLPOP", "q", "0")
	listening.Want("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", "SUBSCRIBE", "c")
	for range 3 { // each is silent for as long as the timeout
		idle := p.dial(t)
		idle.Want(pong, "PING")
		idle.ExpectClosed()
	}
	direct := p.direct(t)
	direct.Want(":1\r\n", "LPUSH", "q", "x")
	blocked.Expect("*2\r\n$1\r\nq\r\n$1\r\nx\r\n")
	direct.Want(":1\r\n", "PUBLISH", "c", "m")
	listening.Expect("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n")
	blocked.ExpectClosed()
}

// When all connections that clients may have to themselves are in use, one more
// client is told so; it works again when one is free.
func TestPinnedConnectionsAreBounded(t *testing.T) {
	p := startPair(t, func(s *setup) { s.limits.Pinned, s.limits.PinnedWait = 2, 10*time.Millisecond })
	a, b, c := p.dial(t), p.dial(t), p.dial(t)
	a.SendCommand("BLPOP", "qa", "0")
	b.Want(ok, "WATCH", "k")
	direct := p.direct(t)
	eventually(t, "both connections are in use", func() bool {
		return strings.Contains(direct.Do("INFO", "clients"), "blocked_clients:1")
	})
	wantPrefix(t, c, "-UNAVAILABLE no upstream connection is free (limits.pinned_max)", "BLPOP", "qc", "0")
	c.Want(null, "GET", "k") // by the shared one
	b.Want(ok, "UNWATCH")
	eventually(t, "b's connection is free", func() bool { return c.Do("WATCH", "k") == ok })
	c.Want(ok, "UNWATCH")
	direct.Want(":1\r\n", "LPUSH", "qc", "x")
	c.Want("*2\r\n$2\r\nqc\r\n$1\r\nx\r\n", "BLPOP", "qc", "0")
	direct.Want(":1\r\n", "LPUSH", "qa", "x")
	a.Expect("*2\r\n$2\r\nqa\r\n$1\r\nx\r\n")
}

// WAIT waits for what the session wrote by whatever connection.
func TestWaitKnowsWhatTheSessionWrote(t *testing.T) {
	p := startPair(t)
	replica := redistest.Start(t, redistest.Options{})
	host, port, _ := strings.Cut(p.redis.Addr, ":")
	reader := rawclient.Dial(t, replica.Addr)
	reader.Want(ok, "REPLICAOF", host, port)
	c := p.dial(t)
	c.Want(ok, "SET", "k", "0")
	eventually(t, "the replica follows", func() bool { return reader.Do("GET", "k") == "$1\r\n0\r\n" })
	eventually(t, "the replica acknowledges", func() bool { return c.Do("WAIT", "1", "100") == ":1\r\n" })
	replica.Pause()
	c.Want(ok, "SET", "k", "1")
	c.Want(":0\r\n", "WAIT", "1", "50") // it can't have it
	replica.Resume()
	eventually(t, "the replica has it", func() bool { return c.Do("WAIT", "1", "100") == ":1\r\n" })
	reader.Want("$1\r\n1\r\n", "GET", "k")
}

// What a client was told is done was done once, and what was lost was done once
// or not at all, whatever happens to the connections.
func TestNothingIsSentTwice(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	const clients, pushes = 40, 50
	acknowledged := make(chan string, clients*pushes)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for n := range pushes {
				c, err := rawclient.Connect(p.addr)
				if err != nil {
					t.Error(err)
					return
				}
				value := fmt.Sprint(i, "-", n)
				send := rawclient.Encode("RPUSH", "l", value)
				if n%2 == 0 {
					send = rawclient.Encode("MULTI") + send + rawclient.Encode("EXEC")
				}
				_, _ = c.Write([]byte(send))
				last := ""
				for range strings.Count(send, "*") {
					reply, err := c.TryReply()
					if err != nil {
						break
					}
					last = reply
				}
				if strings.HasPrefix(last, ":") || strings.HasPrefix(last, "*1\r\n:") {
					acknowledged <- value
				}
				c.Close()
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	for killing := true; killing; {
		select {
		case <-done:
			killing = false
		default:
			direct.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		}
	}
	close(acknowledged)
	pushed := map[string]int{}
	for value := range strings.SplitSeq(direct.Do("LRANGE", "l", "0", "-1"), "\r\n") {
		pushed[value]++
	}
	for value := range acknowledged {
		if pushed[value] == 0 {
			t.Errorf("%s was acknowledged and isn't there", value)
		}
	}
	for value, times := range pushed {
		if times > 1 && strings.Contains(value, "-") {
			t.Errorf("%s was pushed %d times", value, times)
		}
	}
}
