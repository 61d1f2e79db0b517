package lock

import "sync"

// Ties are the locks that are kept for one client's connection and end with it.
// The zero value is ready for use. It is safe for concurrent use.
type Ties struct {
	mu       sync.Mutex
	reserved int // holds, and those that are being acquired
	holds    map[*hold]struct{}
}

// reserve makes room for n more holds; false when there would be more than most.
func (t *Ties) reserve(n, most int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reserved+n > most {
		return false
	}
	t.reserved += n
	return true
}

// free gives up room that was reserved.
func (t *Ties) free() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reserved--
}

func (t *Ties) add(h *hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holds == nil {
		t.holds = make(map[*hold]struct{})
	}
	t.holds[h] = struct{}{}
}

func (t *Ties) remove(h *hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.holds[h]; ok {
		delete(t.holds, h)
		t.reserved--
	}
}

// all returns the holds there are now.
func (t *Ties) all() []*hold {
	t.mu.Lock()
	defer t.mu.Unlock()
	holds := make([]*hold, 0, len(t.holds))
	for h := range t.holds {
		holds = append(holds, h)
	}
	return holds
}

// Release gives back what is kept, in Redis, and waits for that for about a second
// at most. Where Redis can't do it now, it is tried again in the background until
// what is left has lapsed by itself.
func (t *Ties) Release() {
	var debts []debt
	for _, h := range t.forget() {
		if d, any := h.debt(); any {
			debts = append(debts, d)
		}
	}
	giveBack(debts)
}

// forget ends the renewals, and gives nothing back. It returns the holds that there were.
func (t *Ties) forget() []*hold {
	holds := t.all()
	for _, h := range holds {
		h.end() // all at once: one that is under way can take a while
	}
	for _, h := range holds {
		h.stop()
	}
	return holds
}

// Empty reports whether there are none.
func (t *Ties) Empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.holds) == 0
}

// Need reports whether any of them is kept by l.
func (t *Ties) Need(l *Locker) bool {
	for _, h := range t.all() {
		if h.locker == l {
			return true
		}
	}
	return false
}
