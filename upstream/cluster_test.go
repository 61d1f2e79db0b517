package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/nettest"
	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
	"seckill-proxy/sharding"
)

// clusterOptions are those of all tests of clusters.
func clusterOptions() Options {
	return Options{
		DialTimeout: 5 * time.Second, ScriptTimeout: 5 * time.Second,
		BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond,
	}
}

// startCluster returns the sidecar's view of a cluster, which the end of the test
// closes.
func startCluster(t *testing.T, opts Options, seeds ...string) *Cluster {
	t.Helper()
	c := newCluster(opts, seeds, 100*time.Millisecond)
	t.Cleanup(c.Close)
	return c
}

// await is eventually, and says what was wrong last.
func await(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	defer func() {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}()
	eventually(t, what, func() bool {
		err = f()
		return err == nil
	})
}

// as is a profile of a user.
func as(user, password string) Profile {
	return Profile{Identity: Identity{User: user, Password: password, Known: true}, Protocol: 2}
}

// count is a script that counts how often it ran.
var count = script.New("count", `return redis.call('INCR', KEYS[1])`)

// masters are the addresses of the nodes that serve slots.
func masters(m *SlotMap) []string {
	var addresses []string
	for _, target := range m.Masters() {
		addresses = append(addresses, target.Address())
	}
	return addresses
}

