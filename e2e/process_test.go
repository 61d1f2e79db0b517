package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// TestEmbedded tries the program without any configuration of its upstream.
func TestEmbedded(t *testing.T) {
	proxy := start(t, settings{})
	proxy.Await("the store is embedded and in memory")
	proxy.Await("try: redis-cli -p " + proxy.Port())
	c := proxy.client(3)
	want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 1)
	token := want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", "alice")[2]
	want(t, 4001, "SOLD_OUT", c, "SECKILL.BUY", "iphone", "bob")
	want(t, 200, "CONFIRMED", c, "SECKILL.CONFIRM", token, "order-1")
	want(t, 200, "CLEAN", c, "SECKILL.AUDIT", "iphone")

	// Both kinds of TTL lapse by themselves.
	lock := want(t, 200, "ACQUIRED", c, "LOCK.ACQUIRE", "report", 100)[2]
	if err := c.Do(t.Context(), "SET", "session", "1", "PX", 100).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lock lapses", func() bool {
		return do(t, c, "LOCK.CHECK", "report", lock)[1] == "EXPIRED"
	})
	eventually(t, "the key lapses", func() bool {
		return errors.Is(c.Do(t.Context(), "GET", "session").Err(), redis.Nil)
	})
	want(t, 200, "ACQUIRED", c, "LOCK.ACQUIRE", "report", 60_000)
}

// TestStops tells the program to stop in both ways, with clients connected.
func TestStops(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		t.Run(signal.String(), func(t *testing.T) {
			server := redistest.Start(t, redistest.Options{})
			proxy := start(t, settings{Args: []string{"-upstream", server.Addr}})
			c := proxy.client(2)
			if err := c.Do(t.Context(), "SET", "key", "value").Err(); err != nil {
				t.Fatal(err)
			}
			direct := server.Client(t)
			waiter := make(chan error, 1)
			go func() { waiter <- c.Do(t.Context(), "BLPOP", "queue", 0).Err() }()
			eventually(t, "BLPOP waits", func() bool {
				return strings.Contains(direct.ClientList(t.Context()).Val(), "cmd=blpop")
			})

			proxy.Signal(signal)

			if code := proxy.ExitCode(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			if err := <-waiter; err == nil {
				t.Error("BLPOP was answered, want a closed connection")
			}
			if proxy.Log.Find(`"stopped"`) == "" {
				t.Error("the log doesn't say that it stopped")
			}
			if conn, err := net.Dial("tcp", proxy.Addr); err == nil {
				conn.Close()
				t.Error("its port is still open")
			}
		})
	}
}

// sold counts the units that are gone, asked of Redis itself.
func sold(t testing.TB, c *redis.Client) int64 {
	t.Helper()
	names, err := c.Keys(t.Context(), "seckill:{*}:sale:*").Result()
	if err != nil || len(names) != 1 {
		t.Fatalf("keys of sales: %v, %v; want one", names, err)
	}
	pending, err := c.HGet(t.Context(), names[0], "pending").Int64()
	if err != nil {
		t.Fatal(err)
	}
	return pending
}

// TestDrain tells the program to stop while Redis works on a purchase: the buyer
// still gets the answer.
func TestDrain(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	direct, between := server.Client(t), startRelay(t, server.Addr)
	proxy := start(t, settings{Args: []string{"-upstream", between.addr}})
	c := proxy.client(2)
	want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 10)
	want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", "alice")

	connectAll(t, c, direct)
	between.hold()
	type answer struct {
		purchase
		err error
	}
	told := make(chan answer, 1)
	go func() {
		p, err := buy(t.Context(), c, "iphone", "bob")
		told <- answer{p, err}
	}()
	eventually(t, "the purchase is under way", func() bool { return sold(t, direct) == 2 })
	proxy.Signal(syscall.SIGTERM)
	proxy.Await("stopping")
	between.release()

	if a := <-told; a.err != nil || a.word != "RESERVED" {
		t.Errorf("the buyer was told %v, %v; want RESERVED", a.purchase, a.err)
	}
	if code := proxy.ExitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// TestDrainIsBounded never lets the answer through: the program ends all the
