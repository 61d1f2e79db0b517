package proxy

import (
	"bytes"
	"strconv"

	"seckill-proxy/upstream"
)

// state is what the sidecar knows of a session, learned from the replies to the
// commands that change it. It is what Redis knows of the connection behind the
// session, as far as the sidecar must know it too: to run custom commands as the
// same user in the same database, and to tell replies from messages.
//
// Its transitions are apply, ended and subscription; whether the session needs a
// connection of its own is derived from it, by pinned.
type state struct {
	upstream.Profile
	name string // by CLIENT SETNAME

	multi  bool     // between MULTI and EXEC or DISCARD
	held   hold     // what else only its own connection has
	unsure bool     // whose session it is: a HELLO that Redis refused may have authenticated it
	queued int      // commands queued since MULTI
	tx     []queued // those among them that change the session

	mute       replyMode
	subscribed [families]int // subscriptions by family
	monitoring bool

	// opaque tells that the stream of replies can't be followed any more: it is
	// copied, and custom commands are Redis's unknown commands.
	opaque bool
}

// queued is an effect that waits for EXEC.
type queued struct {
	effect
	position int // among the commands of the transaction
}

// replyMode is CLIENT REPLY's.
type replyMode byte

const (
	replyOn replyMode = iota
	replyOff
	replySkipNext // the command after CLIENT REPLY SKIP
)

// hold is a set of reasons to keep a connection to itself.
type hold byte

const (
	holdWatch      hold = 1 << iota // keys are watched
	holdTracking                    // invalidations may come
	holdConnection                  // the client made the connection special, or may have
	holdID                          // the client knows it by its id
)

// pinned reports whether the session needs the connection that it has: Redis
// keeps something there that a shared connection can't have, or the replies that
// come by it have to be dropped.
func (s *state) pinned() bool { return s.mute != replyOn || s.kept() }

// kept reports whether Redis keeps something on the session's own connection.
func (s *state) kept() bool { return s.multi || s.held != 0 || s.waitsForMessages() }

// keptForID reports whether that is nothing but the id that the client knows.
func (s *state) keptForID() bool { return s.held == holdID && !s.multi && !s.waitsForMessages() }

// inSubscribedMode reports the mode in which RESP2 allows only subscribing,
// PING, QUIT and RESET, and arrays may be messages.
func (s *state) inSubscribedMode() bool {
	return s.Protocol == 2 && s.subscribed != [families]int{}
}

// waitsForMessages reports a session whose silence is no idleness.
func (s *state) waitsForMessages() bool {
	return s.subscribed != [families]int{} || s.monitoring || s.opaque
}

// watched reports whether replies must be looked into, and not only counted.
func (s *state) watched() bool {
	return s.multi || s.monitoring || s.mute != replyOn || s.subscribed != [families]int{}
}

// silent reports whether a reply of the given kind to the next command is not
// for the client; what confirms subscriptions always is, as in Redis.
func (s *state) silent(kind byte, next effectKind) bool {
	subscribes := next == effectSubscribe || next == effectUnsubscribe
	return s.mute != replyOn && kind != '>' && !(subscribes && kind == '*')
}

// reply is what is kept of a reply while it passes.
type reply struct {
	kind     byte   // its first byte
	head     []byte // its first bytes, at most headBytes
	tail     []byte // its last bytes, at most tailBytes
	elements []byte // the first byte of each element of EXEC's reply
}

const (
	headBytes = 64 // enough for the name of a message frame, QUEUED and EXECABORT
	tailBytes = 32 // enough for the count at the end of a subscription frame
)

// isMessage reports replies that nobody asked for: messages, invalidations,
// MONITOR's lines. confirms is the effect that waits for its reply.
func (s *state) isMessage(r *reply, confirms effectKind) bool {
	switch {
	case r.kind == '>', r.kind == '*' && s.inSubscribedMode():
		switch name := frameName(r.head); name {
		case "subscribe", "psubscribe", "ssubscribe":
			return confirms != effectSubscribe
		case "unsubscribe", "punsubscribe", "sunsubscribe":
			// Redis also unsubscribes by itself, when a slot moves away.
			return confirms != effectUnsubscribe
		case "message", "pmessage", "smessage":
			return true
		}
		return r.kind == '>'
	case r.kind == '+' && s.monitoring:
		return len(r.head) > 1 && r.head[1] >= '0' && r.head[1] <= '9'
	}
	return false
}

// frameName returns the first element of an array of bulk strings: the "message"
// of "*3\r\n$7\r\nmessage\r\n…".
func frameName(head []byte) string {
	lines := bytes.SplitN(head, []byte("\r\n"), 4)
	if len(lines) < 4 || len(lines[1]) == 0 || lines[1][0] != '$' {
		return ""
	}
	return string(lines[2])
}

// lastInteger returns the integer that a subscription frame ends with.
func lastInteger(tail []byte) int {
	i := bytes.LastIndexByte(tail, ':')
	if i < 0 {
		return 0
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(tail[i+1:])))
	if err != nil {
		return 0
	}
	return n
}

