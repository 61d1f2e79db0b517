package proxy

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// link is a connection to Redis that one session at a time has to itself. The
// session's goroutine sends commands, from a buffer of the session's; the link's goroutine, follow, brings what
// comes back to the client, counts the replies, and applies what they say to the
// session's state. So the two directions never wait for each other, as on a
// direct connection.
//
// A session keeps its link while its state needs it or replies are to come. When
// neither is so any more, follow gives the link back to the pool.
type link struct {
	pool   *pool
	target *upstream.Target // where it leads
	conn   net.Conn

	// While the link is free.
	is    upstream.Profile
	name  string
	since time.Time

	mu      sync.Mutex
	session *session // nil while the link is free
	gone    bool     // follow has ended or is about to

	// Guarded by session.mu.
	sent     int64     // commands sent that will be answered
	received int64     // of those, how many replies have come whole
	answered int64     // of those, how many the client was given
	waiting  []waiting // effects of sent commands, in order
	blocked  int       // of those, how many may block
	spoilt   bool      // a command of the sidecar's own was refused
	leaving  bool      // Redis was told that no more commands will come
	ending   bool      // the connection is gone, and the client is being told
	look     look      // of watchSilence
	quiet    int64     // replies to the sidecar's own commands among received, not answered
	detour   bool      // the session doesn't care which database it is in
	listens  bool      // to errors that say where to go instead: the session is in a cluster

	// Of follow alone: the reply under way.
	scanner  resp.ReplyScanner
	watched  bool   // head and tail are kept
	torn     bool   // the client was given a part of it
	refused  bool   // it says that Redis will close the connection
	silent   bool   // it isn't for the client, unless it proves to be a message
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
	linkReadBytes = 16 << 10

	// heldMax bounds a reply that is held to be rewritten. COMMAND DOCS of
	// Redis 7 has 300 KB. A longer one passes as it is.
	heldMax = 8 << 20
)

func newLink(p *pool, target *upstream.Target, conn net.Conn, is upstream.Profile) *link {
	return &link{pool: p, target: target, conn: conn, is: is}
}

// attach gives the link to a session; false when the connection has ended.
func (l *link) attach(s *session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return false
	}
	l.session, l.look = s, look{}
	l.listens = s.calls != nil
	s.link.Store(l)
	return true
}

// become makes the link what the session's state says, as far as the command that
// it is for needs it, and waits until it is; false when it can't be.
func (l *link) become(s *session, e effect) bool {
	want := s.state
	if l.detour = e.kind == effectKill; l.detour {
		want.DB, want.name = l.is.DB, l.name
	}
	for _, command := range s.server.target.Change(l.is, want.Profile) {
		l.setup(s, command)
	}
	if l.is.Identity != want.Identity {
		l.name = "" // by RESET
	}
	if l.name != want.name {
		// By HELLO, which Redis grants every user, and while it is busy too.
		l.setup(s, [][]byte{[]byte("HELLO"), []byte(strconv.Itoa(want.Protocol)), []byte("SETNAME"), []byte(want.name)})
	}
	l.is, l.name = want.Profile, want.name
	s.alone.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	for l.answered < l.sent && s.link.Load() == l && !l.spoilt {
		s.changed.Wait()
	}
	return s.link.Load() == l && !l.spoilt
}

// detach takes the link from its session. It is called with session.mu held.
func (l *link) detach(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session = nil
	s.link.CompareAndSwap(l, nil)
	s.endTurn()
}

// discard takes a link that is of no use from its session, and ends it.
func (l *link) discard(s *session) {
	s.mu.Lock()
	l.detach(s)
	s.mu.Unlock()
	l.drop()
}

