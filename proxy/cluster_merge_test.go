package proxy

import (
	"net"
	"strconv"
	"testing"

	"seckill-proxy/upstream"
)

// What nodes said counts as kept for the client until one reply was made of it.
func TestRepliesCountWhileTheyAreMerged(t *testing.T) {
	conn, client := net.Pipe()
	defer conn.Close()
	defer client.Close()
	limits := &outboxLimits{client: 1 << 20, total: 1 << 20}
	s := &session{out: newOutbox(conn, limits)}
	c := newCalls(s)
	var merging int64
	e := c.newMerged(2, func(replies [][]byte) []byte {
		merging = limits.kept.Load()
		return nil
	})
	e.add(nil, 1, nil)
	e.add(nil, 2, nil)
	for i := range e.parts {
		e.parts[i].keep(make([]byte, 1000))
	}
	e.merged()
	if merging != 2000 {
		t.Errorf("%d bytes count while 2000 are merged", merging)
	}
	if left := limits.kept.Load(); left != 0 {
		t.Errorf("%d bytes still count when they are merged", left)
	}
}

// Masters have numbers that differ, in order, and don't depend on the order in which
// their slots are.
func TestTheOrderOfAScan(t *testing.T) {
	var masters, reversed []*upstream.Target
	for i := range 2000 { // some have the same hash
		masters = append(masters, upstream.New(upstream.Options{Network: "tcp", Address: "node" + strconv.Itoa(i) + ":6379"}))
	}
	for i := range masters {
		reversed = append(reversed, masters[len(masters)-1-i])
	}
	order, other := scanOrder(masters), scanOrder(reversed)
	if len(order) != len(masters) {
		t.Fatalf("%d of %d masters have a number", len(order), len(masters))
	}
	for i, n := range order {
		if n != other[i] {
			t.Errorf("master %d is %v in one order and %v in another", i, n, other[i])
		}
		if n.number < 1 || n.number >= 1<<cursorBits || i > 0 && n.number <= order[i-1].number {
			t.Fatalf("master %d has the number %d", i, n.number)
		}
	}
	// Masters that come and go change nothing for others, but for those with the same hash.
	full := scanOrder(masters[:3])
	for i := range full {
		if alone := scanOrder([]*upstream.Target{full[i].node}); alone[0].number != full[i].number {
			t.Errorf("a master has the number %d alone and %d among others", alone[0].number, full[i].number)
		}
	}
}