// One cluster of three masters goes through what can happen to it.
func TestClusterThatChanges(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, redistest.ClusterOptions{Masters: 3, Replicas: 1})
	ctx := t.Context()
	c := startCluster(t, clusterOptions(), nettest.Dead(t), servers.Masters[1].Addr)
	client := c.Client(Identity{})
	t.Cleanup(func() { client.Close() })

	// agrees waits until the map is that of the servers.
	agrees := func() {
		t.Helper()
		await(t, "the map is the cluster's", func() error {
			m, err := c.Map(ctx, c.Seed().Profile())
			if err != nil {
				return err
			}
			for _, server := range servers.Masters {
				if m.FirstSlot(c.Node(server.Addr)) < 0 {
					return fmt.Errorf("%s isn't in it: %v", server.Addr, masters(m))
				}
			}
			if len(m.Masters()) != len(servers.Masters) {
				return fmt.Errorf("its masters are %v", masters(m))
			}
			for slot := 0; slot < sharding.Slots; slot += 101 {
				if owner := m.Master(slot); owner == nil || owner.Address() != servers.OwnerOf(slot).Addr {
					return fmt.Errorf("slot %d is with %v", slot, owner)
				}
			}
			return nil
		})
	}
	runs := func(key string) error {
		_, err := count.Run(ctx, client, []string{key})
		return err
	}

	m, err := c.Map(ctx, c.Seed().Profile())
	if err != nil {
		t.Fatal(err)
	}
	for i, target := range m.Masters() {
		first := i * sharding.Slots / 3
		if target.Address() != servers.Masters[i].Addr || m.FirstSlot(target) != first || m.Master(first) != target {
			t.Errorf("master %d is %s with slots from %d, want %s", i, target.Address(), m.FirstSlot(target), servers.Masters[i].Addr)
		}
	}
	if m.FirstSlot(c.Seed()) != -1 {
		t.Error("the seed serves slots")
	}
	if again, err := c.Map(ctx, as("nobody", "x")); again != m || err != nil {
		t.Errorf("the map that is there: %p, %v, want %p", again, err, m)
	}
	if c.Node(servers.Masters[0].Addr) != m.Masters()[0] {
		t.Error("a node of the map is another Target")
	}
	if err := c.Seed().Ping(ctx); err != nil {
		t.Error(err)
	}
	if table, err := c.Commands(ctx, c.Seed().Profile()); err != nil {
		t.Error(err)
	} else if at, how := table.FirstKey(args("EVALSHA s 1 k")); at != 3 || how != Keyed {
		t.Errorf("EVALSHA: %d, %d", at, how)
	}

	const key = "{a}k" // in slot 15495, of master 2
	slot := sharding.Slot(key)
	if err := runs(key); err != nil {
		t.Fatal(err)
	}
	t.Run("ASK is followed", func(t *testing.T) {
		finish := servers.BeginMove(slot, servers.Masters[0])
		// The key isn't there yet, so it is made where the slot is going.
		if n, err := count.Run(ctx, client, []string{"{a}new"}); err != nil || n != int64(1) {
			t.Errorf("%v, %v", n, err)
		}
		// What has a key at each place can't be executed anywhere.
		if _, err := count.Run(ctx, client, []string{key, "{a}new"}); !errors.Is(err, script.ErrNotExecuted) {
			t.Errorf("TRYAGAIN: %v", err)
		}
		finish()
		if got := client.Get(ctx, key).Val(); got != "1" {
			t.Errorf("the script ran %s times, want 1", got)
		}
	})
	t.Run("MOVED is followed, and counts at once", func(t *testing.T) {
		servers.MoveSlot(slot, servers.Masters[1])
		if n, err := count.Run(ctx, client, []string{key}); err != nil || n != int64(2) {
			t.Errorf("%v, %v", n, err)
		}
		agrees()
		c.asking <- struct{}{} // so that no refresh corrects it
		_, port, _ := net.SplitHostPort(servers.Masters[2].Addr)
		for _, addr := range []string{servers.Masters[0].Addr, ":" + port} { // which isn't true
			c.Moved(slot, addr, c.Seed().Profile())
			m, _ := c.Map(ctx, Profile{})
			if got := m.Master(slot).Address(); !strings.HasSuffix(got, addr) || m.Master(slot) != c.Node(got) || m.Master(slot+1) == m.Master(slot) && addr == servers.Masters[0].Addr {
				t.Errorf("moved to %s: it is with %s", addr, got)
			}
		}
		c.Moved(sharding.Slots, servers.Masters[0].Addr, Profile{}) // no such slot
		<-c.asking
		agrees()
	})
	t.Run("a node more", func(t *testing.T) {
		added := servers.AddMaster()
		servers.MoveSlot(slot, added)
		agrees()
		if err := runs(key); err != nil {
			t.Error(err)
		}
		servers.RemoveMaster(added)
		agrees()
		await(t, "scripts run", func() error { return runs(key) })
	})
	t.Run("a failover", func(t *testing.T) {
		servers.Failover(0)
		agrees()
		await(t, "scripts run", func() error { return runs("b") })
	})
	t.Run("a master dies", func(t *testing.T) {
		before, _ := c.Map(ctx, Profile{})
		i := 0
		for servers.OwnerOf(sharding.Slot("b")) != servers.Masters[i] {
			i++
		}
		servers.KillMaster(i)
		agrees()
		await(t, "scripts run", func() error { return runs("b") })
		if m, _ := c.Map(ctx, Profile{}); m == before {
			t.Error("it is the same map")
		}
		await(t, "any node answers", func() error { return c.Seed().Ping(ctx) })
	})
}

