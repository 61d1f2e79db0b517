package proxy_test

import (
	"strings"
	"testing"
	"time"
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
