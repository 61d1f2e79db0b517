package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"seckill-proxy/commands"
	"seckill-proxy/internal/pump"
	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// session is one client connection. Its goroutine, serve, reads commands and takes
// the one decision about each: ours, or Redis's, and then by which lane.
//
// What a client sent before is answered before anything takes another way, so
// that replies come in order: settle stands wherever the way changes.
type session struct {
	server *Server
	client net.Conn
	reader *resp.CommandReader
	out    *outbox
	ctx    context.Context // of what waits for Redis; ended by cut
	end    context.CancelFunc

	// Of serve alone.
	cmd    resp.Command     // the one that is being handled
	node   *upstream.Target // where the next connection of its own leads
	run    gathered         // commands for a shared lane, not yet submitted
	alone  alone            // commands for link, not yet sent
	rest   *rest            // the partial command under way, nil when there is none
	lanes  *lease[*lanes]
	custom customSide
	calls  *calls   // of a cluster, nil for one Redis
	local  []byte   // replies of the sidecar's own, not yet written
	batch  []future // custom commands that run concurrently, in order

	moves    int  // of the target, up to which the client knows that what it wrote before may be lost
	admitted bool // the client has given the password, where there is one

	writeMu sync.Mutex           // held while a reply is given to the client in pieces
	link    atomic.Pointer[link] // the connection that the session has to itself; serve attaches it
	broken  atomic.Bool          // the session can't go on without what was lost with link; set before link is nil

	mu          sync.Mutex // guards what follows, and the counters of link
	changed     sync.Cond  // outstanding, or the counters of link
	state       state
	outstanding int           // replies to come by a shared lane
	sending     int           // in a cluster, bytes of the commands that they answer
	attaching   bool          // serve is about to use link
	turn        chan struct{} // has the session's place, if it has one of those that are few (pool.go)
	gone        bool          // the client won't send more
	endWait     func()        // ends the wait of the custom command under way; nil when none waits
	lingering   *time.Timer   // ends the session some time after that
	sizes       replySizes
	bound       int    // the slot that decided which node a transaction is at, or unboundSlot
	said        string // the error that link kept from the client: where to go instead, or why not
}

// gathered is a run of commands, contiguous in the reader's buffer.
type gathered struct {
	lane     lane
	commands []byte
	count    int
	most     int // commands that it may have
}

func newSession(server *Server, client net.Conn) *session {
	s := &session{
		server: server,
		client: client,
		out:    newOutbox(client, &server.output),
		state:  state{Profile: server.target.Profile()},
		moves:  server.target.Moves(),
	}
	s.changed.L = &s.mu
	s.node, s.bound = server.target, unboundSlot
	if server.cluster != nil {
		s.calls = newCalls(s)
	}
	s.ctx, s.end = context.WithCancel(server.ctx)
	s.reader = resp.NewCommandReader(server.limits.reader())
	return s
}

// serve serves the client until it is gone, or the server is.
func (s *session) serve() {
	defer s.close()
	if s.shakeHands() != nil {
		return
	}
	s.state.Profile = s.server.target.Admit(s.server.ctx)
	err := s.beforeRead()
	for err == nil {
		err = pump.Run(s.client, s.server.hangups, (*clientReader)(s))
		if errors.Is(err, os.ErrDeadlineExceeded) && s.busy() {
			err = s.beforeRead()
		}
	}
	s.finish(err)
}

// log returns the server's log with the client's address.
func (s *session) log() *zap.Logger {
	return s.server.log.With(zap.Stringer("client", s.client.RemoteAddr()))
}

// clientReader is a session as the pump.Reader of its client's commands.
type clientReader session

// Room implements pump.Reader.
func (r *clientReader) Room() []byte { return r.reader.Room() }

// Got implements pump.Reader.
func (r *clientReader) Got(n int) error { return (*session)(r).consume(n) }

// Idle implements pump.Reader.
func (r *clientReader) Idle() { r.reader.Idle() }

