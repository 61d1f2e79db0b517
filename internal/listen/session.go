package listen

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	errSilent   = errors.New("a PING was not answered in time")
	errReplaced = errors.New("the connection was replaced by another one")
)

// session is the subscription on one connection. go-redis connects again by
// itself when a connection breaks, and subscribes there; the gap between shows
// only in a second confirmation. A session ends with the first error, or with
// such a confirmation.
type session struct {
	opts        *Options
	subscribed  func() // called when all channels are confirmed
	unconfirmed int    // channels that aren't confirmed yet
	heard       bool   // OnHeard was called

	pubsub *redis.PubSub
	ping   ping
}

// run returns when the session is over, with the reason. Both of its goroutines
// have ended then, and OnLost was called if anything was heard.
func (s *session) run(ctx context.Context, rdb Subscriber) error {
	ctx, end := context.WithCancelCause(ctx)
	s.pubsub = rdb.Subscribe(ctx)
	if err := s.subscribe(ctx); err != nil {
		end(err)
		s.pubsub.Close()
		return err
	}
	var pinging sync.WaitGroup
	pinging.Go(func() { s.sendPings(ctx, end) })
	err := s.receive(ctx)
	if s.unconfirmed == 0 {
		s.opts.OnLost()
	}
	end(err)
	pinging.Wait()
	return context.Cause(ctx) // the pinger's error where that came first
}

func (s *session) subscribe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.ConnectTimeout)
	defer cancel()
	return s.pubsub.Subscribe(ctx, s.opts.Channels...)
}

// receive passes on what Redis sends.
func (s *session) receive(ctx context.Context) error {
	for {
		reply, err := s.next(ctx)
		if err != nil {
			return err
		}
		switch reply := reply.(type) {
		case *redis.Subscription:
			err = s.confirm(reply)
		case *redis.Message:
			s.opts.OnMessage(reply.Channel, reply.Payload)
		case *redis.Pong:
			s.pong(reply.Payload)
		}
		if err == nil && s.ping.overdue(s.opts.SilenceMax) {
			err = errSilent // although messages come
		}
		if err != nil {
			return err
		}
	}
}

// next waits for the next thing that Redis sends, at most SilenceMax. The
// deadline is in the context, which also bounds go-redis's attempt to connect
// again: after silence it has none left.
func (s *session) next(ctx context.Context) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.SilenceMax)
	defer cancel()
	return s.pubsub.Receive(ctx)
}

// confirm counts the confirmations of SUBSCRIBE, one for each channel.
func (s *session) confirm(reply *redis.Subscription) error {
	if reply.Kind != "subscribe" || s.unconfirmed == 0 {
		return errReplaced
	}
	s.unconfirmed--
	if s.unconfirmed == 0 {
		s.subscribed()
		s.opts.OnLost() // whatever was published before
	}
	return nil
}

// pong takes the answer to a PING. It follows the confirmations, since SUBSCRIBE
// was sent first.
func (s *session) pong(payload string) {
	sent, ok := s.ping.answered(payload)
	if ok && s.unconfirmed == 0 {
		s.opts.OnHeard(sent)
		s.heard = true
	}
}

// sendPings sends a PING at once and then each PingEvery, unless one is under
// way. When one can't be sent, or the session is over, it closes the connection,
// which wakes the receiver.
func (s *session) sendPings(ctx context.Context, end context.CancelCauseFunc) {
	defer s.pubsub.Close()
	ticker := time.NewTicker(s.opts.PingEvery)
	defer ticker.Stop()
	for {
		if err := s.sendPing(ctx); err != nil {
			end(fmt.Errorf("PING: %w", err))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *session) sendPing(ctx context.Context) error {
	payload, ok := s.ping.begin()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.SilenceMax)
	defer cancel()
	return s.pubsub.Ping(ctx, payload)
}

// ping is the one PING that is under way, if any. Each has a payload of its own,
// so that no answer is taken for another's.
type ping struct {
	mu      sync.Mutex
	number  uint64
	sent    time.Time // before it was sent
	waiting bool
}

// begin returns the payload of the next one, or false while one is under way.
func (p *ping) begin() (payload string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting {
		return "", false
	}
	p.number++
	p.sent, p.waiting = time.Now(), true
	return strconv.FormatUint(p.number, 10), true
}

// answered returns when the PING with this payload was sent, if it is the one
// that is under way.
func (p *ping) answered(payload string) (sent time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.waiting || payload != strconv.FormatUint(p.number, 10) {
		return time.Time{}, false
	}
	p.waiting = false
	return p.sent, true
}

// overdue reports whether the answer takes longer than it may.
func (p *ping) overdue(after time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting && time.Since(p.sent) > after
}
