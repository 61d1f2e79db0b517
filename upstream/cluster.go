package upstream

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"seckill-proxy/sharding"
)

// Cluster is a Redis Cluster: a Target for each node, and which of them serves
// which slot. It is safe for concurrent use.
//
// The map is asked for when it is first needed, again when somebody says that it
// is wrong, and by itself from time to time. Where no user is configured that
// needs the rights of a client; the identity that was last allowed to is
// remembered for what is done in the background.
type Cluster struct {
	opts  Options // of every node, but for the address
	seeds []string
	seed  *Target
	nodes nodes

	every time.Duration // between refreshes that nobody asked for

	end     context.CancelFunc
	running sync.WaitGroup // keep
	wake    chan struct{}  // holds one

	asking chan struct{} // holds one while somebody asks for the map or the table

	current known[SlotMap]
	table   known[CommandTable]

	mu          sync.Mutex
	layout      *layout         // what a node said last, nil before
	moved       map[int]*Target // by MOVED since the refresh under way began
	mapAsker    asker
	tableAsker  asker
	tableMissed bool // a command wasn't in the table
	tableAsked  time.Time
	hint        string // the node to ask first, "" for any
}

const (
	clusterEvery = 10 * time.Second // a refresh that nobody asked for

	// After a refresh, the next one waits. Longer and longer, while they bring
	// nothing new: a failover takes seconds, in which every command says that the
	// map is wrong.
	refreshPauseMin = 50 * time.Millisecond
	refreshPauseMax = time.Second

	// tableEvery is how often commands that aren't in the table make it be asked
	// for again: a module may have been loaded.
	tableEvery = 3 * time.Second
)

// asker is with whose rights something is asked of Redis in the background.
type asker struct {
	allowed bool     // id was allowed to ask
	id      Identity // else: who wants to know
}

// NewCluster returns a Cluster that is found by way of any of the seeds
// (host:port). Each node is dialed with opts; their Network and Address aren't
// used. It doesn't connect. The caller closes it.
func NewCluster(opts Options, seeds []string) *Cluster { return newCluster(opts, seeds, clusterEvery) }

func newCluster(opts Options, seeds []string, every time.Duration) *Cluster {
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	opts.Network = "tcp"
	c := &Cluster{
		opts:   opts,
		seeds:  seeds,
		every:  every,
		wake:   make(chan struct{}, 1),
		asking: make(chan struct{}, 1),
	}
	nodeOpts := opts
	opts.Address = strings.Join(seeds, ",")
	c.seed = New(opts)
	c.seed.reach = c.reach
	c.nodes.init(nodeOpts, c.seed.failures, seeds)
	ctx, end := context.WithCancel(context.Background())
	c.end = end
	c.running.Go(func() { c.keep(ctx) })
	return c
}

// Close ends the Cluster's goroutines and waits for their end. Connections and
// clients that were made by way of it are not closed.
func (c *Cluster) Close() {
	c.end()
	c.running.Wait()
}

// Seed is a Target that dials any node that answers: a master of the map when
// there is one.
func (c *Cluster) Seed() *Target { return c.seed }

// Node returns the Target of a node (host:port), also of one that isn't in the
// map. It is the same one as long as the node is in the map, or asked for within
// a minute.
func (c *Cluster) Node(addr string) *Target { return c.nodes.get(addr) }

// Map returns the present slot map; where there is none yet, it asks a node for
// it with the rights of as. Errors wrap ErrDown, or are Redis's own refusal (a
// redis.Error), or that of ctx. An error is repeated for a moment without asking.
func (c *Cluster) Map(ctx context.Context, as Profile) (*SlotMap, error) {
	return c.current.get(ctx, c.asking, as.Identity, c.askMap)
}

// Commands returns where the keys of commands are; the first time it asks a node
// with the rights of as. Errors are those of Map.
func (c *Cluster) Commands(ctx context.Context, as Profile) (*CommandTable, error) {
	return c.table.get(ctx, c.asking, as.Identity, c.askTable)
}

// Moved notes what a MOVED said: addr (host:port; without a host, that of the
// node that served the slot before) serves the slot. That takes effect at once,
// and the whole map is asked for again soon, in the background.
func (c *Cluster) Moved(slot int, addr string, as Profile) {
	if slot < 0 || slot >= sharding.Slots {
		return
	}
	c.mu.Lock()
	if m := c.current.Load(); m != nil {
		before := m.Master(slot)
		if host, port, err := net.SplitHostPort(addr); err == nil && host == "" && before != nil {
			host, _, _ = net.SplitHostPort(before.Address())
			addr = net.JoinHostPort(host, port)
		}
		if target := c.nodes.get(addr); target != before {
			target.restore()
			moved := map[int]*Target{slot: target}
			c.current.Store(m.with(moved))
			if c.moved != nil {
				c.moved[slot] = target
			}
		}
	}
	c.hint = addr
	c.mu.Unlock()
	c.Stale(as)
}

// Stale says that the map may be wrong, since a node can't be reached or refuses
// what it should serve: it is asked for again soon, in the background.
func (c *Cluster) Stale(as Profile) {
	c.mu.Lock()
	if !c.mapAsker.allowed {
		c.mapAsker.id = as.Identity
	}
	c.mu.Unlock()
	c.awake()
}

// missed is what a table says in which a command isn't.
func (c *Cluster) missed() {
	c.mu.Lock()
	again := !c.tableMissed && time.Since(c.tableAsked) > tableEvery
	c.tableMissed = c.tableMissed || again
	c.mu.Unlock()
	if again {
		c.awake()
	}
}

func (c *Cluster) awake() {
	select {
	case c.wake <- struct{}{}:
	default: // it will wake already
	}
}

// keep refreshes what is known of the cluster until ctx ends.
func (c *Cluster) keep(ctx context.Context) {
	ticker := time.NewTicker(c.every)
	defer ticker.Stop()
	pause := refreshPauseMin
	for {
		wanted := true
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-ticker.C:
			wanted = false
		}
		if changed := c.refresh(ctx, wanted); changed || !wanted {
			pause = refreshPauseMin
		}
		sleep(ctx, pause)
		pause = min(2*pause, refreshPauseMax)
	}
}

// refresh asks again for what is known of the cluster, if anybody may, and
// reports whether the map is another one now. Of failures the log hears, no more:
// an old map is better than none.
func (c *Cluster) refresh(ctx context.Context, wanted bool) (changed bool) {
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return false
	}
	before := c.current.Load()
	c.mu.Lock()
	forMap, forTable, missed := c.mapAsker, c.tableAsker, c.tableMissed
	c.mu.Unlock()
	if forMap.allowed || wanted {
		c.log("the map of the cluster couldn't be asked for again", c.askMap(ctx, forMap.id))
	}
	if missed {
		err := c.askTable(ctx, forTable.id)
		if IsDenial(err) {
			err = c.askTable(ctx, forMap.id)
		}
		c.log("the commands of the cluster couldn't be asked for again", err)
	}
	c.nodes.forget()
	return before != c.current.Load()
}

// log logs a failure in the background, not all of many.
func (c *Cluster) log(failure string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		c.seed.failures.Warn(failure, zap.Error(err))
	}
}

// sleep waits, at the longest until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
