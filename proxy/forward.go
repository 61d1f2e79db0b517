package proxy

import (
	"context"
	"errors"
	"fmt"

	"seckill-proxy/internal/rawio"
	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// This file is how a session's commands travel: gathered into a run for a shared
// lane, or alone by a connection of the session's own.

// lanes are the connections that the sessions of one profile share.
type lanes struct{ shared, scripts *upstream.Mux }

func newLanes(target *upstream.Target, as upstream.Profile) *lanes {
	return &lanes{shared: upstream.NewMux(target, as), scripts: upstream.NewMux(target, as)}
}

func (l *lanes) connect(ctx context.Context) error {
	return errors.Join(l.shared.Connect(ctx), l.scripts.Connect(ctx))
}

func (l *lanes) close() {
	l.shared.Close()
	l.scripts.Close()
}

func (l *lanes) of(way lane) *upstream.Mux {
	if way == scripts {
		return l.scripts
	}
	return l.shared
}

// gather adds a command to the run for a shared lane.
func (s *session) gather(way lane, cmd *resp.Command) error {
	if s.run.lane != way {
		s.settle() // lanes don't wait for each other
		s.run.lane = way
	}
	if len(s.local) > 0 || len(s.batch) > 0 {
		if err := s.flush(); err != nil {
			return err
		}
	}
	if s.run.count > 0 && (!s.run.adjoins(cmd.Raw) || s.run.count >= s.run.most) {
		if err := s.submit(); err != nil {
			return err
		}
	}
	if s.run.count == 0 {
		s.run.most = s.waitForWindow()
		s.run.commands = cmd.Raw
	} else {
		s.run.commands = s.run.commands[:len(s.run.commands)+len(cmd.Raw)]
	}
	s.run.count++
	return nil
}

// adjoins reports whether raw follows the run in the same buffer, so that the
// run can be lengthened without a copy.
func (g *gathered) adjoins(raw []byte) bool {
	end := len(g.commands)
	return cap(g.commands) >= end+len(raw) && &g.commands[:end+1][end] == &raw[0]
}

// submit sends the run to its lane.
func (s *session) submit() error {
	run := s.run
	s.run.commands, s.run.count = nil, 0
	key := s.profile()
	if s.lanes == nil || s.lanes.key != key {
		if s.lanes != nil {
			s.lanes.release()
		}
		s.lanes = s.server.lanes.acquire(key)
	}
	mux := s.lanes.value.of(run.lane)
	if mux.Stuck() && s.detour(run) {
		return nil
	}
	s.mu.Lock()
	s.outstanding += run.count
	s.mu.Unlock()
	err := mux.Submit(s.ctx, s, run.commands, run.count)
	if err == nil {
		s.server.metrics.Forwarded.Add(float64(run.count))
		return nil
	}
	// Nothing of the run was sent; what was sent before is answered first.
	s.mu.Lock()
	s.outstanding = max(s.outstanding-run.count, 0)
	for s.outstanding > 0 {
		s.changed.Wait()
	}
	s.mu.Unlock()
	if errors.Is(err, upstream.ErrUnauthenticated) {
		// Redis closes the connection of a stranger who sends much, so it has to be
		// the client's own.
		if err = s.submitAlone(run, effect{kind: effectLarge}); err == nil {
			return nil
		}
	}
	s.refuseRun(run, err)
	if upstream.IsRefusal(err) {
		return errEnded // its user is no more, or has another password now
	}
	return nil
}

// detour sends a run round a lane that is stuck. False when it has to take its
// place there: behind what the session sent before, or because too many others
// have gone round it.
func (s *session) detour(run gathered) bool {
	s.mu.Lock()
	waits := s.outstanding > 0
	s.mu.Unlock()
	return !waits && s.server.pool.takeDetour(s) && s.submitAlone(run, effect{}) == nil
}

// refuseRun answers a run that could not be sent.
func (s *session) refuseRun(run gathered, err error) {
	s.server.metrics.Unavailable.Add(float64(run.count))
	s.out.write(appendRepeated(nil, string(appendReply(nil, unavailable(err), 2)), run.count))
}

// submitAlone sends a run by a connection of the session's own; e is the effect of
// each of its commands. On an error nothing was sent.
func (s *session) submitAlone(run gathered, e effect) error {
	l, err := s.attach(e)
	if err != nil {
		return err
	}
	s.server.metrics.Forwarded.Add(float64(run.count))
	s.mu.Lock()
	for range run.count - 1 {
		l.expect(e)
	}
	s.mu.Unlock()
	s.alone.add(l, run.commands)
	s.alone.flush()
	s.attached(l)
	return nil
}

// Replies implements upstream.Sink.
func (s *session) Replies(b []byte, ended int) {
	s.out.write(b)
	s.mu.Lock()
	s.outstanding = max(s.outstanding-ended, 0)
	s.sizes.add(len(b), ended)
	s.changed.Broadcast()
	s.mu.Unlock()
}

// Lost implements upstream.Sink.
func (s *session) Lost(n int, torn, sent bool) {
	switch {
	case torn:
		s.out.close() // the client has half a reply
	case sent:
		s.out.write(appendRepeated(nil, lostError, n))
	default:
		s.out.write(appendRepeated(nil, unsentError, n))
	}
	s.mu.Lock()
	s.outstanding = max(s.outstanding-n, 0)
	s.changed.Broadcast()
	s.mu.Unlock()
}

// replySizes follows how large a session's replies are, so that a client with a
// long pipeline of large ones doesn't make the sidecar hold them all.
type replySizes struct {
	average int // bytes, a moving one; 0 before the first reply
	partial int // bytes of replies that haven't ended
}

func (r *replySizes) add(bytes, ended int) {
	r.partial += bytes
	if ended == 0 {
		return
	}
	if size := r.partial / ended; r.average == 0 {
		r.average = max(size, 1)
	} else {
		r.average = max(r.average+(size-r.average)/4, 1)
	}
	r.partial = 0
}

const (
	windowBytes = 1 << 20   // replies of one session under way, as far as can be foreseen
	windowMax   = 4096      // replies under way, however small
	windowFirst = 4         // the same before the size of any is known
	bulkyBytes  = 256 << 10 // replies of this size travel alone
)

// window is how many replies may be under way.
func (r *replySizes) window() int {
	if r.average == 0 {
		return windowFirst
	}
	return min(max(windowBytes/r.average, 1), windowMax)
}

// waitForWindow waits while too many replies are under way, and returns how many
// more may be. They come whether the client reads them or not, so this ends.
func (s *session) waitForWindow() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.outstanding > 0 && (s.outstanding >= s.sizes.window() || s.sending > windowBytes) {
		s.changed.Wait()
	}
	return max(s.sizes.window()-s.outstanding, 1)
}

