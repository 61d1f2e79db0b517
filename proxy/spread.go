package proxy

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strconv"

	"github.com/redis/go-redis/v9"
	"github.com/tidwall/redcon"

	"seckill-proxy/commands"
	"seckill-proxy/internal/resp"
	"seckill-proxy/sharding"
	"seckill-proxy/upstream"
)

// This file is the commands that concern all masters of a cluster.

// spread returns the rule of a command that is sent to all masters. merge makes one
// reply of theirs when none is an error.
func spread(way lane, merge func([][]byte) []byte) *rule {
	return spreadAll(way, func(replies [][]byte) []byte {
		if failure := firstError(replies); failure != nil {
			return failure
		}
		return merge(replies)
	})
}

// spreadAll is spread with a merge that takes errors as well.
func spreadAll(way lane, merge func([][]byte) []byte) *rule {
	return &rule{serve: func(s *session, cmd *resp.Command) error {
		replies, err := s.askMasters(way, cmd.Raw)
		if err != nil || replies == nil {
			return err
		}
		s.answerRaw(merge(replies))
		return nil
	}}
}

// askMasters sends a command to all masters and returns their replies. Where they
// aren't known, the client is told so and there are no replies. An error ends the
// session.
func (s *session) askMasters(way lane, command []byte) ([][]byte, error) {
	s.settle()
	masters := s.masters()
	if masters == nil {
		return nil, nil
	}
	return s.ask(way, masters, command)
}

// masters returns the masters of the cluster. Where they aren't known, the client is
// told why, and there are none.
func (s *session) masters() []*upstream.Target {
	if s.profile().Identity.Stranger {
		s.answer(errNoAuth)
		return nil
	}
	m, err := s.server.cluster.Map(s.ctx, s.profile())
	var said redis.Error
	switch {
	case errors.As(err, &said):
		s.answer(commands.Error(said.Error()))
	case err != nil:
		s.server.metrics.Unavailable.Inc()
		s.answer(unavailable(err))
	case len(m.Masters()) == 0:
		s.answer(commands.Error("CLUSTERDOWN Hash slot not served"))
	default:
		return m.Masters()
	}
	return nil
}

// agreed is what the first node said, and the others likewise.
func agreed(replies [][]byte) []byte { return replies[0] }

// anywhere is the first reply that isn't an error. Of the errors, one that says more
// than that a node had nothing to do comes first.
func anywhere(replies [][]byte) []byte {
	best := replies[0]
	for _, reply := range replies {
		switch {
		case len(reply) > 0 && reply[0] != '-':
			return reply
		case bytes.HasPrefix(best, []byte("-NOTBUSY")):
			best = reply
		}
	}
	return best
}

// concatenated is one array of all elements.
func concatenated(replies [][]byte) []byte {
	count := 0
	var all []byte
	for _, reply := range replies {
		n, elements, ok := head(reply, '*')
		if !ok {
			return mismatched
		}
		count += n
		all = append(all, elements...)
	}
	return append(redcon.AppendArray(nil, count), all...)
}

// united is concatenated without what is there already.
func united(replies [][]byte) []byte {
	seen := make(map[string]bool)
	var all []byte
	for _, reply := range replies {
		elements, ok := elementsOf(reply)
		if !ok {
			return mismatched
		}
		for _, element := range elements {
			if !seen[string(element)] {
				seen[string(element)] = true
				all = append(all, element...)
			}
		}
	}
	return append(redcon.AppendArray(nil, len(seen)), all...)
}

// elementsOf takes an array of values apart.
func elementsOf(reply []byte) ([][]byte, bool) {
	n, rest, ok := head(reply, '*')
	if !ok {
		return nil, false
	}
	var elements [][]byte
	for range n {
		length, ok := elementLength(rest)
		if !ok {
			return nil, false
		}
		elements, rest = append(elements, rest[:length]), rest[length:]
	}
	return elements, true
}

// counted adds up arrays of names and integers, which stand in the same order.
func counted(replies [][]byte) []byte {
	return elementwise(replies, func(column [][]byte) []byte {
		if column[0][0] != ':' {
			return column[0]
		}
		return sum(column)
	})
}

// everywhere is 1 where all nodes say 1, in each place of their arrays.
func everywhere(replies [][]byte) []byte {
	return elementwise(replies, func(column [][]byte) []byte {
		for _, element := range column {
			if string(element) != ":1\r\n" {
				return element
			}
		}
		return column[0]
	})
}

