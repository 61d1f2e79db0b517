package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// purchase is what a user was told at last.
type purchase struct {
	user  string
	word  string
	token string
}

// buy asks for one unit, once, with the same request id that the PHP examples
// use.
func buy(ctx context.Context, c *redis.Client, sku, user string) (purchase, error) {
	reply, err := c.Do(ctx, "SECKILL.BUY", sku, user, "ID", "checkout-"+user).Slice()
	if err != nil {
		return purchase{}, fmt.Errorf("user %s: %w", user, err)
	}
	if len(reply) != 5 {
		return purchase{}, fmt.Errorf("user %s: %d elements in %v, want 5", user, len(reply), reply)
	}
	return purchase{user, fmt.Sprint(reply[1]), fmt.Sprint(reply[2])}, nil
}

// buyWithPHP has one PHP process buy for all of the users.
func buyWithPHP(ctx context.Context, script string, proxy *sidecar, sku string, users []string) ([]purchase, error) {
	output, err := runScript(ctx, "php", append([]string{"../examples/php/" + script, "127.0.0.1", proxy.Port(), sku}, users...)...)
	if err != nil {
		return nil, err
	}
	var purchases []purchase
	for line := range strings.Lines(output) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(columns) != 4 {
			return nil, fmt.Errorf("%s wrote %q", script, line)
		}
		purchases = append(purchases, purchase{columns[0], columns[2], columns[3]})
	}
	return purchases, nil
}

// TestSale sells 500 units to 3,000 users on 200 connections, some of them of
// PHP processes, has the orders worked off, and restarts everything.
func TestSale(t *testing.T) {
	const (
		sku              = "iPhone 17 限量"
		stock            = 500
		clients          = 200
		usersPerClient   = 15
		phpEvery         = 10 // one client in so many is a PHP process
		workers          = 4
		users            = clients * usersPerClient
		pulledAtOneTime  = 7
		statusAfterwards = "CONFIRMED"
	)
	server := redistest.Start(t, redistest.Options{AppendOnly: true})
	proxy := start(t, settings{Args: []string{"-upstream", server.Addr}})
	c := proxy.client(2)
	want(t, 200, "CREATED", c, "SECKILL.CREATE", sku, stock)

	// All of them buy at once.
	told := make([][]purchase, clients)
	buyers, ctx := errgroup.WithContext(t.Context())
	for i := range clients {
		names := make([]string, usersPerClient)
		for j := range names {
			names[j] = fmt.Sprintf("user-%d-%d", i, j)
		}
		if i%phpEvery == 0 {
			script := []string{"buy.php", "buy_predis.php"}[i/phpEvery%2]
			buyers.Go(func() (err error) {
				told[i], err = buyWithPHP(ctx, script, proxy, sku, names)
				return err
			})
			continue
		}
		connection := proxy.client(2 + i%2)
		buyers.Go(func() error {
			for _, name := range names {
				p, err := buy(ctx, connection, sku, name)
				if err != nil {
					return err
				}
				told[i] = append(told[i], p)
			}
			return nil
		})
	}
	if err := buyers.Wait(); err != nil {
		t.Fatal(err)
	}
	winners := checkPurchases(t, slices.Concat(told...), users, stock, "RESERVED")

	// Workers, one of them in PHP, take every order once and confirm it.
	orders := make([]map[string]string, workers+1) // token → order id
	working, ctx := errgroup.WithContext(t.Context())
	for i := range workers {
		orders[i] = map[string]string{}
		connection := proxy.client(2 + i%2)
		working.Go(func() error {
			return workOff(ctx, connection, sku, fmt.Sprintf("worker-%d", i), pulledAtOneTime, orders[i])
		})
	}
	working.Go(func() error {
		output, err := runScript(ctx, "php", "../examples/php/worker.php", "127.0.0.1", proxy.Port(), sku, "php-worker")
		orders[workers] = map[string]string{}
		for line := range strings.Lines(output) {
			token, order, _ := strings.Cut(strings.TrimSpace(line), "\t")
			orders[workers][token] = order
		}
		return err
	})
	if err := working.Wait(); err != nil {
		t.Fatal(err)
	}
	confirmed := map[string]string{}
	for _, some := range orders {
		for token, order := range some {
			if confirmed[token] != "" {
				t.Errorf("%s was handed out twice", token)
			}
			confirmed[token] = order
		}
	}
	if len(confirmed) != stock {
		t.Fatalf("%d orders were handed out, want %d", len(confirmed), stock)
	}
	for token := range winners {
		if confirmed[token] == "" {
			t.Errorf("%s was reserved and never handed out", token)
		}
	}

	info := fields(t, want(t, 200, "INFO", c, "SECKILL.INFO", sku))
	for field, value := range map[string]int{
		"stock": stock, "available": 0, "pending": 0, "confirmed": stock, "cancelled": 0,
		"buyers": stock, "orders": stock, "queue_length": 0,
	} {
		if info[field] != fmt.Sprint(value) {
			t.Errorf("INFO: %s is %s, want %d", field, info[field], value)
		}
	}
	audit := fields(t, want(t, 200, "CLEAN", c, "SECKILL.AUDIT", sku))

	unchanged := func(c *redis.Client) {
		t.Helper()
		if now := fields(t, want(t, 200, "INFO", c, "SECKILL.INFO", sku)); !maps.Equal(now, info) {
			t.Errorf("INFO is %v, want %v", now, info)
		}
		if now := fields(t, want(t, 200, "CLEAN", c, "SECKILL.AUDIT", sku)); !maps.Equal(now, audit) {
			t.Errorf("AUDIT is %v, want %v", now, audit)
		}
		want(t, 4001, "SOLD_OUT", c, "SECKILL.BUY", sku, "too late")
		for token, order := range confirmed {
			if result := want(t, 200, statusAfterwards, c, "SECKILL.RESULT", token); result[3] != order {
				t.Errorf("order id of %s is %v, want %s", token, result[3], order)
			}
		}
		for token, user := range winners {
			if reply := want(t, 200, "REPLAYED", c, "SECKILL.BUY", sku, user, "ID", "checkout-"+user); reply[2] != token {
				t.Errorf("%s asked again and got %v, want %s", user, reply[2], token)
			}
		}
	}
	unchanged(c)

	// Redis crashes and comes back with what it had written.
	server.Restart()
	eventually(t, "the sidecar works again", func() bool { return do(t, c, "SECKILL.INFO", sku)[0] == int64(200) })
	unchanged(c)

	// So does the sidecar, which had nothing to lose.
	proxy.Kill()
	unchanged(start(t, settings{Args: []string{"-upstream", server.Addr}}).client(2))
}

