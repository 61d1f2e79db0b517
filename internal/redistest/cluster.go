package redistest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots is how many hash slots a cluster has.
const slots = 16384

// ClusterOptions of a cluster.
type ClusterOptions struct {
	Masters  int
	Replicas int // of each master
	Options      // of every node
}

// Cluster is a running Redis Cluster. Its methods end the test when something
// goes wrong. They change Masters and Replicas, so all of it is used by the
// test's own goroutine alone, which may not have paused a node meanwhile.
type Cluster struct {
	Masters  []*Server
	Replicas [][]*Server // Replicas[i] are those of Masters[i]

	t       testing.TB
	options Options
	busPort map[*Server]int
	id      map[*Server]string
}

// StartCluster starts a cluster whose masters have equal parts of the slots. It
// returns when every node knows all others and their slots, finds the cluster
// in order, and the replicas are in sync. A node counts as failed after 2 s
// ("--cluster-node-timeout" in Args changes that).
func StartCluster(t testing.TB, o ClusterOptions) *Cluster {
	t.Helper()
	c := &Cluster{t: t, options: o.Options, busPort: map[*Server]int{}, id: map[*Server]string{}}
	for range o.Masters {
		c.Masters = append(c.Masters, c.start(writeReplicaOfNobody))
		c.Replicas = append(c.Replicas, nil)
	}
	for i, s := range c.Masters {
		c.makeMaster(s, i+1, i*slots/o.Masters, (i+1)*slots/o.Masters-1)
	}
	for i := range c.Masters {
		for range o.Replicas {
			c.Replicas[i] = append(c.Replicas[i], c.start(noNodes))
		}
	}
	c.meet()
	for i, replicas := range c.Replicas {
		for _, s := range replicas {
			c.replicate(s, c.Masters[i])
		}
	}
	c.Settle()
	for _, s := range c.Masters {
		s.do("CONFIG", "SET", "cluster-require-full-coverage", "yes")
	}
	c.Settle()
	return c
}

// Addrs are the addresses of all nodes, masters first.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, s := range c.nodes() {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// Client returns a client of the cluster that follows MOVED and ASK, and never
// sends a command twice that may have been executed. For a moment after a change
// it may still go to a node that is gone, and fail. It is closed when the test t
// ends.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:      c.Addrs(),
		Password:   c.options.password(),
		MaxRetries: -1,
		Dialer:     c.dialOnce,
		// By itself it would hold on to a node that is gone for a minute.
		ClusterStateReloadInterval: 50 * time.Millisecond,
		// After so many failed dials it would leave a goroutine behind for a second.
		PoolSize: 1000,
	})
	t.Cleanup(func() {
		if err := client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("closing the client of the cluster: %v", err)
		}
	})
	return client
}

// dialOnce opens a connection whose failures go-redis doesn't take for such
// that allow it to send a command again.
func (c *Cluster) dialOnce(ctx context.Context, network, addr string) (net.Conn, error) {
	s := Server{Addr: addr, options: c.options}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	if tcp, isTCP := conn.(*net.TCPConn); isTCP {
		return onceTCP{tcp}, nil
	}
	return onceTLS{conn}, nil
}

// onceTCP stays a connection of which go-redis can see that it has ended.
type onceTCP struct{ *net.TCPConn }

func (c onceTCP) Read(p []byte) (int, error)  { return once(c.TCPConn.Read(p)) }
func (c onceTCP) Write(p []byte) (int, error) { return once(c.TCPConn.Write(p)) }

// The copies would hand out the errors of the connection itself.
func (c onceTCP) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{c}, r) }
func (c onceTCP) WriteTo(w io.Writer) (int64, error)  { return io.Copy(w, struct{ io.Reader }{c}) }

type onceTLS struct{ net.Conn }

func (c onceTLS) Read(p []byte) (int, error)  { return once(c.Conn.Read(p)) }
func (c onceTLS) Write(p []byte) (int, error) { return once(c.Conn.Write(p)) }

