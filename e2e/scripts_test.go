package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// TestExamples runs every program in examples/ against the real Redis, a cluster
// and the embedded store. A program ends with 0 only if everything was as it
// expects.
func TestExamples(t *testing.T) {
	for name, upstream := range map[string]string{
		"redis":    redistest.Start(t, redistest.Options{}).Addr,
		"cluster":  "redis+cluster://" + redistest.StartCluster(t, redistest.ClusterOptions{Masters: 3}).Masters[0].Addr,
		"embedded": "embedded",
	} {
		t.Run(name, func(t *testing.T) {
			proxy := start(t, settings{Args: []string{"-upstream", upstream}})
			c := proxy.client(2)
			want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 100)
			for _, path := range examples(t) {
				t.Run(filepath.Base(path), func(t *testing.T) {
					if output, err := runScript(t.Context(), interpreter(t, path), path, "127.0.0.1", proxy.Port()); err != nil {
						t.Fatalf("%v\n%s", err, output)
					}
				})
			}
			t.Run("the life of a result", func(t *testing.T) {
				paid := want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", "grace")[2].(string)
				returned := want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", "heidi")[2].(string)
				wantResult(t, proxy, paid, "your order is being worked on\n")
				results := subscriber(t, proxy, c)
				want(t, 200, "CONFIRMED", c, "SECKILL.CONFIRM", paid, "order-1")
				want(t, 200, "CANCELLED", c, "SECKILL.CANCEL", returned, "too late")
				wantResult(t, proxy, paid, "your order is order-1\n")
				wantResult(t, proxy, returned, "your reservation was cancelled: too late\n")
				wantResult(t, proxy, "nothing", "there is no such reservation\n")
				for _, want := range []string{paid + "\tCONFIRMED\torder-1", returned + "\tCANCELLED\t"} {
					if !results.Scan() || results.Text() != want {
						t.Errorf("results_subscribe.php prints %q, want %q (%v)", results.Text(), want, results.Err())
					}
				}
			})
		})
	}
}

// wantResult wants what the page for a waiting customer shows, at once or in the
// end.
func wantResult(t *testing.T, proxy *sidecar, token, want string) {
	t.Helper()
	if got, err := runScript(t.Context(), "php", "../examples/php/result.php", "127.0.0.1", proxy.Port(), token, "1"); err != nil || got != want {
		t.Errorf("result.php prints %q, want %q (%v)", got, want, err)
	}
}

// subscriber runs results_subscribe.php until the end of the test, and returns its
// output. It has subscribed by then.
func subscriber(t *testing.T, proxy *sidecar, c *redis.Client) *bufio.Scanner {
	t.Helper()
	subscribers := func() int64 {
		n, err := c.PubSubNumSub(t.Context(), "seckill:results").Result()
		if err != nil {
			t.Fatal(err)
		}
		return n["seckill:results"]
	}
	before := subscribers()
	cmd := exec.CommandContext(t.Context(), "php", "../examples/php/results_subscribe.php", "127.0.0.1", proxy.Port(), "0")
	output, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the test's context has ended it
	eventually(t, "it has subscribed", func() bool { return subscribers() > before })
	return bufio.NewScanner(output)
}

// TestWorkerStays has a worker that waits for orders: it confirms those that come,
// cancels those that can't be, and goes on after the loss of its connection.
func TestWorkerStays(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	fixed := settings{Args: []string{"-upstream", server.Addr, "-listen", sidecartest.FreeAddress(t)}}
	proxy := start(t, fixed)
	c := proxy.client(2)
	want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 10)
	worker := exec.CommandContext(t.Context(), "php", "../examples/php/worker.php", "127.0.0.1", proxy.Port(), "iphone", "w", "0")
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = worker.Wait() }) // the test's context has ended it
	settled := func(c *redis.Client, user string) []any {
		token := want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", user)[2]
		return do(t, c, "SECKILL.RESULT", token, "BLOCK", hangs.Milliseconds())
	}
	if got := settled(c, "alice"); got[1] != "CONFIRMED" || !strings.HasPrefix(got[3].(string), "order-") {
		t.Errorf("alice's order: %v", got)
	}
	if got := settled(c, "nobody"); got[1] != "CANCELLED" || got[4] != "we do not deliver there" {
		t.Errorf("an order that can't be: %v", got)
	}
	proxy.Kill()
	if got := settled(start(t, fixed).client(2), "bob"); got[1] != "CONFIRMED" {
		t.Errorf("after the sidecar was restarted: %v", got)
	}
}