// workOff pulls orders until there are none and confirms each under an id of its
// own.
func workOff(ctx context.Context, c *redis.Client, sku, worker string, count int, orders map[string]string) error {
	for {
		reply, err := c.Do(ctx, "SECKILL.PULL", sku, worker, "COUNT", count).Slice()
		if err != nil {
			return err
		}
		if len(reply) < 2 || reply[0] != int64(200) {
			return fmt.Errorf("PULL: %v", reply)
		}
		if len(reply) == 2 {
			return nil
		}
		for _, delivery := range reply[2:] {
			token := fmt.Sprint(delivery.([]any)[0])
			order := fmt.Sprintf("%s/%d", worker, len(orders))
			settled, err := c.Do(ctx, "SECKILL.CONFIRM", token, order).Slice()
			if err != nil {
				return err
			}
			if settled[1] != "CONFIRMED" || orders[token] != "" {
				return fmt.Errorf("CONFIRM %s: %v (handed out before as %q)", token, settled, orders[token])
			}
			orders[token] = order
		}
	}
}

// checkPurchases wants as many users as there were, and stock of them with a
// token each, under one of the words; all others are told SOLD_OUT. It returns
// the tokens with their users.
func checkPurchases(t *testing.T, purchases []purchase, users, stock int, words ...string) map[string]string {
	t.Helper()
	winners, asked := map[string]string{}, map[string]bool{}
	for _, p := range purchases {
		asked[p.user] = true
		switch {
		case slices.Contains(words, p.word):
			if other := winners[p.token]; p.token == "" || other != "" {
				t.Errorf("%s and %s have the token %q", p.user, other, p.token)
			}
			winners[p.token] = p.user
		case p.word != "SOLD_OUT":
			t.Errorf("%s was told %s", p.user, p.word)
		}
	}
	if len(asked) != users || len(purchases) != users || len(winners) != stock {
		t.Fatalf("%d answers to %d users with %d tokens, want %d, %d and %d", len(purchases), len(asked), len(winners), users, users, stock)
	}
	return winners
}

