package upstream

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// nodes are the nodes of a cluster that the sidecar has to do with, each by its
// address.
type nodes struct {
	opts     Options
	failures *zap.Logger // of all

	mu    sync.Mutex
	known map[string]*node
}

type node struct {
	target *Target
	seed   bool // it is kept for good
	mapped bool // it is in the map, as a master or as a replica
	used   time.Time
}

const (
	// nodeFor is how long a node is kept that isn't in the map and isn't asked for.
	nodeFor = time.Minute
	// nodesMax bounds those. Clusters have at most some thousand nodes.
	nodesMax = 4096
)

func (n *nodes) init(opts Options, failures *zap.Logger, seeds []string) {
	n.opts, n.failures, n.known = opts, failures, map[string]*node{}
	for _, address := range seeds {
		n.find(address).seed = true
	}
}

// get returns the node at an address.
func (n *nodes) get(address string) *Target {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.find(address).target
}

// find returns the node at an address, with the lock held.
func (n *nodes) find(address string) *node {
	found := n.known[address]
	if found == nil {
		if len(n.known) >= nodesMax {
			n.evict()
		}
		opts := n.opts
		opts.Address = address
		found = &node{target: newTarget(opts, n.failures)}
		n.known[address] = found
	}
	found.used = time.Now()
	return found
}

// evict makes room for a node by forgetting the one of those that aren't in the
// map that wasn't asked for for the longest time.
func (n *nodes) evict() {
	oldest := ""
	for address, one := range n.known {
		if !one.seed && !one.mapped && (oldest == "" || one.used.Before(n.known[oldest].used)) {
			oldest = address
		}
	}
	delete(n.known, oldest)
}

// setMap says which nodes are in the map from now on, and returns their Targets.
func (n *nodes) setMap(addresses map[string]bool) map[string]*Target {
	n.mu.Lock()
	defer n.mu.Unlock()
	for address, one := range n.known {
		if one.mapped && !addresses[address] {
			one.mapped, one.used = false, time.Now()
		}
	}
	targets := make(map[string]*Target, len(addresses))
	for address := range addresses {
		one := n.find(address)
		one.mapped = true
		targets[address] = one.target
	}
	return targets
}

// all returns all nodes, in random order, those of the map first.
func (n *nodes) all() []*Target {
	n.mu.Lock()
	defer n.mu.Unlock()
	var mapped, others []*Target
	for _, one := range n.known {
		if one.mapped {
			mapped = append(mapped, one.target)
		} else {
			others = append(others, one.target)
		}
	}
	shuffle(mapped)
	shuffle(others)
	return append(mapped, others...)
}

// forget forgets the nodes that are of no use any more, and drops what is left of
// connections to them.
func (n *nodes) forget() {
	n.mu.Lock()
	var gone []*Target
	for address, one := range n.known {
		if !one.seed && !one.mapped && time.Since(one.used) > nodeFor {
			delete(n.known, address)
			gone = append(gone, one.target)
		}
	}
	n.mu.Unlock()
	for _, target := range gone {
		target.drop()
	}
}

func shuffle(targets []*Target) {
	rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
}

// inFront returns the targets without repetition, those that come first in front.
func inFront(first, targets []*Target) []*Target {
	ordered := slices.Clone(first)
	for _, target := range targets {
		if !slices.Contains(first, target) {
			ordered = append(ordered, target)
		}
	}
	return ordered
}
