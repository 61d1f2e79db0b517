package upstream

import (
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
)

// This file is what becomes of nodes that were masters, and of those that are
// silent: one that stands still, or whose machine is gone, ends no connection, and
// when it goes on it may answer what was lost with its being a master.

// landFor is how long a node that isn't a master has to answer what it was sent.
const landFor = time.Second

// retireReplaced ends the connections to the masters in whose place a new map has
// their replica: what is under way there has an uncertain outcome. A master whose
// slots other masters have got was there to hand them over; it may answer what it
// was sent, and is cut off only if it doesn't (Unanswered). It is called with the
// lock held, when c.layout is still what led to the map before, but for MOVED.
func (c *Cluster) retireReplaced(before, m *SlotMap) {
	said := map[string]*Target{} // the masters of the layout
	left := map[*Target]bool{}   // the masters that are none in m
	for address := range c.layout.serving {
		said[address] = c.nodes.get(address)
	}
	for _, node := range slices.AppendSeq(slices.Clone(before.Masters()), maps.Values(said)) {
		if m.FirstSlot(node) < 0 {
			left[node] = true
		}
	}
	if len(left) == 0 {
		return
	}
	for slot, address := range c.layout.masters {
		heir := m.Master(slot)
		if heir == nil || !c.layout.isReplica(heir.Address()) {
			continue
		}
		for _, node := range []*Target{before.Master(slot), said[address]} {
			if left[node] {
				delete(left, node)
				c.opts.Log.Warn("a master of the cluster was replaced: connections to it are ended",
					zap.String("from", node.Address()), zap.String("to", heir.Address()), zap.Int("connections", node.where.retire()))
			}
		}
	}
}

// Unanswered says that a node has left unanswered for so long what was sent with
// the rights of as. The map is asked for again; to one that isn't a master in the
// present one the connections are ended, since nobody else will.
func (c *Cluster) Unanswered(node *Target, since time.Duration, as Profile) {
	if m := c.current.Load(); m != nil && node != c.seed && m.FirstSlot(node) < 0 && since > landFor {
		node.drop()
	}
	c.Stale(as)
}
