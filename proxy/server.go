// Package proxy is the RESP side of the sidecar: it accepts clients, reads their
// commands, runs the custom ones and forwards all others.
package proxy

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/tidwall/redcon"
	"go.uber.org/zap"

	"seckill-proxy/commands"
	"seckill-proxy/internal/hangup"
	"seckill-proxy/internal/rawio"
	"seckill-proxy/internal/resp"
	"seckill-proxy/metrics"
	"seckill-proxy/upstream"
)

// Limits bound what clients can make the sidecar hold or do.
type Limits struct {
	Clients     int           // connections at one time
	BulkBytes   int64         // longest argument of a command
	InlineBytes int           // longest inline command
	CustomBytes int           // longest custom command; longer forwarded ones are streamed
	PipelineMax int           // custom commands of one connection at one time
	IdleTimeout time.Duration // a client silent for longer is closed; 0: never
	Handshake   time.Duration // how long a client may take for that of TLS
	Linger      time.Duration // how long a client that won't send more waits for its last replies
	Profiles    int           // users and databases whose connections are kept

	Pinned     int           // connections to Redis that sessions have to themselves
	PinnedWait time.Duration // for a free one of them
	PinnedIdle time.Duration // after which a free one is closed

	ClientOutput int64 // bytes kept for one client that doesn't read
	Output       int64 // bytes kept for all of them
}

func (l Limits) reader() resp.Limits {
	return resp.Limits{BulkBytes: l.BulkBytes, InlineBytes: l.InlineBytes, WholeBytes: l.CustomBytes}
}

// Server serves clients. Make it with New.
type Server struct {
	limits  Limits
	target  *upstream.Target // knows what sessions start with
	cluster *clusterUpstream // nil for one Redis
	table   *commands.Table
	metrics *metrics.Metrics
	log     *zap.Logger

	password  *password   // that clients must give; nil for none
	strangers *zap.Logger // of clients that weren't let in, not all of many

	backends *leases[*backend]
	lanes    *leases[*lanes]
	pool     *pool
	hangups  *hangup.Watcher
	output   outboxLimits
	clients  atomic.Int64

	ctx    context.Context // of everything that waits; ends when clients are cut
	cancel context.CancelFunc

	cut       atomic.Bool // what still runs is cut
	drain     atomic.Bool // Shutdown has begun; set with mu held
	mu        sync.Mutex
	listeners []net.Listener
	sessions  map[*session]struct{}
	running   sync.WaitGroup // sessions
	watching  sync.WaitGroup // watchSilence
}

// backend is a commands.Backend and the client it works with.
type backend struct {
	*commands.Backend
	client redis.UniversalClient
}

// New returns a server that forwards to one Redis or to a cluster. open makes the
// backend of one user and database from a client of the control plane, which the
// server closes.
func New(limits Limits, to Upstream, table *commands.Table,
	open func(redis.UniversalClient) *commands.Backend, m *metrics.Metrics, log *zap.Logger) *Server {
	target := to.Seed()
	s := &Server{
		hangups:  target.Hangups(),
		limits:   limits,
		target:   target,
		table:    table,
		metrics:  m,
		log:      log,
		output:   outboxLimits{client: limits.ClientOutput, total: limits.Output},
		pool:     newPool(limits.Pinned, limits.PinnedWait, limits.PinnedIdle),
		sessions: make(map[*session]struct{}),
	}
	s.backends = newLeases(limits.Profiles, func(as upstream.Profile) *backend {
		client := to.Client(as.Identity, as.DB)
		return &backend{open(client), client}
	}, func(b *backend) {
		if s.cut.Load() {
			b.client.Close() // nothing waits for Redis any more
		}
		b.Close()
		b.client.Close() // once more does no harm
	})
	s.lanes = newLeases(limits.Profiles, func(as upstream.Profile) *lanes {
		return newLanes(target, as)
	}, (*lanes).close)
	if to.Cluster != nil {
		s.cluster = newClusterUpstream(to, limits.Profiles)
	}
	s.strangers = newStrangerLog(log)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if s.cluster != nil {
		s.watching.Go(s.watchSilence)
	}
	return s
}

