package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// hangs is how long a broken program may hang.
const hangs = sidecartest.Hangs

// pair is a Redis and a sidecar in front of it, a process of its own.
type pair struct {
	addr   string // of the sidecar, "127.0.0.1:port"
	redis  *redistest.Server
	direct *redis.Client // past the sidecar

	t testing.TB
}

// start starts a Redis and a sidecar with default settings but for those of the
// environment.
func start(t testing.TB, environment ...string) *pair {
	t.Helper()
	server := redistest.Start(t, redistest.Options{})
	p := sidecartest.Start(t, sidecartest.Settings{Env: append([]string{"SECKILL_ADMIN=", "SECKILL_UPSTREAM=" + server.Addr}, environment...)})
	return &pair{addr: p.Addr, redis: server, direct: server.Client(t), t: t}
}

// client returns a go-redis client of the sidecar, or of the Redis behind it, that
// sends nothing twice.
func client(t testing.TB, addr string, protocol int, changes ...func(*redis.Options)) *redis.Client {
	options := &redis.Options{
		Addr:                     addr,
		Protocol:                 protocol,
		MaxRetries:               -1,
		ReadTimeout:              hangs,
		PoolTimeout:              hangs,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, change := range changes {
		change(options)
	}
	c := redis.NewClient(options)
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("closing a client: %v", err)
		}
	})
	return c
}

// create makes a sale.
func (p *pair) create(sku string, stock int) {
	p.t.Helper()
	c := client(p.t, p.addr, 2)
	reply, err := c.Do(p.t.Context(), "SECKILL.CREATE", sku, stock, "LIMIT", 0).Slice()
	if err != nil || reply[1] != "CREATED" {
		p.t.Fatalf("SECKILL.CREATE: %v, %v", reply, err)
	}
}

// audit wants the sale of that SKU to be in order.
func (p *pair) audit(sku string) {
	p.t.Helper()
	reply, err := client(p.t, p.addr, 2).Do(p.t.Context(), "SECKILL.AUDIT", sku).Slice()
	if err != nil || reply[1] != "CLEAN" {
		p.t.Errorf("SECKILL.AUDIT: %v, %v; want CLEAN", reply, err)
	}
}

// upstreams counts the connections to Redis, without the test's own.
func (p *pair) upstreams() int {
	p.t.Helper()
	list, err := p.direct.ClientList(p.t.Context()).Result()
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.Count(list, "\n") - int(p.direct.PoolStats().TotalConns)
}

// received returns how many connections Redis has accepted so far.
func (p *pair) received() int { return p.info("stats", "total_connections_received") }

// info returns a number of Redis's INFO.
func (p *pair) info(section, field string) int {
	p.t.Helper()
	text, err := p.direct.Info(p.t.Context(), section).Result()
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(text, "\n"+field+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.Atoi(value)
	if err != nil {
		p.t.Fatalf("INFO %s has %s %q", section, field, value)
	}
	return n
}

// eventually waits until a condition holds that nothing announces.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(hangs); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not so after %s", what, hangs)
		}
	}
}

// talk opens a connection, says what a client would, and returns so many bytes of
// the answers.
func talk(addr, conversation string, want int) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, hangs)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(hangs)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, conversation); err != nil {
		return "", err
	}
	got := make([]byte, want)
	n, err := io.ReadFull(conn, got)
	return string(got[:n]), err
}

// together runs n workers at the same time and returns the first error.
func together(n int, work func(worker int) error) error {
	errs := make(chan error, n)
	for worker := range n {
		go func() { errs <- work(worker) }()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// port is the port of an address.
func port(t testing.TB, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// run runs a program and returns what it wrote to its standard output. The error
// says what it wrote beside that.
func run(ctx context.Context, stdin string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*hangs)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%q: %w (%v)\n%s%s", argv, err, ctx.Err(), &stdout, &stderr)
	}
	return stdout.String(), nil
}
