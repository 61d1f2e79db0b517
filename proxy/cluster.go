package proxy

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/commands"
	"seckill-proxy/internal/resp"
	"seckill-proxy/sharding"
	"seckill-proxy/upstream"
)

// This file is where a command goes in a cluster: to which node, and by which way.

// clusterUpstream is a cluster and the lanes to its nodes.
type clusterUpstream struct {
	*upstream.Cluster
	splitMSET bool
	rules     rules
	lanes     *leases[*nodeLanes]
	seen      atomic.Pointer[upstream.SlotMap] // the last one that a session used
}

func newClusterUpstream(to Upstream, profiles int) *clusterUpstream {
	return &clusterUpstream{
		Cluster:   to.Cluster,
		splitMSET: to.SplitMSET,
		rules:     newRules(),
		lanes: newLeases(profiles, func(as upstream.Profile) *nodeLanes {
			return &nodeLanes{as: as, of: make(map[*upstream.Target]*laneUse)}
		}, (*nodeLanes).close),
	}
}

// connect opens the connections that most sessions will share.
func (c *clusterUpstream) connect(ctx context.Context) error {
	as := c.Seed().Profile()
	m, err := c.Map(ctx, as)
	if err != nil {
		return err
	}
	lease := c.lanes.acquire(as)
	defer lease.release()
	for _, node := range m.Masters() {
		err = errors.Join(err, lease.value.at(node).connect(ctx))
	}
	return err
}

// knows reports whether a node is a master of the cluster.
func (c *clusterUpstream) knows(addr string) bool {
	if m := c.seen.Load(); m != nil {
		for _, node := range m.Masters() {
			if node.Address() == addr {
				return true
			}
		}
	}
	return false
}

// view is what a session goes by when it decides where commands go.
type view struct {
	slots *upstream.SlotMap      // nil where it isn't known
	table *upstream.CommandTable // the same
	any   *upstream.Target       // for what any node can do
	// refusal is why Redis doesn't tell this user what isn't known.
	refusal error
}

// look returns what a plan goes by.
func (s *session) look() *view {
	c := s.calls
	if len(c.plan) > 0 {
		return &c.view
	}
	cluster, as := s.server.cluster, s.profile()
	c.view = view{any: cluster.Seed()}
	if as.Identity.Stranger {
		return &c.view // any node will say that they have to authenticate
	}
	// Without a map, or without knowing where the keys are, any node says where to
	// go; while none can be reached, that is what the client is told.
	var noMap, noTable error
	c.view.slots, noMap = cluster.Map(s.ctx, as)
	c.view.table, noTable = cluster.Commands(s.ctx, as)
	var said redis.Error
	if err := cmp.Or(noMap, noTable); errors.As(err, &said) {
		c.view.refusal = said
	}
	if m := c.view.slots; m != nil && len(m.Masters()) > 0 {
		c.view.any = m.Masters()[0]
		if cluster.seen.Load() != m {
			cluster.seen.Store(m)
		}
	}
	return &c.view
}

// place is where a command goes.
type place struct {
	node *upstream.Target
	slot int // of its first key, -1 when it has none
}

// locate finds the place of a command. One whose keys only Redis can find goes
// anywhere, and from there where Redis says.
func (s *session) locate(cmd *resp.Command) place {
	v := s.look()
	at := place{slot: -1}
	if v.table != nil {
		if i, how := v.table.FirstKey(cmd.Args); how == upstream.Keyed {
			at.slot = sharding.Slot(string(cmd.Args[i]))
		}
	}
	if at.slot >= 0 && v.slots != nil {
		at.node = v.slots.Master(at.slot)
	}
	if at.node == nil {
		at.node = v.any
	}
	return at
}

