package proxy

import (
	"bytes"
	"slices"

	"github.com/tidwall/redcon"

	"seckill-proxy/internal/resp"
	"seckill-proxy/sharding"
)

// This file is how a command with many keys is made one for each slot of a cluster,
// and their replies one.

// split returns the entry of a command whose keys are in several slots, nil where it
// goes as it is.
func (s *session) split(cmd *resp.Command, r *rule) *entry {
	v := &s.calls.view
	if !r.split || v.table == nil || v.slots == nil {
		return nil
	}
	first, last, step, ok := v.table.AllKeys(cmd.Args)
	if !ok {
		return nil
	}
	if (len(cmd.Args)-first)%step != 0 {
		// Redis says what is wrong, and of fewer keys it says so before it finds
		// that they are in several slots.
		return s.calls.newEntry(v.any, -1, resp.AppendCommand(nil, cmd.Args[:1+first]))
	}
	parts := partsOf(cmd.Args, first, last, step)
	if len(parts) < 2 || step > 1 && !s.server.cluster.splitMSET {
		return nil
	}
	e := s.calls.newMerged(len(parts), func(replies [][]byte) []byte {
		if failure := firstError(replies); failure != nil {
			return failure
		}
		return r.join(parts, replies)
	})
	for _, p := range parts {
		node := v.slots.Master(p.slot)
		if node == nil {
			node = v.any
		}
		args := append(make([][]byte, 0, 1+step*len(p.keys)), cmd.Args[0])
		for _, at := range p.keys {
			args = append(args, cmd.Args[at:at+step]...)
		}
		for i := range p.keys {
			p.keys[i] = (p.keys[i] - first) / step // from here on their places in the reply
		}
		e.add(node, p.slot, resp.AppendCommand(nil, args))
	}
	return e
}

// scattered reports whether the keys of a command that can be split are in several
// slots, where the server doesn't tell which arguments they are.
func scattered(args [][]byte, r *rule) bool {
	step := 1
	if r.pairs {
		step = 2
	}
	return len(partsOf(args, 1, len(args)-1, step)) > 1
}

// part is those keys of a command that are in one slot.
type part struct {
	slot int
	keys []int
}

// partsOf sorts the arguments that are keys by slot, in the order of the first key of
// each. There are two at least where keys are in several slots.
func partsOf(args [][]byte, first, last, step int) []*part {
	var parts []*part
	at := make(map[int]*part)
	for i := first; i <= last; i += step {
		slot := sharding.Slot(string(args[i]))
		p := at[slot]
		if p == nil {
			p = &part{slot: slot}
			at[slot] = p
			parts = append(parts, p)
		}
		p.keys = append(p.keys, i)
	}
	return parts
}

// firstError returns the first of the replies that is an error, nil if none is. Where
// it says that nothing was executed, and others were, it says that instead.
func firstError(replies [][]byte) []byte {
	failed := slices.IndexFunc(replies, isError)
	if failed < 0 {
		return nil
	}
	failure := replies[failed]
	done := slices.ContainsFunc(replies, func(reply []byte) bool { return !isError(reply) })
	if done && bytes.HasPrefix(failure, []byte("-UNAVAILABLE ")) {
		return append([]byte(inPart), failure[1:]...)
	}
	return failure
}

// inPart begins the error of a command that some nodes have executed and others not.
const inPart = "-UNCERTAIN the command was executed in part, at other nodes; at one it failed: "

func isError(reply []byte) bool { return len(reply) == 0 || reply[0] == '-' }

// joinArrays makes one array of the parts' arrays, in the order of the arguments.
func joinArrays(parts []*part, replies [][]byte) []byte {
	count := 0
	for _, p := range parts {
		count += len(p.keys)
	}
	elements := make([][]byte, count)
	for i, p := range parts {
		n, rest, ok := head(replies[i], '*')
		if !ok || n != len(p.keys) {
			return mismatched
		}
		for _, at := range p.keys {
			length, ok := elementLength(rest)
			if !ok {
				return mismatched
			}
			elements[at], rest = rest[:length], rest[length:]
		}
	}
	size := headMax
	for _, e := range elements {
		size += len(e)
	}
	joined := redcon.AppendArray(make([]byte, 0, size), count)
	for _, e := range elements {
		joined = append(joined, e...)
	}
	return joined
}

// headMax is more than the first line of an array is long.
const headMax = 32

// mismatched answers when nodes say what can't be put together.
var mismatched = []byte("-ERR the nodes of the cluster gave replies that can't be put together; what was to be done may have been done\r\n")

// joinSums adds integers up.
func joinSums(_ []*part, replies [][]byte) []byte { return sum(replies) }

// joinStatus returns the one status that all parts have.
func joinStatus(_ []*part, replies [][]byte) []byte { return replies[0] }

// sum adds up replies that are integers.
func sum(replies [][]byte) []byte {
	total := 0
	for _, reply := range replies {
		n, _, ok := head(reply, ':')
		if !ok {
			return mismatched
		}
		total += n
	}
	return redcon.AppendInt(nil, int64(total))
}