// sendBuyers has users buy, one after the other through each client, and counts those
// who have an answer. What it returns waits for all of them.
func sendBuyers(t *testing.T, proxy *sidecar, clients, usersPerClient int, answered *atomic.Int64,
	buy func(ctx context.Context, c *redis.Client, user string) (purchase, error)) func() []purchase {
	told := make([][]purchase, clients)
	buyers, ctx := errgroup.WithContext(t.Context())
	for i := range clients {
		c := proxy.client(2)
		buyers.Go(func() error {
			for j := range usersPerClient {
				p, err := buy(ctx, c, fmt.Sprintf("user-%d-%d", i, j))
				if err != nil {
					return err
				}
				told[i] = append(told[i], p)
				answered.Add(1)
			}
			return nil
		})
	}
	return func() []purchase {
		t.Helper()
		if err := buyers.Wait(); err != nil {
			t.Fatal(err)
		}
		return slices.Concat(told...)
	}
}

// TestSaleWithCrashes kills Redis and the sidecar in the middle of a sale. The
// buyers ask again with their request ids until they know.
func TestSaleWithCrashes(t *testing.T) {
	const sku, stock, clients, usersPerClient = "crash", 300, 40, 25
	server := redistest.Start(t, redistest.Options{AppendOnly: true})
	fixed := settings{Args: []string{"-upstream", server.Addr, "-listen", sidecartest.FreeAddress(t)}}
	proxy := start(t, fixed)
	want(t, 200, "CREATED", proxy.client(2), "SECKILL.CREATE", sku, stock)

	var answered atomic.Int64
	buyers := sendBuyers(t, proxy, clients, usersPerClient, &answered, func(ctx context.Context, c *redis.Client, user string) (purchase, error) {
		return buyUntilKnown(ctx, c, sku, user)
	})
	after := func(n int64, crash func()) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d users have an answer", n), func() bool { return answered.Load() >= n })
		crash()
	}
	restartProxy := func() {
		proxy.Kill()
		proxy = start(t, fixed)
	}
	after(50, server.Restart)
	after(100, restartProxy)
	after(150, server.Restart)
	after(200, restartProxy)
	told := buyers()

	checkPurchases(t, told, clients*usersPerClient, stock, "RESERVED", "REPLAYED")
	c := proxy.client(2)
	want(t, 200, "CLEAN", c, "SECKILL.AUDIT", sku)
	if info := fields(t, want(t, 200, "INFO", c, "SECKILL.INFO", sku)); info["pending"] != fmt.Sprint(stock) {
		t.Errorf("pending is %s, want %d", info["pending"], stock)
	}
}

// buyUntilKnown buys as a shop should: UNCERTAIN, BUSY and a broken connection
// mean to ask again with the same id.
func buyUntilKnown(ctx context.Context, c *redis.Client, sku, user string) (purchase, error) {
	for {
		p, err := buy(ctx, c, sku, user)
		if err == nil && p.word != "UNCERTAIN" && p.word != "BUSY" {
			return p, nil
		}
		select {
		case <-ctx.Done():
			return purchase{}, fmt.Errorf("user %s: %w (last: %v, %v)", user, ctx.Err(), p, err)
		case <-time.After(time.Millisecond):
		}
	}
}

// TestTwoSidecars sells one sale through two sidecars: each user asks both at
// the same time, with one request id.
func TestTwoSidecars(t *testing.T) {
	const sku, stock, users = "shared", 50, 100
	server := redistest.Start(t, redistest.Options{})
	var clients [2]*redis.Client
	for i := range clients {
		clients[i] = start(t, settings{Args: []string{"-upstream", server.Addr}}).client(2)
	}
	want(t, 200, "CREATED", clients[0], "SECKILL.CREATE", sku, stock)
	want(t, 409, "EXISTS", clients[1], "SECKILL.CREATE", sku, stock)

	var told [2][users]purchase
	buyers, ctx := errgroup.WithContext(t.Context())
	for side, c := range clients {
		for i := range users {
			buyers.Go(func() (err error) {
				told[side][i], err = buy(ctx, c, sku, fmt.Sprint("user-", i))
				return err
			})
		}
	}
	if err := buyers.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, a := range told[0] {
		b := told[1][i]
		if a.token != b.token || (a.word == "RESERVED") == (b.word == "RESERVED") && a.word != "SOLD_OUT" {
			t.Errorf("one sidecar said %v, the other %v", a, b)
		}
	}
	checkPurchases(t, told[0][:], users, stock, "RESERVED", "REPLAYED")
	for _, c := range clients {
		want(t, 200, "CLEAN", c, "SECKILL.AUDIT", sku)
	}
}
