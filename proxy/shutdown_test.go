package proxy_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"seckill-proxy/internal/rawclient"
)

// shutdown runs Shutdown and tells when it has returned.
func shutdown(ctx context.Context, p *sidecar) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.server.Shutdown(ctx)
	}()
	return done
}

func TestShutdownLetsRunningCommandsFinish(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	forwarded, custom, idle, subscriber := p.dial(t), p.dial(t), p.dial(t), p.dial(t)
	custom.Want(created("s"), "SECKILL.CREATE", "s", "5")
	idle.Want(pong, "PING")
	wantPrefix(t, subscriber, "*3\r\n", "SUBSCRIBE", "ch")
	// What writes stands still in Redis, where it shows, until it is let go.
	direct.Want(ok, "CLIENT", "PAUSE", "600000", "WRITE")
	forwarded.SendCommand("SET", "k", "v")
	custom.SendCommand("SECKILL.BUY", "s", "u")
	eventually(t, "two commands are under way", func() bool { return strings.Count(direct.Do("CLIENT", "LIST"), " flags=b ") == 2 })

	done := shutdown(context.Background(), p.sidecar)
	idle.ExpectClosed()
	subscriber.ExpectClosed()
	direct.Want(ok, "CLIENT", "UNPAUSE")
	forwarded.Expect(ok)
	forwarded.ExpectClosed()
	if got := custom.Reply(); !strings.HasPrefix(got, "*5\r\n:200\r\n$8\r\nRESERVED\r\n") {
		t.Errorf("the purchase under way got %q", got)
	}
	custom.ExpectClosed()
	<-done
	if conn, err := net.Dial("tcp", p.addr); err == nil {
		// The kernel may have accepted for a moment; nobody serves it.
		if rest, _ := io.ReadAll(conn); len(rest) > 0 {
			t.Errorf("a client that came after Shutdown was sent %q", rest)
		}
		conn.Close()
	}
}

func TestShutdownCutsWhatWaitsAtItsBound(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	blocked, held := p.dial(t), p.dial(t)
	blocked.SendCommand("BLPOP", "q", "0")
	blockedClients(t, direct, 1)
	p.redis.Pause()
	held.SendCommand("SECKILL.LIST")
	held.SendCommand("GET", "k")
	ctx, cancel := context.WithCancel(context.Background())
	done := shutdown(ctx, p.sidecar)
	cancel()
	<-done // though Redis says nothing
	for _, c := range []*rawclient.Conn{blocked, held} {
		if rest := c.Rest(); strings.Contains(rest, "OK") {
			t.Errorf("before it was cut the client was sent %q", rest)
		}
	}
	p.redis.Resume()
	blockedClients(t, direct, 0)
	direct.Want(":1\r\n", "RPUSH", "q", "stays")
	direct.Want(":1\r\n", "LLEN", "q")
}

func TestShutdownWithoutClientsAndTwice(t *testing.T) {
	p := startPair(t)
	p.server.Shutdown(context.Background())
	p.server.Shutdown(context.Background())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.server.Serve(ln); err != nil {
		t.Errorf("Serve after Shutdown: %v", err)
	}
	if _, err := ln.Accept(); err == nil {
		t.Error("the listener is open after Serve")
	}
}

// A Redis that doesn't even read holds up who writes to it, but not the end.
func TestShutdownThoughRedisReadsNothing(t *testing.T) {
	p := startPair(t)
	first := p.dial(t)
	first.Want(pong, "PING")
	p.redis.Pause()
	// More than the sockets and the sidecar hold for Redis.
	value := strings.Repeat("v", 60_000)
	for range 60 {
		c := p.dial(t)
		for range 5 {
			if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write([]byte(rawclient.Encode("SET", "k", value))); err != nil {
				break // the sidecar doesn't read any more
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	<-shutdown(ctx, p.sidecar)
	p.redis.Resume()
}
