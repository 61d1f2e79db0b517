package simulator

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// answer is what became of one command.
type answer struct {
	args       []string
	start, end time.Time
	client     string
	sidecar    string
	number     int // in the history

	sent  bool  // at least one byte may have left
	err   error // why there is no reply, nil where there is one
	reply any   // int64, string, []any, map as []any, nil, or errorReply
}

// errorReply is a RESP error.
type errorReply string

// array is the reply of a custom command, nil where there is none.
func (a *answer) array() []any {
	array, _ := a.reply.([]any)
	return array
}

// code is the first element of the reply, 0 where there is none.
func (a *answer) code() int64 { return a.integer(0) }

// word is the second element of the reply, "" where there is none.
func (a *answer) word() string { return a.text(1) }

func (a *answer) text(i int) string {
	if array := a.array(); i < len(array) {
		text, _ := array[i].(string)
		return text
	}
	return ""
}

func (a *answer) integer(i int) int64 {
	if array := a.array(); i < len(array) {
		n, _ := array[i].(int64)
		return n
	}
	return 0
}

// fields are a map at a place in the reply, over either protocol.
func (a *answer) fields(i int) map[string]any {
	fields := map[string]any{}
	array := a.array()
	if i >= len(array) {
		return fields
	}
	pairs, _ := array[i].([]any)
	for j := 0; j+1 < len(pairs); j += 2 {
		fields[fmt.Sprint(pairs[j])] = pairs[j+1]
	}
	return fields
}

// unknown reports that the command may have been carried out or not.
func (a *answer) unknown() bool { return a.err != nil && a.sent || a.code() == 202 }

// refused reports that it certainly wasn't carried out, for a reason that passes.
func (a *answer) refused() bool { return a.err != nil && !a.sent || a.code() == 503 }

// inTime reports that t (Unix milliseconds) may be the Redis time of the moment
// at which the command was carried out.
func (a *answer) inTime(t int64) bool {
	return t >= a.start.UnixMilli()-clockSlack && t <= a.end.UnixMilli()+clockSlack
}

// clockSlack is how many milliseconds Redis's clock and this process's may be
// apart. They are one; both are cut to milliseconds.
const clockSlack = 2

func (a *answer) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6d %s..%s %s>%s", a.number, a.start.Format("15:04:05.000"), a.end.Format("05.000"), a.client, a.sidecar)
	for _, arg := range a.args {
		fmt.Fprintf(&b, " %s", shown(arg))
	}
	switch {
	case a.err != nil:
		fmt.Fprintf(&b, " -> no reply (sent: %v): %v", a.sent, a.err)
	case a.reply == nil:
		b.WriteString(" -> nil")
	default:
		fmt.Fprintf(&b, " -> %s", shownReply(a.reply))
	}
	return b.String()
}

func shown(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }) < 0 {
		return s
	}
	return strconv.Quote(s)
}

func shownReply(v any) string {
	switch v := v.(type) {
	case string:
		return shown(v)
	case []any:
		parts := make([]string, len(v))
		for i, element := range v {
			parts[i] = shownReply(element)
		}
		return "[" + strings.Join(parts, " ") + "]"
	}
	return fmt.Sprint(v)
}

// decode takes one RESP2 or RESP3 reply and returns it and what stands behind it.
// Its frame is known to be whole.
func decode(raw []byte) (value any, rest []byte, err error) {
	line, rest, found := bytes.Cut(raw, []byte("\r\n"))
	if !found || len(line) == 0 {
		return nil, nil, fmt.Errorf("no RESP: %q", raw)
	}
	kind, text := line[0], string(line[1:])
	switch kind {
	case '+':
		return text, rest, nil
	case '-':
		return errorReply(text), rest, nil
	case '_':
		return nil, rest, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, nil, fmt.Errorf("no RESP: %q", raw)
	}
	switch {
	case kind == ':':
		return n, rest, nil
	case n < 0:
		return nil, rest, nil
	case kind == '$' && int64(len(rest)) >= n+2:
		return string(rest[:n]), rest[n+2:], nil
	case kind == '%':
		n *= 2
	case kind != '*':
		return nil, nil, fmt.Errorf("a custom command answered %q", raw)
	}
	array := make([]any, n)
	for i := range array {
		if array[i], rest, err = decode(rest); err != nil {
			return nil, nil, err
		}
	}
	return array, rest, nil
}

func TestDecode(t *testing.T) {
	value, rest, err := decode([]byte("*4\r\n:-7\r\n$4\r\na\r\nb\r\n%1\r\n+k\r\n*0\r\n_\r\n+next\r\n"))
	if want := "[-7 \"a\\r\\nb\" [k []] <nil>]"; err != nil || shownReply(value) != want || string(rest) != "+next\r\n" {
		t.Errorf("got %s, %q, %v, want %s", shownReply(value), rest, err, want)
	}
	if value, _, err := decode([]byte("-ERR no\r\n")); err != nil || value != errorReply("ERR no") {
		t.Errorf("got %v, %v, want an error reply", value, err)
	}
	for _, raw := range []string{"", "x\r\n", ":x\r\n", "*2\r\n:1\r\n", "$5\r\nab\r\n"} {
		if value, _, err := decode([]byte(raw)); err == nil {
			t.Errorf("%q was taken for %v", raw, value)
		}
	}
}
