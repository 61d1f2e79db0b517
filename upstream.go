package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/redis/go-redis/v9"
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
	var o opened
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

// check reports whether Redis answers, and who of those that say where it is. One
// sentinel that doesn't answer is no failure, a master of a cluster is one.
func (o opened) check(ctx context.Context, stdout io.Writer) error {
	if o.sentinel != nil {
		for _, answer := range o.sentinel.Ask(ctx) {
			if answer.Err != nil {
				fmt.Fprintf(stdout, "sentinel: %s: %v\n", answer.Sentinel, answer.Err)
			} else {
				fmt.Fprintf(stdout, "sentinel: %s names %s\n", answer.Sentinel, answer.Master)
			}
		}
	}
	if err := o.Ping(ctx); err != nil {
		return fmt.Errorf("upstream: %w", err)
	}
	if o.Cluster != nil {
		if err := o.checkNodes(ctx, stdout); err != nil {
			return err
		}
	}
	fmt.Fprintln(stdout, "upstream: ok:", o.Seed().Address(), "answers")
	return nil
}

// checkNodes reports which masters of a cluster answer.
func (o opened) checkNodes(ctx context.Context, stdout io.Writer) error {
	slots, err := o.Cluster.Map(ctx, o.Seed().Profile())
	if redis.HasErrorPrefix(err, "NOAUTH ") {
		fmt.Fprintln(stdout, "cluster: its nodes aren't known without the credentials of a client:", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	var problems []error
	for _, master := range slots.Masters() {
		if err := master.Ping(ctx); err != nil {
			problems = append(problems, fmt.Errorf("master: %w", err))
		} else {
			fmt.Fprintf(stdout, "master: %s answers, its first slot is %d\n", master.Address(), slots.FirstSlot(master))
		}
	}
	return errors.Join(problems...)
}