// answered applies a command's effect, now that its reply has come. It returns
// the effect with the number of its replies that are still to come; 0 ends it.
func (s *state) answered(e effect, r *reply, target *upstream.Target) effect {
	if s.multi && r.kind == '+' && bytes.HasPrefix(r.head, []byte("+QUEUED\r\n")) {
		switch changes := e.kind.changesSession() || e.kind == effectOpaque || e.kind == effectReplyMode || e.kind == effectPause; {
		case changes && len(s.tx) < effectsMax:
			s.tx = append(s.tx, queued{e, s.queued})
		case changes:
			s.opaque = true // more than can be remembered
		}
		s.queued++
		e.replies = 0
		return e
	}
	if e.kind == effectSubscribe || e.kind == effectUnsubscribe {
		return s.subscription(e, r)
	}
	if e.kind == effectExec {
		s.ended(r, target)
	} else {
		if bytes.HasPrefix(r.head, []byte("-WRONGPASS ")) && !e.again {
			e.identity = upstream.Identity{} // it is nobody else's session
		}
		s.settle(e, r.kind, target)
	}
	e.replies = 0
	return e
}

// settle applies an effect as the first byte of the reply says.
func (s *state) settle(e effect, reply byte, target *upstream.Target) {
	if reply == '-' {
		s.held |= e.doubt
		s.unsure = s.unsure || e.kind == effectHello && e.identity.Known
		return
	}
	s.apply(e, target)
}

func (s *state) apply(e effect, target *upstream.Target) {
	switch e.kind {
	case effectMulti:
		s.multi, s.queued, s.tx = true, 0, nil
	case effectDiscard:
		s.multi, s.tx = false, nil
		s.held &^= holdWatch
	case effectReset:
		profile, _ := target.AfterReset()
		*s = state{Profile: profile, held: s.held & (holdConnection | holdID)}
	case effectAuth:
		s.becomes(e.identity, target)
	case effectHello:
		s.Protocol = e.protocol
		if e.identity.Known {
			s.becomes(e.identity, target)
		}
		if e.named {
			s.name = e.name
		}
	case effectSelect:
		s.DB = e.db
	case effectSetName:
		s.name = e.name
	case effectReplyMode:
		if e.mute != replySkipNext || s.mute != replyOff {
			s.mute = e.mute
		}
	case effectHold:
		s.held |= e.hold
	case effectRelease:
		s.held &^= e.hold
	case effectMonitor:
		s.monitoring = true
	case effectPause:
		target.Pause(e.pause)
	case effectOpaque, effectSubscribe, effectUnsubscribe:
		// A subscription inside a transaction answers with more replies than
		// EXEC's array announces.
		s.opaque = true
	}
}

// becomes makes the session another user's. Redis lets it stay in the database that
// it selected before, where the new user may not be allowed to go; so only the
// connection that it has can be sure to be there.
func (s *state) becomes(id upstream.Identity, target *upstream.Target) {
	if s.Identity != id && s.DB != target.Profile().DB {
		s.held |= holdConnection
	}
	s.Identity, s.unsure = id, false
}

// ended ends a transaction on EXEC's reply: an array of results, a null where a
// watched key changed, or an error.
func (s *state) ended(r *reply, target *upstream.Target) {
	if r.kind == '-' && !aborted(r.head) {
		return // EXEC itself was refused; the transaction stands as it stood
	}
	tx := s.tx
	s.multi, s.tx = false, nil
	s.held &^= holdWatch
	for _, q := range tx {
		if q.position < len(r.elements) {
			s.settle(q.effect, r.elements[q.position], target)
		}
	}
}

// aborted reports whether an error in reply to EXEC has ended the transaction. Those
// of a cluster say that the keys are elsewhere, or that nobody knows where.
func aborted(head []byte) bool {
	for _, code := range []string{"-EXECABORT", "-MOVED ", "-ASK ", "-TRYAGAIN", "-CROSSSLOT", "-CLUSTERDOWN"} {
		if bytes.HasPrefix(head, []byte(code)) {
			return true
		}
	}
	return false
}

// unsubscribed accounts for what Redis does by itself when a slot moves away.
func (s *state) unsubscribed(message *reply) {
	if frameName(message.head) == "sunsubscribe" {
		s.subscribed[shardChannels] = max(lastInteger(message.tail), 0)
	}
}

// subscription accounts for one confirmation of a SUBSCRIBE or UNSUBSCRIBE.
func (s *state) subscription(e effect, r *reply) effect {
	if r.kind == '-' {
		e.replies = 0
		return e
	}
	if e.replies == 0 { // UNSUBSCRIBE from all: a reply each, and one if there are none
		e.replies = max(s.subscribed[e.family], 1)
	}
	e.replies--
	n := lastInteger(r.tail)
	switch e.family {
	case channels:
		n -= s.subscribed[patterns]
	case patterns:
		n -= s.subscribed[channels]
	}
	s.subscribed[e.family] = max(n, 0)
	return e
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
