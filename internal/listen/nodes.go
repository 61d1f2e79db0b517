package listen

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// Nodes is a subscription at all masters of a cluster, or at the one server that
// there is. What scripts publish is heard at the master that ran them, which is
// what a proof is about. The other masters pass it on a little later, so each
// message comes once from each of them.
//
// A master that gets its first slot is listened at as soon as the slot map is seen
// to have it, and nothing is proven from then on until it has proven it too.
// Before, for Options.LookEvery at most, its messages come by way of the others,
// outside of the proof.
type Nodes struct {
	cluster *redis.ClusterClient // nil for one server
	opts    Options

	end   context.CancelFunc
	done  chan struct{}  // closed when run has ended
	again chan struct{}  // holds an entry when the map is to be looked at soon
	left  sync.WaitGroup // the closing of listeners at nodes that have left

	mu      sync.Mutex // held during callbacks, which so come one after the other
	masters map[*redis.Client]*master
	lone    *Listener // at the one server
}

// master is one node that is listened at.
type master struct {
	listener *Listener
	heard    time.Time // all that was published there before; zero while that isn't known
	left     bool      // the map has it no more
}

// StartNodes subscribes in the background. The caller closes the Nodes, and rdb
// after it. The callbacks come one after the other, though from several
// goroutines.
//
// OnHeard is given what holds of all masters. OnLost comes when any of them is
// lost, or leaves. A master is waited for until the slot map has it no more:
// nothing is proven while one that is down has no successor.
func StartNodes(rdb redis.UniversalClient, opts Options) *Nodes {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return &Nodes{lone: Start(rdb, opts)}
	}
	ctx, end := context.WithCancel(context.Background())
	n := &Nodes{
		cluster: cluster, opts: opts.withDefaults(), end: end,
		done: make(chan struct{}), again: make(chan struct{}, 1), masters: make(map[*redis.Client]*master),
	}
	go n.run(ctx)
	return n
}

// Close ends the subscriptions and waits until no callback is running and none
// will come. Attempts to connect can hold it up for ConnectTimeout.
func (n *Nodes) Close() {
	if n.cluster == nil {
		n.lone.Close()
		return
	}
	n.end()
	<-n.done
	for _, m := range n.masters {
		n.left.Go(m.listener.Close)
	}
	n.left.Wait()
}

// Refused is Listener.Refused of a master that refuses, if there is one.
func (n *Nodes) Refused() error {
	if n.cluster == nil {
		return n.lone.Refused()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.masters {
		if err := m.listener.Refused(); err != nil {
			return err
		}
	}
	return nil
}

// run follows the slot map until ctx ends.
func (n *Nodes) run(ctx context.Context) {
	defer close(n.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.again:
			sleep(ctx, n.opts.BackoffMin)
		case <-timer.C:
		}
		if now, err := n.look(ctx); err == nil {
			n.follow(now)
		}
		timer.Reset(n.opts.LookEvery)
	}
}

// look asks the cluster for its masters. When it doesn't answer, go-redis returns
// those that it was last told of.
func (n *Nodes) look(ctx context.Context) (now map[*redis.Client]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.opts.ConnectTimeout)
	defer cancel()
	var mu sync.Mutex
	now = make(map[*redis.Client]bool)
	err = n.cluster.ForEachMaster(ctx, func(_ context.Context, rdb *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		now[rdb] = true
		return nil
	})
	return now, err
}

// follow makes the masters that are listened at those that there are now.
func (n *Nodes) follow(now map[*redis.Client]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for rdb := range now { // first, so that nothing is proven without them
		if n.masters[rdb] == nil {
			n.join(rdb)
		}
	}
	for rdb, m := range n.masters {
		if !now[rdb] {
			n.leave(rdb, m)
		}
	}
}

// join begins to listen at a master. The caller holds mu.
func (n *Nodes) join(rdb *redis.Client) {
	m := &master{}
	opts := n.opts
	opts.OnMessage = n.message
	opts.OnHeard = func(until time.Time) { n.heard(m, until) }
	opts.OnLost = func() { n.lost(m) }
	opts.Log = n.opts.Log.With(zap.String("node", rdb.Options().Addr))
	m.listener = Start(rdb, opts)
	n.masters[rdb] = m
}

// leave ends to listen at a master. What it published last may not have come. The
// caller holds mu.
func (n *Nodes) leave(rdb *redis.Client, m *master) {
	delete(n.masters, rdb)
	m.left = true
	n.opts.OnLost()
	n.left.Go(m.listener.Close)
}

func (n *Nodes) message(channel, payload string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opts.OnMessage(channel, payload)
}

// heard notes the proof of one master, and tells what all have proven.
func (n *Nodes) heard(m *master, until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.left {
		return
	}
	m.heard = until
	for _, other := range n.masters {
		if other.heard.Before(until) {
			until = other.heard
		}
	}
	if !until.IsZero() {
		n.opts.OnHeard(until)
	}
}

// lost notes that a master may have published what didn't come. It may be a master
// no more, too.
func (n *Nodes) lost(m *master) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.left {
		return
	}
	m.heard = time.Time{}
	n.opts.OnLost()
	select {
	case n.again <- struct{}{}:
	default:
	}
}
