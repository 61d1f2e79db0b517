package proxy

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"seckill-proxy/sharding"
	"seckill-proxy/upstream"
)

// This file is how a session's commands follow a slot that isn't where they went.
// Redis says of each that it did not execute it, so each may be sent again.

// redirection is Redis's word that a command belongs to another node.
type redirection struct {
	slot int
	addr string
	ask  bool // only for this command: the slot is on its way there
}

// hopsMax is how often a command is sent on.
const hopsMax = 5

// parseRedirection reads an error reply. from is where it came from: Redis may
// leave the host out, when all nodes have the same.
func parseRedirection(reply []byte, from *upstream.Target) (r redirection, ok bool) {
	words := strings.Fields(string(reply[:min(len(reply), redirectionMax)]))
	if len(words) != 3 || words[0] != "-MOVED" && words[0] != "-ASK" {
		return r, false
	}
	slot, err := strconv.Atoi(words[1])
	if err != nil || slot < 0 || slot >= sharding.Slots {
		return r, false
	}
	host, port, err := net.SplitHostPort(words[2])
	if err != nil || port == "" {
		return r, false
	}
	if host == "" {
		if host, _, err = net.SplitHostPort(from.Address()); err != nil {
			return r, false
		}
	}
	return redirection{slot: slot, addr: net.JoinHostPort(host, port), ask: words[0] == "-ASK"}, true
}

// redirectionMax is more than any redirection is long: a host name has at most 255
// bytes.
const redirectionMax = 320

// isDown reports whether an error says that the cluster doesn't serve the slot, or
// the node doesn't take writes: the map may be an old one.
func isDown(reply []byte) bool {
	return bytes.HasPrefix(reply, []byte("-CLUSTERDOWN")) || bytes.HasPrefix(reply, []byte("-READONLY"))
}

// redirected finds out whether the reply to a call, an error, sends it to another
// node. It is called with calls.mu held.
func (p *call) redirected() bool {
	cluster := p.entry.calls.session.server.cluster
	if isDown(p.kept) {
		cluster.Stale(p.entry.lanes.as)
		return false
	}
	to, ok := parseRedirection(p.kept, p.node)
	if !ok {
		return false
	}
	to, refusal := cluster.follow(to, p.entry.way == scripts, p.hops, p.entry.lanes.as)
	if refusal != "" {
		p.replace(refusal)
		return false
	}
	p.unkeep()
	p.begun, p.fails = false, false
	p.stranded, p.to = true, to
	c := p.entry.calls
	c.flying--
	c.stranded++
	c.hopIfLanded()
	return true
}

// follow notes what a redirection says, and decides whether it is followed; else
// refusal is the reply. hops is how often the command was sent on. What a script
// returns may look like a redirection, and a script may be anybody's: it can make
// its own command go astray, but not those of others, and it can't name a host
// that the sidecar shows its password to.
func (c *clusterUpstream) follow(to redirection, ofScript bool, hops int, as upstream.Profile) (_ redirection, refusal string) {
	switch {
	case ofScript:
		c.Stale(as)
		if !c.knows(to.addr) {
			return to, tryAgain
		}
	case !to.ask:
		c.Moved(to.slot, to.addr, as)
	}
	if hops >= hopsMax {
		return to, circles
	}
	return to, ""
}

const (
	// tryAgain answers a command that can't follow its slot.
	tryAgain   = "-" + movingSlot + "\r\n"
	movingSlot = "TRYAGAIN the slot is moving to another node; the command was not executed"
	// circles answers a command that was sent from node to node.
	circles = "-CLUSTERDOWN the nodes send the command to one another; it was not executed\r\n"
)

// hopIfLanded sends on what has to go to other nodes, once nothing else of the
// session is under way, so that its commands keep their order however often they
// are sent on. It is called with calls.mu held.
func (c *calls) hopIfLanded() {
	if c.stranded == 0 || c.flying > 0 || c.hopping || c.closed {
		return
	}
	c.hopping = true
	c.hops.Go(c.hop)
}

// hop sends on the calls that are stranded.
func (c *calls) hop() {
	var groups groups
	c.mu.Lock()
	var stranded []*call
	latest := make(map[int]redirection) // by slot, what the last command heard
	for e := c.head; e != nil; e = e.next {
		for i := range e.parts {
			if p := &e.parts[i]; p.stranded {
				stranded = append(stranded, p)
				latest[p.to.slot] = p.to
			}
		}
	}
	c.mu.Unlock()
	lanes, way := stranded[0].entry.lanes, stranded[0].entry.way // all are of one way
	for _, p := range stranded {
		to := latest[p.to.slot]
		p.node = c.session.server.cluster.Node(to.addr)
		p.hops++
		if to.ask {
			groups.single(p.node, upstream.Single{Sink: ignored{}, Command: asking})
		}
		groups.add(p)
	}
	c.mu.Lock()
	for _, p := range stranded {
		p.stranded = false
	}
	c.flying += len(stranded)
	c.stranded -= len(stranded)
	c.mu.Unlock()
	for i := range groups {
		c.submit(c.session.ctx, lanes, way, &groups[i])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hopping = false
	c.hopIfLanded()
}

// asking is what has to stand before a command for a slot that is on its way.
var asking = []byte("*1\r\n$6\r\nASKING\r\n")

// ignored is the sink of a reply that nobody needs.
type ignored struct{}

// Replies implements upstream.Sink.
func (ignored) Replies([]byte, int) {}

// Lost implements upstream.Sink.
func (ignored) Lost(int, bool, bool) {}

// submit sends a group to its node. What can't be sent is answered, so; refused
// tells that the node doesn't take the session's user.
func (c *calls) submit(ctx context.Context, lanes *nodeLanes, way lane, g *group) (refused bool) {
	s := c.session
	err := lanes.at(g.node).of(way).SubmitEach(ctx, c, g.commands)
	if err == nil {
		s.server.metrics.Forwarded.Add(float64(len(g.commands)))
		return false
	}
	reply := string(appendReply(nil, unavailable(err), 2))
	if errors.Is(err, upstream.ErrUnauthenticated) {
		reply = "-NOAUTH Authentication required.\r\n"
	} else {
		s.server.metrics.Unavailable.Add(float64(len(g.commands)))
		s.server.cluster.Stale(lanes.as)
	}
	for _, single := range g.commands {
		if p, ok := single.Sink.(*call); ok {
			p.fail(reply)
		}
	}
	c.Landed()
	if ctx.Err() == nil && upstream.IsRefusal(err) {
		s.log().Debug("a node turned a user away", zap.Error(err))
		return true
	}
	return false
}
