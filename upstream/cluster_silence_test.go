package upstream

import (
	"errors"
	"net"
	"testing"
	"time"

	"seckill-proxy/internal/nettest"
	"seckill-proxy/sharding"
)

func TestAMasterThatIsReplacedIsCutOff(t *testing.T) {
	t.Parallel()
	const a, b, replica, added = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"
	for name, test := range map[string]struct {
		moved   map[int]string // what MOVED said before
		masters [2]string      // of the two ranges in the new map
		retired bool           // a is
	}{
		"nothing changes":                       {masters: [2]string{a, b}},
		"its replica has its slots":             {masters: [2]string{replica, b}, retired: true},
		"as a MOVED said":                       {moved: map[int]string{0: replica}, masters: [2]string{replica, b}, retired: true},
		"another master has its slots":          {masters: [2]string{b, b}},
		"a new master has them":                 {masters: [2]string{added, b}},
		"it has those of another":               {masters: [2]string{b, a}},
		"what a MOVED gave it goes back":        {moved: map[int]string{200: a}, masters: [2]string{a, b}},
		"what a MOVED gave its replica returns": {moved: map[int]string{0: replica}, masters: [2]string{a, b}},
	} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, clusterOptions(), nettest.Dead(t))
			node := func(address string) any {
				_, port, _ := net.SplitHostPort(address)
				return []any{"127.0.0.1", int64(port[0] - '0'), "id"}
			}
			first, err := parseLayout(slotsReply(slotRange(0, 99, node(a), node(replica)), slotRange(100, 299, node(b))), "127.0.0.1:5")
			if err != nil {
				t.Fatal(err)
			}
			mapOf := func(masters [2]string) *SlotMap {
				var served [sharding.Slots]*Target
				for slot := range 300 {
					served[slot] = c.Node(masters[min(slot/100, 1)])
				}
				return newSlotMap(&served)
			}
			moved := map[int]*Target{}
			for slot, address := range test.moved {
				moved[slot] = c.Node(address)
			}
			c.mu.Lock()
			c.layout = first
			c.retireReplaced(mapOf([2]string{a, b}).with(moved), mapOf(test.masters))
			c.mu.Unlock()
			for address, want := range map[string]bool{a: test.retired, b: false, replica: false, added: false} {
				if got := c.Node(address).where.isRetired(); got != want {
					t.Errorf("%s is cut off: %v, want %v", address, got, want)
				}
			}
		})
	}
}

func TestWhoIsCutOffIsNotDialed(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	c := startCluster(t, clusterOptions(), ln.Addr().String())
	node := c.Node(ln.Addr().String())
	dial := func() net.Conn {
		t.Helper()
		conn, err := node.Dial(t.Context(), node.Profile())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	wantOpen := func(conn net.Conn, want bool) {
		t.Helper()
		node.where.mu.Lock()
		open := len(node.where.open) > 0
		node.where.mu.Unlock()
		if open != want {
			t.Errorf("the connection is open: %v, want %v", open, want)
		}
		if !want {
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Error("something was read from it")
			}
		}
	}

	conn := dial()
	node.where.retire()
	wantOpen(conn, false)
	if _, err := node.Dial(t.Context(), node.Profile()); !errors.Is(err, ErrDown) {
		t.Errorf("Dial of a node that was replaced: %v", err)
	}
	if _, err := node.ask(t.Context(), Identity{}, "PING"); !errors.Is(err, errRetired) {
		t.Errorf("asking a node that was replaced: %v", err)
	}
	node.restore()

	// One that isn't a master has a moment to answer.
	conn = dial()
	other := [sharding.Slots]*Target{c.Node(nettest.Dead(t))}
	c.current.Store(newSlotMap(&other))
	c.Unanswered(node, landFor/2, Profile{})
	wantOpen(conn, true)
	c.Unanswered(node, landFor+time.Millisecond, Profile{})
	wantOpen(conn, false)

	// A master may take as long as it likes.
	conn = dial()
	c.Moved(0, node.Address(), Profile{})
	c.Unanswered(node, time.Hour, Profile{})
	wantOpen(conn, true)
}