// elementwise merges arrays of the same length place by place.
func elementwise(replies [][]byte, merge func(column [][]byte) []byte) []byte {
	var rows [][][]byte
	for _, reply := range replies {
		elements, ok := elementsOf(reply)
		if !ok || len(rows) > 0 && len(elements) != len(rows[0]) {
			return mismatched
		}
		rows = append(rows, elements)
	}
	out := redcon.AppendArray(nil, len(rows[0]))
	column := make([][]byte, len(rows))
	for i := range rows[0] {
		for j := range rows {
			column[j] = rows[j][i]
		}
		out = append(out, merge(column)...)
	}
	return out
}

// randomKey serves RANDOMKEY: of a random master that has keys.
func (s *session) randomKey(cmd *resp.Command) error {
	s.settle()
	masters := s.masters()
	if masters == nil {
		return nil
	}
	var reply []byte
	for _, i := range rand.Perm(len(masters)) {
		replies, err := s.ask(shared, masters[i:i+1], cmd.Raw)
		if err != nil {
			return err
		}
		if reply = replies[0]; string(reply) != "$-1\r\n" && string(reply) != "_\r\n" {
			break
		}
	}
	s.answerRaw(reply)
	return nil
}

// scan serves SCAN: one master after the other. What a client has as its cursor is
// the node's, and behind it, in cursorBits, the first slot of the node. A SCAN during
// which slots move may miss keys, as it may when it is made of each node directly.
func (s *session) scan(cmd *resp.Command) error {
	s.settle()
	masters := s.masters()
	if masters == nil {
		return nil
	}
	m, _ := s.server.cluster.Map(s.ctx, s.profile())
	node, raw := masters[0], cmd.Raw
	if cursor, ok := scanCursor(cmd); ok && cursor > 0 {
		if master := m.Master(int(cursor % sharding.Slots)); master != nil {
			node = master
		}
		args := append([][]byte(nil), cmd.Args...)
		args[1] = strconv.AppendUint(nil, cursor>>cursorBits, 10)
		raw = resp.AppendCommand(nil, args)
	}
	replies, err := s.ask(shared, []*upstream.Target{node}, raw)
	if err != nil {
		return err
	}
	s.answerRaw(nextCursor(replies[0], m, node))
	return nil
}

// cursorBits are enough for a slot.
const cursorBits = 14

// scanCursor returns the cursor of a SCAN; false where Redis will say that it is none.
func scanCursor(cmd *resp.Command) (uint64, bool) {
	if len(cmd.Args) < 2 {
		return 0, false
	}
	cursor, err := strconv.ParseUint(string(cmd.Args[1]), 10, 64)
	return cursor, err == nil
}

// nextCursor puts the node, or the next one, into the cursor of SCAN's reply.
func nextCursor(reply []byte, m *upstream.SlotMap, node *upstream.Target) []byte {
	elements, ok := elementsOf(reply)
	if !ok || len(elements) != 2 {
		return reply
	}
	_, text, ok := head(elements[0], '$')
	if !ok {
		return mismatched
	}
	cursor, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil || cursor>>(64-cursorBits) > 0 {
		return mismatched
	}
	slot := m.FirstSlot(node)
	if cursor == 0 {
		slot = slotOfNext(m, slot)
	}
	next := cursor<<cursorBits | uint64(slot)
	out := redcon.AppendBulkString(redcon.AppendArray(nil, 2), strconv.FormatUint(next, 10))
	return append(out, elements[1]...)
}

// slotOfNext returns the first slot of the master that comes after the one whose first
// slot it is given, 0 after the last.
func slotOfNext(m *upstream.SlotMap, slot int) int {
	for _, master := range m.Masters() {
		if first := m.FirstSlot(master); first > slot {
			return first
		}
	}
	return 0
}

// pause serves CLIENT PAUSE and UNPAUSE, and has the lanes to all nodes known for
// stuck meanwhile.
func (s *session) pause(cmd *resp.Command) error {
	replies, err := s.askMasters(shared, cmd.Raw)
	if err != nil || replies == nil {
		return err
	}
	reply := firstError(replies)
	if reply == nil {
		reply = replies[0]
		for _, master := range s.masters() {
			master.Pause(clientEffect(cmd).pause)
		}
	}
	s.answerRaw(reply)
	return nil
}
