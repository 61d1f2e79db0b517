package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

var testLimits = Limits{BulkBytes: 512 << 20, InlineBytes: 64 << 10, WholeBytes: 256}

// readAll reads all commands of a stream, with partial ones put together, and
// the error that ended it.
func readAll(rd io.Reader, limits Limits) (commands []string, err error) {
	r := NewCommandReader(limits)
	var partial *Command
	var raw []byte
	for {
		n, err := rd.Read(r.Room())
		r.Filled(n)
		for {
			if partial != nil {
				b, done, err := r.Rest()
				raw = append(raw, b...)
				if err != nil {
					return commands, err
				}
				if !done {
					break
				}
				commands = append(commands, fmt.Sprintf("raw %d %q", partial.Count, raw))
				partial = nil
			}
			cmd, ok, err := r.Next()
			if err != nil {
				return commands, err
			}
			if !ok {
				break
			}
			if cmd.Partial {
				partial, raw = &cmd, slices.Clone(cmd.Raw)
			} else {
				commands = append(commands, fmt.Sprintf("%q", cmd.Args))
			}
		}
		r.Idle()
		if err == io.EOF && partial != nil {
			return commands, io.ErrUnexpectedEOF
		}
		if err != nil {
			return commands, err
		}
	}
}

func TestCommandReader(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, test := range []struct {
		name, stream string
		want         []string
		err          error
	}{
		{"array", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", []string{`["GET" "k"]`}, io.EOF},
		{"pipeline", "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nECHO\r\n", []string{`["PING"]`, `["ECHO"]`}, io.EOF},
		{"binary", "*2\r\n$3\r\nGET\r\n$4\r\n\r\n\x00\xff\r\n", []string{`["GET" "\r\n\x00\xff"]`}, io.EOF},
		{"empty argument", "*2\r\n$3\r\nGET\r\n$0\r\n\r\n", []string{`["GET" ""]`}, io.EOF},
		{"empty commands", "*0\r\n*-1\r\n\r\n\n*1\r\n$4\r\nPING\r\n", []string{`["PING"]`}, io.EOF},
		{"negative count", "*-9223372036854775808\r\nPING\r\n", []string{`["PING"]`}, io.EOF},
		{"too negative count", "*-9223372036854775809\r\nPING\r\n", nil, ProtocolError("invalid multibulk length")},
		{"inline", "SET k 'a b'\r\nget \"\\x41\\n\"\n", []string{`["SET" "k" "a b"]`, `["get" "A\n"]`}, io.EOF},
		{"inline quotes", `a"b c"` + "\r\n", []string{`["ab c"]`}, io.EOF},
		{"unbalanced", "GET \"k\r\n", nil, ProtocolError("unbalanced quotes in request")},
		{"after quotes", `GET "k"x` + "\r\n", nil, ProtocolError("unbalanced quotes in request")},
		{"huge count", "*9223372036854775807\r\n", nil, ProtocolError("invalid multibulk length")},
		{"count", "*x\r\n", nil, ProtocolError("invalid multibulk length")},
		{"spaced count", "* 1\r\n", nil, ProtocolError("invalid multibulk length")},
		{"absurd bulk", "*1\r\n$9223372036854775807\r\n", nil, ProtocolError("invalid bulk length")},
		{"negative bulk", "*1\r\n$-1\r\n", nil, ProtocolError("invalid bulk length")},
		{"no dollar", "*1\r\n:1\r\n", nil, ProtocolError("expected '$', got ':'")},
		{"no type", "*1\r\n\r\n", nil, ProtocolError("expected '$', got ' '")},
		{"endless inline", strings.Repeat("a", 64<<10+1), nil, ProtocolError("too big inline request")},
		{"endless count", "*" + strings.Repeat("1", 64<<10+1), nil, ProtocolError("too big mbulk count string")},
		{"endless bulk length", "*1\r\n$" + strings.Repeat("1", 64<<10+1), nil, ProtocolError("too big bulk count string")},
		{"cut", "*2\r\n$3\r\nGET\r\n$1\r\n", nil, io.EOF},
		{"long", "*2\r\n$4\r\nECHO\r\n$300\r\n" + long + "\r\n*1\r\n$4\r\nPING\r\n",
			[]string{`raw 2 "*2\r\n$4\r\nECHO\r\n$300\r\n` + long + `\r\n"`, `["PING"]`}, io.EOF},
		{"long and cut", "*2\r\n$4\r\nECHO\r\n$300\r\n" + long, nil, io.ErrUnexpectedEOF},
		{"long and wrong", "*3\r\n$4\r\nECHO\r\n$300\r\n" + long + "\r\n!", nil, io.ErrUnexpectedEOF},
		{"long and wrong type", "*3\r\n$4\r\nECHO\r\n$300\r\n" + long + "\r\n!\r\n", nil, ProtocolError("expected '$', got '!'")},
	} {
		t.Run(test.name, func(t *testing.T) {
			for name, rd := range map[string]io.Reader{
				"at once":      strings.NewReader(test.stream),
				"byte by byte": iotest.OneByteReader(strings.NewReader(test.stream)),
				"with EOF":     iotest.DataErrReader(strings.NewReader(test.stream)),
			} {
				got, err := readAll(rd, testLimits)
				if !slices.Equal(got, test.want) || !errors.Is(err, test.err) {
					t.Errorf("%s: got %s, %v, want %s, %v", name, got, err, test.want, test.err)
				}
			}
		})
	}
}

func TestPartialCommandIsHandedOutInBoundedPieces(t *testing.T) {
	const arguments = 100_000
	var stream bytes.Buffer
	fmt.Fprintf(&stream, "*%d\r\n$4\r\nMSET\r\n", arguments+1)
	for range arguments {
		stream.WriteString("$10\r\n0123456789\r\n")
	}
	want := stream.Len()
	limits := Limits{BulkBytes: 1 << 20, InlineBytes: 64 << 10, WholeBytes: 4 << 10}
	r := NewCommandReader(limits)
	fill := func() {
		n, err := stream.Read(r.Room())
		if err != nil {
			t.Fatal(err)
		}
		r.Filled(n)
		if len(r.buf) > limits.WholeBytes+2*readBytes {
			t.Fatalf("the buffer has grown to %d bytes", len(r.buf))
		}
	}
	fill()
	cmd, ok, err := r.Next()
	if err != nil || !ok || !cmd.Partial || string(cmd.Args[0]) != "MSET" || cmd.Count != arguments+1 {
		t.Fatalf("Next() = %+v, %t, %v", cmd, ok, err)
	}
	size := len(cmd.Raw)
	for {
		b, done, err := r.Rest()
		if err != nil {
			t.Fatal(err)
		}
		size += len(b)
		if done {
			break
		}
		fill()
	}
	if size != want {
		t.Errorf("got %d bytes, want %d", size, want)
	}
}

// The work for a command that arrives in small pieces must stay linear: no byte
// is parsed or copied again and again.
func TestReadingStaysLinear(t *testing.T) {
	stream := "*2\r\n$4\r\nECHO\r\n$200000\r\n" + strings.Repeat("x", 200_000) + "\r\n"
	r := NewCommandReader(Limits{BulkBytes: 1 << 20, InlineBytes: 64 << 10, WholeBytes: 1 << 20})
	grown, size := 0, 0
	for i := range len(stream) {
		r.Room()[0] = stream[i]
		if len(r.buf) != size {
			grown, size = grown+1, len(r.buf)
		}
		r.Filled(1)
		scanned := r.scan
		cmd, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ok != (i == len(stream)-1) {
			t.Fatalf("a command after %d of %d bytes", i+1, len(stream))
		}
		if ok && len(cmd.Args[1]) != 200_000 {
			t.Errorf("got %d bytes", len(cmd.Args[1]))
		}
		if !ok && r.scan < scanned {
			t.Fatalf("after %d bytes, parsing starts over", i+1)
		}
	}
	if grown > 10 {
		t.Errorf("the buffer was made anew %d times", grown)
	}
}

func TestIdleReaderHoldsNothing(t *testing.T) {
	r := NewCommandReader(testLimits)
	r.Filled(copy(r.Room(), "PING\r\nPI"))
	if _, ok, err := r.Next(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if r.Idle(); r.buf == nil {
		t.Fatal("the beginning of a command is lost")
	}
	r.Filled(copy(r.Room(), "NG\r\n"))
	if cmd, ok, err := r.Next(); !ok || err != nil || string(cmd.Args[0]) != "PING" {
		t.Fatal(cmd, ok, err)
	}
	if r.Idle(); r.buf != nil {
		t.Error("a reader with nothing to read holds a buffer")
	}
}

// FuzzCommandReader checks that what is read doesn't depend on how the bytes
// arrive, that memory stays bounded, and that a reader never panics.
func FuzzCommandReader(f *testing.F) {
	for _, seed := range []string{
		"*1\r\n$4\r\nPING\r\n", "PING \"a\\x00\"\r\n", "*1\r\n$9223372036854775807\r\n", "*1000000000\r\n",
		"*0\r\n\r\n*-1\r\nGET 'a'\r\n", "*2\r\n$4\r\nECHO\r\n$300\r\n" + strings.Repeat("y", 300) + "\r\nPING\r\n",
	} {
		f.Add([]byte(seed), uint64(1))
	}
	limits := Limits{BulkBytes: 1 << 20, InlineBytes: 200, WholeBytes: 128}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		whole, wholeErr := readAll(bytes.NewReader(stream), limits)
		cut, cutErr := readAll(&cuttingReader{stream, rand.New(rand.NewPCG(seed, 0))}, limits)
		if !slices.Equal(whole, cut) {
			t.Errorf("at once %s, in pieces %s", whole, cut)
		}
		if fmt.Sprint(wholeErr) != fmt.Sprint(cutErr) {
			t.Errorf("at once %v, in pieces %v", wholeErr, cutErr)
		}
	})
}

// cuttingReader returns a stream in pieces of random length.
type cuttingReader struct {
	rest   []byte
	random *rand.Rand
}

func (c *cuttingReader) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest[:min(1+c.random.IntN(7), len(c.rest))])
	c.rest = c.rest[n:]
	return n, nil
}
