package lock

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
)

// Redis is killed while locks are taken, renewed and released. Whatever it finds
// in its AOF afterwards has a TTL.
func TestL5_NoKeyWithoutTTLAfterACrash(t *testing.T) {
	server := redistest.Start(t, redistest.Options{AppendOnly: true})
	for round := range 3 {
		rdb := server.Client(t)
		l, ctx := locker(rdb), t.Context()
		var (
			wait  sync.WaitGroup
			done  atomic.Int64
			busy  = make(chan struct{})
			ended = make(chan struct{})
		)
		for _, name := range []string{"a", "b", "c", "d"} {
			wait.Go(func() {
				for {
					// Any error is the crash. What was done until then is on disk.
					for _, op := range []func() (Result, error){
						func() (Result, error) { return l.Acquire(ctx, Request{Name: name, Token: name, TTL: minute}) },
						func() (Result, error) { return l.Acquire(ctx, Request{Name: name, Token: name, TTL: minute}) },
						func() (Result, error) { return l.Renew(ctx, name, name, minute) },
						func() (Result, error) { return l.Release(ctx, name, name, nil) },
						func() (Result, error) { return l.Release(ctx, name, name, nil) },
					} {
						if _, err := op(); err != nil {
							return
						}
						if done.Add(1) == 500 {
							close(busy)
						}
					}
				}
			})
		}
		go func() {
			wait.Wait()
			close(ended)
		}()
		select {
		case <-busy:
		case <-ended:
			t.Fatal("every call failed, and Redis still runs")
		}
		server.Kill()
		<-ended
		server.Restart()

		after := server.Client(t)
		keys := must(after.Keys(ctx, "*").Result())(t)
		if len(keys) == 0 {
			t.Fatal("nothing survived, nothing was tested")
		}
		for _, key := range keys {
			isCounter := strings.HasPrefix(key, "lockmeta:") && strings.HasSuffix(key, "}:fence")
			if ttl := must(after.PTTL(ctx, key).Result())(t); (ttl > 0) == isCounter {
				t.Errorf("round %d: PTTL %q is %d", round, key, ttl)
			}
		}
	}
}

// The lock is only ever written together with its TTL, in one command.
func TestLockIsWrittenWithItsTTL(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	l := locker(server.Client(t))
	conn := must(net.Dial("tcp", server.Addr))(t)
	defer conn.Close()
	must(io.WriteString(conn, "MONITOR\r\n"))(t)
	monitor := bufio.NewScanner(conn)
	if !monitor.Scan() || monitor.Text() != "+OK" {
		t.Fatalf("MONITOR: %q", monitor.Text())
	}

	acquire(t, l, "x", "me", minute)
	acquire(t, l, "x", "me", minute)
	renew(t, l, "x", "me", minute)
	release(t, l, "x", "me")
	release(t, l, "x", "me")
	check(t, l, "last of all", "me")

	writes := 0
	for monitor.Scan() && !strings.Contains(monitor.Text(), "last of all") {
		// 1700000000.123456 [0 lua] "SET" "lock:x" "me" "PX" "60000"
		_, command, inScript := strings.Cut(monitor.Text(), " lua] ")
		if inScript && strings.HasPrefix(command, `"SET" "lock:x" `) {
			writes++
			if command != `"SET" "lock:x" "me" "PX" "60000"` {
				t.Errorf("without a TTL: %s", command)
			}
		}
	}
	if writes != 2 {
		t.Fatalf("%d writes of the lock, want 2", writes)
	}
}

// When the reply is lost, the caller gets the token and can find out.
func TestLostReply(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	direct := locker(server.Client(t))
	wire := newLossyWire(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: wire.addr, MaxRetries: -1, PoolSize: 1})
	t.Cleanup(func() { rdb.Close() })
	l, ctx := locker(rdb), t.Context()
	acquire(t, l, "warm up: connection, script", "", minute)

	wire.loseReplies.Store(true)
	lost, err := l.Acquire(ctx, Request{Name: "x", TTL: minute})
	if !errors.Is(err, script.ErrUncertain) || lost.Token == "" || lost.Outcome != "" {
		t.Fatalf("got %+v, %v", lost, err)
	}
	held := check(t, direct, "x", lost.Token)
	expect(t, held, Result{Held, lost.Token, held.Fence, minute, 1})
	expect(t, release(t, direct, "x", lost.Token), Result{Released, lost.Token, held.Fence, 0, 0})
}

func TestNothingSent(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	l := locker(server.Client(t))
	server.Kill()
	result, err := l.Acquire(t.Context(), Request{Name: "x", TTL: minute})
	if !errors.Is(err, script.ErrNotExecuted) || result.Outcome != "" {
		t.Fatalf("got %+v, %v", result, err)
	}
}

// lossyWire passes bytes to a server. Told to lose replies, it passes a command
// on, and when the server has answered it, cuts the connection instead.
type lossyWire struct {
	addr        string
	loseReplies atomic.Bool
}

func newLossyWire(t *testing.T, server string) *lossyWire {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	w := &lossyWire{addr: listener.Addr().String()}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			wait.Go(func() {
				io.Copy(upstream, client)
				upstream.Close()
			})
			wait.Go(func() {
				defer client.Close()
				buf := make([]byte, 4096)
				for {
					n, err := upstream.Read(buf)
					if err != nil || w.loseReplies.Load() {
						return
					}
					client.Write(buf[:n])
				}
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		wait.Wait()
	})
	return w
}
