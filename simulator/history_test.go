package simulator

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// history is what was done in an episode, by clients and by the nemesis.
type history struct {
	mu     sync.Mutex
	events []event
	number int // of operations
}

// event is one line: an operation when it has ended, or a fault.
type event struct {
	at   time.Time
	op   *answer // nil for a fault
	text string  // of a fault
}

// did notes an operation that has ended, and numbers it.
func (h *history) did(a *answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.number++
	a.number = h.number
	h.events = append(h.events, event{at: a.end, op: a})
}

// happened notes a fault.
func (h *history) happened(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, event{at: time.Now(), text: fmt.Sprintf(format, args...)})
}

func (h *history) operations() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.number
}

func (e event) String() string {
	if e.op != nil {
		return e.op.String()
	}
	return fmt.Sprintf("       %s -- %s", e.at.Format("15:04:05.000"), e.text)
}

// around returns the last operations that have one of the words among their
// arguments or in their reply, with the faults between them.
func (h *history) around(most int, words ...string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for _, e := range slices.Backward(h.events) {
		if len(lines) == most {
			break
		}
		if e.op == nil || e.op.mentions(words) {
			lines = append(lines, e.String())
		}
	}
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

func (a *answer) mentions(words []string) bool {
	for _, word := range words {
		if slices.Contains(a.args, word) || strings.Contains(shownReply(a.reply), word) {
			return true
		}
		for _, arg := range a.args { // a token tells its SKU
			if strings.HasPrefix(arg, tokenPrefix(word)) {
				return true
			}
		}
	}
	return false
}

// write writes all of it to a file.
func (h *history) write(path string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	w := bufio.NewWriter(file)
	for _, e := range h.events {
		fmt.Fprintln(w, e)
	}
	return w.Flush()
}