// same.
func TestDrainIsBounded(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	direct, between := server.Client(t), startRelay(t, server.Addr)
	proxy := start(t, settings{
		Args: []string{"-upstream", between.addr},
		Env:  []string{"SECKILL_SHUTDOWN_DRAIN_TIMEOUT_MS=50", "SECKILL_UPSTREAM_SCRIPT_TIMEOUT_MS=3600000"},
	})
	c := proxy.client(2)
	want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 10)
	want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", "alice")
	connectAll(t, c, direct)
	between.hold()
	told := make(chan error, 1)
	go func() {
		_, err := buy(t.Context(), c, "iphone", "bob")
		told <- err
	}()
	eventually(t, "the purchase is under way", func() bool { return sold(t, direct) == 2 })
	proxy.Signal(syscall.SIGTERM)

	if code := proxy.ExitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if err := <-told; err == nil {
		t.Error("the buyer has an answer that nobody could give")
	}
}

// connectAll has the sidecar open its connections for scripts: none can be opened
// while Redis's replies are held, and a sale's keeper may have one of them.
func connectAll(t *testing.T, c, direct *redis.Client) {
	t.Helper()
	const enough = 3
	eventually(t, "connections for scripts", func() bool {
		asked, ctx := errgroup.WithContext(t.Context())
		for range 32 {
			asked.Go(func() error { return c.Do(ctx, "SECKILL.INFO", "iphone").Err() })
		}
		if err := asked.Wait(); err != nil {
			t.Fatal(err)
		}
		return strings.Count(direct.ClientList(t.Context()).Val(), "cmd=evalsha") >= enough
	})
}

// TestLostReply cuts the connection to Redis after the purchase and before its
// reply: the buyer is told so, and gets the token on asking again.
func TestLostReply(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	direct, between := server.Client(t), startRelay(t, server.Addr)
	proxy := start(t, settings{Args: []string{"-upstream", between.addr}})
	c := proxy.client(2)
	want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 10)
	want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", "alice")

	connectAll(t, c, direct)
	between.hold()
	told := make(chan []any, 1)
	go func() {
		reply, _ := c.Do(t.Context(), "SECKILL.BUY", "iphone", "bob", "ID", "cart-1").Slice()
		told <- reply
	}()
	eventually(t, "the purchase is made", func() bool { return sold(t, direct) == 2 })
	between.cut()
	if got, want := fmt.Sprint(<-told), "[202 UNCERTAIN  0 0]"; got != want {
		t.Errorf("the buyer was told %s, want %s", got, want)
	}
	between.release()

	want(t, 200, "REPLAYED", c, "SECKILL.BUY", "iphone", "bob", "ID", "cart-1")
	if n := sold(t, direct); n != 2 {
		t.Errorf("%d units are gone, want 2", n)
	}
	want(t, 200, "CLEAN", c, "SECKILL.AUDIT", "iphone")
}

// TestUnixSockets has unix sockets on both sides, and one that a killed sidecar
// leaves behind.
func TestUnixSockets(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	front, back := filepath.Join(dir, "front"), filepath.Join(dir, "back")
	redistest.Start(t, redistest.Options{Args: []string{"--unixsocket", back}})
	both := settings{
		Args: []string{"-listen", "unix://" + front + ",127.0.0.1:0", "-upstream", "unix://" + back + "?db=3"},
		Env:  []string{"SECKILL_LISTEN_UNIX_MODE=0770"},
	}

	proxy := start(t, both)
	if info, err := os.Stat(front); err != nil || info.Mode().Perm() != 0o770 {
		t.Errorf("the socket's mode is %v (%v), want 0770", info.Mode(), err)
	}
	want(t, 200, "CREATED", proxy.client(2), "SECKILL.CREATE", "iphone", 10)
	if err := proxy.client(2).Do(t.Context(), "SET", "key", "value").Err(); err != nil {
		t.Fatal(err)
	}

	second := sidecartest.Launch(t, both)
	if code := second.ExitCode(); code != 1 || !strings.Contains(second.Log.String(), "address already in use") {
		t.Errorf("a second one on the same socket: exit code %d, output:\n%s", code, second.Log)
	}

	proxy.Kill()
	if _, err := os.Stat(front); err != nil {
		t.Fatalf("the killed sidecar left no socket, so this test tests nothing: %v", err)
	}
	proxy = start(t, both)
	want(t, 200, "RESERVED", proxy.client(2), "SECKILL.BUY", "iphone", "alice")
	if value, err := proxy.client(2).Do(t.Context(), "GET", "key").Text(); value != "value" {
		t.Errorf("GET: %q, %v", value, err)
	}
	proxy.Stop()
	if _, err := os.Stat(front); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a sidecar that stopped left its socket: %v", err)
	}
}

