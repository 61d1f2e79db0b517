// Package resp reads the Redis serialization protocol: commands as a server
// receives them, and the boundaries of replies in a stream that comes in pieces.
package resp

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"
)

// ProtocolError is a malformed command. Its text is what Redis answers before it
// closes the connection.
type ProtocolError string

func (e ProtocolError) Error() string { return "ERR Protocol error: " + string(e) }

// Limits bound what a CommandReader accepts and keeps.
type Limits struct {
	BulkBytes   int64 // longest argument; Redis: proto-max-bulk-len
	InlineBytes int   // longest inline command or length line; Redis: 64 KiB
	WholeBytes  int   // a longer command is handed out in pieces, see Command.Partial
}

// Command is one command as the client sent it.
type Command struct {
	// Args are the arguments, the name first. Of a partial command they are
	// those that had arrived when it was handed out, maybe none.
	Args [][]byte
	// Count is the number of arguments that the client announced.
	Count int
	// Raw is the command on the wire; an inline command is rewritten as an
	// array. Of a partial command it is the beginning.
	Raw []byte
	// Partial tells that the command is longer than Limits.WholeBytes. What is
	// left of it comes from CommandReader.Rest, and must be taken before Next.
	Partial bool
}

// CommandReader makes commands of bytes as Redis does: arrays of bulk strings and
// inline commands, the same things ignored, the same things refused in the same
// words. Its work is linear in the bytes that arrive, in whatever pieces, and it
// keeps at most Limits.WholeBytes plus one read of them.
//
// It doesn't read by itself: whoever does reads into Room, says so by Filled, and
// takes what that completes by Next.
type CommandReader struct {
	limits Limits

	buf   []byte // bytes [start,end) are read and not yet handed out
	start int
	end   int

	// The array that is being parsed. Offsets count from start.
	scan    int   // parsed up to here
	left    int   // arguments to come, 0 between commands
	count   int   // arguments announced
	bulk    int64 // bytes to come of the current argument with its CRLF, -1: its length line comes next
	offsets []span
	args    [][]byte
	rest    bool // a partial command is being handed out
}

type span struct{ from, to int }

// readBytes is the room that is offered to a read.
const readBytes = 16 << 10

// buffers are the buffers of readers that hold nothing, so that idle connections
// need none.
var buffers = sync.Pool{New: func() any { return new([readBytes]byte) }}

// NewCommandReader returns a reader of one client's commands.
func NewCommandReader(limits Limits) *CommandReader {
	return &CommandReader{limits: limits, bulk: -1}
}

// Room returns where the next bytes are to be read to. It is never empty. Room
// makes what Next and Rest returned invalid.
func (r *CommandReader) Room() []byte {
	switch held := r.end - r.start; {
	case r.buf == nil:
		r.buf = buffers.Get().(*[readBytes]byte)[:]
		r.start, r.end = 0, 0
	case held == 0:
		r.start, r.end = 0, 0
	case r.end == len(r.buf):
		if 2*held <= len(r.buf) {
			copy(r.buf, r.buf[r.start:r.end])
		} else { // doubling keeps the copying linear
			grown := make([]byte, 2*len(r.buf))
			copy(grown, r.buf[r.start:r.end])
			r.release()
			r.buf = grown
		}
		r.start, r.end = 0, held
	}
	return r.buf[r.end:]
}

// Filled says that n bytes were read to Room.
func (r *CommandReader) Filled(n int) { r.end += n }

// Idle gives the buffer back, if it holds nothing.
func (r *CommandReader) Idle() {
	if r.start == r.end {
		r.release()
	}
}

func (r *CommandReader) release() {
	if len(r.buf) == readBytes {
		buffers.Put((*[readBytes]byte)(r.buf))
	}
	r.buf, r.start, r.end = nil, 0, 0
}

// Next returns the next command; false when more bytes are needed for it. Its
// Args are valid until the next call, its Raw until Room is called. Empty
// commands are skipped, as Redis does. The error is a ProtocolError.
func (r *CommandReader) Next() (Command, bool, error) {
	if r.rest {
		return Command{}, false, errors.New("resp: the rest of a partial command wasn't taken")
	}
	return r.parse()
}

// Buffered reports whether bytes of another command have arrived already.
func (r *CommandReader) Buffered() bool { return r.end > r.start }

// parse makes a command of the bytes at hand; false when more are needed.
func (r *CommandReader) parse() (Command, bool, error) {
	for r.left == 0 {
		if r.start == r.end {
			return Command{}, false, nil
		}
		if r.buf[r.start] != '*' {
			cmd, ok, err := r.parseInline()
			if err != nil || !ok || len(cmd.Args) > 0 {
				return cmd, ok, err
			}
			continue
		}
		line, ok, err := r.line(r.start, "too big mbulk count string")
		if err != nil || !ok {
			return Command{}, false, err
		}
		n, ok := parseInt(line[1:])
		if !ok || n > math.MaxInt32 {
			return Command{}, false, ProtocolError("invalid multibulk length")
		}
		if n <= 0 {
			r.start += len(line) + 2
			continue
		}
		r.scan, r.left, r.count, r.bulk = len(line)+2, int(n), int(n), -1
		r.offsets = r.offsets[:0]
	}
	if err := r.scanArgs(); err != nil {
		return Command{}, false, err
	}
	if r.left > 0 && r.end-r.start < r.limits.WholeBytes {
		return Command{}, false, nil
	}
	r.args = r.args[:0]
	for _, s := range r.offsets {
		r.args = append(r.args, r.buf[r.start+s.from:r.start+s.to])
	}
	cmd := Command{Args: r.args, Count: r.count}
	r.rest = r.left > 0
	cmd.Raw = r.take()
	cmd.Partial = r.rest || len(cmd.Raw) > r.limits.WholeBytes
	return cmd, true, nil
}

