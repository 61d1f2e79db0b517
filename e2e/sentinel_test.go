package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// TestFailover has a master be replaced, in order and after kill -9, while clients
// write through the sidecar, buy and hold locks. It has one replica, so what that
// has acknowledged can't be lost.
func TestFailover(t *testing.T) {
	t.Parallel()
	group := redistest.StartSentinels(t, redistest.SentinelOptions{Replicas: 1, Sentinels: 3})
	proxy := start(t, settings{Args: []string{"-upstream", "redis+sentinel://" + strings.Join(group.Addrs, ",") + "/" + group.Name}})
	crash := func() { group.KillMaster().Restart() } // it comes back as a master, for a moment

	t.Run("check", func(t *testing.T) { checkSentinels(t, group) })
	t.Run("writes", func(t *testing.T) { writeThrough(t, proxy, group, group.Failover, crash, group.Failover) })
	t.Run("sale", func(t *testing.T) { sellThrough(t, proxy, crash) })
}

// checkSentinels runs -check, with a sentinel that isn't there, and for a master
// that they don't know.
func checkSentinels(t *testing.T, group *redistest.Sentinels) {
	nobody := sidecartest.FreeAddress(t)
	url := "redis+sentinel://" + strings.Join(append([]string{nobody}, group.Addrs...), ",") + "/"
	master := group.Master().Addr
	p := sidecartest.Run(t, settings{Args: []string{"-check", "-upstream", group.Addrs[0]}})
	if code := p.ExitCode(); code != 1 || !strings.Contains(p.Log.String(), group.Addrs[0]+" is a sentinel: want redis+sentinel://"+group.Addrs[0]+"/master") {
		t.Errorf("a sentinel as Redis: exit code %d, output:\n%s", code, p.Log)
	}
	for name, expected := range map[string]struct {
		code int
		says []string
	}{
		group.Name: {0, []string{
			"\nsentinel: " + nobody + ": dial tcp ", "\nsentinel: " + group.Addrs[2] + " names " + master + "\n",
			"\nupstream: ok: " + master + " answers\n",
		}},
		"another": {1, []string{
			"\nsentinel: " + group.Addrs[0] + ": ERR No such master with that name\n",
			"\nseckill-proxy: upstream: " + down + "the master another: no sentinel knows it: ",
		}},
	} {
		p := sidecartest.Run(t, settings{Args: []string{"-check", "-upstream", url + name}})
		if code := p.ExitCode(); code != expected.code {
			t.Errorf("%s: exit code %d, want %d", name, code, expected.code)
		}
		for _, text := range expected.says {
			if !strings.Contains(p.Log.String(), text) {
				t.Errorf("%s: no %q in:\n%s", name, text, p.Log)
			}
		}
	}
}

// writeThrough has clients push values while the master changes. What a client was
// told that the replica has is there at the end, nothing is there twice, and no
// counter has gone below what was counted.
func writeThrough(t *testing.T, proxy *sidecar, group *redistest.Sentinels, changes ...func()) {
	const clients = 16
	var mu sync.Mutex
	kept := map[string]bool{} // values that the replica has
	counted := int64(0)       // the highest count that it has
	keep := func(value string, count int64) {
		mu.Lock()
		defer mu.Unlock()
		kept[value] = true
		counted = max(counted, count)
	}
	howMany := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(kept)
	}

	// A client that is there from before the first change to after the last one.
	patient := proxy.client(2).Conn()
	defer patient.Close()
	if err := patient.Set(t.Context(), "before", "all", 0).Err(); err != nil {
		t.Fatal(err)
	}

	var over atomic.Bool
	writers, ctx := errgroup.WithContext(t.Context())
	for i := range clients {
		c := proxy.client(2 + i%2)
		writers.Go(func() error {
			for n := 0; !over.Load(); n++ {
				value := fmt.Sprintf("%d-%d", i, n)
				count, replicas, err := write(ctx, c, value)
				if err != nil {
					return err
				}
				if replicas > 0 {
					keep(value, count)
				}
			}
			return nil
		})
	}
	for _, change := range append(changes, func() {}) {
		before := howMany()
		eventually(t, "values are written", func() bool { return howMany() > before+500 || ctx.Err() != nil })
		change()
	}
	over.Store(true)
	if err := writers.Wait(); err != nil {
		t.Fatal(err)
	}

	if n, err := patient.Wait(t.Context(), 1, 100*time.Millisecond).Result(); !redis.HasErrorPrefix(err, "UNCERTAIN") {
		t.Errorf("WAIT for what another master was told: %d, %v; want UNCERTAIN", n, err)
	}
	if n, err := patient.Wait(t.Context(), 1, hangs).Result(); err != nil || n != 1 {
		t.Errorf("the next WAIT: %d, %v", n, err)
	}

	c := proxy.client(2)
	master := group.Master()
	if port := c.ConfigGet(t.Context(), "port").Val()["port"]; port != fmt.Sprint(master.Port) {
		t.Errorf("the sidecar is at port %s, the master at %d", port, master.Port)
	}
	values, err := c.LRange(t.Context(), "values", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, value := range values {
		if there[value] {
			t.Errorf("%s is there twice", value)
		}
		there[value] = true
	}
	for _, value := range slices.Sorted(maps.Keys(kept)) {
		if !there[value] {
			t.Errorf("%s was acknowledged by a replica, and is lost", value)
		}
	}
	if n, err := c.Get(t.Context(), "count").Int64(); err != nil || n < counted {
		t.Errorf("count is %d, %v; a replica had %d", n, err, counted)
	}
}