// HungUp implements pump.Reader. It matters when the session's goroutine waits
// for Redis and will not read the end of its client's stream before.
func (r *clientReader) HungUp() {
	s := (*session)(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	s.stopWaiting()
	s.changed.Broadcast()
	s.lingering = time.AfterFunc(s.server.limits.Linger, s.cut)
}

// consume serves the commands that a read has completed, and sends what was
// gathered of them. An error ends the session.
func (s *session) consume(n int) error {
	s.reader.Filled(n)
	for {
		if s.rest != nil {
			b, done, err := s.reader.Rest()
			if err != nil {
				return err
			}
			s.rest.take(b)
			if !done {
				break
			}
			end := s.rest.end
			s.rest = nil
			if err := end(); err != nil {
				return err
			}
		}
		cmd, ok, err := s.reader.Next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		s.cmd = cmd
		if err := s.handle(&s.cmd); err != nil {
			return err
		}
	}
	s.cmd = resp.Command{} // it holds the reader's buffer
	return s.beforeRead()
}

// rest is what becomes of the bytes of a partial command that are still to come.
type rest struct {
	take   func([]byte)
	end    func() error // called after the last
	broken func()       // called instead, when they will not come; may be nil
}

// skip takes the bytes of a partial command that go nowhere, and answers then.
func (s *session) skip(answer func() error) error {
	s.rest = &rest{take: func([]byte) {}, end: answer}
	return nil
}

// errEnded ends a session whose client has had its last reply.
var errEnded = errors.New("session ended")

// finish sends what is still owed to the client.
func (s *session) finish(err error) {
	if s.rest != nil && s.rest.broken != nil {
		s.rest.broken()
	}
	var protocol resp.ProtocolError
	if errors.As(err, &protocol) {
		s.settle()
		s.local = appendReply(s.local, commands.Error(protocol.Error()), 2)
		s.server.metrics.ProtocolErrors.Inc()
	}
	if s.flush() == nil && !s.out.isClosed() {
		s.linger()
	}
}

// linger waits for the last replies of a client that won't send more.
func (s *session) linger() {
	timer := time.AfterFunc(s.server.limits.Linger, s.cut)
	defer timer.Stop()
	s.hangUp()
	s.settle()
	s.out.waitDrained()
	s.bidFarewell()
}

// hangUp passes on that the client won't send more, where that matters: what a
// client that is gone was waiting for must not be taken from others. Redis then
// does what it does on a direct connection: it answers what it can at once, and
// forgets a client that blocks, listens or has a transaction open.
func (s *session) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.link.Load()
	if l == nil || l.blocked == 0 && !s.state.waitsForMessages() {
		return
	}
	l.leave()
}

func (s *session) close() {
	s.cut()
	s.mu.Lock()
	if s.lingering != nil {
		s.lingering.Stop()
	}
	s.mu.Unlock()
	if s.lanes != nil {
		s.lanes.release()
	}
	if s.calls != nil {
		s.calls.close()
	}
	s.closeCustom()
	s.client.Close()
	if reason := s.out.wait(); reason != nil {
		s.server.metrics.SlowClients.Inc()
		s.log().Warn("closed a client", zap.Error(reason))
	}
}

// cut ends the session at once, whatever it waits for.
func (s *session) cut() {
	s.out.close()
	s.end()
	s.mu.Lock()
	if l := s.link.Load(); l != nil {
		l.drop()
	}
	s.outstanding = 0 // nobody is there to read them
	s.stopWaiting()
	s.changed.Broadcast()
	s.mu.Unlock()
}

// stopReading makes the session end once what it has read is answered. What waits
// for something to happen doesn't go on waiting.
func (s *session) stopReading() {
	_ = s.client.SetReadDeadline(time.Unix(1, 0))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopWaiting()
	s.changed.Broadcast()
}

// beforeRead is called when no command is at hand: what was gathered is sent. An
// error ends the session.
func (s *session) beforeRead() error {
	if err := s.flush(); err != nil {
		return err
	}
	if idle := s.server.limits.IdleTimeout; idle > 0 {
		if err := s.client.SetReadDeadline(time.Now().Add(idle)); err != nil {
			return err
		}
	}
	if s.server.drain.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// busy reports whether the client may be silent because it waits.
func (s *session) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.waitsForMessages() || s.outstanding > 0 || s.link.Load() != nil
}

