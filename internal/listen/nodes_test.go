package listen

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/upstream"
)

// startNodes starts Nodes that end with the test, and checks the record then.
func startNodes(t *testing.T, rdb redis.UniversalClient, r *record, opts Options) *Nodes {
	t.Helper()
	n := StartNodes(rdb, opts)
	t.Cleanup(func() {
		n.Close()
		r.check(t)
		if last := r.all()[r.len()-1]; last.kind == "heard" {
			t.Error("the last callback is a proof")
		}
	})
	return n
}

func TestNodesOfOneServer(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	r := newRecord()
	n := startNodes(t, client(t, upstream.Options{Address: server.Addr}), r, r.options("a"))
	r.waitHeard(t)
	publish(t, server.Client(t), "a", "message")
	r.wait(t, "message", isMessage("message"))
	if err := n.Refused(); err != nil {
		t.Fatal(err)
	}
}

// isHeardSince reports proofs for a time after another.
func isHeardSince(at time.Time) func(call) bool {
	return func(c call) bool { return c.kind == "heard" && c.until.After(at) }
}

// publishAtEach publishes on each master, and checks that what was published there
// comes before a proof of that.
func publishAtEach(t *testing.T, r *record, masters []*redistest.Server, what string) {
	t.Helper()
	for i, server := range masters {
		publisher := server.Client(t)
		for n := range 20 {
			payload := fmt.Sprint(what, " at ", i, ", number ", n)
			publish(t, publisher, "a", payload)
			_, proof := r.waitFrom(t, 0, "proof", isHeardSince(time.Now()))
			if _, came := r.wait(t, payload, isMessage(payload)); came > proof {
				t.Fatalf("%s came as callback %d, after the proof %d", payload, came, proof)
			}
		}
	}
}

func TestNodesOfACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{Masters: 3, Replicas: 1})
	r := newRecord()
	opts := r.options("a")
	opts.LookEvery = 20 * time.Millisecond
	opts.SilenceMax = 2 * time.Second // all of the machine's cores have nodes to run
	startNodes(t, cluster.Client(t), r, opts)
	r.waitHeard(t)
	publishAtEach(t, r, cluster.Masters, "at first")

	t.Run("a master joins and leaves", func(t *testing.T) {
		added := cluster.AddMaster()
		admin := added.Client(t)
		waitConnections(t, admin, 0) // it has no slots
		owner := cluster.OwnerOf(7)
		cluster.MoveSlot(7, added)
		waitConnections(t, admin, 1)
		r.waitHeard(t)
		publishAtEach(t, r, []*redistest.Server{added}, "at the one that joined")
		before := r.len()
		cluster.MoveSlot(7, owner)
		waitConnections(t, admin, 0)
		r.waitFrom(t, before, "loss", isLost)
		r.waitHeard(t)
	})

	t.Run("failover", func(t *testing.T) {
		before := r.len()
		cluster.KillMaster(0)
		r.waitFrom(t, before, "loss", isLost)
		waitConnections(t, cluster.Masters[0].Client(t), 1)
		r.waitHeard(t)
		publishAtEach(t, r, cluster.Masters[:3], "after the failover") // the one without slots is none of those
	})

	t.Run("a master without a successor is waited for", func(t *testing.T) {
		cluster.Replicas[1][0].Kill()
		before := r.len()
		cluster.Masters[1].Kill()
		killed := time.Now()
		r.waitFrom(t, before, "loss", isLost)
		others := cluster.Masters[2].Client(t)
		for n := range 50 {
			payload := fmt.Sprint("meanwhile ", n)
			publish(t, others, "a", payload)
			r.wait(t, payload, isMessage(payload))
		}
		for _, c := range r.all()[before:] {
			if isHeardSince(killed)(c) {
				t.Fatalf("heard until %s without a master that was killed at %s", c.until, killed)
			}
		}
		cluster.Masters[1].Restart()
		r.waitHeard(t)
	})
}
