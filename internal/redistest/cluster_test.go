package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The slots of the keys that these tests use.
const (
	slotOfA    = 15495 // "a", "{a}1", …
	slotOfFoo  = 12182 // "foo"
	keysOfSlot = 250   // more than one MIGRATE moves
)

// One cluster goes through all that can be done to it; what was written before
// is there after each step.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{Masters: 3, Replicas: 1, Options: Options{Args: []string{"--requirepass", "s p"}}})
	client := c.Client(t)
	ctx := t.Context()
	for i := range keysOfSlot {
		if err := client.Set(ctx, fmt.Sprint("{a}", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// allThere checks at the owner itself that it has the keys.
	allThere := func(t *testing.T, owner *Server) {
		t.Helper()
		if got := c.OwnerOf(slotOfA); got != owner {
			t.Fatalf("slot of a is at %s, want %s", got.Addr, owner.Addr)
		}
		if n := owner.do("CLUSTER", "COUNTKEYSINSLOT", slotOfA); n != int64(keysOfSlot) {
			t.Fatalf("%v keys at %s, want %d", n, owner.Addr, keysOfSlot)
		}
		await(t, "the client finds the owner", func() error {
			got, err := client.Get(ctx, "{a}7").Result()
			if err == nil && got != "7" {
				t.Fatalf("GET {a}7 = %q, want 7", got)
			}
			return err
		})
	}

	t.Run("slots in equal parts", func(t *testing.T) {
		for i, owner := range c.Masters {
			if first := i * slots / 3; c.OwnerOf(first) != owner || c.OwnerOf((i+1)*slots/3-1) != owner {
				t.Fatalf("master %d doesn't serve its slots", i)
			}
		}
		if n := len(c.Addrs()); n != 6 {
			t.Fatalf("%d addresses, want 6", n)
		}
		allThere(t, c.Masters[2])
	})
	t.Run("move a slot", func(t *testing.T) {
		c.MoveSlot(slotOfA, c.Masters[0])
		allThere(t, c.Masters[0])
	})
	t.Run("stop half-way", func(t *testing.T) {
		from, to := c.Masters[0], c.Masters[1]
		finish := c.BeginMove(slotOfA, to)
		wantError(t, from, "ASK 15495 "+to.Addr, "GET", "a")
		wantError(t, to, "MOVED 15495 "+from.Addr, "GET", "a")
		c.MoveKeys(from, to, "{a}1", "{a}2")
		wantError(t, from, "TRYAGAIN", "MGET", "{a}2", "{a}3")
		finish()
		allThere(t, to)
	})
	t.Run("a master more", func(t *testing.T) {
		added := c.AddMaster()
		c.MoveSlot(slotOfA, added)
		allThere(t, added)
		c.RemoveMaster(added)
		if added.process.running() || len(c.Masters) != 3 {
			t.Fatalf("%s is still there", added.Addr)
		}
		c.MoveSlot(slotOfA, c.Masters[0])
		allThere(t, c.Masters[0])
	})
	t.Run("failover", func(t *testing.T) {
		master, replica := c.Masters[0], c.Replicas[0][0]
		c.Failover(0)
		if c.Masters[0] != replica || c.Replicas[0][0] != master {
			t.Fatal("they didn't change places")
		}
		allThere(t, replica)
	})
	t.Run("a master dies", func(t *testing.T) {
		master, replica := c.Masters[0], c.Replicas[0][0]
		c.KillMaster(0)
		if c.Masters[0] != replica || len(c.Replicas[0]) != 0 {
			t.Fatal("the replica didn't take over")
		}
		allThere(t, replica)
		c.Rejoin(0, master)
		if !slices.Equal(c.Replicas[0], []*Server{master}) {
			t.Fatal("the killed one isn't a replica now")
		}
		if n := master.do("CLUSTER", "COUNTKEYSINSLOT", slotOfA); n != int64(keysOfSlot) {
			t.Fatalf("%v keys at the one that joined again, want %d", n, keysOfSlot)
		}
	})
}

func wantError(t *testing.T, s *Server, prefix string, command ...any) {
	t.Helper()
	if _, err := s.try(command...); err == nil || !strings.HasPrefix(err.Error(), prefix) {
		t.Fatalf("%v at %s: %v, want %s", command, s.Addr, err, prefix)
	}
}

// The server cuts the connection in the middle of a script, after its writes:
// a client that sent it again would count twice.
func TestClusterClientSendsNothingTwice(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{Masters: 1})
	ctx, client := t.Context(), c.Client(t)
	if err := client.Incr(ctx, "n").Err(); err != nil {
		t.Fatal(err)
	}
	// The reply is larger than the server may keep for a client, so that it
	// drops the connection instead of answering.
	c.Masters[0].do("CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 1mb 1")
	err := client.Eval(ctx, `redis.call("INCR", KEYS[1]) return string.rep("x", 4000000)`, []string{"n"}).Err()
	var opErr *net.OpError
	if err == nil || errors.As(err, &opErr) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("an answer that never came: %v", err)
	}
	if n, err := c.Masters[0].Client(t).Get(ctx, "n").Int(); err != nil || n != 2 {
		t.Fatalf("counted %d, %v; want 2", n, err)
	}
}

func TestClusterWithTLS(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{Masters: 2, Replicas: 1, Options: Options{TLS: NewCertificates(t)}})
	ctx, client := t.Context(), c.Client(t)
	if err := client.Set(ctx, "foo", "bar", 0).Err(); err != nil {
		t.Fatal(err)
	}
	c.MoveSlot(slotOfFoo, c.Masters[0])
	if got, err := client.Get(ctx, "foo").Result(); err != nil || got != "bar" {
		t.Fatalf("GET foo = %q, %v; want bar", got, err)
	}
}

func TestReplicaIsInSync(t *testing.T) {
	t.Parallel()
	master := Start(t, Options{Args: []string{"--requirepass", "s p"}})
	master.do("SET", "k", "v")
	replica := StartReplica(t, master, Options{})
	if got := replica.do("GET", "k"); got != "v" {
		t.Fatalf("GET k at the replica: %v, want v", got)
	}
	if err := master.outOfSyncWith(replica); err == nil {
		t.Fatal("the master counts as a replica")
	}
	if err := replica.admin().Set(t.Context(), "k", "w", time.Minute).Err(); !redis.IsReadOnlyError(err) {
		t.Fatalf("SET at the replica: %v, want READONLY", err)
	}
}
