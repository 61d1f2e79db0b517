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

func noWait() error { return nil }

// readAll reads all commands of a stream, with partial ones put together, and
// the error that ended it.
func readAll(rd io.Reader, limits Limits) (commands []string, err error) {
	r := NewCommandReader(rd, limits, noWait)
	for {
		cmd, err := r.Next()
		if err != nil {
			return commands, err
		}
		raw := slices.Clone(cmd.Raw)
		if !cmd.Partial {
			commands = append(commands, fmt.Sprintf("%q", cmd.Args))
			continue
		}
		for {
			b, err := r.Rest()
			if err == io.EOF {
				break
			}
			if err != nil {
				return commands, err
			}
			raw = append(raw, b...)
		}
		commands = append(commands, fmt.Sprintf("raw %d %q", cmd.Count, raw))
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

// countingReader counts what the reader asks of it.
type countingReader struct {
	io.Reader
	reads int
}

func (c *countingReader) Read(p []byte) (int, error) {
	c.reads++
	return c.Reader.Read(p)
}

func TestPartialCommandIsHandedOutInBoundedPieces(t *testing.T) {
	const arguments = 100_000
	var stream bytes.Buffer
	fmt.Fprintf(&stream, "*%d\r\n$4\r\nMSET\r\n", arguments+1)
	for range arguments {
		stream.WriteString("$10\r\n0123456789\r\n")
	}
	limits := Limits{BulkBytes: 1 << 20, InlineBytes: 64 << 10, WholeBytes: 4 << 10}
	r := NewCommandReader(&stream, limits, noWait)
	cmd, err := r.Next()
	if err != nil || !cmd.Partial || string(cmd.Args[0]) != "MSET" || cmd.Count != arguments+1 {
		t.Fatalf("Next() = %+v, %v", cmd, err)
	}
	size := len(cmd.Raw)
	for {
		b, err := r.Rest()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		size += len(b)
		if cap(r.buf) > limits.WholeBytes+2*readBytes {
			t.Fatalf("the buffer has grown to %d bytes", cap(r.buf))
		}
	}
	if want := len("*100001\r\n$4\r\nMSET\r\n") + arguments*len("$10\r\n0123456789\r\n"); size != want {
		t.Errorf("got %d bytes, want %d", size, want)
	}
}

// The work for a command that arrives in small pieces must stay linear: no byte
// is looked at again and again.
func TestCopyingStaysLinear(t *testing.T) {
	stream := "*2\r\n$4\r\nECHO\r\n$200000\r\n" + strings.Repeat("x", 200_000) + "\r\n"
	r := NewCommandReader(iotest.OneByteReader(strings.NewReader(stream)), Limits{
		BulkBytes: 1 << 20, InlineBytes: 64 << 10, WholeBytes: 1 << 20}, noWait)
	grown, last := 0, 0
	for {
		cmd, ok, err := r.parse()
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			if len(cmd.Args[1]) != 200_000 {
				t.Fatalf("got %d bytes", len(cmd.Args[1]))
			}
			break
		}
		if len(r.offsets) > 0 && r.scan < len("*2\r\n$4\r\nECHO\r\n") {
			t.Fatal("the first argument is parsed again")
		}
		if err := r.fill(); err != nil {
			t.Fatal(err)
		}
		if cap(r.buf) != last {
			grown, last = grown+1, cap(r.buf)
		}
	}
	if grown > 10 {
		t.Errorf("the buffer was made anew %d times", grown)
	}
}

func TestWaitingIsCalledBeforeReadsOnly(t *testing.T) {
	stream := &countingReader{Reader: strings.NewReader("PING\r\nPING\r\nPING\r\n")}
	waits := 0
	r := NewCommandReader(stream, testLimits, func() error { waits++; return nil })
	for range 3 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if waits != 1 || stream.reads != 1 {
		t.Errorf("a pipeline of three took %d waits and %d reads, want 1 and 1", waits, stream.reads)
	}
	stop := errors.New("stop")
	r = NewCommandReader(stream, testLimits, func() error { return stop })
	if _, err := r.Next(); err != stop {
		t.Errorf("Next() = %v, want the error of waiting", err)
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