// TestCheckoutOutlastsLoss cuts the connection of a checkout page after its
// purchase was made and before it was told: it comes back, asks again, and finds
// the reservation that it has.
func TestCheckoutOutlastsLoss(t *testing.T) {
	for _, script := range []string{"buy.php", "buy_predis.php"} {
		t.Run(script, func(t *testing.T) {
			proxy := start(t, settings{})
			between, c := startRelay(t, proxy.Addr), proxy.client(2)
			want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 10)
			between.hold()
			host, port, err := net.SplitHostPort(between.addr)
			if err != nil {
				t.Fatal(err)
			}
			type result struct {
				output string
				err    error
			}
			ended := make(chan result, 1)
			go func() {
				output, err := runScript(t.Context(), "php", "../examples/php/"+script, host, port, "iphone", "alice")
				ended <- result{output, err}
			}()
			eventually(t, "the purchase is made", func() bool { return sold(t, c) == 1 })
			between.cut()
			between.release()

			got := <-ended
			token := want(t, 200, "REPLAYED", c, "SECKILL.BUY", "iphone", "alice", "ID", "checkout-alice")[2]
			if want := fmt.Sprintf("alice\tyours already, not paid yet\tPENDING\t%s\n", token); got.err != nil || got.output != want {
				t.Errorf("it printed %q, want %q (%v)", got.output, want, got.err)
			}
		})
	}
}

// TestCheckoutSaysWhatIsWrong has checkout pages that Redis refuses: they end with
// its words.
func TestCheckoutSaysWhatIsWrong(t *testing.T) {
	server := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", "geheim"}})
	proxy := start(t, settings{Args: []string{"-upstream", server.Addr}})
	for _, script := range []string{"buy.php", "buy_predis.php"} {
		output, err := runScript(t.Context(), "php", "../examples/php/"+script, "127.0.0.1", proxy.Port(), "iphone", "alice")
		if err == nil || !strings.Contains(output+err.Error(), "NOAUTH") {
			t.Errorf("%s printed %q and ended with %v, want NOAUTH", script, output, err)
		}
	}
}

// examples lists the programs in examples/.
func examples(t *testing.T) []string {
	t.Helper()
	var paths []string
	for _, pattern := range []string{"../examples/php/*.php", "../examples/python/*.py"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: no programs (%v)", pattern, err)
		}
		paths = append(paths, found...)
	}
	return paths
}

// interpreter returns what runs a program, by the end of its name.
func interpreter(t testing.TB, path string) string {
	t.Helper()
	if filepath.Ext(path) == ".py" {
		return python(t)
	}
	return "php"
}

// python finds a Python that has redis-py: a Debian package serves /usr/bin's,
// which needn't be the first in the path.
func python(t testing.TB) string {
	t.Helper()
	for _, candidate := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), candidate, "-c", "import redis").Run() == nil {
			return candidate
		}
	}
	t.Fatal("no python3 with redis-py: install the package python3-redis (Debian: apt-get install python3-redis)")
	return ""
}

// runScript runs a program and returns what it wrote to its standard output. The
// error says what it wrote beside that.
func runScript(ctx context.Context, program string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %q: %w\n%s", program, args, err, &stderr)
	}
	return stdout.String(), nil
}
