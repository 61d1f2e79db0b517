// Command seckill-proxy is a sidecar in front of Redis that adds flash sales
// (SECKILL.*) and distributed locks (LOCK.*) to it, and forwards everything else
// byte for byte.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"seckill-proxy/admin"
	"seckill-proxy/commands"
	"seckill-proxy/commands/seckill"
	"seckill-proxy/config"
	"seckill-proxy/localcache"
	"seckill-proxy/metrics"
	"seckill-proxy/proxy"
)

// version is set by the build: -ldflags "-X main.version=1.2.3".
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintln(os.Stderr, "seckill-proxy:", strings.TrimSpace(line))
		}
		os.Exit(1)
	}
}

// run does what the command line asks for, until ctx ends.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	cfg, flags, err := config.Load(args, environ)
	switch {
	case err != nil:
		return err
	case flags.Help:
		fmt.Fprint(stdout, config.Usage())
		return nil
	case flags.Version:
		fmt.Fprintln(stdout, "seckill-proxy", version)
		return nil
	case flags.Health:
		return admin.CheckHealth(cfg.Admin.Listen)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(cfg.Limits.ProcessorsMax)
	}
	log, err := newLogger(cfg.Log, stderr)
	if err != nil {
		return err
	}
	redis.SetLogger(redisLog{log})
	to, err := openUpstream(cfg, log)
	if err != nil {
		return err
	}
	defer to.Close()
	if flags.Check {
		return check(ctx, cfg, to, log, stdout)
	}
	return serve(ctx, cfg, to, log)
}

