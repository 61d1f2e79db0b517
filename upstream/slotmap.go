package upstream

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/sharding"
)

// SlotMap says which node serves which slot. It is immutable and safe for
// concurrent use.
type SlotMap struct {
	owner   [sharding.Slots]uint16 // 1 + the index in masters, 0 for none
	masters []*Target              // in the order of their first slot
	first   map[*Target]int        // the first slot of each

	ranges func() []redis.ClusterSlot // for go-redis
}

// Master returns the node that serves a slot (0 to sharding.Slots-1), nil when
// none does.
func (m *SlotMap) Master(slot int) *Target {
	if i := m.owner[slot]; i > 0 {
		return m.masters[i-1]
	}
	return nil
}

// Masters returns the nodes that serve slots, in the order of their first slot.
// The caller doesn't change it.
func (m *SlotMap) Masters() []*Target { return m.masters }

// FirstSlot returns the first slot that a node serves, -1 when it serves none.
func (m *SlotMap) FirstSlot(t *Target) int {
	if slot, ok := m.first[t]; ok {
		return slot
	}
	return -1
}

// Unserved returns how many slots no node serves, and the first of them.
func (m *SlotMap) Unserved() (n, first int) {
	for slot := range sharding.Slots {
		if m.owner[slot] == 0 {
			if n == 0 {
				first = slot
			}
			n++
		}
	}
	return n, first
}

// newSlotMap makes a map of the masters of all slots, nil for those that aren't
// served.
func newSlotMap(served *[sharding.Slots]*Target) *SlotMap {
	m := &SlotMap{first: map[*Target]int{}}
	index := map[*Target]uint16{}
	for slot, master := range served {
		if master == nil {
			continue
		}
		if index[master] == 0 {
			m.masters = append(m.masters, master)
			m.first[master] = slot
			index[master] = uint16(len(m.masters))
		}
		m.owner[slot] = index[master]
	}
	m.ranges = sync.OnceValue(m.makeRanges)
	return m
}

// with returns the map with some slots served by others.
func (m *SlotMap) with(moved map[int]*Target) *SlotMap {
	if len(moved) == 0 {
		return m
	}
	var served [sharding.Slots]*Target
	for slot := range served {
		served[slot] = m.Master(slot)
	}
	for slot, master := range moved {
		served[slot] = master
	}
	return newSlotMap(&served)
}

// equal reports whether two maps say the same; either may be nil.
func (m *SlotMap) equal(other *SlotMap) bool {
	if m == nil || other == nil {
		return m == other
	}
	return m.owner == other.owner && slices.Equal(m.masters, other.masters)
}

// makeRanges is the map in the form of CLUSTER SLOTS.
func (m *SlotMap) makeRanges() []redis.ClusterSlot {
	var ranges []redis.ClusterSlot
	for slot, owner := range m.owner {
		switch last := len(ranges) - 1; {
		case owner == 0:
		case slot > 0 && m.owner[slot-1] == owner:
			ranges[last].End = slot
		default:
			node := redis.ClusterNode{Addr: m.masters[owner-1].Address()}
			ranges = append(ranges, redis.ClusterSlot{Start: slot, End: slot, Nodes: []redis.ClusterNode{node}})
		}
	}
	return ranges
}

// layout is what a node answered to CLUSTER SLOTS.
type layout struct {
	masters [sharding.Slots]string // addresses, "" for none
	nodes   map[string]bool        // the addresses of all, replicas included
	serving map[string]bool        // those of the masters
}

// isReplica reports whether a node is a replica.
func (l *layout) isReplica(address string) bool { return l.nodes[address] && !l.serving[address] }

// errNoSlots is of a node that belongs to no cluster, or to one without slots.
var errNoSlots = errors.New("it knows of no node that serves slots")

// parseLayout reads the reply to CLUSTER SLOTS, as readReply returns it. asked is
// the address of the node that gave it.
func parseLayout(reply any, asked string) (*layout, error) {
	ranges, ok := reply.([]any)
	if !ok {
		return nil, fmt.Errorf("the reply to CLUSTER SLOTS is a %T", reply)
	}
	l := &layout{nodes: map[string]bool{}, serving: map[string]bool{}}
	for _, entry := range ranges {
		if err := l.add(entry, asked); err != nil {
			return nil, fmt.Errorf("the reply to CLUSTER SLOTS: %w", err)
		}
	}
	if len(l.nodes) == 0 {
		return nil, errNoSlots
	}
	return l, nil
}

// add takes a range of slots: its first, its last, its master and its replicas.
func (l *layout) add(entry any, asked string) error {
	fields, ok := entry.([]any)
	if !ok || len(fields) < 3 {
		return fmt.Errorf("%v is no range of slots with a master", entry)
	}
	first, last := number(fields[0]), number(fields[1])
	if first < 0 || last < first || last >= sharding.Slots {
		return fmt.Errorf("there are no slots %d to %d", first, last)
	}
	master, err := nodeAddress(fields[2], asked)
	if err != nil {
		return err
	}
	for _, field := range fields[2:] {
		if address, err := nodeAddress(field, asked); err == nil {
			l.nodes[address] = true
		}
	}
	l.serving[master] = true
	for slot := first; slot <= last; slot++ {
		l.masters[slot] = master
	}
	return nil
}

// nodeAddress reads a node of CLUSTER SLOTS: what it announces, its port, its id
// and, from Redis 7 on, what else it can be called. A node that announces nothing
// is reached as the one that was asked; one whose name isn't known ("?"), by its
// address.
func nodeAddress(reply any, asked string) (string, error) {
	fields, ok := reply.([]any)
	if !ok || len(fields) < 2 {
		return "", fmt.Errorf("%v is no node", reply)
	}
	host, _ := fields[0].(string)
	if host == "?" && len(fields) > 3 {
		ip, _ := pairs(fields[3])["ip"].(string)
		host = ip
	}
	if host == "" || host == "?" {
		var err error
		if host, _, err = net.SplitHostPort(asked); err != nil {
			return "", err
		}
	}
	port := number(fields[1])
	if port < 1 || port > 65535 {
		return "", fmt.Errorf("%s has the port %d", host, port)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}
