package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"seckill-proxy/upstream"
)

// pool keeps the connections that sessions have to themselves for a while. At
// most max are open; those that nobody has used for idleMax are closed. A free
// one is made what the next session needs, so that sessions of many users and
// databases share a few.
type pool struct {
	max     int
	wait    time.Duration // for a free one, when max are in use
	idleMax time.Duration
	follows sync.WaitGroup // goroutines of links
	brief   chan struct{}  // has an element for each session that has a turn
	detours chan struct{}  // the same for those that go round a lane

	mu     sync.Mutex
	free   []*link       // the one used last is last
	open   int           // free, in use or being dialled
	freed  chan struct{} // closed and replaced when one becomes free or closes
	closed bool
	trim   *time.Timer
}

// errNoLink is returned when all connections are in use and stay so.
var errNoLink = errors.New("no upstream connection is free (limits.pinned_max)")

func newPool(max int, wait, idleMax time.Duration) *pool {
	p := &pool{max: max, wait: wait, idleMax: idleMax, freed: make(chan struct{}),
		brief: make(chan struct{}, briefMax), detours: make(chan struct{}, detoursMax)}
	p.mu.Lock()
	defer p.mu.Unlock() // closeIdle, which needs trim, waits for it
	p.trim = time.AfterFunc(idleMax, p.closeIdle)
	return p
}

// briefMax is how many sessions at a time have a connection to themselves for what
// is soon over: HELLO, AUTH, SELECT, a transaction. Clients that connect all at
// once each need one for a moment, and take turns, so that they don't open one
// each.
const briefMax = 5

// detoursMax is how many sessions at a time have a connection to themselves only
// because the lane is stuck. When Redis stands still, thousands of clients may want
// one.
const detoursMax = 16

// get attaches a connection to a session and makes it what the session's state
// says. The error wraps upstream.ErrDown or is errNoLink; nothing of the
// session's was sent then.
func (p *pool) get(ctx context.Context, s *session, e effect) error {
	deadline := time.NewTimer(p.wait)
	defer deadline.Stop()
	if !e.kind.lasts() && s.turn == nil {
		p.takeTurn(ctx, s)
	}
	for {
		l, wait, err := p.take(s.node, s.state.Profile, s.state.name)
		if err != nil {
			return err
		}
		if l == nil && wait == nil {
			return p.dial(ctx, s, e)
		}
		if l != nil {
			if l.attach(s) && l.become(s, e) {
				return nil
			}
			l.discard(s)
			continue
		}
		select {
		case <-wait:
		case <-deadline.C:
			return fmt.Errorf("%w after %v", errNoLink, p.wait)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// takeTurn waits for a place among those who need a connection for a moment. The
// session has it until its commands are answered. When none becomes free, because
// what looked brief isn't, it goes on without one.
func (p *pool) takeTurn(ctx context.Context, s *session) {
	timer := time.NewTimer(p.wait / 2)
	defer timer.Stop()
	select {
	case p.brief <- struct{}{}:
		s.setTurn(p.brief)
	case <-timer.C:
	case <-ctx.Done():
	}
}

// takeDetour gives the session a place among those that go round a lane, if there
// is one.
func (p *pool) takeDetour(s *session) bool {
	select {
	case p.detours <- struct{}{}:
		s.setTurn(p.detours)
		return true
	default:
		return false
	}
}

func (s *session) setTurn(of chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn = of
}

// endTurn gives the session's place to the next, if it has one. It is called with
// session.mu held.
func (s *session) endTurn() {
	if s.turn != nil {
		<-s.turn
		s.turn = nil
	}
}

// take returns a free link to a node, the one that needs the least changing, or
// else a channel to wait for. Neither means that the caller may dial.
func (p *pool) take(node *upstream.Target, want upstream.Profile, name string) (*link, <-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, upstream.ErrClosed
	}
	best, bestFit := -1, -1
	for i := len(p.free) - 1; i >= 0 && bestFit < exactFit; i-- {
		if l := p.free[i]; l.target == node && l.fit(want, name) > bestFit {
			best, bestFit = i, l.fit(want, name)
		}
	}
	switch {
	case best >= 0:
		l := p.free[best]
		p.free = slices.Delete(p.free, best, best+1)
		return l, nil, nil
	case p.open < p.max:
		p.open++
		return nil, nil, nil
	case len(p.free) > 0: // to other nodes
		p.free[0].conn.Close() // its end makes room
		p.free = slices.Delete(p.free, 0, 1)
	}
	return nil, p.freed, nil
}

// exactFit is fit's value for a link that needs no changing.
const exactFit = 3

// fit tells how little a free link has to be changed to be what is wanted.
func (l *link) fit(want upstream.Profile, name string) int {
	switch {
	case l.is.Identity != want.Identity:
		return 0
	case l.is != want:
		return 1
	case l.name != name:
		return 2
	}
	return exactFit
}

// dial opens a link for a session; take has counted it.
func (p *pool) dial(ctx context.Context, s *session, e effect) error {
	want := s.state.Profile
	if e.kind == effectKill {
		want.DB = 0 // a busy Redis refuses SELECT
	}
	conn, err := s.node.Dial(ctx, want)
	if err != nil {
		p.gone()
		return err
	}
	l := newLink(p, s.node, conn, want)
	l.attach(s)
	p.follows.Go(l.follow)
	if !l.become(s, e) {
		l.discard(s)
		return fmt.Errorf("%w: the new connection was lost", upstream.ErrDown)
	}
	return nil
}

// put takes back a link that no session is attached to.
func (p *pool) put(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		l.conn.Close()
		return
	}
	l.since = time.Now()
	p.free = append(p.free, l)
	p.signal()
}

// lost forgets a link whose goroutine is about to end.
func (p *pool) lost(l *link) {
	p.mu.Lock()
	if i := slices.Index(p.free, l); i >= 0 {
		p.free = slices.Delete(p.free, i, i+1)
	}
	p.mu.Unlock()
	p.gone()
}

// gone makes room for another link.
func (p *pool) gone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	p.signal()
}

// signal wakes those who wait. It is called with the lock held.
func (p *pool) signal() {
	close(p.freed)
	p.freed = make(chan struct{})
}

// closeIdle closes the links that were free for too long; their goroutines do
// the rest. It runs every now and then until close.
func (p *pool) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = slices.DeleteFunc(p.free, func(l *link) bool {
		idle := time.Since(l.since) >= p.idleMax
		if idle {
			l.conn.Close()
		}
		return idle
	})
	if !p.closed {
		p.trim.Reset(p.idleMax)
	}
}

// close closes the free links and waits for those in use, whose sessions must
// have ended.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.trim.Stop()
	for _, l := range p.free {
		l.conn.Close()
	}
	p.mu.Unlock()
	p.follows.Wait()
}
