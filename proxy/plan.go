package proxy

import (
	"bytes"

	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// This file is how the commands that one read brought become calls, which are
// submitted together.

// plan adds a command to those that are submitted together.
func (s *session) plan(way lane, cmd *resp.Command, r *rule, at place) error {
	c := s.calls
	if c.way != way {
		s.settle() // lanes don't wait for each other
		c.way = way
	}
	if len(s.local) > 0 || len(s.batch) > 0 {
		if err := s.flush(); err != nil {
			return err
		}
	}
	if r.follows {
		at.node = s.follow(at)
	}
	if len(c.plan) > 0 && (len(c.plan) >= c.most || c.planned > windowBytes) {
		if err := s.submitCalls(); err != nil {
			return err
		}
	}
	if len(c.plan) == 0 {
		s.beginPlan()
	}
	e := s.split(cmd, r)
	if e == nil {
		e = c.newEntry(at.node, at.slot, cmd.Raw)
	}
	c.plan = append(c.plan, e)
	c.planned += e.bytes
	for i := range e.parts {
		c.track(e.parts[i].node)
	}
	return nil
}

// beginPlan waits until a plan may be made. What isn't answered went by one map, and
// so does all that comes after it: commands for one key then never pass each other
// on the way to two nodes.
func (s *session) beginPlan() {
	c := s.calls
	c.most = s.waitForWindow()
	c.mu.Lock()
	stranded := c.stranded > 0
	c.mu.Unlock()
	if stranded || c.by != c.view.slots {
		s.settle()
		c.by = c.view.slots
	}
	s.mu.Lock()
	idle := s.outstanding == 0
	s.mu.Unlock()
	if idle {
		c.only, c.several = nil, false
	}
}

// track notes where commands go.
func (c *calls) track(node *upstream.Target) {
	if node == c.only {
		return
	}
	c.several = c.several || c.only != nil
	c.only = node
	c.written(node)
}

// follow makes sure that a command, such as PUBLISH, isn't executed before those that
// the client sent before it. It returns the node to send it to.
func (s *session) follow(at place) *upstream.Target {
	c := s.calls
	s.mu.Lock()
	idle := s.outstanding == 0 && len(c.plan) == 0
	s.mu.Unlock()
	switch {
	case idle, !c.several && c.only == at.node:
	case !c.several && at.slot < 0:
		return c.only
	default:
		s.settle()
	}
	return at.node
}

// ask sends a command without a key to nodes, waits, and returns their replies. An
// error ends the session.
func (s *session) ask(way lane, nodes []*upstream.Target, command []byte) ([][]byte, error) {
	var replies [][]byte
	e := s.calls.newMerged(len(nodes), func(all [][]byte) []byte {
		replies = all
		return nil
	})
	command = bytes.Clone(command)
	for _, node := range nodes {
		e.add(node, -1, command)
	}
	if err := s.await(way, e); err != nil {
		return nil, err
	}
	for _, reply := range replies {
		s.out.hold(len(reply))
		s.calls.merging += len(reply)
	}
	return replies, nil
}

// serveAtAll serves a command that concerns more than the node of a key. What the nodes
// say counts as kept for the client until the one reply is made of it.
func (s *session) serveAtAll(r *rule, cmd *resp.Command) error {
	defer func() {
		s.out.unhold(s.calls.merging)
		s.calls.merging = 0
	}()
	return r.serve(s, cmd)
}

// askFor sends a command in parts, waits, and answers it. So its reply doesn't meet
// what comes by the session's own connection meanwhile.
func (s *session) askFor(way lane, e *entry) error {
	for i := range e.parts {
		s.calls.written(e.parts[i].node)
	}
	var reply []byte
	merge := e.merge
	e.merge = func(all [][]byte) []byte {
		if reply = all[0]; merge != nil {
			reply = merge(all)
		}
		return nil
	}
	if err := s.await(way, e); err != nil {
		return err
	}
	s.answerRaw(reply)
	return nil
}

// await submits an entry whose merge gives the client nothing, and waits until that
// was called. Otherwise the session has ended, which is an error.
func (s *session) await(way lane, e *entry) error {
	s.settle()
	c := s.calls
	merged, merge := false, e.merge
	e.merge = func(all [][]byte) []byte {
		merged = true
		return merge(all)
	}
	c.way = way
	c.plan = append(c.plan, e)
	if err := s.submitCalls(); err != nil {
		return err
	}
	s.settle()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !merged {
		return errEnded
	}
	return nil
}

// detourCalls sends commands round a lane that is stuck, and returns those that take
// their places on their lanes.
func (s *session) detourCalls(lanes *nodeLanes, plan []*entry) ([]*entry, error) {
	for len(plan) > 0 {
		e := plan[0]
		s.mu.Lock()
		waits := s.outstanding > 0
		s.mu.Unlock()
		if waits || e.merge != nil || !lanes.at(e.one[0].node).of(s.calls.way).Stuck() || !s.server.pool.takeDetour(s) {
			break
		}
		cmd := resp.Command{Raw: e.one[0].command}
		if err := s.own(s.calls.way, &cmd, effect{}, place{e.one[0].node, e.one[0].slot}); err != nil {
			return nil, err
		}
		if err := s.flush(); err != nil {
			return nil, err
		}
		plan = plan[1:]
	}
	return plan, nil
}