// serve runs the sidecar until ctx ends, then drains it.
func serve(ctx context.Context, cfg config.Config, to opened, log *zap.Logger) error {
	counters := metrics.New()
	lockNodes, closeLockNodes, err := openLockNodes(cfg, log)
	if err != nil {
		return err
	}
	defer closeLockNodes()
	server := proxy.New(limits(cfg), to.Upstream, commands.NewTable(), newBackend(cfg, lockNodes, counters, log), counters, log)
	if cfg.Entry.Password != "" {
		server.DemandPassword(string(cfg.Entry.Password))
	}
	listeners, err := listen(cfg, log)
	if err != nil {
		return err
	}
	var admins *admin.Server
	if cfg.Admin.Listen != "" {
		if admins, err = admin.Listen(cfg.Admin.Listen, counters.Registry, to.Ping); err != nil {
			closeAll(listeners)
			return err
		}
	}

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	start := func(serve func() error) {
		running.Go(func() {
			if err := serve(); err != nil {
				stop(err)
			}
		})
	}
	for _, ln := range listeners {
		start(func() error { return server.Serve(ln) })
	}
	if admins != nil {
		start(admins.Serve)
	}
	_ = server.Connect(ctx) // a failure is in the log, and not for ever
	running.Go(func() { to.warn(ctx, log) })
	welcome(cfg, listeners, log)

	<-ctx.Done()
	log.Info("stopping: no new clients, running commands finish", zap.Duration("within", cfg.Shutdown.DrainTimeout))
	bound, cancel := context.WithTimeout(context.Background(), cfg.Shutdown.DrainTimeout)
	defer cancel()
	server.Shutdown(bound)
	if admins != nil {
		_ = admins.Shutdown(bound) // what it still sends is of no use to anybody
	}
	running.Wait()
	log.Info("stopped")
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// welcome says where the sidecar is and what to try.
func welcome(cfg config.Config, listeners []net.Listener, log *zap.Logger) {
	if cfg.Upstream.Scheme == config.SchemeEmbedded {
		log.Warn("the store is embedded and in memory: for trying things out, not for a sale; what it holds ends with this process")
	}
	warnOpen(cfg, log)
	for i, ln := range listeners {
		log.Info("ready", zap.Stringer("listen", ln.Addr()), zap.Bool("tls", cfg.Listen[i].TLS), zap.Stringer("upstream", cfg.Upstream), zap.String("admin", cfg.Admin.Listen))
	}
	if tcp, ok := listeners[0].Addr().(*net.TCPAddr); ok && cfg.Upstream.Scheme == config.SchemeEmbedded && !cfg.Listen[0].TLS && cfg.Entry.Password == "" {
		log.Info(fmt.Sprintf("try: redis-cli -p %d SECKILL.CREATE demo 100, then SECKILL.BUY demo alice", tcp.Port))
	}
}

func listen(cfg config.Config, log *zap.Logger) ([]net.Listener, error) {
	secured, err := clientTLS(cfg, log)
	if err != nil {
		return nil, err
	}
	var listeners []net.Listener
	for _, a := range cfg.Listen {
		ln, err := listenOn(a, cfg.Entry.UnixMode)
		if err != nil {
			closeAll(listeners)
			return nil, fmt.Errorf("listen: %w", err)
		}
		if a.TLS {
			ln = proxy.ListenTLS(ln, secured)
		}
		listeners = append(listeners, ln)
	}
	return listeners, nil
}

// listenOn opens one address. A unix socket that a killed process has left
// behind is removed; one that somebody listens on is not. Its mode is what the
// umask makes it, unless another is given.
func listenOn(a config.Address, mode fs.FileMode) (net.Listener, error) {
	if a.Network == "unix" {
		if conn, err := net.DialTimeout("unix", a.Address, time.Second); err == nil {
			conn.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			if err := os.Remove(a.Address); err != nil {
				return nil, err
			}
		}
	}
	ln, err := net.Listen(a.Network, a.Address)
	if err != nil || a.Network != "unix" || mode == 0 {
		return ln, err
	}
	if err := os.Chmod(a.Address, mode); err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

func closeAll(listeners []net.Listener) {
	for _, ln := range listeners {
		ln.Close()
	}
}

func limits(cfg config.Config) proxy.Limits {
	return proxy.Limits{
		Clients:     cfg.Limits.ClientsMax,
		BulkBytes:   int64(cfg.Limits.CommandBytesMax),
		InlineBytes: cfg.Limits.InlineBytesMax,
		CustomBytes: cfg.Limits.CustomBytesMax,
		PipelineMax: cfg.Limits.PipelineMax,
		IdleTimeout: cfg.Client.IdleTimeout,
		Handshake:   cfg.Entry.TLS.HandshakeTimeout,
		Linger:      cfg.Client.LingerTimeout,
		Profiles:    cfg.Control.IdentitiesMax,

		Pinned:     cfg.Limits.PinnedMax,
		PinnedWait: cfg.Limits.PinnedWait,
		PinnedIdle: cfg.Control.PinnedIdle,

		ClientOutput: int64(cfg.Limits.ClientOutputMax),
		Output:       int64(cfg.Limits.OutputMax),
	}
}

// newBackend returns what makes the sales and locks of one user and database.
func newBackend(cfg config.Config, lockNodes []*redis.Client, m *metrics.Metrics, log *zap.Logger) func(redis.UniversalClient) *commands.Backend {
	newLocker := newLocks(cfg.Lock, lockNodes, m, log)
	sales := salesOptions(cfg.Seckill)
	sales.Observer, sales.Log = m.Sales, log
	return func(rdb redis.UniversalClient) *commands.Backend {
		return &commands.Backend{
			Sales: seckill.New(rdb, sales),
			Locks: newLocker(rdb),
		}
	}
}

func salesOptions(cfg config.Seckill) seckill.Options {
	return seckill.Options{
		Prefix:         cfg.Prefix,
		Shards:         cfg.Shards,
		TakeoverAfter:  cfg.Takeover,
		BatchMax:       cfg.BatchMax,
		QueueMax:       cfg.QueueMax,
		QueuesMax:      cfg.QueuesMax,
		QueueWait:      cfg.QueueWait,
		SyncReplicas:   cfg.SyncReplicas,
		SyncTimeout:    cfg.SyncTimeout,
		AuditEvery:     cfg.AuditInterval,
		AuditOrdersMax: int64(cfg.AuditOrdersMax),
		Cache: localcache.Options{
			SalesMax:    cfg.Cache.SalesMax,
			AbsentMax:   cfg.Cache.AbsentMax,
			RatesMax:    cfg.Cache.RatesMax,
			BuyersMax:   cfg.Cache.BuyersMax,
			ReceiptsMax: cfg.Cache.ReceiptsMax,
		},
	}
}
