package proxy

import (
	"sync"

	"seckill-proxy/upstream"
)

// This file is how the commands of a session travel in a cluster by shared lanes:
// each to its node, at the same time, and their replies back in the order of the
// commands.

// calls are the commands of a session on shared lanes of a cluster. The session's
// goroutine plans and submits them; the goroutines of the lanes, and hop, bring
// what comes of them.
type calls struct {
	session *session

	// Of the session's goroutine.
	plan    []*entry          // not yet submitted
	way     lane              // of the plan, and of what was submitted and isn't answered
	most    int               // entries that the plan may have
	planned int               // bytes of the commands in the plan
	by      *upstream.SlotMap // that what isn't answered went by
	view    view
	groups  groups
	lanes   *lease[*nodeLanes]
	only    *upstream.Target   // where what isn't answered went
	several bool               // it went to other nodes as well
	asked   []*upstream.Target // the nodes of commands with keys, since the last WAIT
	tx      *unbound           // a transaction that no node knows of yet
	merging int                // bytes of replies that are being merged by the session

	mu         sync.Mutex
	head, tail *entry // submitted and not answered, in the session's order
	flying     int    // calls that are at a node
	stranded   int    // calls that have to go to another node
	hopping    bool   // hop runs
	ready      []byte // what the client can be given
	answered   int    // entries that end in ready
	bytes      int    // of their commands
	size       int    // of their replies
	closed     bool
	hops       sync.WaitGroup
}

// entry is a command of the client in the order of its session.
type entry struct {
	next  *entry
	calls *calls
	lanes *nodeLanes
	way   lane
	bytes int // of its commands
	left  int // calls not answered
	parts []call
	// merge makes the reply of those to the parts; nil when there is one part, whose
	// reply is the client's as it is.
	merge func(replies [][]byte) []byte
	one   [1]call // parts, in most cases
}

// call is a command for one node. It is an upstream.Sink.
type call struct {
	entry   *entry
	node    *upstream.Target
	slot    int // -1 for none
	command []byte
	hops    int

	// Guarded by calls.mu once it is submitted.
	kept     []byte // of its reply, what the client can't be given yet
	begun    bool   // its reply has
	fails    bool   // it is an error, and held until it is whole
	done     bool
	given    bool        // the client was given a part
	stranded bool        // it has to go to another node
	to       redirection // namely
}

// entries are those that are not in use.
var entries = sync.Pool{New: func() any { return new(entry) }}

// keptCommand is the largest buffer that a call keeps for its next command.
const keptCommand = 1 << 10

func newCalls(s *session) *calls { return &calls{session: s} }

// newEntry returns an entry for a command to one node.
func (c *calls) newEntry(node *upstream.Target, slot int, command []byte) *entry {
	e := entries.Get().(*entry)
	e.calls, e.parts, e.left, e.bytes = c, e.one[:], 1, len(command)
	p := &e.one[0]
	p.entry, p.node, p.slot = e, node, slot
	p.command = append(p.command[:0], command...)
	return e
}

// newMerged returns an entry for a command that goes to several nodes. The caller
// fills in the parts with add.
func (c *calls) newMerged(parts int, merge func([][]byte) []byte) *entry {
	return &entry{calls: c, parts: make([]call, 0, parts), merge: merge}
}

// add adds a part, whose command is the entry's from now on.
func (e *entry) add(node *upstream.Target, slot int, command []byte) {
	e.parts = append(e.parts, call{entry: e, node: node, slot: slot, command: command})
	e.left++
	e.bytes += len(command)
}

// recycle gives an entry back that nobody refers to any more.
func (e *entry) recycle() {
	if e.merge != nil {
		return
	}
	p := &e.one[0]
	command, kept := p.command[:0], p.kept[:0]
	*e = entry{}
	if cap(command) <= keptCommand {
		p.command = command
	}
	if cap(kept) <= keptCommand {
		p.kept = kept
	}
	entries.Put(e)
}

// append adds submitted entries to the order.
func (c *calls) append(added []*entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range added {
		if c.tail == nil {
			c.head = e
		} else {
			c.tail.next = e
		}
		c.tail = e
		c.flying += len(e.parts)
	}
}

// Replies implements upstream.Sink.
func (p *call) Replies(b []byte, ended int) {
	c := p.entry.calls
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.begun {
		p.begun, p.fails = true, b[0] == '-'
	}
	if p.fails || p.entry.merge != nil || c.head != p.entry {
		p.keep(b)
	} else {
		p.given = true
		c.give(b)
	}
	if ended > 0 {
		p.ended()
	}
}

// Lost implements upstream.Sink.
func (p *call) Lost(_ int, torn, sent bool) {
	c := p.entry.calls
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session.server.cluster.Stale(p.entry.lanes.as)
	switch {
	case p.given:
		c.session.out.close() // the client has half a reply
	case sent || torn:
		p.replace(lostError)
	default:
		p.replace(unsentError)
	}
	p.land()
}

// fail answers a call that could not be sent.
func (p *call) fail(reply string) {
	c := p.entry.calls
	c.mu.Lock()
	defer c.mu.Unlock()
	p.replace(reply)
	p.land()
}

// ended accounts for a reply that is whole. It is called with calls.mu held, like
// all that follows.
func (p *call) ended() {
	if p.fails && p.redirected() {
		return
	}
	p.land()
}

