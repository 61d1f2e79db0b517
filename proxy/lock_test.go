package proxy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"seckill-proxy/internal/rawclient"
)

// replyTo is the beginning of a reply of LOCK.*.
func replyTo(code int, word string) string {
	return fmt.Sprintf("*6\r\n:%d\r\n%s", code, rawclient.Bulk(word))
}

// lockFree waits until a lock is free.
func lockFree(t *testing.T, direct *rawclient.Conn, name string) {
	t.Helper()
	eventually(t, name+" is free", func() bool { return direct.Do("EXISTS", "lock:"+name) == ":0\r\n" })
}

// lockWaiters waits until so many clients wait for a lock.
func lockWaiters(t *testing.T, c *rawclient.Conn, name string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d waiters", n), func() bool {
		return strings.Contains(c.Do("LOCK.INFO", name), fmt.Sprintf("waiters\r\n:%d\r\n", n))
	})
}

// L2, and the other ends of what a connection has.
func TestL2_AutoLocksEndWithTheirConnection(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	for what, leave := range map[string]func(c *rawclient.Conn){
		"close":      func(c *rawclient.Conn) { c.Close() },
		"half close": func(c *rawclient.Conn) { c.HalfClose() },
		"QUIT":       func(c *rawclient.Conn) { c.Want(ok, "QUIT") },
		"RESET":      func(c *rawclient.Conn) { c.Want("+RESET\r\n", "RESET") },
		"protocol":   func(c *rawclient.Conn) { c.Send("*x\r\n") },
	} {
		t.Run(what, func(t *testing.T) {
			c := p.dial(t)
			wantPrefix(t, c, replyTo(200, "ACQUIRED"), "LOCK.ACQUIRE", "a", "60000", "AUTO")
			c.Want(ok, "SELECT", "3")
			wantPrefix(t, c, replyTo(200, "ACQUIRED"), "LOCK.ACQUIRE", "b", "60000", "SHARED", "AUTO")
			wantPrefix(t, c, replyTo(200, "ACQUIRED"), "LOCK.ACQUIRE", "plain", "60000")
			c.Want(ok, "SELECT", "0")
			wantPrefix(t, c, replyTo(200, "ACQUIRED"), "LOCK.MACQUIRE", "60000", "2", "c", "d", "AUTO")
			direct.Want(":3\r\n", "EXISTS", "lock:a", "lock:c", "lock:d")
			leave(c)
			for _, name := range []string{"a", "c", "d"} {
				lockFree(t, direct, name)
			}
			direct.Want(ok, "SELECT", "3")
			lockFree(t, direct, "b")
			direct.Want(":1\r\n", "DEL", "lock:plain") // without AUTO it stays
			direct.Want(ok, "SELECT", "0")
		})
	}
}

func TestRESETReleasesBeforeItAnswersAndTheConnectionGoesOn(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	c := p.dial(t)
	for range 3 {
		c.Send(rawclient.Encode("LOCK.ACQUIRE", "a", "60000", "AUTO") + rawclient.Encode("INCR", "work") + rawclient.Encode("RESET"))
		for _, want := range []string{replyTo(200, "ACQUIRED"), ":", "+RESET\r\n"} {
			if got := c.Reply(); !strings.HasPrefix(got, want) {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
		direct.Want(":0\r\n", "EXISTS", "lock:a")
	}
}

// A client that is gone, or has closed its sending side, waits no more.
func TestAWaiterThatIsGoneIsSkipped(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	for what, leave := range map[string]func(c *rawclient.Conn){
		"close":      func(c *rawclient.Conn) { c.Close() },
		"half close": func(c *rawclient.Conn) { c.HalfClose() },
	} {
		t.Run(what, func(t *testing.T) {
			holder, first, second := p.dial(t), p.dial(t), p.dial(t)
			wantPrefix(t, holder, replyTo(200, "ACQUIRED"), "LOCK.ACQUIRE", "a", "60000", "TOKEN", "t")
			first.SendCommand("LOCK.ACQUIRE", "a", "60000", "WAIT", "60000")
			lockWaiters(t, holder, "a", 1)
			second.SendCommand("LOCK.ACQUIRE", "a", "60000", "WAIT", "60000")
			lockWaiters(t, holder, "a", 2)
			leave(first)
			lockWaiters(t, holder, "a", 1)
			wantPrefix(t, holder, replyTo(200, "RELEASED"), "LOCK.RELEASE", "a", "t")
			if got := second.Reply(); !strings.HasPrefix(got, replyTo(200, "ACQUIRED")) {
				t.Fatalf("got %q", got)
			}
			direct.Want(":1\r\n", "DEL", "lock:a")
		})
	}
}

// What needs no waiting is done for a client that has closed its sending side.
func TestAHalfClosedClientGetsWhatNeedsNoWaiting(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	c.Send(rawclient.Encode("LOCK.ACQUIRE", "a", "60000", "WAIT", "60000") + rawclient.Encode("GET", "k"))
	c.HalfClose()
	if got := c.Reply(); !strings.HasPrefix(got, replyTo(200, "ACQUIRED")) {
		t.Fatalf("got %q", got)
	}
	c.Expect(null)
	c.ExpectClosed()
}

func TestADrainEndsWaitsAndReleasesAutoLocks(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	auto, waiter := p.dial(t), p.dial(t)
	wantPrefix(t, auto, replyTo(200, "ACQUIRED"), "LOCK.ACQUIRE", "a", "60000", "AUTO")
	direct.Want(ok, "SET", "lock:b", "theirs", "PX", "60000")
	waiter.SendCommand("LOCK.ACQUIRE", "b", "60000", "WAIT", "60000")
	lockWaiters(t, auto, "b", 1)
	<-shutdown(context.Background(), p.sidecar)
	if got := waiter.Reply(); !strings.HasPrefix(got, replyTo(503, "BUSY")) {
		t.Fatalf("got %q", got)
	}
	waiter.ExpectClosed()
	auto.ExpectClosed()
	direct.Want(":0\r\n", "EXISTS", "lock:a")
	direct.Want("$6\r\ntheirs\r\n", "GET", "lock:b")
}

// While one waits, nobody else does.
func TestAWaitHoldsUpNobody(t *testing.T) {
	p := startPair(t)
	holder, waiter, other := p.dial(t), p.dial(t), p.dial(t)
	wantPrefix(t, holder, replyTo(200, "ACQUIRED"), "LOCK.ACQUIRE", "a", "60000", "TOKEN", "t")
	waiter.Send(rawclient.Encode("PING") + rawclient.Encode("LOCK.ACQUIRE", "a", "60000", "WAIT", "60000", "TOKEN", "u") + rawclient.Encode("LOCK.CHECK", "a", "u"))
	waiter.Expect(pong) // before it waits
	lockWaiters(t, other, "a", 1)
	other.Want(pong, "PING")
	wantPrefix(t, holder, replyTo(200, "RELEASED"), "LOCK.RELEASE", "a", "t")
	for _, want := range []string{replyTo(200, "ACQUIRED"), replyTo(200, "HELD")} {
		if got := waiter.Reply(); !strings.HasPrefix(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}
