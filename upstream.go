package main

import (
	"context"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"seckill-proxy/config"
	"seckill-proxy/internal/hangup"
	"seckill-proxy/proxy"
	"seckill-proxy/upstream"
)

// opened is where commands go.
type opened struct {
	proxy.Upstream
	sentinel *upstream.Sentinel // who says where the Target is; nil without
	seeds    []*upstream.Target // the nodes that upstream.url names; nil without a Cluster
	password config.Secret      // of the sidecar itself

	hangups *hangup.Watcher
	store   *upstream.Embedded // nil without
}

// openUpstream returns where commands go. It doesn't wait for Redis. The caller
// closes it.
func openUpstream(cfg config.Config, log *zap.Logger) (opened, error) {
	secured, err := redisTLS(cfg.Upstream, cfg, log)
	if err != nil {
		return opened{}, err
	}
	o := opened{password: cfg.Upstream.Password}
	if o.hangups, err = hangup.New(); err != nil {
		return opened{}, err
	}
	opts := upstream.Options{
		Network:       cfg.Upstream.Network(),
		Address:       strings.Join(cfg.Upstream.Addresses, ","),
		User:          cfg.Upstream.User,
		Password:      string(cfg.Upstream.Password),
		DB:            cfg.Upstream.DB,
		DialTimeout:   cfg.Control.DialTimeout,
		ScriptTimeout: cfg.Control.ScriptTimeout,
		BackoffMin:    cfg.Control.BackoffMin,
		BackoffMax:    cfg.Control.BackoffMax,
		TLS:           secured,
		Hangups:       o.hangups,
		Log:           log,
	}
	switch cfg.Upstream.Scheme {
	case config.SchemeCluster:
		o.Cluster = upstream.NewCluster(opts, cfg.Upstream.Addresses)
		o.SplitMSET = cfg.Cluster.SplitMSET
		for _, address := range cfg.Upstream.Addresses {
			o.seeds = append(o.seeds, o.Cluster.Node(address))
		}
	case config.SchemeSentinel:
		o.Target, o.sentinel = upstream.StartSentinel(opts, upstream.SentinelOptions{
			Addresses: cfg.Upstream.Addresses,
			Master:    cfg.Upstream.Master,
			User:      cfg.Control.SentinelUser,
			Password:  string(cfg.Control.SentinelPassword),
		})
	case config.SchemeEmbedded:
		if o.store, err = upstream.StartEmbedded(); err != nil {
			o.hangups.Close()
			return opened{}, fmt.Errorf("embedded store: %w", err)
		}
		opts.Address, opts.Dialer = "the embedded store", o.store.Dial
		o.Target = upstream.New(opts)
	default:
		o.Target = upstream.New(opts)
	}
	return o, nil
}

// Close ends what keeps watch on Redis, after all connections have ended.
func (o opened) Close() {
	if o.Cluster != nil {
		o.Cluster.Close()
	}
	if o.sentinel != nil {
		o.sentinel.Close()
	}
	if o.store != nil {
		o.store.Close()
	}
	o.hangups.Close()
}

// Ping reports whether Redis answers: of a cluster, any node.
func (o opened) Ping(ctx context.Context) error { return o.Seed().Ping(ctx) }
