package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"

	"seckill-proxy/commands"
	"seckill-proxy/internal/resp"
)

// This file is transactions in a cluster. Which node one is at, its first command
// with a key decides. Until then the sidecar answers in Redis's place and keeps what
// was queued.

// unbound is a transaction that no node knows of yet.
type unbound struct {
	held  []held
	bytes int  // of their commands
	fails bool // EXEC will say so
}

// held is a command that is queued at no node yet.
type held struct {
	command []byte
	effect  effect
}

// Limits of an unbound transaction.
const (
	queuedMax      = 128
	queuedBytesMax = 64 << 10
)

// openTransaction serves MULTI.
func (s *session) openTransaction(cmd *resp.Command, e effect) error {
	s.settle()
	if cmd.Partial || cmd.Count != 1 || s.profile().Identity.Stranger {
		return s.own(own, cmd, e, s.locate(cmd)) // Redis says what is wrong
	}
	s.calls.tx = &unbound{}
	s.answer(commands.Status("OK"))
	return nil
}

// queue serves a command inside a transaction that no node knows of yet.
func (s *session) queue(r *rule, cmd *resp.Command, e effect) error {
	s.settle()
	c := s.calls
	tx := c.tx
	switch {
	case e.kind == effectReset:
		c.tx = nil
		return s.forwardInCluster(own, cmd, e)
	case e.kind == effectMulti && cmd.Count == 1:
		return s.turnDown(cmd, "ERR MULTI calls can not be nested")
	case e.kind == effectDiscard && cmd.Count == 1:
		c.tx = nil
		s.answer(commands.Status("OK"))
		return nil
	case e.kind == effectExec && cmd.Count == 1 && tx.fails:
		c.tx = nil
		return s.turnDown(cmd, "EXECABORT Transaction discarded because of previous errors.")
	case e.kind == effectExec && cmd.Count == 1 && len(tx.held) == 0:
		c.tx = nil
		s.answer(commands.Array{})
		return nil
	case tx.fails:
		return s.queued(cmd)
	case r.refuses(cmd):
		return s.spoil(cmd, r.refusal)
	case r.serve != nil:
		return s.spoil(cmd, ofAllNodes(cmd))
	}
	at := s.locate(cmd)
	switch {
	case cmd.Partial && at.slot < 0 && len(cmd.Args) < cmd.Count:
		return s.gatherWhole(cmd)
	case at.slot < 0 && (e.kind != effectExec || cmd.Count != 1):
		return s.holdBack(cmd, e, at)
	}
	if why := s.bind(at); why != nil {
		return s.spoil(cmd, why.Error())
	}
	return s.sendBound(r, cmd, e)
}

// holdBack queues a command without a key. A node that is asked to queue it, in a
// transaction that is discarded at once, says what the client is told.
func (s *session) holdBack(cmd *resp.Command, e effect, at place) error {
	tx := s.calls.tx
	if cmd.Partial || len(tx.held) >= queuedMax || tx.bytes+len(cmd.Raw) > queuedBytesMax {
		return s.spoil(cmd, fmt.Sprintf("ERR more than %d commands or %d bytes at the beginning of a transaction, before the first key says which node it is for",
			queuedMax, queuedBytesMax))
	}
	s.mu.Lock()
	s.state.queued = 0
	s.mu.Unlock()
	if why := s.open(at); why != nil {
		return s.spoil(cmd, why.Error())
	}
	if err := s.sendAlone(cmd, e); err != nil {
		return err
	}
	s.settle()
	s.mu.Lock()
	open, wasQueued := s.state.multi, s.state.queued > 0
	s.mu.Unlock()
	if !open {
		s.calls.tx = nil // an EXEC with too many arguments ends it
		return nil
	}
	if err := s.sendQuietly([]byte("*1\r\n$7\r\nDISCARD\r\n"), effect{kind: effectDiscard}); err != nil {
		return err
	}
	s.settle()
	if !wasQueued {
		tx.fails, tx.held = true, nil
		return nil
	}
	tx.held = append(tx.held, held{bytes.Clone(cmd.Raw), e})
	tx.bytes += len(cmd.Raw)
	return nil
}

// queued answers as Redis does when it has queued a command.
func (s *session) queued(cmd *resp.Command) error {
	answer := func() error {
		s.answer(commands.Status("QUEUED"))
		return nil
	}
	if cmd.Partial {
		return s.skip(answer)
	}
	return answer()
}

// spoil refuses a command inside a transaction that no node knows of yet, so that its
// EXEC will do nothing.
func (s *session) spoil(cmd *resp.Command, why string) error {
	s.calls.tx.fails = true
	s.calls.tx.held = nil
	return s.turnDown(cmd, why)
}

// ofAllNodes refuses a command that is made of several, in a transaction.
func ofAllNodes(cmd *resp.Command) string {
	return fmt.Sprintf("ERR %s concerns all nodes of the cluster, and a transaction is at one", strings.ToUpper(string(cmd.Args[0])))
}

// bind opens the transaction at a node and has what was held queued there. On an
// error, whose text is for the client, nothing is open there.
func (s *session) bind(at place) error {
	if l := s.link.Load(); l != nil && at.slot >= 0 && l.target != at.node {
		s.giveUpID() // nothing else is kept there
	}
	if err := s.open(at); err != nil {
		return err
	}
	for _, h := range s.calls.tx.held {
		if s.sendQuietly(h.command, h.effect) != nil {
			break // the connection is lost, and the client with it
		}
	}
	s.calls.tx = nil
	return nil
}

// open opens a transaction at a node.
func (s *session) open(at place) error {
	s.mu.Lock()
	s.said, s.bound = "", at.slot
	s.mu.Unlock()
	s.node = at.node
	s.calls.written(at.node)
	if err := s.sendQuietly([]byte("*1\r\n$5\r\nMULTI\r\n"), effect{kind: effectMulti}); err != nil {
		s.server.metrics.Unavailable.Inc()
		s.server.cluster.Stale(s.profile())
		return errors.New(string(unavailable(err)))
	}
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.multi {
		return errors.New(strings.Trim(cmp.Or(s.said, unsentError), "-\r\n"))
	}
	return nil
}

// sendQuietly sends a command whose reply isn't for the client.
func (s *session) sendQuietly(command []byte, e effect) error {
	e.quiet = true
	l, err := s.attach(e)
	if err != nil {
		return err
	}
	s.hand(l, command, e)
	s.attached(l)
	return nil
}

// sendBound sends a command inside a transaction to the node that it is at.
func (s *session) sendBound(r *rule, cmd *resp.Command, e effect) error {
	switch {
	case r.refuses(cmd):
		return s.spoilBound(cmd, r.refusal)
	case r.serve != nil:
		return s.spoilBound(cmd, ofAllNodes(cmd))
	}
	if err := s.sendAlone(cmd, e); err != nil {
		return err
	}
	if e.kind == effectExec || e.kind == effectDiscard || e.kind == effectReset {
		s.settle() // where the next command goes depends on it
	}
	return nil
}

// spoilBound refuses a command inside a transaction. Redis is sent one that it doesn't
// know in its place, so that EXEC will do nothing.
func (s *session) spoilBound(cmd *resp.Command, why string) error {
	unknown := resp.Command{Args: [][]byte{[]byte("SECKILL.UNKNOWN")}, Count: 1}
	unknown.Raw = resp.AppendCommand(nil, unknown.Args)
	send := func() error { return s.sendAlone(&unknown, effect{kind: effectRefused, name: why}) }
	if cmd.Partial {
		return s.skip(send)
	}
	return send()
}
