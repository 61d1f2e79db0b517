package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/tidwall/redcon"

	"seckill-proxy/commands"
	"seckill-proxy/internal/resp"
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
	if m := s.slotMap(); m != nil {
		return m.Masters()
	}
	return nil
}

// slotMap returns the map of the cluster, with a master at least. Where there is none,
// the client is told why.
func (s *session) slotMap() *upstream.SlotMap {
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
		return m
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

// scan serves SCAN: one master after the other, in scanOrder. What a client has as its
// cursor is the node's, and behind it, in cursorBits, the number of the node: a node's
// cursor means nothing to another one. Slots that move meanwhile don't matter to the keys
// of others; what moves may be missed or come twice, as it may when a SCAN is made of each
// node directly.
func (s *session) scan(cmd *resp.Command) error {
	s.settle()
	m := s.slotMap()
	if m == nil {
		return nil
	}
	order := scanOrder(m.Masters())
	at, raw := 0, cmd.Raw
	if cursor, ok := scanCursor(cmd); ok && cursor > 0 {
		at = slices.IndexFunc(order, func(n numbered) bool { return n.number == cursor%(1<<cursorBits) })
		cursor >>= cursorBits
		if at < 0 {
			// The node is no master any more. One that has taken its keys over may
			// stand before it, so all begins anew: keys come twice, none is missed.
			at, cursor = 0, 0
		}
		args := append([][]byte(nil), cmd.Args...)
		args[1] = strconv.AppendUint(nil, cursor, 10)
		raw = resp.AppendCommand(nil, args)
	}
	replies, err := s.ask(shared, []*upstream.Target{order[at].node}, raw)
	if err != nil {
		return err
	}
	s.answerRaw(nextCursor(replies[0], order, at))
	return nil
}

// numbered is a master and its number in the cursors of SCAN.
type numbered struct {
	node   *upstream.Target
	number uint64
}

// scanOrder returns masters in the order in which a SCAN goes through them. Their
// numbers, from 1 to 1<<cursorBits-1, come of their addresses: they stay when slots
// move, and are the same at all sidecars. Of those with the same, one gets the next.
func scanOrder(masters []*upstream.Target) []numbered {
	const most = 1<<cursorBits - 1
	order := make([]numbered, len(masters))
	for i, node := range masters {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(node.Address()))
		order[i] = numbered{node, 1 + uint64(hash.Sum32())%most}
	}
	slices.SortFunc(order, func(a, b numbered) int {
		return cmp.Or(cmp.Compare(a.number, b.number), strings.Compare(a.node.Address(), b.node.Address()))
	})
	for i := 1; i < len(order); i++ {
		order[i].number = max(order[i].number, order[i-1].number+1)
	}
	for i := range order { // none goes over the end
		order[i].number = min(order[i].number, uint64(most-(len(order)-1-i)))
	}
	return order
}

// cursorBits are enough for the numbers of as many nodes as a cluster can have, and leave
// those of a node's cursor.
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
func nextCursor(reply []byte, order []numbered, at int) []byte {
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
	next := uint64(0)
	switch {
	case cursor > 0:
		next = cursor<<cursorBits | order[at].number
	case at+1 < len(order):
		next = order[at+1].number
	}
	out := redcon.AppendBulkString(redcon.AppendArray(nil, 2), strconv.FormatUint(next, 10))
	return append(out, elements[1]...)
}

// pause serves CLIENT PAUSE and UNPAUSE, and has the lanes to all nodes known for
// stuck meanwhile.
func (s *session) pause(cmd *resp.Command) error {
	s.settle()
	masters := s.masters()
	if masters == nil {
		return nil
	}
	replies, err := s.ask(shared, masters, cmd.Raw)
	if err != nil {
		return err
	}
	reply := firstError(replies)
	if reply == nil {
		reply = replies[0]
		for _, master := range masters {
			master.Pause(clientEffect(cmd).pause)
		}
	}
	s.answerRaw(reply)
	return nil
}
