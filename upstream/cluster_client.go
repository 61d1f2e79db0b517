package upstream

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// redirectsMax is how many more times go-redis sends a script that Redis said
	// it didn't execute.
	redirectsMax = 5
	// clientMapFor is how long a client keeps what it has taken from the map.
	clientMapFor = 250 * time.Millisecond
)

// Client returns a go-redis client for scripts, for one identity. It goes by the
// Cluster's map, follows MOVED and ASK, and tries again what certainly wasn't
// executed (CLUSTERDOWN, TRYAGAIN, no connection), a few times. It never sends
// twice what may have been executed, a script by itself that is: in a pipeline
// of several commands go-redis sends all of them again when the first is refused.
// The caller closes it before the Cluster.
func (c *Cluster) Client(id Identity) *redis.ClusterClient {
	as := Profile{Identity: id, Protocol: 2}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: slices.Clone(c.seeds), // go-redis appends to it
		ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
			m, err := c.Map(ctx, as)
			if err != nil {
				return nil, err
			}
			return m.ranges(), nil
		},
		ClusterStateReloadInterval: clientMapFor,
		NewClient:                  func(opt *redis.Options) *redis.Client { return c.nodeClient(opt, as) },
		MaxRedirects:               redirectsMax,
		DisableRoutingPolicies:     true,

		Protocol:        2,
		DialerRetries:   1,
		DialTimeout:     c.opts.DialTimeout,
		ReadTimeout:     c.opts.ScriptTimeout,
		WriteTimeout:    c.opts.ScriptTimeout,
		PoolTimeout:     c.opts.ScriptTimeout,
		PoolSize:        controlConnections,
		DisableIdentity: true,

		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	client.AddHook(failures{log: c.seed.failures, readOnly: func() { c.Stale(as) }})
	return client
}

// nodeClient makes the part of a cluster's client that talks to one node.
func (c *Cluster) nodeClient(opt *redis.Options, as Profile) *redis.Client {
	address := cmp.Or(opt.NodeAddress, opt.Addr) // Addr lacks the host where that is a loopback address
	opt.Addr = address                           // what the log calls it
	opt.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := c.Node(address).dialPatiently(ctx, as)
		if err != nil {
			return nil, err
		}
		return seal(conn), nil
	}
	client := redis.NewClient(opt)
	client.AddHook(redirects{cluster: c, as: as})
	return client
}

// dialPatiently is dialControl with the pauses of Dial: go-redis doesn't pause
// when it tries one node after the other.
func (t *Target) dialPatiently(ctx context.Context, as Profile) (net.Conn, error) {
	if err := t.paused(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.DialTimeout)
	defer cancel()
	conn, err := t.dialControl(ctx, as)
	switch {
	case err == nil:
		t.reached()
	case errors.Is(err, ErrDown):
		_ = t.failed(err) // for the next one; err says the same
	}
	return conn, err
}

// sealed is a connection whose errors say nothing of their kind. From EOF, or a
// timeout, of which there are several, go-redis's ClusterClient concludes that it
// may send a command again (shouldRetry in its error.go), which may have been
// executed. Of an error that it doesn't know it doesn't.
type sealed struct{ net.Conn }

// sealedSocket lets go-redis see whether the socket was closed meanwhile, before
// it sends anything.
type sealedSocket struct {
	sealed
	syscall.Conn
}

func seal(conn net.Conn) net.Conn {
	if socket, ok := conn.(syscall.Conn); ok {
		return sealedSocket{sealed{conn}, socket}
	}
	return sealed{conn}
}

// lostError is an error of a sealed connection.
type lostError struct{ text string }

func (e lostError) Error() string { return "the connection was lost: " + e.text }

func lost(err error) error {
	if err == nil {
		return nil
	}
	return lostError{err.Error()}
}

func (s sealed) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	return n, lost(err)
}

func (s sealed) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	return n, lost(err)
}

func (s sealed) SetDeadline(t time.Time) error      { return lost(s.Conn.SetDeadline(t)) }
func (s sealed) SetReadDeadline(t time.Time) error  { return lost(s.Conn.SetReadDeadline(t)) }
func (s sealed) SetWriteDeadline(t time.Time) error { return lost(s.Conn.SetWriteDeadline(t)) }

// redirects is a go-redis hook that tells the Cluster what nodes say of the map.
type redirects struct {
	cluster *Cluster
	as      Profile
}

// DialHook implements redis.Hook.
func (redirects) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements redis.Hook.
func (r redirects) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		r.note(err)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (r redirects) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			r.note(cmd.Err())
		}
		return err
	}
}

// stale are the prefixes of errors of a node that isn't, or isn't now, what the
// map says of it.
var stale = []string{"READONLY ", "CLUSTERDOWN ", "MASTERDOWN "}

// note looks at how a command ended.
func (r redirects) note(err error) {
	var answered redis.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case !errors.As(err, &answered):
		r.cluster.Stale(r.as)
	case redis.HasErrorPrefix(err, "MOVED "):
		if words := strings.Fields(answered.Error()); len(words) == 3 {
			if slot, err := strconv.Atoi(words[1]); err == nil {
				r.cluster.Moved(slot, words[2], r.as)
			}
		}
	default:
		for _, prefix := range stale {
			if redis.HasErrorPrefix(err, prefix) {
				r.cluster.Stale(r.as)
			}
		}
	}
}
