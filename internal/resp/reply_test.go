package resp

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"testing"
)

// replies are whole replies of all types.
var replies = []string{
	"+OK\r\n", "-ERR wrong\r\n", ":42\r\n", ":-1\r\n", "$3\r\nfoo\r\n", "$0\r\n\r\n", "$-1\r\n", "*0\r\n", "*-1\r\n",
	"*2\r\n$1\r\na\r\n:1\r\n", "*2\r\n*1\r\n*2\r\n:1\r\n:2\r\n*0\r\n", "$2\r\n\r\n\r\n", "*3\r\n+QUEUED\r\n*-1\r\n$-1\r\n",
	"_\r\n", ",3.14\r\n", ",inf\r\n", "#t\r\n", "(12345678901234567890\r\n", "!7\r\nERR bad\r\n", "=8\r\ntxt:text\r\n",
	"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n%0\r\n", "~2\r\n:1\r\n:2\r\n", ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
	"|1\r\n+ttl\r\n:3600\r\n$1\r\nv\r\n", "*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n:2\r\n",
}

func TestReplyScannerFindsTheEnds(t *testing.T) {
	var stream []byte
	var ends []int
	for _, r := range replies {
		stream = append(stream, r...)
		ends = append(ends, len(stream))
	}
	for step := 1; step <= len(stream); step++ {
		if got, err := scanEnds(stream, step); err != nil || !slices.Equal(got, ends) {
			t.Fatalf("in pieces of %d: ends %v, %v, want %v", step, got, err, ends)
		}
	}
}

// scanEnds returns where replies end in a stream that comes in pieces.
func scanEnds(stream []byte, step int) (ends []int, err error) {
	var s ReplyScanner
	for at := 0; at < len(stream); {
		n, done, err := s.Scan(stream[at:min(at+step, len(stream))])
		at += n
		if err != nil {
			return ends, err
		}
		if done {
			ends = append(ends, at)
		}
	}
	return ends, nil
}

func TestReplyScannerRefusesWhatIsNoReply(t *testing.T) {
	for _, stream := range []string{
		"x", "\r\n", "OK\r\n", "$\r\n", "$x\r\n", "$-2\r\n", "*1\r\nfoo\r\n", "$99999999999999999999999\r\n",
		"*9223372036854775807\r\n", "%4611686018427387904\r\n", "$+1\r\nx\r\n", "$?\r\n", "\x00",
	} {
		for step := 1; step <= len(stream); step++ {
			if _, err := scanEnds([]byte(stream), step); !errors.Is(err, ErrMalformedReply) {
				t.Errorf("%q in pieces of %d: %v, want ErrMalformedReply", stream, step, err)
			}
		}
	}
}

func TestReplyScannerNamesTheElements(t *testing.T) {
	for stream, want := range map[string]string{
		"*3\r\n+OK\r\n-ERR x\r\n:1\r\n":                    "+-:",
		"*3\r\n*2\r\n-a\r\n-b\r\n$1\r\nx\r\n*1\r\n*0\r\n":  "*$*",
		"*2\r\n%1\r\n+a\r\n-b\r\n-ERR\r\n":                 "%-",
		"*1\r\n*2\r\n:1\r\n:2\r\n":                         "*",
		"*-1\r\n":                                          "",
		"*0\r\n":                                           "",
		"-EXECABORT no\r\n":                                "",
		"*2\r\n*1\r\n*1\r\n*1\r\n:1\r\n~2\r\n:1\r\n:2\r\n": "*~",
	} {
		for step := 1; step <= len(stream); step++ {
			elements := []byte{}
			s := ReplyScanner{Elements: &elements}
			for at := 0; at < len(stream); {
				n, _, err := s.Scan([]byte(stream[at:min(at+step, len(stream))]))
				if err != nil {
					t.Fatal(err)
				}
				at += n
			}
			if string(elements) != want {
				t.Errorf("%q in pieces of %d: elements %q, want %q", stream, step, elements, want)
			}
		}
	}
}

// FuzzReplyScanner holds the scanner against a parser that sees the whole stream
// and calls itself for nested values, and checks that pieces don't matter.
func FuzzReplyScanner(f *testing.F) {
	for _, r := range replies {
		f.Add([]byte(r), 1)
	}
	f.Fuzz(func(t *testing.T, stream []byte, step int) {
		step = 1 + (step&0x7fffffff)%64
		whole, wholeErr := scanEnds(stream, max(len(stream), 1))
		cut, cutErr := scanEnds(stream, step)
		if !slices.Equal(whole, cut) || (wholeErr == nil) != (cutErr == nil) {
			t.Fatalf("at once %v %v, in pieces %v %v", whole, wholeErr, cut, cutErr)
		}
		at := 0
		for _, end := range whole {
			n, ok := valueLength(stream[at:], 0)
			if !ok || at+n != end {
				t.Fatalf("a reply from %d ends at %d, want %d (%t)", at, end, at+n, ok)
			}
			at = end
		}
	})
}

// valueLength is the length of the first value in b, false if it isn't whole.
func valueLength(b []byte, depth int) (int, bool) {
	line, _, found := bytes.Cut(b, []byte("\n"))
	if !found || len(line) == 0 || depth > 1000 {
		return 0, false
	}
	n := len(line) + 1
	if !isLengthType(line[0]) {
		return n, isLineType(line[0])
	}
	length, err := strconv.Atoi(string(bytes.TrimSuffix(line[1:], []byte("\r"))))
	if err != nil {
		return 0, false
	}
	switch line[0] {
	case '$', '=', '!':
		if length >= 0 {
			n += length + 2
		}
		return n, n <= len(b)
	case '%':
		length *= 2
	case '|':
		length = 2*length + 1
	}
	for range length {
		used, ok := valueLength(b[n:], depth+1)
		if !ok {
			return 0, false
		}
		n += used
	}
	return n, true
}
