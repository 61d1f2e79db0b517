package proxy

import (
	"bufio"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"seckill-proxy/internal/resp"
)

// link is a session's own connection to Redis. The session's goroutine sends
// commands; the link's goroutine, follow, copies what comes back to the client,
// counts the replies, and applies what they say to the session's state. So the
// two directions never wait for each other, as on a direct connection.
//
// A link and its client share one fate: when either is closed, so is the other.
type link struct {
	session *session
	conn    net.Conn
	out     *bufio.Writer // to Redis; the session's goroutine writes
	done    chan struct{} // closed when follow has ended

	// Guarded by session.mu.
	changed  sync.Cond // answered, dead or the state's opaque changed
	sent     int64     // commands sent that will be answered
	received int64     // of those, how many replies have come whole
	answered int64     // of those, how many the client was sent
	waiting  []waiting // effects of sent commands, in order
	blocked  int       // of those, how many may block
	dead     bool

	// Of follow alone: the reply under way.
	scanner  resp.ReplyScanner
	within   bool   // it has begun and not ended
	watched  bool   // head and tail are kept
	holding  bool   // it is kept from the client until it is whole
	held     []byte // what is kept
	reply    reply
	digested []byte // digest's result where bytes were held or replaced
}

// waiting is an effect that waits for the reply to its command.
type waiting struct {
	effect
	seq int64 // the command's number, from 1
}

const (
	linkReadBytes  = 16 << 10
	linkWriteBytes = 4 << 10

	// heldMax bounds a reply that is held to be rewritten. COMMAND DOCS of
	// Redis 7 has 300 KB. A longer one passes as it is.
	heldMax = 8 << 20
)

func newLink(s *session, conn net.Conn) *link {
	l := &link{session: s, conn: conn, done: make(chan struct{})}
	l.out = bufio.NewWriterSize(conn, linkWriteBytes)
	l.changed.L = &s.mu
	return l
}

// expect announces a command that is about to be sent and will be answered. It
// must come before the command's first byte: the reply may be quick.
func (l *link) expect(e effect) {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	l.sent++
	if e.kind == effectNone {
		return
	}
	l.waiting = append(l.waiting, waiting{e, l.sent})
	if e.kind == effectBlocks {
		l.blocked++
	}
}

// withdraw takes back the last command announced: it broke off in the middle, and
// Redis will never answer it.
func (l *link) withdraw() {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	if n := len(l.waiting); n > 0 && l.waiting[n-1].seq == l.sent {
		l.waiting = l.waiting[:n-1]
	}
	l.sent--
}

// write sends bytes of a command; they may stay in the buffer until flush. An
// error needs no handling here: the connection is dead, and follow tells the
// client.
func (l *link) write(b []byte) { _, _ = l.out.Write(b) }

func (l *link) flush() { _ = l.out.Flush() }

// settle waits until the client has the reply to every command sent so far, or
// until that can't be known any more.
func (l *link) settle() {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	for l.answered < l.sent && !l.session.state.opaque && !l.dead {
		l.changed.Wait()
	}
}

// settleWithin is settle for a client that won't send more. It gives up after
// bound, and at once on commands that block and on messages: what a client that
// is gone was waiting for must not be taken from others.
func (l *link) settleWithin(bound time.Duration) {
	l.session.mu.Lock()
	hopeless := l.blocked > 0 || l.session.state.waitsForMessages()
	l.session.mu.Unlock()
	if hopeless {
		return
	}
	timer := time.AfterFunc(bound, func() { l.conn.Close() })
	defer timer.Stop()
	l.settle()
}

// close ends the link. The client must have been closed before, so that follow
// can't be waiting to write to it.
func (l *link) close() {
	l.conn.Close()
	<-l.done
}

// follow copies replies to the client until either connection ends.
func (l *link) follow() {
	defer close(l.done)
	s := l.session
	writing := false // the client's stream is ours until the reply under way ends
	defer func() {
		if writing {
			s.writeMu.Unlock()
		}
	}()
	buf := make([]byte, linkReadBytes)
	for {
		n, readErr := l.conn.Read(buf)
		if n > 0 {
			b, err := l.digest(buf[:n])
			if err != nil {
				s.log.Error("Redis sent what is no reply; closing the connection", zap.Error(err))
				l.die()
				return
			}
			if !writing {
				s.writeMu.Lock()
				writing = true
			}
			if _, err := s.client.Write(b); err != nil {
				l.die()
				return
			}
			if !l.within {
				s.writeMu.Unlock()
				writing = false
			}
			l.publish()
		}
		if readErr != nil {
			if lost := l.die(); lost > 0 && !l.within {
				_, _ = s.client.Write(appendLost(nil, lost))
			}
			s.client.Close()
			return
		}
	}
}

