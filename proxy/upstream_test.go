package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"seckill-proxy/internal/nettest"
	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

func TestUpstreamDownIsAnErrorAndBackUpIsBackToWork(t *testing.T) {
	p := startPair(t)
	fresh, used, raw := p.dial(t), p.dial(t), p.dial(t)
	used.Want(ok, "SET", "k", "v")
	used.Want(created("s"), "SECKILL.CREATE", "s", "5")
	p.redis.Kill()
	// Until the end of its connections has come through, what is sent may have
	// reached Redis for all that the sidecar can know.
	eventually(t, "the sidecar knows", func() bool { return strings.HasPrefix(raw.Do("GET", "a"), "-UNAVAILABLE ") })
	raw.Send("GET a\r\nSET k v\r\nNOSUCH\r\n*2\r\n$3\r\nGET\r\n$70000\r\n" + strings.Repeat("k", 70_000) + "\r\nECHO x\r\nSECKILL.BUY s u\r\nSECKILL.BUY\r\n")
	for _, want := range []string{"-UNAVAILABLE ", "-UNAVAILABLE ", "-UNAVAILABLE ", "-UNAVAILABLE ", "-UNAVAILABLE ", "*5\r\n:503\r\n$4\r\nBUSY\r\n",
		"-ERR wrong number of arguments for 'seckill.buy' command\r\n"} {
		if got := raw.Reply(); !strings.HasPrefix(got, want) {
			t.Errorf("while Redis is down: got %q, want %q", got, want)
		}
	}
	for range 20 {
		reply := wantPrefix(t, fresh, "-UNAVAILABLE ", "GET", "k")
		if !strings.Contains(reply, p.redis.Addr) || !strings.HasSuffix(reply, "not executed\r\n") {
			t.Fatalf("the error doesn't say where Redis should be, or what became of the command: %q", reply)
		}
	}
	wantPrefix(t, used, "-UNAVAILABLE ", "GET", "k")
	wantPrefix(t, fresh, "*6\r\n:503\r\n", "LOCK.ACQUIRE", "l", "1000")
	p.redis.Restart()
	for _, c := range []*rawclient.Conn{fresh, used, raw} {
		eventually(t, "the client's connection works again", func() bool { return c.Do("SET", "k", "v") == ok })
		c.Want("$1\r\nv\r\n", "GET", "k")
		eventually(t, "custom commands work again", func() bool { return strings.HasPrefix(c.Do("SECKILL.BUY", "s", "u"), "*5\r\n:404\r\n") })
	}
	// QUIT works without Redis.
	p.redis.Kill()
	fresh.Want(ok, "QUIT")
	fresh.ExpectClosed()
}

// TestAStateThatIsLostWithItsConnectionIsNotPretended: what a client had only on
// a connection that is gone, it may not believe that it still has.
func TestAStateThatIsLostWithItsConnectionIsNotPretended(t *testing.T) {
	p := startPair(t)
	setups := map[string]string{
		"watch":     "WATCH k\r\n",
		"multi":     "MULTI\r\nSET k v\r\n",
		"subscribe": "SUBSCRIBE ch\r\n",
		"monitor":   "MONITOR\r\n",
		"tracking":  "HELLO 3\r\nCLIENT TRACKING ON\r\n",
	}
	for name, setup := range setups {
		c := p.dial(t)
		c.Send(setup)
		for range strings.Count(setup, "\r\n") {
			c.Reply()
		}
		p.redis.Restart()
		if rest := c.Rest(); strings.Contains(rest, "+OK") || strings.Contains(rest, "*") {
			t.Errorf("%s: before the connection was closed came %q", name, rest)
		}
	}
	// A database, a name and a protocol are set up again.
	c := p.dial(t)
	c.Send("SELECT 3\r\nCLIENT SETNAME n\r\nHELLO 3\r\n")
	c.Expect(ok + ok)
	c.Reply()
	p.redis.Restart()
	eventually(t, "the client's connection works again", func() bool { return c.Do("SET", "k", "v") == ok })
	c.Want("_\r\n", "GET", "none")
	c.Want("$1\r\nn\r\n", "CLIENT", "GETNAME")
	p.direct(t).Want(":0\r\n", "EXISTS", "k")
}

