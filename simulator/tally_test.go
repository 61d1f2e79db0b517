package simulator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// tally is what a run has done, over all episodes.
type tally struct {
	episodes, operations int
	faults               map[string]int
	answers              map[string]int // "SECKILL.BUY SOLD_OUT"
}

func newTally() *tally { return &tally{faults: map[string]int{}, answers: map[string]int{}} }

// count adds the answers of an episode.
func (t *tally) count(h *history) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		if e.op == nil {
			continue
		}
		name, _ := strings.CutPrefix(e.op.args[0], "SECKILL.")
		word := e.op.word()
		switch {
		case e.op.err != nil && e.op.sent:
			word = "lost"
		case e.op.err != nil:
			word = "unsent"
		case word == "":
			word = fmt.Sprint(e.op.code())
		}
		t.answers[name+" "+word]++
	}
}

func (t *tally) String() string {
	return fmt.Sprintf("%d episodes, %d operations; faults: %s; answers: %s",
		t.episodes, t.operations, counts(t.faults), counts(t.answers))
}

func counts(m map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, m[name]))
	}
	return strings.Join(parts, ", ")
}
