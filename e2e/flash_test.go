package e2e

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"seckill-proxy/internal/redistest"
)

// TestFlash lets many buyers at few units, through two sidecars: they cost Redis
// a handful of script calls, since those that come while a call is under way
// travel together, and those that come too late aren't asked about.
func TestFlash(t *testing.T) {
	const buyers, stock, connections, calls = 6000, 100, 200, 200
	for _, shards := range []int{1, 8} {
		t.Run(fmt.Sprint(shards, " shards"), func(t *testing.T) {
			server := redistest.Start(t, redistest.Options{})
			var clients []*redis.Client
			for range 2 {
				proxy := start(t, settings{Args: []string{"-upstream", server.Addr}})
				for range connections / 2 {
					clients = append(clients, proxy.client(2))
				}
			}
			want(t, 200, "CREATED", clients[0], "SECKILL.CREATE", "flash", stock, "SHARDS", shards)
			observer := redis.NewClient(&redis.Options{Addr: server.Addr})
			defer observer.Close()
			before := scriptCalls(t, observer)

			told := make([][]purchase, connections)
			crowd, ctx := errgroup.WithContext(t.Context())
			for i, c := range clients {
				crowd.Go(func() error {
					for n := i; n < buyers; n += connections {
						p, err := buy(ctx, c, "flash", fmt.Sprint("user-", n))
						if err != nil {
							return err
						}
						told[i] = append(told[i], p)
					}
					return nil
				})
			}
			if err := crowd.Wait(); err != nil {
				t.Fatal(err)
			}
			if n := scriptCalls(t, observer) - before; n >= calls {
				t.Errorf("%d buyers of %d units cost %d script calls, want fewer than %d", buyers, stock, n, calls)
			}
			sold := 0
			for _, purchases := range told {
				for _, p := range purchases {
					switch p.word {
					case "RESERVED":
						sold++
					case "SOLD_OUT":
					default:
						t.Errorf("a buyer was told %s", p.word)
					}
				}
			}
			if sold != stock {
				t.Errorf("%d units were sold, want %d", sold, stock)
			}
			want(t, 200, "CLEAN", clients[0], "SECKILL.AUDIT", "flash")
		})
	}
}

// scriptCalls returns how many scripts Redis has run.
func scriptCalls(t *testing.T, c *redis.Client) (calls int) {
	t.Helper()
	stats, err := c.InfoMap(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"cmdstat_evalsha", "cmdstat_eval"} {
		var n int
		if line := stats["Commandstats"][command]; line != "" {
			if _, err := fmt.Sscanf(line, "calls=%d,", &n); err != nil {
				t.Fatalf("%s: %q: %v", command, line, err)
			}
		}
		calls += n
	}
	return calls
}

// TestStockComesBack is the life of a unit that nobody pays for: all buyers but
// one are refused by two sidecars that know that the sale is sold out, until the
// reservation expires; then both sell again.
func TestStockComesBack(t *testing.T) {
	const payTTL = 700 * time.Millisecond
	server := redistest.Start(t, redistest.Options{})
	var clients [2]*redis.Client
	for i := range clients {
		clients[i] = start(t, settings{Args: []string{"-upstream", server.Addr}}).client(2)
	}
	want(t, 200, "CREATED", clients[0], "SECKILL.CREATE", "iphone", 1, "PAYTTL", payTTL.Milliseconds())
	reserved := want(t, 200, "RESERVED", clients[0], "SECKILL.BUY", "iphone", "alice")
	token := reserved[2].(string)
	for _, c := range clients {
		want(t, 4001, "SOLD_OUT", c, "SECKILL.BUY", "iphone", "bob")
	}
	want(t, 200, "EXPIRED", clients[1], "SECKILL.RESULT", token, "BLOCK", 10_000)
	want(t, 410, "EXPIRED", clients[0], "SECKILL.CONFIRM", token, "order-1")
	second := want(t, 200, "RESERVED", clients[1], "SECKILL.BUY", "iphone", "carol")[2].(string)
	want(t, 4001, "SOLD_OUT", clients[0], "SECKILL.BUY", "iphone", "dave")
	want(t, 200, "CANCELLED", clients[0], "SECKILL.CANCEL", second)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for user := 0; ; user++ { // the other sidecar hears of it
		reply, err := clients[1].Do(ctx, "SECKILL.BUY", "iphone", "user-"+strconv.Itoa(user)).Slice()
		if err != nil {
			t.Fatal(err)
		}
		if reply[1] == "RESERVED" {
			break
		}
	}
	want(t, 200, "CLEAN", clients[1], "SECKILL.AUDIT", "iphone")
}
