package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"seckill-proxy/commands"
	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// session is one client connection. Its goroutine, run, reads commands and takes
// the one decision about each: ours or Redis's.
type session struct {
	server *Server
	client net.Conn
	log    *zap.Logger
	reader *resp.CommandReader

	// Of run alone.
	lease *lease   // the backend of custom commands, nil until the first
	local []byte   // replies of custom commands, not yet written
	batch []future // custom commands that run concurrently, in order
	mute  replyMode

	writeMu sync.Mutex // held while a reply is written to the client

	mu    sync.Mutex // guards state and the link's counters
	state state
	link  *link // nil until the first command for Redis; run alone sets it
}

// replyMode is CLIENT REPLY's.
type replyMode byte

const (
	replyOn replyMode = iota
	replyOff
	replySkipNext // the command after CLIENT REPLY SKIP
)

// future is the reply of a custom command that is under way.
type future <-chan commands.Reply

func newSession(server *Server, client net.Conn) *session {
	s := &session{
		server: server,
		client: client,
		log:    server.log.With(zap.String("client", client.RemoteAddr().String())),
		state:  freshState(server.target.DB()),
	}
	s.reader = resp.NewCommandReader(client, server.limits.reader(), s.beforeRead)
	return s
}

func (s *session) target() *upstream.Target { return s.server.target }

// run serves the client until it is gone, or the server is.
func (s *session) run() {
	defer s.close()
	for {
		cmd, err := s.reader.Next()
		if err == nil {
			err = s.handle(&cmd)
		}
		if err != nil {
			s.finish(err)
			return
		}
	}
}

// errClosed ends a session whose client has had its last reply.
var errClosed = errors.New("session closed")

// finish sends what is still owed to the client.
func (s *session) finish(err error) {
	var protocol resp.ProtocolError
	if errors.As(err, &protocol) {
		s.settle()
		s.local = appendReply(s.local, commands.Error(protocol.Error()), 2)
		s.server.metrics.ProtocolErrors.Inc()
	}
	s.flush()
	if s.link != nil && err != errClosed && !errors.Is(err, net.ErrClosed) {
		s.link.settleWithin(s.server.limits.Linger)
	}
}

func (s *session) close() {
	s.client.Close()
	if s.link != nil {
		s.link.close()
	}
	if s.lease != nil {
		s.lease.release()
	}
}

// beforeRead is called when no command is at hand: what was gathered is sent.
func (s *session) beforeRead() error {
	s.flush()
	if idle := s.server.limits.IdleTimeout; idle > 0 && !s.busy() {
		if err := s.client.SetReadDeadline(time.Now().Add(idle)); err != nil {
			return err
		}
	}
	if s.server.drain.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// busy reports whether the client may be silent because it waits.
func (s *session) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.waitsForMessages() || s.link != nil && s.link.answered < s.link.sent
}

// flush sends what was gathered, in both directions.
func (s *session) flush() {
	s.collect()
	if len(s.local) > 0 {
		s.writeMu.Lock()
		// An error shows again at the next read.
		_, _ = s.client.Write(s.local)
		s.writeMu.Unlock()
		s.local = s.local[:0]
		if cap(s.local) > keptBytes {
			s.local = nil
		}
	}
	if s.link != nil {
		s.link.flush()
	}
}

// keptBytes is the largest buffer that a session keeps between commands.
const keptBytes = 16 << 10

// settle waits until everything before the current command is answered.
func (s *session) settle() {
	s.collect()
	if s.link != nil {
		s.link.flush()
		s.link.settle()
	}
}

// handle serves one command. An error ends the session.
func (s *session) handle(cmd *resp.Command) error {
	if len(cmd.Args) > 0 {
		if row := s.server.table.Lookup(cmd.Args[0]); row != nil {
			return s.custom(row, cmd)
		}
	}
	return s.forward(cmd, effectOf(cmd))
}

// forward sends a command to Redis as it came.
func (s *session) forward(cmd *resp.Command, e effect) error {
	if err := s.connect(); err != nil {
		return s.unreachable(cmd, err)
	}
	if e.kind == effectOpaque {
		s.settle()
	}
	if len(s.local) > 0 || len(s.batch) > 0 {
		s.flush()
	}
	if s.answers(cmd, &e) {
		s.link.expect(e)
	}
	s.server.metrics.Forwarded.Inc()
	s.link.write(cmd.Raw)
	if cmd.Partial {
		if err := s.rest(s.link.write); err != nil {
			s.link.withdraw()
			return err
		}
	}
	if e.kind == effectReset {
		for _, setup := range s.target().Setup() {
			s.link.expect(effect{kind: effectSwallow})
			s.link.write(resp.AppendCommand(nil, setup))
		}
	}
	return nil
}

// rest takes what is left of a partial command.
func (s *session) rest(take func([]byte)) error {
	for {
		b, err := s.reader.Rest()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		take(b)
	}
}

// answers reports whether a command will be answered, which CLIENT REPLY
// decides.
func (s *session) answers(cmd *resp.Command, e *effect) bool {
	mode, isReplyCommand := clientReply(cmd)
	if !isReplyCommand {
		answered := s.mute == replyOn
		if s.mute == replySkipNext {
			s.mute = replyOn
		}
		return answered
	}
	if s.inTransaction() {
		// It takes effect in the middle of EXEC's reply.
		e.kind = effectOpaque
		return true
	}
	switch {
	case mode == replyOff, mode == replySkipNext && s.mute == replyOn:
		s.mute = mode
	case mode == replyOn:
		s.mute = replyOn
	}
	return mode == replyOn
}

