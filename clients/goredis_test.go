package clients

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// TestGoRedis does what applications do with go-redis, in front of Redis and
// through the sidecar.
func TestGoRedis(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			bare, p := redistest.Start(t, redistest.Options{}), start(t)
			for _, target := range []struct{ name, addr string }{{"direct", bare.Addr}, {"sidecar", p.addr}} {
				t.Run(target.name, func(t *testing.T) {
					c := client(t, target.addr, protocol)
					t.Run("connect", func(t *testing.T) { connects(t, c, target.addr, protocol) })
					t.Run("pipeline", func(t *testing.T) { pipelines(t, c) })
					t.Run("transaction", func(t *testing.T) { transactions(t, c) })
					t.Run("messages", func(t *testing.T) { receives(t, c) })
					t.Run("blocking", func(t *testing.T) { blocks(t, c) })
					t.Run("script", func(t *testing.T) { runsScripts(t, c) })
					if protocol == 3 {
						t.Run("cache", func(t *testing.T) { caches(t, target.addr, c) })
					}
				})
			}
			t.Run("custom", func(t *testing.T) { buysAndLocks(t, client(t, p.addr, protocol)) })
		})
	}
}

func connects(t *testing.T, c *redis.Client, addr string, protocol int) {
	named := client(t, addr, protocol, one, func(o *redis.Options) { o.DB, o.ClientName = 2, "shop" })
	if name, err := named.ClientGetName(t.Context()).Result(); name != "shop" || err != nil {
		t.Errorf("CLIENT GETNAME: %q, %v", name, err)
	}
	if err := named.Set(t.Context(), "two", "2", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), "two").Result(); !errors.Is(err, redis.Nil) {
		t.Errorf("database 0 has a key of database 2 (%v)", err)
	}
	if err := c.Do(t.Context(), "FT.SEARCH", "x").Err(); err == nil || !strings.HasPrefix(err.Error(), "ERR unknown command 'FT.SEARCH'") {
		t.Errorf("FT.SEARCH: %v", err)
	}
}

func pipelines(t *testing.T, c *redis.Client) {
	const n = 1000
	gets := make([]*redis.StringCmd, n)
	_, err := c.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			pipe.Set(t.Context(), fmt.Sprint("p", i), i, 0)
			gets[i] = pipe.Get(t.Context(), fmt.Sprint("p", i))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, get := range gets {
		if get.Val() != fmt.Sprint(i) {
			t.Fatalf("GET p%d: %q", i, get.Val())
		}
	}
}

