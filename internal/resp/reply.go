package resp

import (
	"bytes"
	"errors"
)

// ErrMalformedReply is returned for bytes that are no RESP2 or RESP3 reply. The
// connection that they came from can't be trusted any more.
var ErrMalformedReply = errors.New("malformed reply")

// ReplyScanner finds where replies end in a stream that comes in pieces, without
// keeping them. The zero value stands before a reply.
type ReplyScanner struct {
	// Kind is the first byte of the reply under way or just ended: '+', '-',
	// ':', '$', '*', '%', '~', '>', …
	Kind byte
	// Elements, when not nil, receives the first byte of each element of the
	// outermost array, if the reply is one: '-' where a command of a transaction
	// failed.
	Elements *[]byte

	values  int64 // values to come before the reply is whole
	skip    int64 // bytes of a bulk string to come, with its CRLF
	started bool
	inLine  bool
	lineOf  byte   // first byte of the line under way
	number  []byte // its digits, where it is a length
	width   int64  // elements of the outermost array that have not begun
}

// lengthDigits is more than any length needs.
const lengthDigits = 20

// Scan looks at b, which continues the stream, and returns how many of its bytes
// belong to the reply under way, and whether that reply ends with them. After
// done the next call stands before the next reply.
func (s *ReplyScanner) Scan(b []byte) (n int, done bool, err error) {
	if !s.started {
		if len(b) == 0 {
			return 0, false, nil
		}
		s.started, s.Kind, s.values, s.width = true, b[0], 1, 0
	}
	for n < len(b) {
		if s.skip > 0 {
			take := min(s.skip, int64(len(b)-n))
			n += int(take)
			s.skip -= take
			if s.skip > 0 {
				return n, false, nil
			}
			s.values--
		} else {
			used, whole, err := s.line(b[n:])
			n += used
			if err != nil || !whole {
				return n, false, err
			}
		}
		if s.values == 0 && s.skip == 0 {
			s.started = false
			return n, true, nil
		}
	}
	return n, false, nil
}

// line goes on over one line: a simple value, or the head of a bulk string or an
// aggregate.
func (s *ReplyScanner) line(b []byte) (used int, whole bool, err error) {
	if !s.inLine {
		if !isLengthType(b[0]) && !isLineType(b[0]) {
			return 0, false, ErrMalformedReply
		}
		s.inLine, s.lineOf, s.number = true, b[0], s.number[:0]
		if s.Elements != nil && s.width > 0 && s.values == s.width {
			*s.Elements = append(*s.Elements, b[0])
			s.width--
		}
		used, b = 1, b[1:]
	}
	end := bytes.IndexByte(b, '\n')
	text := b
	if end >= 0 {
		text = b[:end]
	}
	used += len(text)
	hasLength := isLengthType(s.lineOf)
	if hasLength {
		if len(s.number)+len(text) > lengthDigits+1 {
			return used, false, ErrMalformedReply
		}
		s.number = append(s.number, text...)
	}
	if end < 0 {
		return used, false, nil
	}
	used++
	s.inLine = false
	if !hasLength {
		s.values--
		return used, true, nil
	}
	length, ok := parseInt(bytes.TrimSuffix(s.number, []byte("\r")))
	if !ok || length < -1 {
		return used, false, ErrMalformedReply
	}
	return used, true, s.head(length)
}

// maxElements bounds an aggregate, so that counting can't overflow.
const maxElements = 1 << 40

// head accounts for the head of a bulk string or an aggregate.
func (s *ReplyScanner) head(length int64) error {
	switch s.lineOf {
	case '$', '=', '!':
		if length < 0 {
			s.values--
		} else {
			s.skip = length + 2
		}
		return nil
	}
	if length > maxElements || s.values > maxElements {
		return ErrMalformedReply
	}
	outermost := s.Elements != nil && s.values == 1 && s.lineOf == '*' && s.width == 0 && len(*s.Elements) == 0
	switch {
	case length < 0:
		s.values--
	case s.lineOf == '|': // attributes stand before the value they belong to
		s.values += 2 * length
	case s.lineOf == '%':
		s.values += 2*length - 1
	default:
		s.values += length - 1
		if outermost {
			s.width = length
		}
	}
	return nil
}

func isLengthType(c byte) bool {
	switch c {
	case '$', '=', '!', '*', '%', '~', '>', '|':
		return true
	}
	return false
}

func isLineType(c byte) bool {
	switch c {
	case '+', '-', ':', '_', ',', '#', '(':
		return true
	}
	return false
}
