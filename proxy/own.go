package proxy

import (
	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// This file is how a command travels in a cluster by a connection of the session's
// own.

// own sends a command by a connection of the session's own, waits for what comes of
// it, and follows Redis to other nodes. The connection becomes the session's, as far
// as its state needs one, so nothing may be under way by another.
func (s *session) own(way lane, cmd *resp.Command, e effect, at place) error {
	s.settle()
	if at.slot >= 0 {
		s.calls.written(at.node)
	}
	if e.kind == effectNone && len(cmd.Raw) > s.server.limits.CustomBytes {
		e.kind = effectLarge
	}
	for hops := 0; ; hops++ {
		s.mu.Lock()
		s.said = ""
		if e.kind == effectHold && e.hold == holdWatch {
			s.bound = at.slot
		}
		s.mu.Unlock()
		s.node = at.node
		l, err := s.attach(e)
		if err != nil {
			s.server.cluster.Stale(s.profile())
			return s.unavailable(cmd, e, err)
		}
		s.server.metrics.Forwarded.Inc()
		if cmd.Partial {
			s.stream(l, cmd, func() error { return s.streamed(way, at) })
			return nil
		}
		s.hand(l, cmd.Raw, e)
		s.alone.flush()
		s.attached(l)
		to, done := s.heard(way, at, hops)
		if done {
			return nil
		}
		at.node, e.asking = s.server.cluster.Node(to.addr), to.ask
	}
}

// streamed waits for the reply to a command that was sent in pieces. It can't be sent
// on.
func (s *session) streamed(way lane, at place) error {
	if _, done := s.heard(way, at, 0); !done {
		s.answerRaw([]byte(tryAgain))
	}
	return nil
}

// heard waits for the reply to the command that went by the session's own connection.
// done tells that the client has it; otherwise the command has to be sent on.
func (s *session) heard(way lane, at place, hops int) (to redirection, done bool) {
	s.settle()
	s.mu.Lock()
	said := s.said
	s.mu.Unlock()
	to, ok := parseRedirection([]byte(said), at.node)
	if !ok {
		return to, true
	}
	to, refusal := s.server.cluster.follow(to, way == scripts, hops, s.profile())
	if refusal == "" && s.link.Load() != nil && !s.giveUpID() {
		refusal = "-" + elsewhere + "\r\n"
		if s.watches(to.slot) {
			refusal = tryAgain
		}
	}
	if refusal != "" {
		s.answerRaw([]byte(refusal))
		return to, true
	}
	return to, false
}

// hear is told of each error that a link of the session's brings. Where it says that
// the command belongs to another node, the client isn't given it, which taken tells;
// inside a transaction, that can't be followed, it is given another one. It is called
// with mu held.
func (s *session) hear(from *upstream.Target, reply []byte, w *waiting) (given []byte, taken bool) {
	cluster := s.server.cluster
	if isDown(reply) {
		cluster.Stale(s.state.Profile)
	}
	if w != nil && w.quiet {
		s.said = string(reply)
		return reply, false
	}
	to, ok := parseRedirection(reply, from)
	if !ok || w != nil && w.kind == effectSetup {
		return reply, false
	}
	if !s.state.multi {
		s.said = string(reply)
		return nil, true
	}
	if !to.ask {
		cluster.Moved(to.slot, to.addr, s.state.Profile)
	}
	switch s.bound {
	case to.slot:
		return []byte(tryAgain), false
	case unboundSlot:
		return []byte("-" + elsewhere + "\r\n"), false
	}
	return []byte("-" + crossSlot + "\r\n"), false
}

// unboundSlot is session.bound where no slot decided about the node.
const unboundSlot = -1
