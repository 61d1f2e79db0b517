package proxy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"seckill-proxy/commands"
	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// This file is how a session serves the custom commands.

// customSide is what a session has for its custom commands, from the first of them on.
type customSide struct {
	conn     *commands.Connection
	backends *lease[*backend]                      // of conn's present backend
	kept     map[upstream.Profile]*lease[*backend] // of earlier ones that conn still needs
}

// future is the reply of a custom command that is under way.
type future struct {
	reply commands.Reply        // where it was certain at once
	later <-chan commands.Reply // nil then
}

func (f future) wait() commands.Reply {
	if f.later == nil {
		return f.reply
	}
	return <-f.later
}

// serveCustom serves a command of the table, or leaves it to Redis to refuse it where
// Redis has to know that it was there.
func (s *session) serveCustom(row *commands.Command, cmd *resp.Command) error {
	if s.calls != nil && s.calls.tx != nil {
		return s.spoil(cmd, notInTransaction)
	}
	if len(s.batch) == 0 || !row.Concurrent || len(s.batch) >= s.server.limits.PipelineMax {
		s.settle()
	}
	s.mu.Lock()
	multi, subscribed, opaque, unsure := s.state.multi, s.state.inSubscribedMode(), s.state.opaque, s.state.unsure
	s.mu.Unlock()
	switch {
	case opaque:
		return s.sendAlone(cmd, effect{})
	case multi:
		return s.sendAlone(cmd, effect{kind: effectRefused})
	case cmd.Partial:
		return s.skip(func() error {
			return s.refuse(commands.Error(fmt.Sprintf("ERR %s is longer than %d bytes (limits.custom_bytes_max)",
				row.Name, s.server.limits.CustomBytes)))
		})
	case subscribed:
		return s.refuse(commands.Error(notInSubscribedMode(row.Name)))
	case unsure:
		return s.refuse("ERR a HELLO was refused and may have changed the user before that; send AUTH, HELLO with AUTH, or RESET first")
	}
	if wrong := row.ArityError(cmd.Count); wrong != "" {
		return s.refuse(wrong)
	}
	conn := s.connection()
	if row.Concurrent && s.reader.Buffered() {
		s.batch = append(s.batch, s.begin(row, conn, cmd.Args[1:]))
		return nil
	}
	reply := s.execute(row, conn, cmd.Args[1:])
	s.collect()
	s.answer(reply)
	return nil
}

// notInSubscribedMode is Redis's refusal of a command in RESP2 while there are
// subscriptions.
func notInSubscribedMode[S string | []byte](name S) string {
	return "ERR Can't execute '" + strings.ToLower(string(name)) +
		"': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
}

// refuse answers a custom command that isn't executed.
func (s *session) refuse(reply commands.Error) error {
	s.collect()
	s.answer(reply)
	return nil
}

// begin executes a command while the next one is read.
func (s *session) begin(row *commands.Command, conn *commands.Connection, args [][]byte) future {
	if reply, ok := s.server.atOnce(row, conn, args); ok {
		return future{reply: reply}
	}
	kept := make([][]byte, len(args))
	for i, arg := range args {
		kept[i] = slices.Clone(arg)
	}
	reply := make(chan commands.Reply, 1)
	go func() { reply <- s.server.execute(s.server.ctx, row, conn, kept) }()
	return future{later: reply}
}

// collect waits for the commands that run concurrently and gathers their
// replies in order.
func (s *session) collect() {
	for _, f := range s.batch {
		s.answer(f.wait())
	}
	s.batch = s.batch[:0]
}

// execute runs a command. One that may wait does so no longer than its client is
// there and the server doesn't drain.
func (s *session) execute(row *commands.Command, conn *commands.Connection, args [][]byte) commands.Reply {
	if !row.Blocks() {
		return s.server.execute(s.server.ctx, row, conn, args)
	}
	ctx, cancel := context.WithCancel(s.server.ctx)
	defer cancel()
	s.waits(cancel)
	defer s.waits(nil)
	return s.server.execute(ctx, row, conn, args)
}

// waits says how the wait of the command under way is ended, nil for none.
func (s *session) waits(end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endWait = end
	if s.gone || s.server.drain.Load() {
		s.stopWaiting()
	}
}

// stopWaiting ends the wait of the custom command under way. It is called with
// mu held.
func (s *session) stopWaiting() {
	if s.endWait != nil {
		s.endWait()
	}
}

// connection returns what custom commands work with, as the session's present
// user and in its present database.
func (s *session) connection() *commands.Connection {
	key := s.profile()
	key.Protocol = 0 // the control plane has its own
	c := &s.custom
	if c.conn == nil {
		c.conn = &commands.Connection{Probe: func(within time.Duration) { probe(s.client, within) }}
	}
	if c.backends != nil && c.backends.key == key {
		return c.conn
	}
	s.collect() // they still use the one before
	if c.backends != nil {
		c.keep(c.backends)
	}
	if c.backends = c.kept[key]; c.backends != nil {
		delete(c.kept, key)
	} else {
		c.backends = s.server.backends.acquire(key)
	}
	c.conn.Backend = c.backends.value.Backend
	return c.conn
}

// keep keeps a lease, and those kept before, as far as the connection needs them.
func (c *customSide) keep(left *lease[*backend]) {
	if c.kept == nil {
		c.kept = make(map[upstream.Profile]*lease[*backend])
	}
	c.kept[left.key] = left
	for key, lease := range c.kept {
		if !c.conn.Needs(lease.value.Backend) {
			lease.release()
			delete(c.kept, key)
		}
	}
}

// resetCustom ends what belongs to the connection, once what the client sent
// before is done.
func (s *session) resetCustom() {
	if s.custom.conn == nil || s.custom.conn.Idle() {
		return
	}
	s.settle()
	s.custom.conn.Close()
}

// closeCustom ends what belongs to the connection for good.
func (s *session) closeCustom() {
	c := &s.custom
	if c.conn == nil {
		return
	}
	c.conn.Close()
	for _, lease := range c.kept {
		lease.release()
	}
	c.backends.release()
}