// publish tells the session that the client has what was digested.
func (l *link) publish() {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	l.answered = l.received
	l.changed.Broadcast()
}

// die marks the link dead and returns how many commands will have no reply.
func (l *link) die() (lost int64) {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	l.dead = true
	l.changed.Broadcast()
	lost = l.sent - l.received
	for _, w := range l.waiting {
		if w.kind == effectShutdown {
			lost-- // has its answer: the closed connection
		}
	}
	return lost
}

// digest finds the replies in b, which continues the stream from Redis, and
// returns what the client is to get: b itself, unless replies were rewritten.
func (l *link) digest(b []byte) ([]byte, error) {
	s := l.session
	s.mu.Lock()
	defer s.mu.Unlock()
	out, copied := l.digested[:0], 0 // b[copied:pos] is still to be appended to out
	for pos := 0; pos < len(b) && !s.state.opaque; {
		if !l.within {
			l.begin(b[pos])
		}
		n, done, err := l.scanner.Scan(b[pos:])
		if err != nil {
			return nil, err
		}
		piece := b[pos : pos+n]
		if l.watched {
			l.reply.keep(piece)
		}
		if l.holding {
			out = append(out, b[copied:pos]...)
			copied = pos + n
			l.held = append(l.held, piece...)
			if len(l.held) > heldMax {
				out = append(out, l.held...)
				l.holding, l.held = false, nil
			}
		}
		pos += n
		if done {
			out = l.end(out)
		}
	}
	if copied == 0 {
		return b, nil
	}
	l.digested = append(out, b[copied:]...)
	return l.digested, nil
}

// begin decides, on the first byte of a reply, what has to be kept of it.
func (l *link) begin(first byte) {
	l.within = true
	w := l.next()
	l.watched = w != nil || first == '>' || l.session.state.watched()
	l.holding = w != nil && w.kind.rewrites() && first != '>'
	l.reply = reply{kind: first, head: l.reply.head[:0], tail: l.reply.tail[:0], elements: l.reply.elements[:0]}
	l.scanner.Elements = nil
	if w != nil && w.kind == effectExec && len(l.session.state.tx) > 0 {
		l.scanner.Elements = &l.reply.elements
	}
}

// next returns the effect that waits for the next reply, nil if it has none.
func (l *link) next() *waiting {
	if len(l.waiting) == 0 || l.waiting[0].seq != l.received+1 {
		return nil
	}
	return &l.waiting[0]
}

// end accounts for a whole reply, and appends to out what was held of it,
// rewritten if the sidecar has a part in it.
func (l *link) end(out []byte) []byte {
	l.within = false
	held := l.held
	if l.holding {
		l.holding, l.held = false, l.held[:0]
	} else {
		held = nil
	}
	state := &l.session.state
	w := l.next()
	confirms := effectNone
	if w != nil {
		confirms = w.kind
	}
	if l.watched && state.isMessage(&l.reply, confirms) {
		return append(out, held...)
	}
	if w == nil {
		if state.multi {
			state.answered(effect{}, &l.reply, l.session.target())
		}
		if l.received < l.sent {
			l.received++
		}
		return out
	}
	left := state.answered(w.effect, &l.reply, l.session.target())
	if left.replies > 0 {
		w.effect = left
		return out
	}
	if w.kind.rewrites() {
		out = append(out, l.session.server.rewrite(w.effect, held, state.protocol)...)
	}
	if w.kind == effectBlocks {
		l.blocked--
	}
	l.received++
	l.waiting = l.waiting[1:]
	if len(l.waiting) == 0 {
		l.waiting = nil
	}
	return out
}

// keep adds a piece of the reply under way to its head and tail.
func (r *reply) keep(piece []byte) {
	if room := headBytes - len(r.head); room > 0 {
		r.head = append(r.head, piece[:min(room, len(piece))]...)
	}
	if len(piece) >= tailBytes {
		r.tail = append(r.tail[:0], piece[len(piece)-tailBytes:]...)
		return
	}
	r.tail = append(r.tail, piece...)
	if extra := len(r.tail) - tailBytes; extra > 0 {
		r.tail = append(r.tail[:0], r.tail[extra:]...)
	}
}

// lostError answers a command that was sent and whose reply will not come. Not
// "-ERR": some clients turn that into a silent false.
const lostError = "-UNCERTAIN the connection to Redis ended before the reply came; the command may or may not have been executed\r\n"

func appendLost(dst []byte, n int64) []byte {
	for range n {
		dst = append(dst, lostError...)
	}
	return dst
}

func (l *link) isDead() bool {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	return l.dead
}
