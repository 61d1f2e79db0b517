package proxy

import (
	"slices"

	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// This file is WAIT and WAITAOF in a cluster.

// askedMax bounds the nodes that a WAIT is for.
const askedMax = 1024

// written notes that the session may have written at a node.
func (c *calls) written(node *upstream.Target) {
	if !slices.Contains(c.asked, node) && len(c.asked) < askedMax {
		c.asked = append(c.asked, node)
	}
}

// waitAtAll serves WAIT and WAITAOF: at one node after the other that the session may
// have written at since the last one. The least of what they say is true of all that it
// wrote.
func (s *session) waitAtAll(cmd *resp.Command, at place) error {
	s.settle()
	nodes := s.calls.asked
	s.calls.asked = nil
	if len(nodes) < 2 {
		if len(nodes) == 1 {
			at.node = nodes[0]
		}
		return s.own(own, cmd, effect{kind: effectWaits}, at)
	}
	var least []byte
	for _, node := range nodes {
		reply, err := s.waitAt(node, cmd)
		if err != nil {
			return s.unavailable(cmd, effect{}, err)
		}
		if least == nil {
			least = reply
		}
		if least = lesser(least, reply); isError(least) {
			break
		}
	}
	s.answerRaw(least)
	return nil
}

// waitAt returns what one node says.
func (s *session) waitAt(node *upstream.Target, cmd *resp.Command) ([]byte, error) {
	s.mu.Lock()
	s.said = ""
	s.mu.Unlock()
	s.node = node
	if err := s.sendQuietly(cmd.Raw, effect{kind: effectWaits}); err != nil {
		s.server.cluster.Stale(s.profile())
		return nil, err
	}
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said == "" {
		return []byte(lostError), nil
	}
	return []byte(s.said), nil
}

// lesser merges two replies to WAIT, or to WAITAOF, which are arrays of integers.
func lesser(a, b []byte) []byte {
	if isError(a) {
		return a
	}
	if isError(b) {
		return b
	}
	if n, _, ok := head(a, ':'); ok {
		if m, _, _ := head(b, ':'); m < n {
			return b
		}
		return a
	}
	return elementwise([][]byte{a, b}, func(column [][]byte) []byte { return lesser(column[0], column[1]) })
}
