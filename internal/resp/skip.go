package resp

import "bytes"

// Skip goes over up to most whole replies at the start of b, which continues the
// stream, and returns how many bytes they and a reply that is still under way
// take, and how many replies ended. It stops after the reply number most, or at
// the end of b.
//
// It is Scan for the case that matters for speed: many small replies at hand,
// none of which has to be looked into.
func (s *ReplyScanner) Skip(b []byte, most int) (used, ended int, err error) {
	for used < len(b) && ended < most {
		if !s.started {
			if n := wholeLine(b[used:]); n > 0 {
				used += n
				ended++
				continue
			}
		}
		n, done, err := s.Scan(b[used:])
		used += n
		if err != nil {
			return used, ended, err
		}
		if done {
			ended++
		}
	}
	return used, ended, nil
}

// wholeLine returns the length of the reply at the start of b if it is a simple
// one or a bulk string and whole, else 0.
func wholeLine(b []byte) int {
	switch b[0] {
	case '+', ':', '-':
		return bytes.IndexByte(b, '\n') + 1
	case '$':
		length := 0
		for i := 1; i < len(b) && i < 12; i++ {
			c := b[i]
			if c == '\r' {
				if end := i + 2 + length + 2; i > 1 && end <= len(b) {
					return end
				}
				return 0
			}
			if c < '0' || c > '9' {
				return 0
			}
			length = length*10 + int(c-'0')
		}
	}
	return 0
}

// Within reports whether a reply has begun and not ended.
func (s *ReplyScanner) Within() bool { return s.started }
