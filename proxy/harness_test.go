package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"seckill-proxy/commands"
	"seckill-proxy/commands/lock"
	"seckill-proxy/commands/seckill"
	"seckill-proxy/internal/hangup"
	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
	"seckill-proxy/metrics"
	"seckill-proxy/proxy"
	"seckill-proxy/upstream"
)

func TestMain(m *testing.M) {
	// Test servers, sidecars and clients all end with their test, so nothing may
	// be left at the end of all of them.
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		removeBinary()
		os.Exit(code)
	}))
}

// setup is what a test may want otherwise in its sidecar.
type setup struct {
	limits   proxy.Limits
	upstream upstream.Options
	cluster  []string     // seeds of the cluster that it is in front of, nil for one Redis
	noSplit  bool         // MSET isn't split
	listener net.Listener // nil: a free port of 127.0.0.1
	password string       // that clients must give, "" for none
	log      *zap.Logger
}

// sidecar is a proxy.Server in the test's own process.
type sidecar struct {
	addr   string
	server *proxy.Server

	t       testing.TB
	hangups *hangup.Watcher
	cluster *upstream.Cluster // nil for one Redis
	served  chan error        // Serve's result
	stopped sync.Once
}

// startSidecar starts a sidecar in front of the server at upstreamAddr. When the
// test ends it is shut down, which must not take longer than it may.
func startSidecar(t testing.TB, upstreamAddr string, changes ...func(*setup)) *sidecar {
	t.Helper()
	s := setup{
		limits: proxy.Limits{
			Clients:     1000,
			BulkBytes:   512 << 20,
			InlineBytes: 64 << 10,
			CustomBytes: 64 << 10,
			PipelineMax: 128,
			Handshake:   rawclient.Patience,
			Linger:      rawclient.Patience,
			Profiles:    16,

			Pinned:       100,
			PinnedWait:   rawclient.Patience,
			PinnedIdle:   rawclient.Patience,
			ClientOutput: 1 << 30,
			Output:       1 << 30,
		},
		upstream: upstream.Options{
			Network:       "tcp",
			Address:       upstreamAddr,
			DialTimeout:   rawclient.Patience,
			ScriptTimeout: rawclient.Patience,
			BackoffMin:    time.Millisecond,
			BackoffMax:    20 * time.Millisecond,
		},
		log: zap.NewNop(),
	}
	for _, change := range changes {
		change(&s)
	}
	if s.listener == nil {
		var err error
		if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	hangups, err := hangup.New()
	if err != nil {
		t.Fatal(err)
	}
	s.upstream.Hangups = hangups
	to := proxy.Upstream{SplitMSET: !s.noSplit}
	if s.cluster == nil {
		to.Target = upstream.New(s.upstream)
	} else {
		to.Cluster = upstream.NewCluster(s.upstream, s.cluster)
	}
	p := &sidecar{
		addr:    s.listener.Addr().String(),
		server:  proxy.New(s.limits, to, commands.NewTable(), newBackend, metrics.New(), s.log),
		t:       t,
		hangups: hangups,
		cluster: to.Cluster,
		served:  make(chan error, 1),
	}
	if s.password != "" {
		p.server.DemandPassword(s.password)
	}
	go func() { p.served <- p.server.Serve(s.listener) }()
	t.Cleanup(p.stop)
	return p
}

func newBackend(rdb redis.UniversalClient) *commands.Backend {
	return &commands.Backend{
		Sales: seckill.New(rdb, seckill.Options{Prefix: seckill.DefaultPrefix, TakeoverAfter: time.Minute}),
		Locks: lock.New(rdb, lock.DefaultOptions()),
	}
}

// stop shuts the sidecar down, if it still runs. Clients still connected have
// nothing to finish, so it ends long before the bound.
func (p *sidecar) stop() { p.stopped.Do(p.shutDown) }

func (p *sidecar) shutDown() {
	defer p.hangups.Close()
	if p.cluster != nil {
		defer p.cluster.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), rawclient.Patience)
	defer cancel()
	p.server.Shutdown(ctx)
	if ctx.Err() != nil {
		p.t.Errorf("Shutdown had to cut a session after %s", rawclient.Patience)
	}
	if err := <-p.served; err != nil && !errors.Is(err, net.ErrClosed) {
		p.t.Errorf("Serve: %v", err)
	}
}

func (p *sidecar) dial(t testing.TB) *rawclient.Conn {
	t.Helper()
	return rawclient.Dial(t, p.addr)
}

// pair is a Redis and a sidecar in front of it.
type pair struct {
	*sidecar
	redis *redistest.Server

	redisAddr string // where clients without TLS reach it
}

func startPair(t testing.TB, changes ...func(*setup)) pair {
	t.Helper()
	return newPair(t, nil, changes...)
}

// newPair is startPair with arguments for redis-server. In TestOverTLS all but the
// test's own clients speak TLS.
func newPair(t testing.TB, redisArgs []string, changes ...func(*setup)) pair {
	t.Helper()
	if os.Getenv(tlsVariable) != "" {
		return newTLSPair(t, redisArgs, changes...)
	}
	server := redistest.Start(t, redistest.Options{Args: redisArgs})
	return pair{startSidecar(t, server.Addr, changes...), server, server.Addr}
}

// startQuickPair is startPair with a Redis that looks for timeouts of blocked
// clients more often than ten times a second.
func startQuickPair(t testing.TB) pair {
	t.Helper()
	return newPair(t, []string{"--hz", "500"})
}

// direct connects past the sidecar.
func (p pair) direct(t testing.TB) *rawclient.Conn {
	t.Helper()
	return rawclient.Dial(t, p.redisAddr)
}

// eventually waits until a condition holds that nothing announces.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(rawclient.Patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("after %s still not: %s", rawclient.Patience, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// blockedClients waits until so many clients of the server are blocked.
func blockedClients(t testing.TB, direct *rawclient.Conn, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d blocked clients", n), func() bool {
		return strings.Contains(direct.Do("INFO", "clients"), fmt.Sprintf("\r\nblocked_clients:%d\r\n", n))
	})
}

// wantPrefix sends a command whose reply has an end that can't be foreseen.
func wantPrefix(t testing.TB, c *rawclient.Conn, prefix string, args ...string) string {
	t.Helper()
	reply := c.Do(args...)
	if !strings.HasPrefix(reply, prefix) {
		t.Fatalf("%s: got %s, want %q and more", strings.Join(args, " "), rawclient.Abridged(reply), prefix)
	}
	return reply
}

const (
	ok     = "+OK\r\n"
	queued = "+QUEUED\r\n"
	pong   = "+PONG\r\n"
	null   = "$-1\r\n"
)

// created is the reply of SECKILL.CREATE for a new sale.
func created(sku string) string {
	return "*4\r\n:200\r\n$7\r\nCREATED\r\n" + rawclient.Bulk(sku) + ":1\r\n"
}
