package proxy

import (
	"sync"
	"time"

	"seckill-proxy/upstream"
)

// This file is the shared lanes to the nodes of a cluster.

// nodeLanes are the connections to all nodes that the sessions of one profile share.
type nodeLanes struct {
	as upstream.Profile

	mu     sync.Mutex
	of     map[*upstream.Target]*laneUse
	closed bool
}

// laneUse is the lanes to a node, and when they were last asked for.
type laneUse struct {
	*lanes
	at time.Time
}

const (
	// When there are lanes to more nodes than this, the nodes may have been replaced
	// by others, and lanes that nobody has asked for in lanesIdle are closed.
	lanesMax  = 64
	lanesIdle = time.Minute
)

// at returns the lanes to a node.
func (n *nodeLanes) at(node *upstream.Target) *lanes {
	now := time.Now()
	n.mu.Lock()
	use := n.of[node]
	var idle []*laneUse
	if use == nil {
		if len(n.of) >= lanesMax {
			idle = n.takeIdle(now)
		}
		use = &laneUse{lanes: newLanes(node, n.as)}
		n.of[node] = use
		if n.closed {
			use.close()
		}
	}
	use.at = now
	n.mu.Unlock()
	for _, use := range idle {
		use.close()
	}
	return use.lanes
}

// takeIdle takes out what hasn't been used for long. It is called with the lock held.
func (n *nodeLanes) takeIdle(now time.Time) (idle []*laneUse) {
	for node, use := range n.of {
		if now.Sub(use.at) > lanesIdle && use.shared.Idle() && use.scripts.Idle() {
			delete(n.of, node)
			idle = append(idle, use)
		}
	}
	return idle
}

func (n *nodeLanes) close() {
	n.mu.Lock()
	n.closed = true
	all := make([]*laneUse, 0, len(n.of))
	for _, use := range n.of {
		all = append(all, use)
	}
	n.mu.Unlock()
	for _, use := range all {
		use.close()
	}
}