func transactions(t *testing.T, c *redis.Client) {
	// Everybody reads, adds one and writes; who was overtaken tries again.
	const workers, times = 8, 5
	var conflict bool
	err := c.Watch(t.Context(), func(tx *redis.Tx) error {
		if err := c.Set(t.Context(), "sum", 0, 0).Err(); err != nil { // another connection
			return err
		}
		_, err := tx.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error { return pipe.Set(t.Context(), "sum", "mine", 0).Err() })
		conflict = errors.Is(err, redis.TxFailedErr)
		return nil
	}, "sum")
	if err != nil || !conflict {
		t.Errorf("a watched key was written by another: conflict %v, %v", conflict, err)
	}
	increment := func(tx *redis.Tx) error {
		n, err := tx.Get(t.Context(), "sum").Int()
		if err != nil {
			return err
		}
		_, err = tx.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error { return pipe.Set(t.Context(), "sum", n+1, 0).Err() })
		return err
	}
	err = together(workers, func(int) error {
		for done := 0; done < times; {
			switch err := c.Watch(t.Context(), increment, "sum"); {
			case err == nil:
				done++
			case !errors.Is(err, redis.TxFailedErr):
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if sum, err := c.Get(t.Context(), "sum").Int(); sum != workers*times || err != nil {
		t.Errorf("counted to %d (%v), want %d", sum, err, workers*times)
	}
}

func receives(t *testing.T, c *redis.Client) {
	subscription := c.Subscribe(t.Context(), "news")
	defer subscription.Close()
	receive := func() any {
		t.Helper()
		message, err := subscription.ReceiveTimeout(t.Context(), hangs)
		if err != nil {
			t.Fatal(err)
		}
		return message
	}
	receive() // the confirmation
	if err := subscription.PSubscribe(t.Context(), "wea*"); err != nil {
		t.Fatal(err)
	}
	receive()
	if err := subscription.Ping(t.Context(), "still there"); err != nil {
		t.Fatal(err)
	}
	if pong, ok := receive().(*redis.Pong); !ok || pong.Payload != "still there" {
		t.Errorf("PING: %v", pong)
	}
	for i := range 100 {
		if n, err := c.Publish(t.Context(), []string{"news", "weather"}[i%2], i).Result(); n != 1 || err != nil {
			t.Fatalf("PUBLISH: %d receivers, %v", n, err)
		}
	}
	for i := range 100 {
		if m, ok := receive().(*redis.Message); !ok || m.Payload != fmt.Sprint(i) {
			t.Fatalf("message %d: %v", i, m)
		}
	}
}

func blocks(t *testing.T, c *redis.Client) {
	if _, err := c.BLPop(t.Context(), 1e9, "nothing").Result(); !errors.Is(err, redis.Nil) {
		t.Errorf("BLPOP in vain: %v", err)
	}
	const waiters = 5
	popped := make(chan []string, waiters)
	go func() {
		_ = together(waiters, func(int) error {
			element, err := c.BLPop(context.WithoutCancel(t.Context()), 0, "queue").Result()
			popped <- append(element, fmt.Sprint(err))
			return nil
		})
	}()
	eventually(t, "they wait", func() bool {
		return strings.Count(c.ClientList(t.Context()).Val(), "cmd=blpop") == waiters
	})
	var got, want []string
	for i := range waiters {
		if err := c.RPush(t.Context(), "queue", i).Err(); err != nil {
			t.Fatal(err)
		}
		got, want = append(got, strings.Join(<-popped, " ")), append(want, fmt.Sprintf("queue %d <nil>", i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("popped %q, want %q", got, want)
	}
}

func runsScripts(t *testing.T, c *redis.Client) {
	add := redis.NewScript("return redis.call('INCRBY', KEYS[1], ARGV[1])")
	if err := add.EvalSha(t.Context(), c, []string{"s"}, 5).Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
		t.Errorf("EVALSHA of a script that isn't loaded: %v", err)
	}
	for i := int64(1); i <= 3; i++ { // by EVAL, then by EVALSHA
		if n, err := add.Run(t.Context(), c, []string{"s"}, 5).Int64(); n != 5*i || err != nil {
			t.Errorf("run %d: %d, %v", i, n, err)
		}
	}
	if err := c.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := add.Run(t.Context(), c, []string{"s"}, 5).Int64(); n != 20 || err != nil {
		t.Errorf("after SCRIPT FLUSH: %d, %v", n, err)
	}
}

// caches uses go-redis's client-side cache: values are read from memory until
// Redis says, by a push that the sidecar passes on, that they are others.
func caches(t *testing.T, addr string, other *redis.Client) {
	cached := client(t, addr, 3, func(o *redis.Options) {
		o.ClientSideCacheConfig = &redis.ClientSideCacheConfig{MaxEntries: 100}
	})
	for i := range 20 {
		value := fmt.Sprint("v", i)
		if err := other.Set(t.Context(), "cached", value, 0).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new value is read", func() bool { return cached.Get(t.Context(), "cached").Val() == value })
		before := cached.CSCStats().Hits
		eventually(t, "it is read from memory", func() bool {
			return cached.Get(t.Context(), "cached").Val() == value && cached.CSCStats().Hits > before
		})
	}
}

func buysAndLocks(t *testing.T, c *redis.Client) {
	do := func(args ...any) []any {
		t.Helper()
		reply, err := c.Do(t.Context(), args...).Slice()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return reply
	}
	if r := do("SECKILL.CREATE", "iphone", 7); r[1] != "CREATED" {
		t.Fatal(r)
	}
	// All in one pipeline: replies in order, seven units sold.
	words := map[any]int{}
	commands, err := c.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range 20 {
			pipe.Do(t.Context(), "SECKILL.BUY", "iphone", fmt.Sprint("user-", i), "ID", "cart")
			pipe.Echo(t.Context(), i)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(commands); i += 2 {
		reply, err := commands[i].(*redis.Cmd).Slice()
		if echo := commands[i+1].(*redis.StringCmd).Val(); err != nil || echo != fmt.Sprint(i/2) {
			t.Fatalf("purchase %d: %v, then ECHO %q", i/2, err, echo)
		}
		words[reply[1]]++
	}
	if words["RESERVED"] != 7 || words["SOLD_OUT"] != 13 {
		t.Errorf("of 7 units, 20 buyers were told %v", words)
	}

	lock := do("LOCK.ACQUIRE", "report", 60_000)
	if busy := do("LOCK.ACQUIRE", "report", 60_000); lock[1] != "ACQUIRED" || busy[1] != "BUSY" {
		t.Errorf("lock: %v, %v", lock, busy)
	}
	if released := do("LOCK.RELEASE", "report", lock[2]); released[1] != "RELEASED" {
		t.Errorf("release: %v", released)
	}

	_, err = c.TxPipelined(t.Context(), func(tx redis.Pipeliner) error {
		tx.Set(t.Context(), "x", "2", 0)
		tx.Do(t.Context(), "SECKILL.BUY", "iphone", "late")
		return nil
	})
	if err == nil || c.Exists(t.Context(), "x").Val() != 0 {
		t.Errorf("a transaction with SECKILL.BUY: %v, want an error and nothing done", err)
	}
}

// TestTracking has RESP3 clients that cache by themselves: the push comes to the
// client that read, in its place between replies, and to it alone.
func TestTracking(t *testing.T) {
	p := start(t)
	reader, stranger, writer := rawclient.Dial(t, p.addr), rawclient.Dial(t, p.addr), rawclient.Dial(t, p.addr)
	for _, c := range []*rawclient.Conn{reader, stranger} {
		if reply := c.Do("HELLO", "3"); reply[0] != '%' {
			t.Fatalf("HELLO 3: %q", reply)
		}
	}
	writer.Want("+OK\r\n", "SET", "x", "1")
	invalid := ">2\r\n$10\r\ninvalidate\r\n*1\r\n" + rawclient.Bulk("x")

	reader.Want("+OK\r\n", "CLIENT", "TRACKING", "ON")
	reader.Want(rawclient.Bulk("1"), "GET", "x")
	stranger.Want(rawclient.Bulk("1"), "GET", "x")
	writer.Want("+OK\r\n", "SET", "x", "2")
	reader.Expect(invalid)
	reader.Want(rawclient.Bulk("2"), "GET", "x")
	stranger.Want(rawclient.Bulk("2"), "GET", "x")

	// Custom commands work beside it, and what they write is told too.
	if reply := reader.Do("LOCK.ACQUIRE", "x", "60000", "TOKEN", "me"); !strings.Contains(reply, "ACQUIRED") {
		t.Errorf("LOCK.ACQUIRE: %q", reply)
	}
	reader.Want(rawclient.Bulk("me"), "GET", "lock:x")
	if reply := writer.Do("LOCK.RELEASE", "x", "me"); !strings.Contains(reply, "RELEASED") {
		t.Errorf("LOCK.RELEASE: %q", reply)
	}
	reader.Expect(">2\r\n$10\r\ninvalidate\r\n*1\r\n" + rawclient.Bulk("lock:x"))

	// Off, nothing comes, and the connection is given back.
	reader.Want("+OK\r\n", "CLIENT", "TRACKING", "OFF")
	reader.Want(rawclient.Bulk("2"), "GET", "x")
	writer.Want("+OK\r\n", "SET", "x", "3")
	reader.Want(rawclient.Bulk("3"), "GET", "x")

	// To all that begins with a prefix, read or not.
	reader.Want("+OK\r\n", "CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "user:")
	writer.Want("+OK\r\n", "MSET", "user:1", "a", "other", "b")
	reader.Expect(">2\r\n$10\r\ninvalidate\r\n*1\r\n" + rawclient.Bulk("user:1"))
	reader.Want("+PONG\r\n", "PING")
}