// once hides what kind of error it is.
func once(n int, err error) (int, error) {
	if err != nil {
		err = errors.New("connection lost: " + err.Error())
	}
	return n, err
}

// Settle returns when every node sees Masters and Replicas as they are here,
// all agree about the slots and find the cluster in order, and the replicas are
// in sync.
func (c *Cluster) Settle() {
	c.t.Helper()
	await(c.t, "the cluster agrees", c.disagreement)
}

// OwnerOf returns the master that serves a slot; nil when there is none.
func (c *Cluster) OwnerOf(slot int) *Server {
	c.t.Helper()
	view, err := c.view(c.Masters[0])
	if err != nil {
		c.t.Fatalf("asking %s for the cluster's nodes: %v", c.Masters[0].Addr, err)
	}
	for _, s := range c.Masters {
		if view[c.id[s]].serves(slot) {
			return s
		}
	}
	return nil
}

// AddMaster starts a master without slots that all nodes know.
func (c *Cluster) AddMaster() *Server {
	c.t.Helper()
	s := c.start(noNodes)
	c.Masters, c.Replicas = append(c.Masters, s), append(c.Replicas, nil)
	c.meet()
	c.Settle()
	return s
}

// RemoveMaster moves the slots of a master to the other masters, lets all other
// nodes forget it and its replicas, and kills these.
func (c *Cluster) RemoveMaster(s *Server) {
	c.t.Helper()
	at := slices.Index(c.Masters, s)
	if at < 0 || len(c.Masters) == 1 {
		c.t.Fatalf("%s can't be removed: it isn't a master, or it is the only one", s.Addr)
	}
	gone := append([]*Server{s}, c.Replicas[at]...)
	others := slices.Delete(slices.Clone(c.Masters), at, at+1)
	owned := c.slotsOf(s)
	for i, to := range others {
		c.moveSlots(owned[i*len(owned)/len(others):(i+1)*len(owned)/len(others)], s, to)
	}
	c.Settle()
	c.Masters, c.Replicas = others, slices.Delete(c.Replicas, at, at+1)
	for _, node := range gone {
		node.Kill()
	}
	for _, node := range c.nodes() {
		for _, dead := range gone {
			node.do("CLUSTER", "FORGET", c.id[dead])
		}
	}
	c.Settle()
}

// Failover makes Replicas[i][0] the master, in order and without loss, as
// CLUSTER FAILOVER does; it and Masters[i] change places.
func (c *Cluster) Failover(i int) {
	c.t.Helper()
	replica := c.Replicas[i][0]
	// One attempt may take 5 s at most, says Redis, and is over then.
	var asked time.Time
	await(c.t, "failover to "+replica.Addr, func() error {
		if view, err := c.view(replica); err != nil || view[c.id[replica]].isMaster() {
			return err
		}
		if time.Since(asked) > 6*time.Second {
			asked = time.Now()
			if _, err := replica.try("CLUSTER", "FAILOVER"); err != nil {
				return err
			}
		}
		return errors.New("it is still a replica")
	})
	c.Masters[i], c.Replicas[i][0] = replica, c.Masters[i]
	c.Settle()
}

// KillMaster kills Masters[i] with SIGKILL and returns when one of its replicas
// has taken its place in Masters and left Replicas. The killed one is in
// neither; see Rejoin.
func (c *Cluster) KillMaster(i int) {
	c.t.Helper()
	if len(c.Replicas[i]) == 0 {
		c.t.Fatalf("master %d has no replica that could take over", i)
	}
	c.Masters[i].Kill()
	await(c.t, "a replica of "+c.Masters[i].Addr+" takes over", func() error {
		for at, s := range c.Replicas[i] {
			view, err := c.view(s)
			if err != nil {
				return err
			}
			if view[c.id[s]].isMaster() {
				c.Masters[i], c.Replicas[i] = s, slices.Delete(c.Replicas[i], at, at+1)
				return nil
			}
		}
		return errors.New("all are still replicas")
	})
	c.Settle()
}

