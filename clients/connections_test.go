package clients

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/config"
	"seckill-proxy/internal/rawclient"
)

// upstreamsMax is how many connections to Redis do for any number of clients in
// ordinary use.
const upstreamsMax = 16

// TestIdleClients has 5,000 clients, of which 200 work.
func TestIdleClients(t *testing.T) {
	p := start(t)
	const idle, working = 5000, 200
	p.create("iphone", working/2)
	clients := make([]*rawclient.Conn, idle)
	for i := range clients {
		clients[i] = rawclient.Dial(t, p.addr)
		clients[i].SendCommand("PING")
	}
	for _, c := range clients {
		c.Expect("+PONG\r\n")
	}

	workers := make([]*redis.Client, working)
	for i := range workers {
		workers[i] = client(t, p.addr, 2+i%2, one)
	}
	var most int // connections to Redis; those that were needed for a moment stay open for longer than a round
	for round := range 3 {
		err := together(working, func(i int) error { return shop(t.Context(), workers[i], i, round) })
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, p.upstreams())
	}
	if most > upstreamsMax {
		t.Errorf("%d connections to Redis for %d clients, want at most %d", most, idle+working, upstreamsMax)
	}
	if sum, err := p.direct.Get(t.Context(), "sum").Int(); sum != 3*working || err != nil {
		t.Errorf("counted to %d (%v), want %d", sum, err, 3*working)
	}
	p.audit("iphone")
	for _, c := range clients {
		c.SendCommand("PING")
	}
	for _, c := range clients {
		c.Expect("+PONG\r\n")
	}
}

// one makes a go-redis client have a single connection.
func one(options *redis.Options) { options.PoolSize = 1 }

// shop is ordinary use: what one worker does in one round.
func shop(ctx context.Context, c *redis.Client, worker, round int) error {
	key, value := fmt.Sprintf("session:%d", worker), fmt.Sprintf("%d/%d", worker, round)
	if err := c.Set(ctx, key, value, time.Minute).Err(); err != nil {
		return err
	}
	if got, err := c.Get(ctx, key).Result(); got != value || err != nil {
		return fmt.Errorf("GET: %q, %v; want %q", got, err, value)
	}
	if err := c.Incr(ctx, "sum").Err(); err != nil {
		return err
	}
	lock, err := c.Do(ctx, "LOCK.ACQUIRE", key, 60_000).Slice()
	if err != nil || lock[1] != "ACQUIRED" {
		return fmt.Errorf("LOCK.ACQUIRE: %v, %v", lock, err)
	}
	bought, err := c.Do(ctx, "SECKILL.BUY", "iphone", key, "ID", "cart").Slice()
	if err != nil || !strings.Contains("RESERVED REPLAYED SOLD_OUT", fmt.Sprint(bought[1])) {
		return fmt.Errorf("SECKILL.BUY: %v, %v", bought, err)
	}
	released, err := c.Do(ctx, "LOCK.RELEASE", key, lock[2]).Slice()
	if err != nil || released[1] != "RELEASED" {
		return fmt.Errorf("LOCK.RELEASE: %v, %v", released, err)
	}
	return nil
}