// setup sends a command of the sidecar's own.
func (l *link) setup(s *session, command [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.prepare(s, command)
}

// prepare is setup with session.mu held.
func (l *link) prepare(s *session, command [][]byte) {
	l.expect(effect{kind: effectSetup})
	s.alone.add(l, resp.AppendCommand(nil, command))
}

// announce expects the client's next command, and does what has to be done before
// it. It is called with session.mu held.
func (l *link) announce(s *session, e effect) {
	switch {
	case e.asking:
		l.prepare(s, [][]byte{[]byte("ASKING")})
	case e.kind == effectWaits && !s.state.multi:
		// Redis waits for the replicas to have the last command of the same
		// connection; what the session wrote before came by others.
		l.prepare(s, [][]byte{[]byte("PING")})
	case e.kind == effectOpaque && !s.state.multi:
		s.state.opaque = true
	}
	l.expect(e)
}

// expect announces a command that is about to be sent and will be answered. It
// must come before the command's first byte: the reply may be quick. It is
// called with session.mu held.
func (l *link) expect(e effect) {
	l.sent++
	if e.kind == effectNone && !e.quiet {
		return
	}
	l.waiting = append(l.waiting, waiting{e, l.sent})
	if e.kind.blocks() {
		l.blocked++
	}
}

// withdraw takes back the last command announced: it broke off in the middle, and
// Redis will never answer it.
func (l *link) withdraw() {
	if n := len(l.waiting); n > 0 && l.waiting[n-1].seq == l.sent {
		l.waiting = l.waiting[:n-1]
	}
	l.sent--
}

// leave tells Redis that no more commands will come. It is called with session.mu
// held.
func (l *link) leave() {
	l.leaving = true
	if half, ok := l.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return
	}
	l.drop()
}

// drop ends the link; follow does the rest.
func (l *link) drop() { l.conn.Close() }

// follow brings replies to the session that has the link, one session after the
// other, until the connection ends.
func (l *link) follow() {
	defer l.pool.lost(l)
	var writing *session // whose client's stream is ours until the reply under way ends
	buf := make([]byte, linkReadBytes)
	for {
		n, err := l.conn.Read(buf)
		faulty := false
		l.mu.Lock()
		s := l.session
		l.gone = l.gone || err != nil || s == nil
		l.mu.Unlock()
		if s == nil {
			// Free links are sent nothing. One that ended, or said something
			// unasked, is of no use.
			l.conn.Close()
			return
		}
		if n > 0 {
			if writing == nil {
				s.writeMu.Lock()
				writing = s
			}
			if fault := l.bring(s, buf[:n]); fault != nil {
				err, faulty = fault, true
			}
			if !l.scanner.Within() {
				writing.writeMu.Unlock()
				writing = nil
			}
		}
		if err != nil {
			if writing != nil {
				writing.writeMu.Unlock()
			}
			l.end(s, faulty)
			return
		}
		if n > 0 {
			l.settle(s)
		}
	}
}

// bring gives the client what b, which continues the stream from Redis, has for
// it.
func (l *link) bring(s *session, b []byte) error {
	b, err := l.digest(s, b)
	if err != nil {
		s.log().Error("closing a connection to Redis", zap.Error(err))
		return err
	}
	l.torn = l.scanner.Within() && !l.holding && !l.silent
	if len(b) > 0 {
		err = s.out.writeAll(b)
	}
	if l.refused && err == nil {
		s.mu.Lock()
		l.answered = l.received
		s.mu.Unlock()
		return errRefused
	}
	return err
}

// settle tells the session what its client has been given, and takes the link
// back when the session doesn't need it any more.
func (l *link) settle(s *session) {
	s.mu.Lock()
	l.answered, l.quiet = l.received, 0
	if l.answered == l.sent && !s.attaching {
		s.endTurn()
	}
	free := l.releaseIfFree(s)
	s.changed.Broadcast()
	s.mu.Unlock()
	if free {
		l.pool.put(l)
	}
}

// releaseIfFree takes the link from its session if that has no more need of it,
// which it reports; then the link has to be put back into the pool. It is called
// with session.mu held.
func (l *link) releaseIfFree(s *session) bool {
	if l.answered < l.sent || l.spoilt || l.leaving || s.attaching || l.needed(&s.state) || s.link.Load() != l {
		return false
	}
	if !l.detour {
		l.is, l.name = s.state.Profile, s.state.name
	}
	l.detach(s)
	return true
}