// Rejoin starts a killed master again and returns when it is the last replica
// of Masters[i], in sync.
func (c *Cluster) Rejoin(i int, killed *Server) {
	c.t.Helper()
	killed.Restart()
	c.Replicas[i] = append(c.Replicas[i], killed)
	c.Settle()
}

// nodes are all nodes, masters first.
func (c *Cluster) nodes() []*Server {
	return append(slices.Clone(c.Masters), slices.Concat(c.Replicas...)...)
}

// start starts a node with an id. writeNodes writes what the node knows about
// its cluster when it starts.
func (c *Cluster) start(writeNodes func(s *Server, busPort int, id string) error) *Server {
	c.t.Helper()
	id := nodeID()
	var busPort int
	s := launch(c.t, c.options, func(s *Server) []string {
		busPort = freePort(c.t)
		if err := writeNodes(s, busPort, id); err != nil {
			c.t.Fatal(err)
		}
		return []string{
			"--cluster-enabled", "yes",
			"--cluster-config-file", nodesFile,
			"--cluster-port", strconv.Itoa(busPort),
			"--cluster-announce-ip", "127.0.0.1",
			"--cluster-node-timeout", "2000",
			"--cluster-replica-validity-factor", "0", // a replica may always take over
			"--cluster-allow-replica-migration", "no", // and stays with its master
		}
	})
	c.busPort[s], c.id[s] = busPort, s.do("CLUSTER", "MYID").(string)
	return s
}

const nodesFile = "nodes.conf"

// noNodes lets a node begin as a master of its own, as Redis does by itself.
func noNodes(*Server, int, string) error { return nil }

// writeReplicaOfNobody lets a node begin as the replica of a master that
// doesn't exist and has all slots. For such a node the cluster is in order at
// once, while one that begins as a master waits for 2 s (CLUSTER_WRITABLE_DELAY).
func writeReplicaOfNobody(s *Server, busPort int, id string) error {
	nobody := nodeID()
	text := fmt.Sprintf(`%s 127.0.0.1:%d@%d myself,slave %s 0 0 0 connected
%s 127.0.0.1:1@2 master - 0 0 1 connected 0-%d
vars currentEpoch 1 lastVoteEpoch 0
`, id, s.Port, busPort, nobody, nobody, slots-1)
	return os.WriteFile(filepath.Join(s.Dir, nodesFile), []byte(text), 0o600)
}

// makeMaster turns a replica of nobody into a master with slots, in one step:
// the node must not see a cluster that isn't in order, or it would wait.
func (c *Cluster) makeMaster(s *Server, epoch, firstSlot, lastSlot int) {
	c.t.Helper()
	await(c.t, "the first state of "+s.Addr, s.clusterOK)
	s.do("CONFIG", "SET", "cluster-require-full-coverage", "no")
	s.doAll([][]any{
		{"CLUSTER", "RESET", "SOFT"},
		{"CLUSTER", "SET-CONFIG-EPOCH", epoch},
		{"CLUSTER", "ADDSLOTSRANGE", firstSlot, lastSlot},
	}, true)
}