// TestUpstreamKilledWithCommandsOutstanding: each command that may have been
// executed gets one error that says so, and none is sent again.
func TestUpstreamKilledWithCommandsOutstanding(t *testing.T) {
	p := startPair(t)
	c, blocked, other := p.dial(t), p.dial(t), p.dial(t)
	other.Want(ok, "SET", "n", "0")
	p.redis.Pause()
	const outstanding = 300
	for range outstanding {
		c.SendCommand("INCR", "n")
	}
	blocked.Send("BLPOP q 0\r\nPING\r\n")
	// The commands are on their way once the sidecar has read them, which nobody
	// tells; those that are not get an error that says so.
	p.redis.Kill()
	for i := range outstanding {
		if got := c.Reply(); !strings.HasPrefix(got, "-UNCERTAIN ") && !strings.HasPrefix(got, "-UNAVAILABLE ") {
			t.Fatalf("outstanding command %d got %q", i, got)
		}
	}
	if got := blocked.Reply(); !strings.HasPrefix(got, "-UNCERTAIN ") && !strings.HasPrefix(got, "-UNAVAILABLE ") {
		t.Fatalf("the blocked command got %q", got)
	}
	p.redis.Restart()
	eventually(t, "the client's connection works again", func() bool { return strings.HasPrefix(c.Do("EXISTS", "n"), ":") })
	c.Want(":0\r\n", "EXISTS", "n") // nothing was sent again
	eventually(t, "other clients work again", func() bool { return other.Do("GET", "n") == null })
}