// Where Redis demands authentication, the map is asked for with the rights of a
// client, and refreshed with those of one who may.
func TestClusterAsksWithTheRightsOfClients(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, redistest.ClusterOptions{Masters: 1, Options: redistest.Options{Args: []string{"--requirepass", "main"}}})
	ctx := t.Context()
	admin := servers.Client(t)
	setUser := func(rules ...string) {
		t.Helper()
		line := []any{"ACL", "SETUSER"}
		for _, rule := range rules {
			line = append(line, rule)
		}
		if err := admin.Do(ctx, line...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	setUser("shop", "on", ">shop", "~*", "+get")
	setUser("boss", "on", ">boss", "~*", "+@all")
	c := startCluster(t, clusterOptions(), servers.Addrs()...)

	refused := func(who Profile, want string) {
		t.Helper()
		var answered redis.Error
		if m, err := c.Map(ctx, who); !errors.As(err, &answered) || !strings.HasPrefix(answered.Error(), want) {
			t.Errorf("the map for %+v: %v, %v", who, m, err)
		}
		if table, err := c.Commands(ctx, who); !errors.As(err, &answered) || !strings.HasPrefix(answered.Error(), want) {
			t.Errorf("the commands for %+v: %v, %v", who, table, err)
		}
	}
	refused(Profile{Protocol: 2}, "NOAUTH ")
	refused(as("shop", "wrong"), "WRONGPASS ")
	refused(as("shop", "shop"), "NOPERM the user needs +cluster|slots and +command")
	if _, err := c.Map(ctx, as("shop", "shop")); IsRefusal(err) {
		t.Error("a missing right ends the session")
	}
	if _, err := count.Run(ctx, startedClient(t, c, as("shop", "shop").Identity), []string{"k"}); err == nil || !strings.HasPrefix(err.Error(), "NOPERM ") {
		t.Errorf("a script without a map: %v", err)
	}

	setUser("shop", "+cluster|slots", "+command")
	var m *SlotMap
	await(t, "the map for one who may now", func() (err error) {
		m, err = c.Map(ctx, as("shop", "shop"))
		return err
	})
	await(t, "the commands for one who may now", func() error {
		_, err := c.Commands(ctx, as("shop", "shop"))
		return err
	})
	// Others profit by it.
	if other, err := c.Map(ctx, Profile{Protocol: 2}); other != m || err != nil {
		t.Errorf("the map of another client: %p, %v", other, err)
	}
	allowed := func() Identity {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.mapAsker.id
	}
	if got := allowed(); got.User != "shop" {
		t.Errorf("%+v is remembered", got)
	}
	// The map comes back by itself: what was said wrongly is corrected.
	node := m.Master(0)
	c.Moved(0, nettest.Dead(t), as("boss", "boss"))
	await(t, "the map is right again", func() error {
		if m, err := c.Map(ctx, Profile{}); err != nil || m.Master(0) != node {
			return fmt.Errorf("%v, %v", masters(m), err)
		}
		return nil
	})
	// One who may not any more is forgotten, and the next who comes is asked with.
	setUser("shop", ">changed", "<shop")
	await(t, "the identity is forgotten", func() error {
		if got := allowed(); got != (Identity{}) {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	c.Moved(0, nettest.Dead(t), as("boss", "boss"))
	await(t, "another identity is remembered", func() error {
		if got := allowed(); got.User != "boss" {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	// A command that isn't in the table has it asked for again.
	table := c.table.Load()
	c.mu.Lock()
	c.tableAsked = time.Now().Add(-time.Hour)
	c.mu.Unlock()
	table.FirstKey(args("NOSUCH a"))
	await(t, "the table is asked for again", func() error {
		if c.table.Load() == table {
			return errors.New("it is the same")
		}
		return nil
	})
	c.table.Load().FirstKey(args("NOSUCH a"))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tableMissed {
		t.Error("the table is asked for again at once")
	}
}

// startedClient is Client, closed at the end of the test.
func startedClient(t *testing.T, c *Cluster, id Identity) *redis.ClusterClient {
	client := c.Client(id)
	t.Cleanup(func() { client.Close() })
	return client
}

const silence = "no reply"

// fakeNode is a node of a cluster that serves all slots. It hands each command
// that concerns keys to serve, which returns the reply; "" closes the connection, silence leaves it open.
func fakeNode(t *testing.T, serve func(command []string) string) (addr string, stop func()) {
	t.Helper()
	return nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
		for {
			command, err := readCommand(rd)
			if err != nil {
				return
			}
			var reply string
			switch strings.ToUpper(command[0]) {
			case "PING":
				reply = "+PONG\r\n"
			case "HELLO": // of go-redis
				reply = "-ERR unknown command\r\n"
			case "CLUSTER":
				_, port, _ := net.SplitHostPort(conn.LocalAddr().String())
				reply = fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%s\r\n", port)
			default:
				switch reply = serve(command); reply {
				case "":
					return
				case silence:
					continue
				}
			}
			if _, err := conn.Write([]byte(reply)); err != nil {
				return
			}
		}
	})
}

// A script whose reply is lost was sent once, however it was lost.
func TestClusterClientNeverSendsTwice(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func() string{
		"the connection ends":         func() string { return "" },
		"in the middle of the reply":  func() string { return "$100\r\nabc" },
		"there is no reply in time":   func() string { return silence },
		"the reply is no reply":       func() string { return "!!!\r\n" },
		"an array stops in its midst": func() string { return "*2\r\n:1\r\n" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int32
			addr, _ := fakeNode(t, func(command []string) string {
				sent.Add(1)
				return lose()
			})
			opts := clusterOptions()
			opts.ScriptTimeout = 200 * time.Millisecond
			client := startedClient(t, startCluster(t, opts, addr), Identity{})
			_, err := count.Run(context.Background(), client, []string{"k"})
			if !errors.Is(err, script.ErrUncertain) {
				t.Errorf("%v", err)
			}
			if n := sent.Load(); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
}

// What Redis says it didn't execute is tried again, and is not executed when that
// is what it says to the end.
func TestClusterClientTriesAgainWhatWasRefused(t *testing.T) {
	t.Parallel()
	for _, refusal := range []string{
		"CLUSTERDOWN The cluster is down", "TRYAGAIN Multiple keys request during rehashing of slot", "LOADING Redis is loading the dataset in memory",
		"READONLY You can't write against a read only replica.", "MASTERDOWN Link with MASTER is down", "MOVED 1 %s", "ASK 1 %s",
	} {
		t.Run(strings.Fields(refusal)[0], func(t *testing.T) {
			t.Parallel()
			var sent, until atomic.Int32
			var self atomic.Value
			addr, _ := fakeNode(t, func(command []string) string {
				if command[0] == "asking" {
					return "+OK\r\n"
				}
				if sent.Add(1) > until.Load() {
					return ":7\r\n"
				}
				return strings.ReplaceAll("-"+refusal+"\r\n", "%s", self.Load().(string))
			})
			self.Store(addr)
			client := startedClient(t, startCluster(t, clusterOptions(), addr), Identity{})
			until.Store(2)
			if n, err := count.Run(context.Background(), client, []string{"k"}); n != int64(7) || err != nil || sent.Load() != 3 {
				t.Errorf("refused twice: %v, %v, sent %d times", n, err, sent.Load())
			}
			until.Store(1000)
			sent.Store(0)
			if _, err := count.Run(context.Background(), client, []string{"k"}); !errors.Is(err, script.ErrNotExecuted) || sent.Load() != 1+redirectsMax {
				t.Errorf("refused always: %v, sent %d times", err, sent.Load())
			}
		})
	}
}

// Without a node that answers nothing is sent, and that is what is said.
func TestClusterThatIsDown(t *testing.T) {
	t.Parallel()
	c := startCluster(t, clusterOptions(), nettest.Dead(t), nettest.Dead(t))
	ctx := context.Background()
	if _, err := c.Map(ctx, Profile{}); !errors.Is(err, ErrDown) {
		t.Errorf("the map: %v", err)
	}
	if _, err := c.Commands(ctx, Profile{}); !errors.Is(err, ErrDown) {
		t.Errorf("the commands: %v", err)
	}
	if _, err := c.Seed().Dial(ctx, c.Seed().Profile()); !errors.Is(err, ErrDown) {
		t.Errorf("the seed: %v", err)
	}
	if _, err := count.Run(ctx, startedClient(t, c, Identity{}), []string{"k"}); !errors.Is(err, script.ErrNotExecuted) {
		t.Errorf("a script: %v", err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	if _, err := c.Map(ended, Profile{}); !errors.Is(err, context.Canceled) && !errors.Is(err, ErrDown) {
		t.Errorf("the map for one who doesn't wait: %v", err)
	}
}

// A node that was known and is gone: nothing is sent either.
func TestClusterWhoseNodeIsGone(t *testing.T) {
	t.Parallel()
	addr, stop := fakeNode(t, func([]string) string { return "" })
	c := startCluster(t, clusterOptions(), addr)
	if _, err := c.Map(t.Context(), Profile{}); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := count.Run(t.Context(), startedClient(t, c, Identity{}), []string{"k"}); !errors.Is(err, script.ErrNotExecuted) {
		t.Errorf("%v", err)
	}
	if _, err := c.Map(t.Context(), Profile{}); err != nil {
		t.Errorf("the map is lost as well: %v", err)
	}
}

// A node that doesn't answer doesn't hold up the others.
func TestClusterWithASilentNode(t *testing.T) {
	t.Parallel()
	mute, _ := nettest.Serve(t, func(_ net.Conn, rd *bufio.Reader) { _, _ = io.Copy(io.Discard, rd) })
	addr, _ := fakeNode(t, func([]string) string { return "" })
	opts := clusterOptions()
	opts.DialTimeout = time.Hour
	c := startCluster(t, opts, mute, mute, mute, addr)
	for range 8 {
		if err := c.askMap(t.Context(), Identity{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := masters(c.current.Load()); len(got) != 1 || got[0] != addr {
		t.Errorf("masters: %v", got)
	}
}

// What a MOVED says while the map is being asked for is newer than the answer.
func TestClusterMovedDuringARefresh(t *testing.T) {
	t.Parallel()
	elsewhere := nettest.Dead(t)
	var c *Cluster
	ready := make(chan struct{})
	addr, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
		if _, err := readCommand(rd); err != nil {
			return
		}
		<-ready
		if c.current.Load() != nil {
			c.Moved(5, elsewhere, Profile{})
		}
		_, port, _ := net.SplitHostPort(conn.LocalAddr().String())
		_, _ = fmt.Fprintf(conn, "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%s\r\n", port)
	})
	c = newCluster(clusterOptions(), []string{addr}, time.Hour)
	t.Cleanup(c.Close)
	close(ready)
	c.asking <- struct{}{} // one refresh at a time
	for range 2 {
		if err := c.askMap(t.Context(), Identity{}); err != nil {
			t.Fatal(err)
		}
	}
	m := c.current.Load()
	if got := m.Master(5).Address(); got != elsewhere || m.Master(6).Address() != addr {
		t.Errorf("slot 5 is with %s", got)
	}
}

// While the map can't be had, its error is repeated, and not asked for by every
// command: by nobody where no node answers, else for that identity alone.
func TestClusterFailsFast(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	addr, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
		for {
			command, err := readCommand(rd)
			if err != nil {
				return
			}
			reply := "+OK\r\n" // to AUTH
			if command[0] == "CLUSTER" {
				asked.Add(1)
				reply = "-NOPERM this user has no permissions\r\n"
			}
			_, _ = io.WriteString(conn, reply)
		}
	})
	c := startCluster(t, clusterOptions(), addr)
	for range 1000 {
		if _, err := c.Map(t.Context(), as("shop", "x")); err == nil || !strings.HasPrefix(err.Error(), "NOPERM ") {
			t.Fatal(err)
		}
	}
	if n := asked.Load(); n > 100 {
		t.Errorf("asked %d times", n)
	}
	before := asked.Load()
	if _, err := c.Map(t.Context(), as("boss", "x")); err == nil || asked.Load() == before {
		t.Errorf("another identity isn't asked with: %v", err)
	}
	for i := range 2 * deniedMax {
		c.current.failed(Identity{User: fmt.Sprint(i)}, answered("NOPERM no"))
	}
	if n := len(c.current.denied); n > deniedMax {
		t.Errorf("%d identities are remembered", n)
	}
}