// flush sends what was gathered, in both directions.
func (s *session) flush() error {
	if len(s.batch) > 0 {
		s.collect()
	}
	if len(s.local) > 0 {
		s.writeMu.Lock()
		s.out.write(s.local)
		s.writeMu.Unlock()
		s.local = s.local[:0]
		if cap(s.local) > keptBytes {
			s.local = nil
		}
	}
	if s.run.count > 0 {
		return s.submit()
	}
	if s.calls != nil && len(s.calls.plan) > 0 {
		return s.submitCalls()
	}
	s.alone.flush()
	return nil
}

// keptBytes is the largest buffer that a session keeps between commands.
const keptBytes = 16 << 10

// settle waits until everything before the current command is answered, or can't
// be any more.
func (s *session) settle() {
	if err := s.flush(); err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.outstanding > 0 {
		s.changed.Wait()
	}
	for {
		l := s.link.Load()
		if l == nil || !l.leaving && !l.ending && (l.answered == l.sent || s.state.opaque) {
			return
		}
		if s.givesUp() && l.blocked > 0 && !l.leaving {
			l.leave()
		}
		s.changed.Wait()
	}
}

// givesUp reports whether what blocks in Redis has nobody to wait for it any more.
// In a cluster nothing is read while it does, so that is where a drain ends it. It
// is called with mu held.
func (s *session) givesUp() bool {
	return s.gone || s.calls != nil && s.server.drain.Load()
}

// handle serves one command. An error ends the session.
func (s *session) handle(cmd *resp.Command) error {
	if s.server.password != nil {
		if done, err := s.admit(cmd); done {
			return err
		}
	}
	if len(cmd.Args) > 0 {
		if row := s.server.table.Lookup(cmd.Args[0]); row != nil {
			return s.serveCustom(row, cmd)
		}
	}
	return s.forward(cmd)
}

// forward sends a command to Redis as it came.
func (s *session) forward(cmd *resp.Command) error {
	way, e := routeOf(cmd)
	switch e.kind {
	case effectReset:
		s.resetCustom()
	case effectQuit:
		s.settle()
		s.resetCustom()
		if s.link.Load() == nil {
			s.answer(commands.Status("OK"))
			return errEnded
		}
		// What the session has there, such as subscriptions, has to be gone when
		// the client is told so.
		if err := s.sendAlone(cmd, effect{}); err != nil {
			return err
		}
		s.settle()
		return errEnded
	case effectHTTP:
		// Redis runs what came before and answers nothing.
		s.out.close()
		s.log().Warn("closed a client that speaks HTTP")
		_ = s.flush()
		return errEnded
	}
	if s.calls != nil {
		if err := s.forwardInCluster(way, cmd, e); err != nil {
			return err
		}
		if e.kind == effectReset && cmd.Count == 1 {
			s.giveUpID()
		}
		return nil
	}
	if way == own || s.link.Load() != nil || s.shouldPin() {
		return s.sendAlone(cmd, e)
	}
	if s.broken.Load() {
		return errEnded
	}
	return s.gather(way, cmd)
}

// answer gathers a reply of the sidecar's own, unless the client wants none.
func (s *session) answer(reply commands.Reply) {
	if protocol, wanted := s.wanted(); wanted {
		s.local = appendReply(s.local, reply, protocol)
	}
}

// wanted reports whether the client wants the next reply, and in which protocol.
func (s *session) wanted() (protocol int, wanted bool) {
	s.mu.Lock()
	protocol, mute := s.state.Protocol, s.state.mute
	if mute == replySkipNext {
		s.state.mute = replyOn
	}
	s.mu.Unlock()
	if l := s.link.Load(); l != nil && mute == replySkipNext {
		s.attached(l) // it may have been the session's for that alone
	}
	return protocol, mute == replyOn
}

// unavailable answers a command that could not be sent. A command that what
// follows it counts on, such as MULTI or SELECT, takes the session with it.
func (s *session) unavailable(cmd *resp.Command, e effect, err error) error {
	if errors.Is(err, errEnded) {
		return err
	}
	answer := func() error {
		s.server.metrics.Unavailable.Inc()
		s.answer(unavailable(err))
		if e.kind.changesSession() {
			return errEnded
		}
		return nil
	}
	if cmd.Partial {
		return s.skip(answer)
	}
	return answer()
}

func unavailable(err error) commands.Error {
	return commands.Error(fmt.Sprintf("UNAVAILABLE %v; the command was not executed", err))
}

// profile is the session's user, database and protocol.
func (s *session) profile() upstream.Profile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Profile
}