// TestConnectionsOfTheSidecarAreKilled takes the connections under the feet of
// many clients at work. Every reply is the client's own value, or an error.
// (Case F18)
func TestConnectionsOfTheSidecarAreKilled(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	const clients, rounds = 20, 40
	var working sync.WaitGroup
	faults := make(chan string, clients)
	for n := range clients {
		c := p.dial(t)
		working.Go(func() {
			for round := range rounds {
				value := fmt.Sprintf("client-%d-round-%d", n, round)
				commands := [][]string{{"ECHO", value}, {"SET", value, value}, {"GET", value}, {"EVAL", "return ARGV[1]", "0", value}, {"BLPOP", "none", "0.001"}, {"ECHO", value}}
				var raw string
				for _, command := range commands {
					raw += rawclient.Encode(command...)
				}
				if _, err := io.WriteString(c, raw); err != nil {
					return
				}
				for i, want := range []string{rawclient.Bulk(value), ok, rawclient.Bulk(value), rawclient.Bulk(value), "*-1\r\n", rawclient.Bulk(value)} {
					got, err := c.TryReply()
					if err != nil {
						return // closed, as on a direct connection
					}
					isError := strings.HasPrefix(got, "-UNCERTAIN ") || strings.HasPrefix(got, "-UNAVAILABLE ")
					lost := i == 2 && got == null // its SET was
					if got != want && !isError && !lost {
						faults <- fmt.Sprintf("%v got %q, want %q", commands[i], got, want)
						return
					}
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		working.Wait()
		close(done)
	}()
	for stopped := false; !stopped; {
		direct.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		select {
		case <-done:
			stopped = true
		case <-time.After(5 * time.Millisecond): // let them work for a while
		}
	}
	close(faults)
	for fault := range faults {
		t.Error(fault)
	}
	c := p.dial(t)
	eventually(t, "a new client works", func() bool { return c.Do("ECHO", "x") == rawclient.Bulk("x") })
}

// TestAPausedUpstreamIsWaitedFor: no command of a client has a timeout of the
// sidecar's own, but the scripts of custom commands have, and their late replies
// are nobody's.
// (Case F1: a reply that comes late is still its command's)
func TestAPausedUpstreamIsWaitedFor(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	p := startSidecar(t, server.Addr, func(s *setup) {
		s.upstream.ScriptTimeout, s.upstream.DialTimeout = 100*time.Millisecond, 100*time.Millisecond
	})
	a, b := p.dial(t), p.dial(t)
	b.Want(created("s"), "SECKILL.CREATE", "s", "10", "LIMIT", "0")
	wantPrefix(t, b, "*5\r\n:200\r\n", "SECKILL.BUY", "s", "first")
	a.Want(pong, "PING")
	server.Pause()
	a.Send("ECHO waits\r\n")
	for range 3 {
		// After the first there may be no connection left to send it by.
		got := b.Do("SECKILL.BUY", "s", "late")
		if !strings.HasPrefix(got, "*5\r\n:202\r\n$9\r\nUNCERTAIN\r\n") && !strings.HasPrefix(got, "*5\r\n:503\r\n$4\r\nBUSY\r\n") {
			t.Errorf("BUY while Redis stands still: %q", got)
		}
	}
	server.Resume()
	a.Expect(rawclient.Bulk("waits"))
	for i := range 5 {
		user := fmt.Sprint("user", i)
		eventually(t, "sales work again", func() bool {
			return strings.HasPrefix(b.Do("SECKILL.BUY", "s", user), "*5\r\n:200\r\n$8\r\nRESERVED\r\n")
		})
	}
}

// TestAClientThatIsGoneIsForgottenThoughRedisIsSilent: while Redis stands still,
// those who gave up and came again may not use up the places.
func TestAClientThatIsGoneIsForgottenThoughRedisIsSilent(t *testing.T) {
	for _, waits := range []string{"GET k\r\n", "BLPOP q 0\r\n", "MULTI\r\n", "GET k\r\nSECKILL.LIST\r\n", "MULTI\r\nSECKILL.LIST\r\n", "SECKILL.LIST\r\n",
		"GET k\r\nBLPOP q 0\r\n", "BLPOP q 0\r\nGET k\r\n", "EVAL \"return 1\" 0\r\nGET k\r\n"} {
		t.Run(waits, func(t *testing.T) {
			server := redistest.Start(t, redistest.Options{})
			p := startSidecar(t, server.Addr, func(s *setup) {
				s.limits.Clients = 1
				s.limits.Linger = 10 * time.Millisecond
				s.upstream.ScriptTimeout, s.upstream.DialTimeout = 100*time.Millisecond, 100*time.Millisecond
			})
			c := p.dial(t)
			c.Send("PING\r\nSECKILL.LIST\r\nEVAL \"return 1\" 0\r\nBLPOP none 0.001\r\n") // all its connections are there
			c.Expect(pong + noSales + ":1\r\n*-1\r\n")
			server.Pause()
			defer server.Resume()
			c.Send(waits)
			c.Close()
			eventually(t, "there is room for another client", func() bool {
				next := p.dial(t)
				defer next.Close()
				// Answered without Redis, unless the client is turned away.
				_, _ = next.Write([]byte("SECKILL.BUY\r\n"))
				reply, err := next.TryReply()
				return err == nil && strings.HasPrefix(reply, "-ERR wrong number of arguments")
			})
		})
	}
}

// awaitCommand answers the PINGs with which the sidecar tries a new connection,
// and returns when another command has come; false at the end.
func awaitCommand(conn net.Conn, rd *bufio.Reader) bool {
	for {
		command, err := rawclient.AppendReply(nil, rd) // a command has the form of a reply
		if err != nil {
			return false
		}
		if string(command) != rawclient.Encode("PING") {
			return true
		}
		if _, err := io.WriteString(conn, pong); err != nil {
			return false
		}
	}
}

// TestWhatIsNoReplyNeverReachesAClient has a Redis that isn't one. Commands are
// ECHO with different words; whatever happens, a client may read only the reply
// to its own command, an error of the sidecar's, or the end.
func TestWhatIsNoReplyNeverReachesAClient(t *testing.T) {
	answers := map[string]string{
		"garbage":              "hello world\r\n",
		"HTTP":                 "HTTP/1.1 400 Bad Request\r\n\r\n",
		"no length":            "$x\r\n",
		"negative length":      "$-2\r\n",
		"absurd length":        "$99999999999999999999\r\n",
		"absurd array":         "*9223372036854775807\r\n",
		"binary":               "\x16\x03\x01\x02\x00",
		"endless length":       "$" + strings.Repeat("1", 100_000),
		"two for one":          mine + "+not mine\r\n",
		"a push for all":       ">2\r\n+message\r\n+not mine\r\n",
		"a reply and garbage":  mine + "garbage\r\n",
		"an array of garbage":  "*2\r\n+a\r\ngarbage\r\n",
		"nothing, then closed": "",
	}
	for name, say := range answers {
		for _, command := range []string{"ECHO", "NOSUCH", "EVAL", "BLPOP"} {
			t.Run(name+" to "+command, func(t *testing.T) {
				addr, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
					if !awaitCommand(conn, rd) || say == "" {
						return
					}
					_, _ = io.WriteString(conn, say)
					_, _ = io.Copy(io.Discard, rd)
				})
				c := startSidecar(t, addr).dial(t)
				for i := range 3 {
					if _, err := c.Write([]byte(rawclient.Encode(command, fmt.Sprint(i), "0"))); err != nil {
						return // closed meanwhile
					}
					got, err := c.TryReply()
					switch {
					case err != nil && strings.Contains(describe(err), "nothing came"):
						t.Fatalf("command %d: the client waits for ever (%q came)", i, got)
					case err != nil:
						return // closed, with nothing but the beginning of a reply
					case got == mine && strings.HasPrefix(say, mine):
					case strings.HasPrefix(got, "-UNCERTAIN ") || strings.HasPrefix(got, "-UNAVAILABLE "):
					default:
						t.Fatalf("command %d: the client got %q", i, got)
					}
				}
			})
		}
	}
}

const mine = "+mine\r\n"

// TestHalfAReplyEndsTheConnection: a client that has the beginning of a reply
// can't be told an error any more.
func TestHalfAReplyEndsTheConnection(t *testing.T) {
	for _, half := range []string{"$10\r\nhalf", "*2\r\n+a\r\n", "+O", "$5\r\nwhole", "*1\r\n$3\r\nab", ":", "%1\r\n+k\r\n", "$100000\r\n" + strings.Repeat("x", 50_000)} {
		for _, command := range []string{"ECHO", "NOSUCH", "EVAL"} {
			addr, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
				if awaitCommand(conn, rd) {
					_, _ = io.WriteString(conn, half)
				}
			})
			p := startSidecar(t, addr)
			c := p.dial(t)
			c.Send(rawclient.Encode(command, "x", "0") + rawclient.Encode(command, "y", "0"))
			// Either the beginning and the end of the connection, or only errors.
			rest, err := io.ReadAll(io.LimitReader(readerWithDeadline{c}, int64(len(half)+1)))
			switch got := string(rest); {
			case got == half && err == nil: // as on a direct connection
			case strings.HasPrefix(got, "-UN"): // nothing of it was passed on
			case strings.HasPrefix(half, got) && err == nil:
			default:
				t.Errorf("%s %s: the client got %s, %v", command, rawclient.Abridged(half), rawclient.Abridged(got), err)
			}
			c.Close()
		}
	}
}

// readerWithDeadline reads with the patience of the test.
type readerWithDeadline struct{ c *rawclient.Conn }

func (r readerWithDeadline) Read(p []byte) (int, error) {
	if err := r.c.SetReadDeadline(time.Now().Add(rawclient.Patience)); err != nil {
		return 0, err
	}
	return r.c.Reader.Read(p)
}
