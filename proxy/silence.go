package proxy

import (
	"time"

	"seckill-proxy/upstream"
)

// This file is how it is noticed that a node of a cluster doesn't answer. Nothing
// that is forwarded has a time limit, and a node that stands still ends no
// connection; only a new map of the cluster says that it was replaced.

// silenceEvery is how often connections are looked at, and for how long a node may
// leave something unanswered before the map is asked for again.
const silenceEvery = 500 * time.Millisecond

// look is what was last seen of a link.
type look struct {
	answered int64
	since    time.Time // it was seen waiting for the same reply; zero when it didn't wait
}

// watchSilence tells the cluster of nodes that don't answer, until the server ends.
func (s *Server) watchSilence() {
	ticker := time.NewTicker(silenceEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case now := <-ticker.C:
			for _, lanes := range s.cluster.lanes.values() {
				lanes.reportSilence(s.cluster.Cluster)
			}
			for _, session := range s.allSessions() {
				session.reportSilence(now)
			}
		}
	}
}

func (s *Server) allSessions() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*session, 0, len(s.sessions))
	for session := range s.sessions {
		all = append(all, session)
	}
	return all
}

// reportSilence tells the cluster which nodes haven't answered for a while.
func (n *nodeLanes) reportSilence(cluster *upstream.Cluster) {
	n.mu.Lock()
	all := make(map[*upstream.Target]*lanes, len(n.of))
	for node, use := range n.of {
		all[node] = use.lanes
	}
	n.mu.Unlock()
	for node, lanes := range all {
		if waits := max(lanes.shared.Waits(), lanes.scripts.Waits()); waits >= silenceEvery {
			cluster.Unanswered(node, waits, n.as)
		}
	}
}

// reportSilence does so for the session's own connection. What may block in Redis
// is no silence.
func (s *session) reportSilence(now time.Time) {
	s.mu.Lock()
	l := s.link.Load()
	if l == nil {
		s.mu.Unlock()
		return
	}
	if l.answered >= l.sent || l.blocked > 0 || s.state.opaque {
		l.look = look{}
	} else if l.look.since.IsZero() || l.look.answered != l.answered {
		l.look = look{l.answered, now}
	}
	since, as := l.look.since, s.state.Profile
	s.mu.Unlock()
	if !since.IsZero() && now.Sub(since) >= silenceEvery/2 { // at the next look
		s.server.cluster.Unanswered(l.target, now.Sub(since), as)
	}
}
