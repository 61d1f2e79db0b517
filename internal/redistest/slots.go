package redistest

import (
	"slices"
)

// migrateBatch is how many keys one MIGRATE moves at most.
const migrateBatch = 100

// MoveSlot moves a slot and its keys to another master, as redis-cli --cluster
// reshard does, also while clients use it. It returns when all nodes know.
func (c *Cluster) MoveSlot(slot int, to *Server) {
	c.t.Helper()
	if from := c.OwnerOf(slot); from != to {
		c.moveSlots([]int{slot}, from, to)
		c.Settle()
	}
}

// BeginMove begins to move a slot to another master, and stops when it is
// migrating: its keys stay where they are, and who asks for a key that isn't
// there is told ASK. MoveKeys moves some of them. finish moves what is left and
// the slot; it returns when all nodes know.
func (c *Cluster) BeginMove(slot int, to *Server) (finish func()) {
	c.t.Helper()
	from := c.OwnerOf(slot)
	if from == to {
		c.t.Fatalf("slot %d is at %s already", slot, to.Addr)
	}
	c.beginMove([]int{slot}, from, to)
	return func() {
		c.t.Helper()
		c.endMove([]int{slot}, from, to)
		c.Settle()
	}
}

// MoveKeys moves keys of a slot for which BeginMove was called.
func (c *Cluster) MoveKeys(from, to *Server, keys ...string) {
	c.t.Helper()
	command := []any{"MIGRATE", "127.0.0.1", to.Port, "", 0, commandTimeout.Milliseconds()}
	if password := c.options.password(); password != "" {
		command = append(command, "AUTH", password)
	}
	command = append(command, "KEYS")
	for _, key := range keys {
		command = append(command, key)
	}
	from.do(command...)
}

func (c *Cluster) moveSlots(moved []int, from, to *Server) {
	c.t.Helper()
	if from == nil {
		c.t.Fatalf("slots %v are served by nobody, so they can't be moved", moved)
	}
	c.beginMove(moved, from, to)
	c.endMove(moved, from, to)
}

// beginMove tells the new owner first, so that it is ready when the old one
// begins to send clients there.
func (c *Cluster) beginMove(moved []int, from, to *Server) {
	c.t.Helper()
	to.setSlots(moved, "IMPORTING", c.id[from])
	from.setSlots(moved, "MIGRATING", c.id[to])
}

func (c *Cluster) endMove(moved []int, from, to *Server) {
	c.t.Helper()
	for i, count := range from.eachSlot(moved, "COUNTKEYSINSLOT") {
		if count.(int64) > 0 {
			c.moveKeysOf(moved[i], from, to)
		}
	}
	// The new owner first, so that no moment is without one; then the others,
	// which would hear of it a little later.
	for _, s := range slices.Concat([]*Server{to, from}, c.Masters) {
		s.setSlots(moved, "NODE", c.id[to])
	}
}

func (c *Cluster) moveKeysOf(slot int, from, to *Server) {
	c.t.Helper()
	for {
		found := from.do("CLUSTER", "GETKEYSINSLOT", slot, migrateBatch).([]any)
		if len(found) == 0 {
			return
		}
		var keys []string
		for _, key := range found {
			keys = append(keys, key.(string))
		}
		c.MoveKeys(from, to, keys...)
	}
}

// setSlots gives every one of the slots a state.
func (s *Server) setSlots(all []int, state, id string) {
	s.t.Helper()
	var commands [][]any
	for _, slot := range all {
		commands = append(commands, []any{"CLUSTER", "SETSLOT", slot, state, id})
	}
	s.doAll(commands, false)
}

// eachSlot asks a CLUSTER subcommand about each of the slots.
func (s *Server) eachSlot(all []int, subcommand string) []any {
	s.t.Helper()
	var commands [][]any
	for _, slot := range all {
		commands = append(commands, []any{"CLUSTER", subcommand, slot})
	}
	return s.doAll(commands, false)
}

// slotsOf are the slots that a master says it serves.
func (c *Cluster) slotsOf(s *Server) []int {
	c.t.Helper()
	view, err := c.view(s)
	if err != nil {
		c.t.Fatalf("asking %s for its slots: %v", s.Addr, err)
	}
	var all []int
	for _, part := range view[c.id[s]].slots {
		for slot, last := bounds(part); slot <= last; slot++ {
			all = append(all, slot)
		}
	}
	return all
}
