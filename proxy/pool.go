package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"seckill-proxy/upstream"
)

// pool keeps the connections that sessions have to themselves for a while. At
// most max are open; those that nobody has used for idleMax are closed. A free
// one is made what the next session needs, so that sessions of many users and
// databases share a few.
type pool struct {
	target  *upstream.Target
	max     int
	wait    time.Duration // for a free one, when max are in use
	idleMax time.Duration
	log     *zap.Logger
	follows sync.WaitGroup // goroutines of links

	mu     sync.Mutex
	free   []*link       // the one used last is last
	open   int           // free, in use or being dialled
	freed  chan struct{} // closed and replaced when one becomes free or closes
	closed bool
	trim   *time.Timer
}

// errNoLink is returned when all connections are in use and stay so.
var errNoLink = errors.New("no upstream connection is free (limits.pinned_max)")

func newPool(target *upstream.Target, max int, wait, idleMax time.Duration, log *zap.Logger) *pool {
	p := &pool{target: target, max: max, wait: wait, idleMax: idleMax, log: log, freed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock() // closeIdle, which needs trim, waits for it
	p.trim = time.AfterFunc(idleMax, p.closeIdle)
	return p
}

// Clients that connect all at once each need a connection to themselves for a
// moment: for HELLO, AUTH, SELECT, a short transaction. So when a few are open,
// what is soon over waits for one of them to be free before another is opened.
const (
	fewLinks = 8
	patience = 10 * time.Millisecond
)

// get attaches a connection to a session and makes it what the session's state
// says. The error wraps upstream.ErrDown or is errNoLink; nothing of the
// session's was sent then.
func (p *pool) get(ctx context.Context, s *session, e effect) error {
	deadline := time.NewTimer(p.wait)
	defer deadline.Stop()
	most := p.max
	var impatient <-chan time.Time
	if !e.kind.lasts() {
		most = min(fewLinks, p.max)
		timer := time.NewTimer(patience)
		defer timer.Stop()
		impatient = timer.C
	}
	for {
		l, wait, err := p.take(s.state.Profile, s.state.name, most)
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
			s.mu.Lock()
			l.detach(s)
			s.mu.Unlock()
			l.drop()
			continue
		}
		select {
		case <-wait:
		case <-impatient:
			most = p.max
		case <-deadline.C:
			return fmt.Errorf("%w after %v", errNoLink, p.wait)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take returns a free link, the one that needs the least changing, or else, when
// most are open, a channel to wait for. Neither means that the caller may dial.
func (p *pool) take(want upstream.Profile, name string, most int) (*link, <-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, upstream.ErrClosed
	}
	best, bestFit := -1, -1
	for i := len(p.free) - 1; i >= 0 && bestFit < exactFit; i-- {
		if fit := p.free[i].fit(want, name); fit > bestFit {
			best, bestFit = i, fit
		}
	}
	switch {
	case best >= 0:
		l := p.free[best]
		p.free = slices.Delete(p.free, best, best+1)
		return l, nil, nil
	case p.open < most:
		p.open++
		return nil, nil, nil
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
	conn, err := p.target.Dial(ctx, want)
	if err != nil {
		p.gone()
		return err
	}
	l := newLink(p, conn, want)
	l.attach(s)
	p.follows.Go(l.follow)
	if !l.become(s, e) {
		s.mu.Lock()
		l.detach(s)
		s.mu.Unlock()
		l.drop()
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