// shouldPin reports whether the session should have a connection to itself though
// its state doesn't need one: its client reads more slowly than Redis answers, or
// its replies are large. By a connection of its own it holds up nobody, and Redis
// feels how fast it reads.
func (s *session) shouldPin() bool {
	if s.run.count > 0 {
		return false // decided when the run began
	}
	s.mu.Lock()
	bulky := s.sizes.average > bulkyBytes
	s.mu.Unlock()
	return bulky || s.out.behind()
}

// alone gathers commands for the session's own connection.
type alone struct {
	link     *link // that they were announced on
	commands []byte
}

// add adds a command. What was for a connection that has ended since is dropped;
// its client has been told.
func (a *alone) add(l *link, command []byte) {
	if a.link != l {
		a.link, a.commands = l, a.commands[:0]
	}
	a.commands = append(a.commands, command...)
}

// flush sends them. An error needs no handling here: the connection has ended,
// and its goroutine tells the client.
func (a *alone) flush() {
	if len(a.commands) > 0 {
		_, _ = a.link.conn.Write(a.commands)
	}
	a.link, a.commands = nil, a.commands[:0]
	if cap(a.commands) > 2*keptBytes {
		a.commands = nil
	}
}

// sendAlone sends a command by the session's own connection.
func (s *session) sendAlone(cmd *resp.Command, e effect) error {
	if len(s.local) > 0 || len(s.batch) > 0 || s.run.count > 0 {
		if err := s.flush(); err != nil {
			return err
		}
	}
	if e.kind == effectOpaque || e.kind == effectWaits {
		s.settle() // whether a transaction is open has to be known
	}
	if e.kind != effectNone && s.tooManyEffects() {
		s.settle()
	}
	if cmd.Partial && e.kind == effectNone {
		e.kind = effectLarge
	}
	l, err := s.attach(e)
	if err != nil {
		return s.unavailable(cmd, e, err)
	}
	if e.kind == effectWaits {
		s.checkMaster(l)
	}
	s.server.metrics.Forwarded.Inc()
	if cmd.Partial {
		s.stream(l, cmd, func() error { return nil })
		return nil
	}
	defer s.attached(l)
	s.hand(l, cmd.Raw, e)
	if e.kind == effectKill {
		// The connection may be in any database: nothing else may go by it.
		s.attached(l)
		s.settle()
	}
	if len(s.alone.commands) > keptBytes {
		s.alone.flush()
	}
	return nil
}