// keep keeps a piece of a reply. It counts against the limits of what is kept for
// slow clients.
func (p *call) keep(b []byte) {
	p.entry.calls.session.out.hold(len(b))
	p.kept = append(p.kept, b...)
}

// unkeep empties what is kept.
func (p *call) unkeep() {
	p.entry.calls.session.out.unhold(len(p.kept))
	p.kept = p.kept[:0]
}

// replace makes an error of the sidecar's own the reply.
func (p *call) replace(reply string) {
	p.unkeep()
	p.keep([]byte(reply))
}

// land ends a call.
func (p *call) land() {
	p.done = true
	p.entry.left--
	c := p.entry.calls
	c.flying--
	c.advance()
	c.hopIfLanded()
}

// advance gives the client what it is the turn of.
func (c *calls) advance() {
	for e := c.head; e != nil; e = c.head {
		if p := &e.parts[0]; e.merge == nil && len(p.kept) > 0 && (p.done || !p.fails) {
			p.given = true
			c.give(p.kept)
			p.unkeep()
		}
		if e.left > 0 {
			return
		}
		if e.merge != nil {
			c.give(e.merged())
		}
		if c.head = e.next; c.head == nil {
			c.tail = nil
		}
		c.answered++
		c.bytes += e.bytes
		e.recycle()
	}
}

// merged makes the one reply of all.
func (e *entry) merged() []byte {
	replies := make([][]byte, len(e.parts))
	for i := range e.parts {
		replies[i] = e.parts[i].kept
	}
	reply := e.merge(replies)
	for i := range e.parts { // they count for as long as both are there
		e.parts[i].unkeep()
		e.parts[i].kept = nil
	}
	return reply
}

// give adds bytes for the client.
func (c *calls) give(b []byte) {
	c.size += len(b)
	if len(b) > keptBytes {
		c.flush() // what is before it
		c.session.out.write(b)
		return
	}
	c.ready = append(c.ready, b...)
	if len(c.ready) > keptBytes {
		c.flush()
	}
}

// Landed implements upstream.Batch.
func (c *calls) Landed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
}

// flush gives the client what is ready, and tells the session.
func (c *calls) flush() {
	if len(c.ready) > 0 {
		c.session.out.write(c.ready)
		c.ready = c.ready[:0]
		if cap(c.ready) > 4*keptBytes {
			c.ready = nil
		}
	}
	if c.answered == 0 && c.size == 0 {
		return
	}
	s := c.session
	s.mu.Lock()
	s.outstanding = max(s.outstanding-c.answered, 0)
	s.sending = max(s.sending-c.bytes, 0)
	s.sizes.add(c.size, c.answered)
	s.changed.Broadcast()
	s.mu.Unlock()
	c.answered, c.bytes, c.size = 0, 0, 0
}

// close ends the session's part in its calls. What is under way goes on, and
// nobody hears of it.
func (c *calls) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.hops.Wait()
	if c.lanes != nil {
		c.lanes.release()
	}
}

// groups are commands by the node that they go to.
type groups []group

type group struct {
	node     *upstream.Target
	commands []upstream.Single
}

// add adds a call to its node's group.
func (g *groups) add(p *call) { g.single(p.node, upstream.Single{Sink: p, Command: p.command}) }

func (g *groups) single(node *upstream.Target, single upstream.Single) {
	for i := range *g {
		if (*g)[i].node == node {
			(*g)[i].commands = append((*g)[i].commands, single)
			return
		}
	}
	if len(*g) < cap(*g) { // with the room that it had
		*g = (*g)[:len(*g)+1]
		last := &(*g)[len(*g)-1]
		last.node, last.commands = node, append(last.commands[:0], single)
		return
	}
	*g = append(*g, group{node, []upstream.Single{single}})
}

// clear empties the groups and keeps their room.
func (g *groups) clear() {
	for i := range *g {
		clear((*g)[i].commands)
		(*g)[i].node, (*g)[i].commands = nil, (*g)[i].commands[:0]
	}
	*g = (*g)[:0]
}

// submitCalls sends what is planned.
func (s *session) submitCalls() error {
	c := s.calls
	plan := c.plan
	c.plan, c.planned = nil, 0
	defer func() {
		clear(plan)
		c.plan = plan[:0]
	}()
	lanes := c.leaseLanes(s.profile())
	plan, err := s.detourCalls(lanes, plan)
	if err != nil || len(plan) == 0 {
		return err
	}
	bytes := 0
	for _, e := range plan {
		e.lanes, e.way = lanes, c.way
		bytes += e.bytes
	}
	s.mu.Lock()
	s.outstanding += len(plan)
	s.sending += bytes
	s.mu.Unlock()
	for _, e := range plan {
		for i := range e.parts {
			c.groups.add(&e.parts[i])
		}
	}
	c.append(plan) // from here on an entry may be answered, and another one's
	refused := false
	for i := range c.groups {
		g := &c.groups[i]
		refused = c.submit(s.ctx, lanes, c.way, g) || refused
	}
	c.groups.clear()
	if refused {
		s.settle()
		return errEnded
	}
	return nil
}

// leaseLanes returns the lanes of a profile. It is only another one than before
// when nothing is under way.
func (c *calls) leaseLanes(as upstream.Profile) *nodeLanes {
	if c.lanes == nil || c.lanes.key != as {
		if c.lanes != nil {
			c.lanes.release()
		}
		c.lanes = c.session.server.cluster.lanes.acquire(as)
	}
	return c.lanes.value
}
