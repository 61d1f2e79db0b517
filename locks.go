package main

import (
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"seckill-proxy/commands/lock"
	"seckill-proxy/config"
	"seckill-proxy/metrics"
	"seckill-proxy/upstream"
)

// lockTargets returns the independent lock servers, if there are any.
func lockTargets(cfg config.Config, log *zap.Logger) (nodes []*upstream.Target, err error) {
	for _, u := range cfg.Lock.Nodes {
		secured, err := redisTLS(u, cfg, log)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, upstream.New(upstream.Options{
			Network:       u.Network(),
			Address:       u.Addresses[0],
			User:          u.User,
			Password:      string(u.Password),
			DB:            u.DB,
			DialTimeout:   cfg.Lock.NodeTimeout,
			ScriptTimeout: cfg.Lock.NodeTimeout,
			BackoffMin:    cfg.Control.BackoffMin,
			BackoffMax:    cfg.Control.BackoffMax,
			TLS:           secured,
			Log:           log,
		}))
	}
	return nodes, nil
}

// openLockNodes returns clients of the independent lock servers, and what to call
// at the end.
func openLockNodes(cfg config.Config, log *zap.Logger) (nodes []*redis.Client, closeAll func(), err error) {
	targets, err := lockTargets(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	for _, target := range targets {
		nodes = append(nodes, target.Client(upstream.Identity{}, target.Profile().DB))
	}
	return nodes, func() {
		for _, node := range nodes {
			node.Close()
		}
	}, nil
}

// newLocks returns what makes the locks of one user and database: in that database,
// or on the independent servers, where there are neither users nor databases.
func newLocks(cfg config.Lock, nodes []*redis.Client, m *metrics.Metrics, log *zap.Logger) func(redis.UniversalClient) *lock.Locker {
	options := lock.Options{
		Prefix:          cfg.Prefix,
		CompanionPrefix: cfg.CompanionPrefix,
		TTLMax:          cfg.TTLMax,
		WaitMax:         cfg.WaitMax,
		QueueMax:        cfg.QueueMax,
		NamesMax:        cfg.NamesMax,
		Hold:            cfg.Hold,
		AutoMax:         cfg.AutoMax,
		LongHoldPercent: cfg.LongHoldPercent,
		SyncTimeout:     cfg.SyncTimeout,
		Observer:        m.Locks,
		Log:             log,
	}
	return func(rdb redis.UniversalClient) *lock.Locker {
		if len(nodes) > 0 {
			return lock.NewQuorum(nodes, options)
		}
		return lock.New(rdb, options)
	}
}