// needed reports whether the session can't do without the link. In a cluster its
// commands go to many nodes, and the session itself drops the replies that the client
// doesn't want.
func (l *link) needed(state *state) bool {
	if l.listens {
		return state.kept()
	}
	return state.pinned()
}

// end tells the session that its link is gone. A client whose session stood on
// more than a profile is closed with it, as on a direct connection, and so is one
// whose replies were faulty; any other goes on by another connection.
func (l *link) end(s *session, faulty bool) {
	l.conn.Close()
	s.mu.Lock()
	l.ending = true
	lost := l.sent - l.answered - l.quiet
	fatal := faulty || l.leaving || l.torn || l.needed(&s.state)
	for _, w := range l.waiting {
		if w.quiet {
			lost--
		}
		switch w.kind {
		case effectSetup:
			lost--
		case effectShutdown: // the closed connection is its answer
			lost, fatal = lost-1, true
		default:
			fatal = fatal || w.kind.changesSession()
		}
	}
	if fatal {
		s.broken.Store(true)
	}
	skips := lost > 0 && s.state.mute == replySkipNext
	if l.leaving || s.state.opaque || s.state.mute != replyOn {
		lost = 0 // the client has hung up, and Redis has closed; or what is owed can't be told, or isn't wanted
	}
	if skips {
		s.state.mute = replyOn // what was to be skipped was the lost reply
	}
	s.mu.Unlock()
	if lost > 0 && !l.torn {
		_ = s.out.writeAll(appendRepeated(nil, lostError, int(lost)))
	}
	s.mu.Lock()
	l.detach(s)
	s.changed.Broadcast()
	s.mu.Unlock()
	if fatal {
		s.out.close()
	}
}

// digest finds the replies in b, which continues the stream from Redis, and
// returns what the client is to get: b itself, unless replies were rewritten.
func (l *link) digest(s *session, b []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, copied := l.digested[:0], 0 // b[copied:pos] is still to be appended to out
	for pos := 0; pos < len(b) && !s.state.opaque; {
		if !l.scanner.Within() {
			if !l.asked(&s.state, b[pos]) {
				return nil, errUnasked
			}
			l.begin(&s.state, b[pos])
		}
		n, done, err := l.scanner.Scan(b[pos:])
		if err != nil {
			return nil, err
		}
		piece := b[pos : pos+n]
		if l.watched {
			l.reply.keep(piece)
		}
		if l.holding || l.silent {
			out = append(out, b[copied:pos]...)
			copied = pos + n
		}
		if l.holding {
			l.held = append(l.held, piece...)
			if len(l.held) > heldMax {
				out = append(out, l.held...)
				l.holding, l.held = false, nil
			}
		}
		pos += n
		if done {
			out = l.ended(s, out)
		}
	}
	if copied == 0 {
		return b, nil
	}
	l.digested = append(out, b[copied:]...)
	return l.digested, nil
}

// asked reports whether a reply of the given kind has somebody who waits for it.
func (l *link) asked(state *state, kind byte) bool {
	if kind != '>' {
		return l.received < l.sent || state.watched()
	}
	w := l.next()
	subscribes := w != nil && (w.kind == effectSubscribe || w.kind == effectUnsubscribe)
	// One that knows its id may be where another's invalidations are redirected to.
	return state.Protocol == 3 && (subscribes || state.waitsForMessages() || state.held&(holdTracking|holdConnection|holdID) != 0)
}