// Connect opens the connections that most sessions will share, and starts what the
// sales need without a client, such as that unpaid reservations expire. It is no
// error that Redis is down: they are opened again when they are needed.
func (s *Server) Connect(ctx context.Context) error {
	as := s.target.Profile()
	as.Protocol = 0 // as session.backend
	backend := s.backends.acquire(as)
	defer backend.release()
	backend.value.Start()
	if s.cluster != nil {
		return s.cluster.connect(ctx)
	}
	lease := s.lanes.acquire(s.target.Profile())
	defer lease.release()
	return lease.value.connect(ctx)
}

// Serve accepts clients from ln until Shutdown. Several may run at one time.
func (s *Server) Serve(ln net.Listener) error {
	s.mu.Lock()
	if s.drain.Load() {
		s.mu.Unlock()
		return ln.Close()
	}
	s.listeners = append(s.listeners, ln)
	s.mu.Unlock()
	front := &guard{Listener: ln, clients: &s.clients, clientsMax: int64(s.limits.Clients), log: s.log}
	return redcon.Serve(front, s.takeOver, nil, nil)
}

// takeOver is redcon's handler. It is called once for each connection, with its
// knock, and makes a session of it.
func (s *Server) takeOver(c redcon.Conn, _ redcon.Command) {
	c.Detach()
	client := rawio.Wrap(c.NetConn().(*knock).Conn)
	session := newSession(s, client)
	s.mu.Lock()
	if s.drain.Load() {
		s.mu.Unlock()
		s.clients.Add(-1)
		client.Close()
		return
	}
	s.sessions[session] = struct{}{}
	s.running.Add(1)
	s.mu.Unlock()
	s.metrics.Clients.Inc()
	s.metrics.ClientsTotal.Inc()
	go s.runSession(session)
}

func (s *Server) runSession(session *session) {
	defer func() {
		s.mu.Lock()
		delete(s.sessions, session)
		s.mu.Unlock()
		s.clients.Add(-1)
		s.metrics.Clients.Dec()
		s.running.Done()
	}()
	session.serve()
}

// Shutdown stops accepting, lets every client's running commands finish, and
// closes it. When ctx ends first, what still runs is cut. It returns when the
// last session has ended.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.drain.Store(true)
	for _, ln := range s.listeners {
		ln.Close()
	}
	for session := range s.sessions {
		session.stopReading()
	}
	s.mu.Unlock()

	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		s.mu.Lock()
		for session := range s.sessions {
			session.cut()
		}
		s.mu.Unlock()
		s.cut.Store(true)
		s.backends.closeNow() // ends the wait of custom commands for Redis
		s.lanes.closeNow()    // and that of forwarded ones
		if s.cluster != nil {
			s.cluster.lanes.closeNow()
		}
	}
	s.cancel()
	<-ended
	s.watching.Wait()
	s.backends.closeAll()
	s.lanes.closeAll()
	if s.cluster != nil {
		s.cluster.lanes.closeAll()
	}
	s.pool.close()
}

// execute runs a custom command's handler. A handler that panics costs its
// client an error, and nobody else anything.
func (s *Server) execute(ctx context.Context, row *commands.Command, conn *commands.Connection, args [][]byte) (reply commands.Reply) {
	defer s.rescue(row, &reply)
	reply = row.Handle(ctx, conn, args)
	s.metrics.Outcome(row.Name, outcomeCode(reply))
	return reply
}

// atOnce executes a command if it needs no Redis, which it reports.
func (s *Server) atOnce(row *commands.Command, conn *commands.Connection, args [][]byte) (reply commands.Reply, ok bool) {
	if row.AtOnce == nil {
		return nil, false
	}
	ok = true // also if it panics
	defer s.rescue(row, &reply)
	if reply, ok = row.AtOnce(conn, args); ok {
		s.metrics.Outcome(row.Name, outcomeCode(reply))
	}
	return reply, ok
}

// rescue gives a command that panics a reply. It is deferred.
func (s *Server) rescue(row *commands.Command, reply *commands.Reply) {
	p := recover()
	if p == nil {
		return
	}
	s.log.Error("a command panicked", zap.String("command", row.Name), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
	*reply = commands.Error(fmt.Sprintf("ERR internal error in %s; the outcome is unknown", row.Name))
	s.metrics.Outcome(row.Name, outcomeCode(*reply))
}

// outcomeCode is the integer that a business outcome starts with.
func outcomeCode(reply commands.Reply) int {
	if array, ok := reply.(commands.Array); ok && len(array) > 0 {
		if code, ok := array[0].(int); ok {
			return code
		}
	}
	return 0
}