// scanArgs goes on over the arguments of the current array as far as bytes are
// at hand.
func (r *CommandReader) scanArgs() error {
	for r.left > 0 {
		if r.bulk < 0 {
			line, ok, err := r.line(r.start+r.scan, "too big bulk count string")
			if err != nil || !ok {
				return err
			}
			if line[0] != '$' {
				return ProtocolError("expected '$', got '" + string(line[:1]) + "'")
			}
			n, ok := parseInt(line[1:])
			if !ok || n < 0 || n > r.limits.BulkBytes {
				return ProtocolError("invalid bulk length")
			}
			r.scan += len(line) + 2
			r.bulk = n + 2
		}
		if r.rest { // in the middle of a partial command only the end matters
			n := min(r.bulk, int64(r.end-r.start-r.scan))
			r.scan += int(n)
			r.bulk -= n
			if r.bulk > 0 {
				return nil
			}
		} else {
			if int64(r.end-r.start-r.scan) < r.bulk {
				if r.end-r.start >= r.limits.WholeBytes {
					r.bulk -= int64(r.end - r.start - r.scan)
					r.scan = r.end - r.start
				}
				return nil
			}
			r.offsets = append(r.offsets, span{r.scan, r.scan + int(r.bulk) - 2})
			r.scan += int(r.bulk)
		}
		r.left--
		r.bulk = -1
	}
	return nil
}

// take hands out the scanned bytes and forgets them.
func (r *CommandReader) take() []byte {
	raw := r.buf[r.start : r.start+r.scan]
	r.start += r.scan
	r.scan = 0
	return raw
}

// Rest returns the bytes of a partial command that are at hand, maybe none, and
// whether they are its last. What it returns is valid until Room is called. The
// error is a ProtocolError.
func (r *CommandReader) Rest() (b []byte, done bool, err error) {
	if !r.rest {
		return nil, true, nil
	}
	if err := r.scanArgs(); err != nil {
		return nil, false, err
	}
	r.rest = r.left > 0
	return r.take(), !r.rest, nil
}

// line returns the line that starts at offset from, without CRLF; false when it
// hasn't arrived whole. Like Redis it looks for the CR and takes the byte after
// it unseen.
func (r *CommandReader) line(from int, tooBig ProtocolError) ([]byte, bool, error) {
	b := r.buf[from:r.end]
	i := bytes.IndexByte(b[:min(len(b), r.limits.InlineBytes+1)], '\r')
	if i < 0 {
		if len(b) > r.limits.InlineBytes {
			return nil, false, tooBig
		}
		return nil, false, nil
	}
	if i == 0 {
		// The type is missing. Redis prints the CR itself, as a space.
		return nil, false, ProtocolError("expected '$', got ' '")
	}
	if i+1 >= len(b) {
		return nil, false, nil
	}
	return b[:i], true, nil
}

func (r *CommandReader) parseInline() (Command, bool, error) {
	b := r.buf[r.start:r.end]
	from := r.scan // nothing before it holds a newline
	i := bytes.IndexByte(b[from:], '\n')
	if i < 0 || from+i > r.limits.InlineBytes {
		if len(b) > r.limits.InlineBytes {
			return Command{}, false, ProtocolError("too big inline request")
		}
		r.scan = len(b)
		return Command{}, false, nil
	}
	r.scan = 0
	line := b[:from+i]
	r.start += len(line) + 1
	args, ok := splitInline(bytes.TrimSuffix(line, []byte("\r")), r.args[:0])
	if !ok {
		return Command{}, false, ProtocolError("unbalanced quotes in request")
	}
	r.args = args
	return Command{Args: args, Count: len(args), Raw: AppendCommand(nil, args)}, true, nil
}

// AppendCommand appends a command as an array of bulk strings.
func AppendCommand(dst []byte, args [][]byte) []byte {
	dst = fmt.Appendf(dst, "*%d\r\n", len(args))
	for _, arg := range args {
		dst = fmt.Appendf(dst, "$%d\r\n", len(arg))
		dst = append(dst, arg...)
		dst = append(dst, '\r', '\n')
	}
	return dst
}

// parseInt reads a decimal integer as strictly as Redis's string2ll: no spaces,
// no plus, no leading zeros.
func parseInt(b []byte) (int64, bool) {
	if string(b) == "-9223372036854775808" {
		return math.MinInt64, true
	}
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 19 || b[0] == '0' && (len(b) > 1 || negative) {
		return 0, false
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' || n > (math.MaxInt64-int64(c-'0'))/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}