// TestAdmin asks for metrics and health while Redis is up, down and up again.
func TestAdmin(t *testing.T) {
	server := redistest.Start(t, redistest.Options{AppendOnly: true})
	proxy := start(t, settings{Args: []string{"-upstream", server.Addr}})
	c := proxy.client(2)
	want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 1)
	want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", "alice")
	want(t, 4001, "SOLD_OUT", c, "SECKILL.BUY", "iphone", "bob")

	status, metrics := proxy.get("/metrics")
	if status != 200 {
		t.Errorf("/metrics: %d", status)
	}
	for _, line := range []string{
		"seckill_proxy_clients 1",
		`seckill_proxy_custom_commands_total{code="200",command="SECKILL.BUY"} 1`,
		`seckill_proxy_custom_commands_total{code="4001",command="SECKILL.BUY"} 1`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("no line %q in /metrics", line)
		}
	}

	ready := func(status int, body string) {
		t.Helper()
		eventually(t, fmt.Sprintf("/readyz says %d %s", status, body), func() bool {
			got, text := proxy.get("/readyz")
			return got == status && strings.Contains(text, body)
		})
		if got, _ := proxy.get("/healthz"); got != 200 {
			t.Errorf("/healthz: %d, want 200 whatever Redis does", got)
		}
	}
	ready(200, "ok")
	server.Kill()
	ready(503, down+server.Addr)
	want(t, 503, "BUSY", c, "SECKILL.BUY", "iphone", "carol")
	server.Restart()
	ready(200, "ok")
	eventually(t, "the sale goes on", func() bool { return do(t, c, "SECKILL.BUY", "iphone", "carol")[1] == "SOLD_OUT" })
}

// TestFewConnections has many clients work in the ordinary way at the same time,
// and counts the connections that Redis sees.
func TestFewConnections(t *testing.T) {
	const clients, most = 300, 2 + 8 + 1 // shared, custom commands, and the one that asks
	server := redistest.Start(t, redistest.Options{})
	proxy := start(t, settings{Args: []string{"-upstream", server.Addr}})
	connected := make([]*rawclient.Conn, clients)
	for i := range connected {
		connected[i] = rawclient.Dial(t, proxy.Addr)
	}
	connected[0].Want("*4\r\n:200\r\n$7\r\nCREATED\r\n$6\r\niphone\r\n:1\r\n", "SECKILL.CREATE", "iphone", fmt.Sprint(clients))

	for i, c := range connected {
		key := fmt.Sprint("key-", i)
		c.Send(rawclient.Encode("SET", key, key) + rawclient.Encode("GET", key) + rawclient.Encode("SECKILL.BUY", "iphone", key))
	}
	for i, c := range connected {
		c.Expect("+OK\r\n" + rawclient.Bulk(fmt.Sprint("key-", i)))
		if reply := c.Reply(); !strings.HasPrefix(reply, "*5\r\n:200\r\n$8\r\nRESERVED\r\n") {
			t.Errorf("client %d was told %q", i, reply)
		}
	}

	if _, metrics := proxy.get("/metrics"); !strings.Contains(metrics, fmt.Sprintf("seckill_proxy_clients %d\n", clients)) {
		t.Errorf("not all clients are still connected:\n%s", metrics)
	}
	list := server.Client(t).ClientList(t.Context()).Val()
	if n := strings.Count(list, "\n"); n > most {
		t.Errorf("%d clients are %d connections to Redis, want %d at most:\n%s", clients, n, most, list)
	}
}