// meet lets every node know every other, and returns when they do.
func (c *Cluster) meet() {
	c.t.Helper()
	nodes := c.nodes()
	for i, s := range nodes {
		for _, other := range nodes[:i] {
			s.do("CLUSTER", "MEET", "127.0.0.1", other.Port, c.busPort[other])
		}
	}
	await(c.t, "the nodes know each other", func() error {
		for _, s := range nodes {
			if err := c.unknownTo(s); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *Cluster) unknownTo(s *Server) error {
	view, err := c.view(s)
	if err != nil {
		return err
	}
	for _, other := range c.nodes() {
		if node, known := view[c.id[other]]; !known || !node.connected {
			return fmt.Errorf("%s isn't connected to %s", s.Addr, other.Addr)
		}
	}
	return nil
}

func (c *Cluster) replicate(s, master *Server) {
	c.t.Helper()
	s.do("CLUSTER", "REPLICATE", c.id[master])
}

// disagreement says what isn't yet as Settle wants it.
func (c *Cluster) disagreement() error {
	var slotsOf map[*Server]string
	for _, s := range c.nodes() {
		if err := s.clusterOK(); err != nil {
			return err
		}
		view, err := c.view(s)
		if err != nil {
			return err
		}
		seen, err := c.compare(view)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Addr, err)
		}
		if slotsOf == nil {
			slotsOf = seen
		}
		for master, served := range seen {
			if served != slotsOf[master] {
				return fmt.Errorf("%s gives %s the slots %q, another %q", s.Addr, master.Addr, served, slotsOf[master])
			}
		}
	}
	return c.outOfSync()
}

// compare says where a node sees the roles differently, or returns the slots
// that it gives each master.
func (c *Cluster) compare(view map[string]node) (map[*Server]string, error) {
	slotsOf := map[*Server]string{}
	for i, master := range c.Masters {
		seen := view[c.id[master]]
		if !seen.alive() || !seen.isMaster() {
			return nil, fmt.Errorf("%s isn't a living master: %+v", master.Addr, seen)
		}
		slotsOf[master] = strings.Join(seen.slots, " ")
		for _, replica := range c.Replicas[i] {
			if seen := view[c.id[replica]]; !seen.alive() || seen.master != c.id[master] {
				return nil, fmt.Errorf("%s isn't a living replica of %s: %+v", replica.Addr, master.Addr, seen)
			}
		}
	}
	return slotsOf, nil
}

func (c *Cluster) outOfSync() error {
	for i, master := range c.Masters {
		for _, replica := range c.Replicas[i] {
			if err := replica.outOfSyncWith(master); err != nil {
				return err
			}
		}
	}
	return nil
}

// clusterOK says whether the node finds the cluster in order.
func (s *Server) clusterOK() error {
	info, err := s.info("CLUSTER", "INFO")
	if err != nil {
		return err
	}
	if state := info["cluster_state"]; state != "ok" {
		return fmt.Errorf("%s: cluster_state is %q", s.Addr, state)
	}
	return nil
}

// node is one node as another sees it. The zero value is one that isn't known.
type node struct {
	addr      string
	flags     []string
	master    string // id of its master; "-" for a master
	connected bool
	slots     []string // "0-5460", "7000"
}

func (n node) isMaster() bool { return slices.Contains(n.flags, "master") }

// alive tells whether the node is known, reachable and not suspected of having
// failed.
func (n node) alive() bool {
	return n.connected && !slices.ContainsFunc(n.flags, func(flag string) bool {
		return strings.HasPrefix(flag, "fail") || flag == "handshake" || flag == "noaddr"
	})
}

func (n node) serves(slot int) bool {
	return slices.ContainsFunc(n.slots, func(part string) bool {
		first, last := bounds(part)
		return first <= slot && slot <= last
	})
}

// bounds takes "0-5460" or "7000" apart.
func bounds(part string) (first, last int) {
	from, to, isRange := strings.Cut(part, "-")
	if !isRange {
		to = from
	}
	first, _ = strconv.Atoi(from)
	last, _ = strconv.Atoi(to)
	return first, last
}

// view asks a node what it knows of the cluster, by id.
func (c *Cluster) view(s *Server) (map[string]node, error) {
	reply, err := s.try("CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	view := map[string]node{}
	for line := range strings.Lines(reply.(string)) {
		// id ip:port@cport flags master ping-sent pong-recv config-epoch link-state slot...
		fields := strings.Fields(line)
		if len(fields) < 8 {
			return nil, fmt.Errorf("%s: CLUSTER NODES has a line %q", s.Addr, line)
		}
		addr, _, _ := strings.Cut(fields[1], "@")
		flags := strings.Split(fields[2], ",")
		served := slices.DeleteFunc(fields[8:], func(part string) bool { return strings.HasPrefix(part, "[") })
		view[fields[0]] = node{addr, flags, fields[3], fields[7] == "connected", served}
	}
	return view, nil
}

// nodeID makes up the id of a node or a sentinel.
func nodeID() string {
	id := make([]byte, 20)
	rand.Read(id) // never fails
	return hex.EncodeToString(id)
}