// forwardInCluster sends a command to the node that it is for.
func (s *session) forwardInCluster(way lane, cmd *resp.Command, e effect) error {
	c, r := s.calls, s.server.cluster.rules.of(cmd)
	if cmd.Partial && (r.split || r.serve != nil) {
		return s.gatherWhole(cmd)
	}
	if c.tx != nil {
		return s.queue(r, cmd, e)
	}
	l := s.link.Load()
	if l == nil && s.broken.Load() {
		return errEnded
	}
	if l != nil {
		s.mu.Lock()
		opaque, multi, subscribed := s.state.opaque, s.state.multi, s.state.inSubscribedMode()
		s.mu.Unlock()
		switch {
		case opaque:
			return s.sendAlone(cmd, effect{})
		case multi:
			return s.sendBound(r, cmd, e)
		case subscribed:
			return s.sendSubscribed(l, way, cmd, e)
		}
	}
	switch {
	case r.refuses(cmd):
		return s.turnDown(cmd, r.refusal)
	case r.serve != nil:
		return s.serveAtAll(r, cmd)
	case e.kind == effectMulti && (l == nil || s.keptForID()):
		return s.openTransaction(cmd, e)
	}
	at := s.locate(cmd)
	switch {
	case r.split && c.view.refusal != nil && scattered(cmd.Args, r):
		return s.turnDown(cmd, c.view.refusal.Error())
	case cmd.Partial && at.slot < 0 && len(cmd.Args) < cmd.Count:
		return s.gatherWhole(cmd) // its key may be in what is still to come
	case e.kind == effectWaits && !cmd.Partial && l == nil:
		return s.waitAtAll(cmd, at)
	case l != nil:
		return s.forwardPinned(l, way, cmd, r, e, at)
	case len(cmd.Raw) > s.server.limits.CustomBytes && !r.split:
		return s.own(own, cmd, e, at)
	case way == own, len(c.plan) == 0 && !r.split && s.shouldPin():
		return s.own(way, cmd, e, at)
	case len(c.plan) == 0 && s.muted(): // the mode doesn't change while commands are under way
		return s.askMuted(way, cmd, r, at)
	}
	return s.plan(way, cmd, r, at)
}

// forwardPinned sends a command of a session that keeps its connection.
func (s *session) forwardPinned(l *link, way lane, cmd *resp.Command, r *rule, e effect, at place) error {
	if parts := s.split(cmd, r); parts != nil {
		return s.askFor(way, parts)
	}
	switch {
	case e.kind == effectMulti:
		s.mu.Lock()
		if s.state.held&holdWatch == 0 {
			s.bound = unboundSlot
		}
		s.mu.Unlock()
		return s.own(way, cmd, e, place{l.target, unboundSlot})
	case at.slot < 0 || at.node == l.target:
		at.node = l.target
		return s.own(way, cmd, e, at)
	case way == own && s.giveUpID():
		return s.own(way, cmd, e, at)
	case way == own && s.watches(at.slot):
		return s.turnDown(cmd, movingSlot)
	case e.kind == effectHold && e.hold == holdWatch:
		return s.turnDown(cmd, crossSlot)
	case way == own:
		return s.turnDown(cmd, elsewhere)
	}
	return s.askFor(way, s.calls.newEntry(at.node, at.slot, cmd.Raw))
}

// askMuted sends a command whose reply the client may not want by a shared lane. The
// session waits for it and decides, as it does with CLIENT REPLY for its own replies.
func (s *session) askMuted(way lane, cmd *resp.Command, r *rule, at place) error {
	e := s.split(cmd, r)
	if e == nil {
		e = s.calls.newEntry(at.node, at.slot, cmd.Raw)
	}
	return s.askFor(way, e)
}

// muted reports whether the client doesn't want the next reply.
func (s *session) muted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.mute != replyOn
}

// keptForID reports whether the session keeps its connection for nothing but its id.
func (s *session) keptForID() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.keptForID()
}

// giveUpID closes the session's own connection when the client has only asked for its
// id, which it reports. It isn't given back: nobody else may be known by that id.
func (s *session) giveUpID() bool {
	s.settle()
	s.mu.Lock()
	l := s.link.Load()
	given := l != nil && s.state.keptForID()
	if given {
		s.state.held = 0
	}
	s.mu.Unlock()
	if given {
		l.discard(s)
	}
	return given
}

// watches reports whether the session watches keys of a slot.
func (s *session) watches(slot int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.held&holdWatch != 0 && s.bound == slot
}

// sendSubscribed sends a command of a session that may only subscribe. Redis says so,
// unless the key is another node's.
func (s *session) sendSubscribed(l *link, way lane, cmd *resp.Command, e effect) error {
	at := s.locate(cmd)
	if at.slot >= 0 && at.node != l.target && e.kind != effectSubscribe && e.kind != effectUnsubscribe {
		return s.turnDown(cmd, notInSubscribedMode(cmd.Args[0]))
	}
	return s.own(way, cmd, e, place{l.target, at.slot})
}

const (
	crossSlot = "CROSSSLOT Keys in request don't hash to the same slot"
	elsewhere = "CROSSSLOT this session keeps its connection to one node of the cluster, by WATCH, a subscription or MONITOR for instance, " +
		"and the command needs a connection to another one; use another client connection for it"
)

// turnDown answers a command that isn't sent.
func (s *session) turnDown(cmd *resp.Command, why string) error {
	s.settle()
	answer := func() error {
		s.answer(commands.Error(why))
		return nil
	}
	if cmd.Partial {
		return s.skip(answer)
	}
	return answer()
}

// answerRaw gathers a reply that is encoded already, unless the client wants none.
func (s *session) answerRaw(reply []byte) {
	if _, wanted := s.wanted(); wanted {
		s.local = append(s.local, reply...)
	}
}