// begin decides, on the first byte of a reply, what has to be kept of it.
func (l *link) begin(state *state, first byte) {
	w := l.next()
	kind := effectNone
	if w != nil {
		kind = w.kind
	}
	l.watched = w != nil || first == '>' || state.watched()
	l.silent = state.silent(first, kind) || first != '>' && w != nil && w.quiet
	l.holding = first != '>' && kind.rewrites() || first == '-' && l.listens ||
		l.silent && (first == '*' && state.inSubscribedMode() || kind == effectReset)
	l.reply = reply{kind: first, head: l.reply.head[:0], tail: l.reply.tail[:0], elements: l.reply.elements[:0]}
	l.scanner.Elements = nil
	if w != nil && w.kind == effectExec && len(state.tx) > 0 {
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

// ended accounts for a whole reply, and appends to out what was held of it, as
// far as it is for the client, rewritten if the sidecar has a part in it.
func (l *link) ended(s *session, out []byte) []byte {
	held, silent := l.held, l.silent
	l.held, l.holding, l.silent = l.held[:0], false, false
	w := l.next()
	kind := effectNone
	if w != nil {
		kind = w.kind
	}
	if l.watched && s.state.isMessage(&l.reply, kind) {
		s.state.unsubscribed(&l.reply)
		return append(out, held...)
	}
	if l.listens && len(held) > 0 && held[0] == '-' {
		var heard bool
		if held, heard = s.hear(l.target, held, w); heard {
			return l.pass(w, out)
		}
	}
	skipped := s.state.mute == replySkipNext && kind != effectSetup && (w == nil || !w.quiet)
	left := effect{}
	switch kind {
	case effectSetup:
		l.spoilt = l.spoilt || l.reply.kind == '-'
		silent = true
	case effectNone:
		if s.state.multi {
			s.state.answered(effect{}, &l.reply, s.server.target)
		}
	case effectLarge:
		s.state.answered(effect{}, &l.reply, s.server.target)
		l.refused = bytes.HasPrefix(l.reply.head, []byte("-ERR Protocol error"))
	default:
		left = s.state.answered(w.effect, &l.reply, s.server.target)
	}
	if w != nil && (w.quiet || kind == effectSetup) {
		l.quiet++
	}
	if w != nil && w.quiet && kind == effectWaits {
		s.said = string(l.reply.head)
	}
	switch {
	case kind == effectReplyMode && bytes.HasPrefix(l.reply.head, []byte("+OK\r\n")):
		silent = w.mute != replyOn // the new mode holds for its own reply
	case kind == effectReset && l.reply.kind == '+':
		silent = skipped // it ends CLIENT REPLY OFF, but not SKIP
	}
	if kind.rewrites() && !silent {
		held = s.server.rewrite(w.effect, held, s.state.Protocol)
	}
	if !silent {
		out = append(out, held...)
	}
	if left.replies > 0 {
		w.effect = left
		return out
	}
	if skipped && s.state.mute == replySkipNext && kind != effectReplyMode {
		s.state.mute = replyOn
	}
	return l.pass(w, out)
}

// pass ends the wait for a reply, and for the effect that may wait with it. It
// returns out.
func (l *link) pass(w *waiting, out []byte) []byte {
	l.received++
	if w == nil {
		return out
	}
	if w.kind.blocks() {
		l.blocked--
	}
	if l.waiting = l.waiting[1:]; len(l.waiting) == 0 {
		l.waiting = nil
	}
	return out
}

// errRefused ends a session whose client sent what Redis takes for a protocol
// error.
var errRefused = errors.New("refused by Redis as a protocol error")

// errUnasked is a reply that belongs to no command.
var errUnasked = errors.New("a reply from Redis that nobody asked for")

// lostError answers a command that was sent and whose reply will not come. Not
// "-ERR": some clients turn that into a silent false.
const lostError = "-UNCERTAIN the connection to Redis ended before the reply came; the command may or may not have been executed\r\n"

// unsentError answers a command that was lost on its way to Redis.
const unsentError = "-UNAVAILABLE the connection to Redis ended; the command was not executed\r\n"

func appendRepeated(dst []byte, s string, n int) []byte {
	for range n {
		dst = append(dst, s...)
	}
	return dst
}