// checkMaster ends a connection that WAIT is about to be sent on, when there is a
// new master since the session began, or since the last time: what the session
// wrote to the one before may be lost, and the replicas of the new one say nothing
// of it. The client is told that the outcome is unknown.
func (s *session) checkMaster(l *link) {
	if moves := s.server.target.Moves(); moves != s.moves {
		s.moves = moves
		rawio.Shut(l.conn)
	}
}

// hand adds a command that was announced to what goes by the session's own
// connection, with what has to follow it.
func (s *session) hand(l *link, command []byte, e effect) {
	if e.kind == effectReplyMode {
		command = replyProbe
	}
	s.alone.add(l, command)
	if e.kind == effectReset {
		_, setup := s.server.target.AfterReset()
		for _, command := range setup {
			l.setup(s, command)
		}
	}
}

// effectsMax bounds the effects that wait for the replies to a session's commands.
const effectsMax = 1024

func (s *session) tooManyEffects() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.link.Load()
	return l != nil && len(l.waiting) >= effectsMax
}

// stream sends a partial command as its bytes come, and calls then when it is sent.
func (s *session) stream(l *link, cmd *resp.Command, then func() error) {
	s.alone.flush()
	write := func(b []byte) { _, _ = l.conn.Write(b) } // an error is the link's to tell
	write(cmd.Raw)
	s.rest = &rest{
		take: write,
		end: func() error {
			s.attached(l)
			return then()
		},
		broken: func() {
			s.mu.Lock()
			l.withdraw()
			s.mu.Unlock()
			// With half a command on it the connection must not be used again:
			// it stays attached, and is closed with the session.
		},
	}
}

// attach returns the session's own connection, a new one if it has none, with the
// command that is about to be sent announced. Until attached is called the
// connection stays the session's.
func (s *session) attach(e effect) (*link, error) {
	err := fmt.Errorf("%w: new ones end at once", upstream.ErrDown)
	for range attachAttempts {
		s.mu.Lock()
		s.attaching = true
		l := s.link.Load()
		for l != nil && l.ending {
			s.changed.Wait() // first its client is told what is lost
			l = s.link.Load()
		}
		if s.broken.Load() {
			err = errEnded
			s.mu.Unlock()
			break
		}
		if l != nil {
			l.announce(s, e)
			s.mu.Unlock()
			return l, nil
		}
		s.mu.Unlock()
		s.settle()
		if failure := s.server.pool.get(s.ctx, s, e); failure != nil {
			err = failure
			break
		}
	}
	s.mu.Lock()
	s.attaching = false
	s.endTurn()
	s.mu.Unlock()
	s.server.metrics.DialFailures.Inc()
	return nil, err
}

// attachAttempts is how often a session asks for a connection of its own: one
// from the pool may have ended in the moment in which it was handed out, and a
// new one as well.
const attachAttempts = 3

// attached ends what attach began: from here on the connection is the session's
// as long as replies are to come or its state needs it.
func (s *session) attached(l *link) {
	s.mu.Lock()
	s.attaching = false
	free := l.releaseIfFree(s)
	s.mu.Unlock()
	if free {
		l.pool.put(l)
	}
}