// TestTransactionsReuseConnections has 20 clients in 1,000 transactions: none
// opens a connection to Redis of its own.
func TestTransactionsReuseConnections(t *testing.T) {
	p := start(t)
	const clients, transactions = 20, 1000
	before := p.received()
	err := together(clients, func(int) error {
		c := client(t, p.addr, 2, one)
		for range transactions / clients {
			if _, err := c.TxPipelined(t.Context(), func(tx redis.Pipeliner) error { return tx.Incr(t.Context(), "n").Err() }); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := p.direct.Get(t.Context(), "n").Int(); n != transactions || err != nil {
		t.Errorf("counted to %d (%v), want %d", n, err, transactions)
	}
	// At most one for each client, and those that they share.
	if grown := p.received() - before; grown > clients+upstreamsMax {
		t.Errorf("%d connections to Redis were opened for %d transactions of %d clients", grown, transactions, clients)
	}
}

// TestSubscriptionsLeakNothing has clients that subscribe, unsubscribe, go on and
// leave, one after the other on each of a few threads.
func TestSubscriptionsLeakNothing(t *testing.T) {
	p := start(t)
	if err := p.direct.Set(t.Context(), "x", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	const threads, clients = 10, 5000
	before := p.received()
	conversation := rawclient.Encode("SUBSCRIBE", "a") + rawclient.Encode("UNSUBSCRIBE", "a") + rawclient.Encode("GET", "x")
	want := "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n" + "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n" + rawclient.Bulk("value")
	err := together(threads, func(int) error {
		for range clients / threads {
			got, err := talk(p.addr, conversation, len(want))
			if err != nil || got != want {
				return fmt.Errorf("got %q, %v; want %q", got, err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if grown := p.received() - before; grown > threads+upstreamsMax {
		t.Errorf("%d connections to Redis were opened for %d clients, %d at a time", grown, clients, threads)
	}
	if n := p.upstreams(); n > threads+upstreamsMax {
		t.Errorf("%d connections to Redis are left", n)
	}
	if n := p.direct.PubSubNumSub(t.Context(), "a").Val()["a"]; n != 0 {
		t.Errorf("%d subscriptions are left", n)
	}
}

// TestReadyChecksAndScripts does what clients do when they connect, and lock
// libraries when they load their scripts.
func TestReadyChecksAndScripts(t *testing.T) {
	p := start(t)
	a, b := client(t, p.addr, 2), client(t, p.addr, 3)
	if text, err := a.Info(t.Context()).Result(); err != nil || !strings.Contains(text, "loading:0\r\n") {
		t.Errorf("INFO: %v, %q", err, text)
	}
	sha, err := a.ScriptLoad(t.Context(), "return ARGV[1]").Result()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // whichever connection to Redis it takes
		if got, err := b.EvalSha(t.Context(), sha, nil, "x").Text(); got != "x" || err != nil {
			t.Fatalf("EVALSHA: %q, %v", got, err)
		}
	}
}

// TestIdleStaysConnected has no client lose its connection by being silent:
// neither is that configured, nor does it lose what it stands on when the sidecar
// closes connections to Redis that nobody needs.
func TestIdleStaysConnected(t *testing.T) {
	if timeout := config.Default().Client.IdleTimeout; timeout != 0 {
		t.Errorf("by default, silent clients are disconnected after %s", timeout)
	}

	p := start(t, "SECKILL_UPSTREAM_PINNED_IDLE_MS=20")
	subscriber, watcher, worker := rawclient.Dial(t, p.addr), rawclient.Dial(t, p.addr), rawclient.Dial(t, p.addr)
	worker.Want("+OK\r\n", "SET", "x", "1")
	subscriber.Want("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", "SUBSCRIBE", "a")
	watcher.Want("+OK\r\n", "WATCH", "x")
	transaction := func() {
		t.Helper()
		worker.Send(rawclient.Encode("MULTI") + rawclient.Encode("INCR", "n") + rawclient.Encode("EXEC"))
		worker.Expect("+OK\r\n+QUEUED\r\n*1\r\n")
		worker.Reply()
	}
	needed, received := p.upstreams(), p.received()
	transaction()
	if p.received() == received {
		t.Error("the transaction opened no connection, so this tests nothing")
	}
	eventually(t, "the transaction's connection is closed", func() bool { return p.upstreams() == needed })

	transaction()
	worker.Want(":1\r\n", "PUBLISH", "a", "hello")
	subscriber.Expect("*3\r\n$7\r\nmessage\r\n" + rawclient.Bulk("a") + rawclient.Bulk("hello"))
	worker.Want("+OK\r\n", "SET", "x", "2")
	watcher.Want("+OK\r\n", "MULTI")
	watcher.Want("*-1\r\n", "EXEC")
}
