package seckill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

// What a master has acknowledged and its replicas don't have yet is lost when one
// of them takes over. Who waits for replicas is told of nothing that can get lost
// so: WAIT on the connection that wrote says how many have it. The answer to a read
// on the same server doesn't, nor does WAIT on another connection: by then another
// server may be master, without the write.

// runSynced runs a script that writes something in any case and, unless sync is 0,
// waits on the same connection for so many replicas to have it. replicas is how
// many do; what Redis doesn't say is 0.
func (s *Store) runSynced(ctx context.Context, of *script.Script, sync int, keys []string, args ...any) (answer any, replicas int, err error) {
	if sync == 0 {
		answer, err = of.Run(ctx, s.rdb, keys, args...)
		return answer, 0, err
	}
	const tries = 6 // a key that is moved is in one of two places
	to := route{}
	for n := 1; ; n++ {
		conn, err := s.open(ctx, keys[0], to)
		if err != nil {
			return nil, 0, fmt.Errorf("seckill: %w: %w", script.ErrNotExecuted, err)
		}
		answer, err := of.Run(ctx, conn, keys, args...)
		if err == nil {
			defer conn.close()
			return answer, s.replicas(ctx, conn, sync), nil
		}
		conn.close()
		next, again := s.redirection(conn.refused)
		if !again || n == tries {
			return nil, 0, err
		}
		if to = next; to == (route{}) {
			pause(ctx, n)
		}
	}
}

// replicas is how many replicas have what was written on a connection.
func (s *Store) replicas(ctx context.Context, conn *connection, sync int) int {
	have, err := conn.Wait(ctx, sync, s.SyncTimeout).Result()
	if err != nil {
		return 0 // it is in Redis, and nothing is known of replicas
	}
	return int(have)
}

// unlessSynced is the error of an operation that was carried out, and isn't known to
// be on as many replicas as are asked for by default.
func (s *Store) unlessSynced(replicas int) error {
	if replicas >= s.SyncReplicas {
		return nil
	}
	return fmt.Errorf("seckill: %w: it is on %d of %d replicas", script.ErrUncertain, replicas, s.SyncReplicas)
}

// route is the way to the server that has a key: the one that the slot map says, or
// the one that Redis has named instead, with ASKING while the key is on its way.
type route struct {
	addr   string
	asking bool
}

// redirection says where to go with a script that a server of a cluster refused to
// execute, if it is to be tried again.
func (s *Store) redirection(refused error) (to route, again bool) {
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if !ok || refused == nil {
		return route{}, false
	}
	if addr, asked := redis.IsAskError(refused); asked {
		return route{addr, true}, true
	}
	cluster.ReloadState(s.ctx) // in the background
	if addr, moved := redis.IsMovedError(refused); moved {
		return route{addr, false}, true
	}
	return route{}, redis.IsTryAgainError(refused) || redis.IsReadOnlyError(refused) || redis.IsClusterDownError(refused)
}

// connection is a connection of its own to one server.
type connection struct {
	*redis.Conn
	visited *redis.Client // made for it, nil for none
	asking  bool
	refused error // what Redis said to the last script instead of executing it
}

// open opens one to the server that has a key.
func (s *Store) open(ctx context.Context, key string, to route) (*connection, error) {
	node, err := s.serverOf(ctx, key)
	if err != nil {
		return nil, err
	}
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if !ok || to.addr == "" {
		return &connection{Conn: node.Conn()}, nil
	}
	opts := *node.Options()
	opts.Addr, opts.NodeAddress = to.addr, to.addr
	visited := cluster.Options().NewClient(&opts)
	return &connection{Conn: visited.Conn(), visited: visited, asking: to.asking}, nil
}

// serverOf returns a client of the server that has a key, as far as is known.
func (s *Store) serverOf(ctx context.Context, key string) (*redis.Client, error) {
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		return rdb, nil
	case *redis.ClusterClient:
		return rdb.MasterForKey(ctx, key)
	default:
		return nil, fmt.Errorf("no connection of its own by a %T", rdb)
	}
}

func (c *connection) close() {
	c.Conn.Close()
	if c.visited != nil {
		c.visited.Close()
	}
}

// Eval and EvalSha are how scripts are run.
func (c *connection) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	return c.run(ctx, func(to redis.Cmdable) *redis.Cmd { return to.Eval(ctx, source, keys, args...) })
}

func (c *connection) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return c.run(ctx, func(to redis.Cmdable) *redis.Cmd { return to.EvalSha(ctx, sha, keys, args...) })
}

func (c *connection) run(ctx context.Context, send func(redis.Cmdable) *redis.Cmd) (cmd *redis.Cmd) {
	if c.asking {
		pipe := c.Pipeline()
		pipe.Do(ctx, "ASKING")
		cmd = send(pipe)
		_, _ = pipe.Exec(ctx) // cmd has its error
	} else {
		cmd = send(c.Conn)
	}
	var answered redis.Error
	if c.refused = nil; errors.As(cmd.Err(), &answered) {
		c.refused = cmd.Err()
	}
	return cmd
}

// pause waits before another attempt, each time longer.
func pause(ctx context.Context, attempt int) {
	const first = 10 * time.Millisecond
	timer := time.NewTimer(first << (attempt - 1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
