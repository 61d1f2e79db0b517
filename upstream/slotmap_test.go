package upstream

import (
	"bufio"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"seckill-proxy/internal/nettest"
	"seckill-proxy/sharding"
)

// slotsReply is a reply to CLUSTER SLOTS.
func slotsReply(ranges ...[]any) any {
	reply := []any{}
	for _, r := range ranges {
		reply = append(reply, r)
	}
	return reply
}

func slotRange(first, last int64, nodes ...any) []any { return append([]any{first, last}, nodes...) }

func TestLayoutOfClusterSlots(t *testing.T) {
	node := func(host any, port int64, more ...any) []any { return append([]any{host, port, "id"}, more...) }
	l, err := parseLayout(slotsReply(
		slotRange(0, 99, node("10.0.0.1", 7000), node("10.0.0.2", 7001)),
		slotRange(100, 199, node("", 7002)),
		slotRange(200, 299, node(nil, 7003)),
		slotRange(300, 399, node("?", 7004, []any{"ip", "10.0.0.9"})),
		slotRange(400, 400, node("?", 7005, []any{})),
		slotRange(500, 501, node("redis-0.example", 7006, []any{"ip", "10.0.0.9"})),
		slotRange(502, 502, node("::1", 7007), "what"),
	), "10.0.0.5:6379")
	if err != nil {
		t.Fatal(err)
	}
	for slot, want := range map[int]string{
		0: "10.0.0.1:7000", 99: "10.0.0.1:7000", 150: "10.0.0.5:7002", 299: "10.0.0.5:7003", 300: "10.0.0.9:7004",
		400: "10.0.0.5:7005", 401: "", 499: "", 500: "redis-0.example:7006", 502: "[::1]:7007", 503: "", sharding.Slots - 1: "",
	} {
		if l.masters[slot] != want {
			t.Errorf("slot %d: %q, want %q", slot, l.masters[slot], want)
		}
	}
	if got := slices.Sorted(maps.Keys(l.nodes)); len(got) != 8 || !slices.Contains(got, "10.0.0.2:7001") {
		t.Errorf("nodes: %v", got)
	}

	for name, reply := range map[string]any{
		"no array":           "OK",
		"nothing":            []any{},
		"a range of nothing": slotsReply([]any{}),
		"no master":          slotsReply(slotRange(0, 1)),
		"backwards":          slotsReply(slotRange(2, 1, node("a", 1))),
		"below 0":            slotsReply(slotRange(-1, 1, node("a", 1))),
		"too far":            slotsReply(slotRange(0, sharding.Slots, node("a", 1))),
		"no port":            slotsReply(slotRange(0, 1, node("a", 0))),
		"a word for a node":  slotsReply(slotRange(0, 1, "a")),
	} {
		if l, err := parseLayout(reply, "10.0.0.5:6379"); err == nil {
			t.Errorf("%s: %v", name, l.nodes)
		}
	}
}

func TestSlotMap(t *testing.T) {
	a, b := New(Options{Address: "a:1"}), New(Options{Address: "b:1"})
	var served [sharding.Slots]*Target
	served[7], served[8], served[9], served[20] = b, b, a, b
	m := newSlotMap(&served)
	if got := m.Masters(); len(got) != 2 || got[0] != b || got[1] != a || m.FirstSlot(a) != 9 || m.FirstSlot(b) != 7 {
		t.Errorf("masters: %v, first slots %d and %d", got, m.FirstSlot(b), m.FirstSlot(a))
	}
	if m.Master(6) != nil || m.Master(8) != b || m.Master(9) != a || m.Master(20) != b || m.FirstSlot(New(Options{})) != -1 {
		t.Error("another node serves the slots")
	}
	ranges := m.ranges()
	if len(ranges) != 3 || ranges[0].Start != 7 || ranges[0].End != 8 || ranges[1].Nodes[0].Addr != "a:1" || ranges[2].Start != 20 {
		t.Errorf("for go-redis: %+v", ranges)
	}

	moved := m.with(map[int]*Target{9: b})
	if len(moved.Masters()) != 1 || moved.Master(9) != b || m.Master(9) != a {
		t.Errorf("with the slot moved: %v", masters(moved))
	}
	if moved.equal(m) || !moved.with(map[int]*Target{9: a}).equal(m) || m.equal(nil) || m.with(nil) != m {
		t.Error("maps are equal that aren't, or aren't that are")
	}
}

// Nodes that nobody needs are forgotten, those of the map and the seeds are not.
func TestNodesAreForgotten(t *testing.T) {
	var n nodes
	n.init(Options{}, zap.NewNop(), []string{"seed:1"})
	seed, stray := n.get("seed:1"), n.get("stray:1")
	mapped := n.setMap(map[string]bool{"a:1": true, "b:1": true})
	kept := n.setMap(map[string]bool{"a:1": true})
	if kept["a:1"] != mapped["a:1"] || n.get("stray:1") != stray {
		t.Error("a node is another Target now")
	}
	for _, one := range n.known {
		one.used = time.Now().Add(-2 * nodeFor)
	}
	n.forget()
	if got := slices.Sorted(maps.Keys(n.known)); !slices.Equal(got, []string{"a:1", "seed:1"}) {
		t.Errorf("kept: %v", got)
	}
	if n.get("seed:1") != seed || n.get("a:1") != mapped["a:1"] {
		t.Error("a node is another Target now")
	}
	ended := make(chan struct{})
	addr, _ := nettest.Serve(t, func(_ net.Conn, rd *bufio.Reader) {
		_, _ = rd.ReadByte()
		close(ended)
	})
	n.opts = Options{Network: "tcp", DialTimeout: 10 * time.Second}
	conn, err := n.get(addr).Dial(t.Context(), Profile{Protocol: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	n.known[addr].used = time.Now().Add(-2 * nodeFor)
	n.forget()
	<-ended // its connection

	for i := range nodesMax + 10 {
		n.get(string(rune('A'+i)) + ":1")
	}
	if len(n.known) > nodesMax {
		t.Errorf("%d nodes", len(n.known))
	}
	if n.get("seed:1") != seed || n.get("a:1") != mapped["a:1"] {
		t.Error("a node is another Target now")
	}
}