// clientReply reads CLIENT REPLY ON, OFF and SKIP.
func clientReply(cmd *resp.Command) (replyMode, bool) {
	if cmd.Partial || len(cmd.Args) != 3 || !strings.EqualFold(string(cmd.Args[0]), "CLIENT") ||
		!strings.EqualFold(string(cmd.Args[1]), "REPLY") {
		return replyOn, false
	}
	switch strings.ToUpper(string(cmd.Args[2])) {
	case "ON":
		return replyOn, true
	case "OFF":
		return replyOff, true
	case "SKIP":
		return replySkipNext, true
	}
	return replyOn, false
}

// inTransaction reports whether the session is between MULTI and EXEC, once
// everything sent so far is answered.
func (s *session) inTransaction() bool {
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.multi
}

// connect makes the link, if there is none.
func (s *session) connect() error {
	if s.link != nil {
		return nil
	}
	conn, err := s.target().Dial(s.server.ctx)
	if err != nil {
		s.server.metrics.DialFailures.Inc()
		return err
	}
	link := newLink(s, conn)
	s.mu.Lock()
	s.link = link
	s.mu.Unlock()
	go s.link.follow()
	return nil
}

// unreachable answers a command while Redis is down. The client keeps its
// connection: its next command tries again.
func (s *session) unreachable(cmd *resp.Command, err error) error {
	s.settle()
	if cmd.Partial {
		if err := s.rest(func([]byte) {}); err != nil {
			return err
		}
	}
	if len(cmd.Args) == 1 && strings.EqualFold(string(cmd.Args[0]), "QUIT") {
		s.respond(commands.Status("OK"))
		return errClosed
	}
	s.respond(commands.Error(fmt.Sprintf("UNAVAILABLE %v; the command was not executed", err)))
	return nil
}

// respond gathers a reply of the sidecar's own.
func (s *session) respond(reply commands.Reply) {
	s.mu.Lock()
	protocol := s.state.protocol
	s.mu.Unlock()
	s.local = appendReply(s.local, reply, protocol)
}

// custom serves a command of the table, or leaves it to Redis to refuse it where
// Redis has to know that it was there.
func (s *session) custom(row *commands.Command, cmd *resp.Command) error {
	if len(s.batch) == 0 || !row.Concurrent || len(s.batch) >= s.server.limits.PipelineMax {
		s.settle()
	}
	s.mu.Lock()
	multi, subscribed, opaque := s.state.multi, s.state.inSubscribedMode(), s.state.opaque
	s.mu.Unlock()
	if opaque || s.link != nil && s.link.isDead() {
		return s.forward(cmd, effect{})
	}
	if multi {
		return s.forward(cmd, effect{kind: effectRefused})
	}
	if cmd.Partial {
		if err := s.rest(func([]byte) {}); err != nil {
			return err
		}
		s.collect()
		s.answer(commands.Error(fmt.Sprintf("ERR %s is longer than %d bytes (limits.custom_bytes_max)",
			row.Name, s.server.limits.CustomBytes)))
		return nil
	}
	if subscribed {
		s.collect()
		s.answer(commands.Error("ERR Can't execute '" + strings.ToLower(row.Name) +
			"': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"))
		return nil
	}
	if refused := row.ArityError(cmd.Count); refused != "" {
		s.collect()
		s.answer(refused)
		return nil
	}
	backend := s.backend()
	if row.Concurrent && s.reader.Buffered() {
		s.batch = append(s.batch, s.begin(row, backend, cmd.Args[1:]))
		return nil
	}
	reply := s.server.execute(row, backend, cmd.Args[1:])
	s.collect()
	s.answer(reply)
	return nil
}

// answer is respond for a command that CLIENT REPLY may have silenced.
func (s *session) answer(reply commands.Reply) {
	if s.mute == replyOn {
		s.respond(reply)
	}
	if s.mute == replySkipNext {
		s.mute = replyOn
	}
}

// begin executes a command while the next one is read.
func (s *session) begin(row *commands.Command, backend *commands.Backend, args [][]byte) future {
	kept := make([][]byte, len(args))
	for i, arg := range args {
		kept[i] = slices.Clone(arg)
	}
	reply := make(chan commands.Reply, 1)
	go func() { reply <- s.server.execute(row, backend, kept) }()
	return reply
}

// collect waits for the commands that run concurrently and gathers their
// replies in order.
func (s *session) collect() {
	for _, f := range s.batch {
		s.answer(<-f)
	}
	s.batch = s.batch[:0]
}

// backend returns the backend of the session's user and database.
func (s *session) backend() *commands.Backend {
	s.mu.Lock()
	key := backendKey{s.state.identity, s.state.db}
	s.mu.Unlock()
	if s.lease == nil || s.lease.key != key {
		if s.lease != nil {
			s.collect() // they still use it
			s.lease.release()
		}
		s.lease = s.server.backends.acquire(key)
	}
	return s.lease.backend
}

// stopReading makes the session end once what it has read is answered.
func (s *session) stopReading() { _ = s.client.SetReadDeadline(time.Unix(1, 0)) }

// cut ends the session at once, whatever it waits for.
func (s *session) cut() {
	s.client.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		s.link.conn.Close()
	}
}