// write counts and pushes a value, once, and returns the count and how many
// replicas are known to have both. Failing to, as is natural when a master changes,
// is no error.
func write(ctx context.Context, c *redis.Client, value string) (count, replicas int64, err error) {
	count, err = c.Incr(ctx, "count").Result()
	if err == nil {
		err = c.LPush(ctx, "values", value).Err()
	}
	if err == nil {
		replicas, err = c.Wait(ctx, 1, 100*time.Millisecond).Result()
	}
	for _, natural := range []string{"UNCERTAIN", "UNAVAILABLE", "READONLY"} {
		if redis.HasErrorPrefix(err, natural) {
			time.Sleep(time.Millisecond) // so that failing takes less than all processors
			return 0, 0, nil
		}
	}
	return count, replicas, err
}

// sellThrough sells with SYNC while the master crashes, and while a lock is held.
func sellThrough(t *testing.T, proxy *sidecar, crash func()) {
	const sku, stock, clients, usersPerClient = "crash", 200, 20, 20
	holder, rival := proxy.client(2), proxy.client(3)
	held := want(t, 200, "ACQUIRED", holder, "LOCK.ACQUIRE", "job", 60_000, "SYNC", 1)
	want(t, 200, "CREATED", holder, "SECKILL.CREATE", sku, stock)

	var answered atomic.Int64
	buyers := sendBuyers(t, proxy, clients, usersPerClient, &answered, func(ctx context.Context, c *redis.Client, user string) (purchase, error) {
		return buyUntilKept(ctx, c, sku, user)
	})
	eventually(t, "some have bought", func() bool { return answered.Load() > stock/4 })
	crash()
	told := buyers()

	c := proxy.client(2)
	tokens := map[string]string{}
	for _, p := range told {
		if p.word == "SOLD_OUT" {
			continue
		}
		if tokens[p.token] != "" {
			t.Errorf("%s and %s have the token %s", p.user, tokens[p.token], p.token)
		}
		tokens[p.token] = p.user
		want(t, 200, "PENDING", c, "SECKILL.RESULT", p.token)
	}
	// What was sold without being acknowledged may have been lost, and is to be had
	// again.
	for i := len(tokens); i < stock; i++ {
		want(t, 200, "RESERVED", c, "SECKILL.BUY", sku, fmt.Sprint("late-", i))
	}
	want(t, 4001, "SOLD_OUT", c, "SECKILL.BUY", sku, "too late")
	want(t, 200, "CLEAN", c, "SECKILL.AUDIT", sku)
	if info := fields(t, want(t, 200, "INFO", c, "SECKILL.INFO", sku)); info["pending"] != fmt.Sprint(stock) {
		t.Errorf("%s are pending, want %d", info["pending"], stock)
	}

	// For a moment after a failover a command may be answered 503, not executed.
	eventually(t, "the lock's master is reached", func() bool {
		return do(t, rival, "LOCK.CHECK", "job", held[2])[0] != int64(503)
	})
	want(t, 409, "BUSY", rival, "LOCK.ACQUIRE", "job", 1000)
	want(t, 200, "RELEASED", holder, "LOCK.RELEASE", "job", held[2])
	if next := want(t, 200, "ACQUIRED", rival, "LOCK.ACQUIRE", "job", 1000); next[3].(int64) <= held[3].(int64) {
		t.Errorf("fence %d after %d", next[3], held[3])
	}
}

// buyUntilKept buys until it is known whether a replica has the reservation, or
// that there is none.
func buyUntilKept(ctx context.Context, c *redis.Client, sku, user string) (purchase, error) {
	for {
		reply, err := c.Do(ctx, "SECKILL.BUY", sku, user, "ID", "checkout-"+user, "SYNC", 1).Slice()
		if err != nil {
			return purchase{}, fmt.Errorf("user %s: %w", user, err)
		}
		p := purchase{user, fmt.Sprint(reply[1]), fmt.Sprint(reply[2])}
		switch p.word {
		case "RESERVED", "REPLAYED", "SOLD_OUT":
			return p, nil
		case "UNCERTAIN", "BUSY":
		default:
			return p, fmt.Errorf("user %s was told %v", user, reply)
		}
		select {
		case <-ctx.Done():
			return p, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}
