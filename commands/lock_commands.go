package commands

import (
	"context"
	"errors"
	"time"

	"seckill-proxy/commands/lock"
)

// LOCK.ACQUIRE name ttl_ms [WAIT ms] [TOKEN token] [AUTO [MAXHOLD ms]] [SHARED | PERMITS n] [SYNC replicas]
func lockAcquire(ctx context.Context, c *Connection, args [][]byte) Reply {
	p, o := parse(args), c.Locks.Options()
	req := lock.Request{Name: p.id("name"), TTL: p.lockTTL(o)}
	var tie lockTie
	p.options(append(tie.options(p, o),
		option{"WAIT", func() { req.Wait = p.lockWait(o) }},
		option{"TOKEN", func() { req.Token = p.id("TOKEN") }},
		option{"SHARED", func() { p.lockMode(&req, lock.Shared) }},
		option{"PERMITS", func() {
			req.Most = p.integer("PERMITS", "a positive number of holders", 1, lockPermitsMax)
			p.lockMode(&req, lock.Permits)
		}},
		option{"SYNC", func() { req.Replicas = p.integer("SYNC", "a positive number of replicas", 1, lockReplicasMax) }})...)
	req.Tie = tie.of(p, c, req.TTL)
	if p.err != "" {
		return p.err
	}

	result, err := c.Locks.Acquire(ctx, req)

	return lockReply(result, err, lockUncertain(result.Token))
}

// LOCK.MACQUIRE ttl_ms n name... [WAIT ms] [AUTO [MAXHOLD ms]]
func lockMultiAcquire(ctx context.Context, c *Connection, args [][]byte) Reply {
	p, o := parse(args), c.Locks.Options()
	req := lock.MultiRequest{TTL: p.lockTTL(o), Names: p.lockNames(o.NamesMax)}
	var tie lockTie
	p.options(append(tie.options(p, o), option{"WAIT", func() { req.Wait = p.lockWait(o) }})...)
	req.Tie = tie.of(p, c, req.TTL)
	if p.err != "" {
		return p.err
	}

	result, err := c.Locks.AcquireAll(ctx, req)

	return lockReply(result, err, lockUncertain(result.Token))
}

// LOCK.RELEASE name token
func lockRelease(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	name, token := p.id("name"), p.id("token")
	if p.err != "" {
		return p.err
	}

	result, err := c.Locks.Release(ctx, name, token, &c.ties)

	return lockReply(result, err, lockUncertain(result.Token))
}

// LOCK.RENEW name token ttl_ms
func lockRenew(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	name, token, ttl := p.id("name"), p.id("token"), p.lockTTL(c.Locks.Options())
	if p.err != "" {
		return p.err
	}

	result, err := c.Locks.Renew(ctx, name, token, ttl)

	return lockReply(result, err, lockUncertain(result.Token))
}

// LOCK.CHECK name token
func lockCheck(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	name, token := p.id("name"), p.id("token")
	if p.err != "" {
		return p.err
	}

	result, err := c.Locks.Check(ctx, name, token)

	return lockReply(result, err, lockNotExecuted)
}

// LOCK.FORCE name
func lockForce(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	name := p.id("name")
	if p.err != "" {
		return p.err
	}

	result, err := c.Locks.Force(ctx, name)

	return lockReply(result, err, lockUncertain(""))
}

// LOCK.INFO name
func lockInfo(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	name := p.id("name")
	if p.err != "" {
		return p.err
	}

	info, err := c.Locks.Info(ctx, name)

	if err != nil {
		return lockFailure(err, Array{CodeNotTried, "BUSY", Map{}}, Array{CodeNotTried, "BUSY", Map{}})
	}
	kept := 0
	if info.Kept {
		kept = 1
	}
	return Array{CodeDone, "INFO", Map{
		"name", name,
		"state", info.State,
		"mode", string(info.Mode),
		"fence", info.Fence,
		"ttl_ms", info.TTL.Milliseconds(),
		"depth", info.Depth,
		"holders", info.Holders,
		"acquired_at", info.AcquiredAt.UnixMilli(),
		"set_ttl_ms", info.SetTTL.Milliseconds(),
		"sidecars", info.Sidecars,
		"waiters", info.Waiters,
		"kept", kept,
	}}
}

// LOCK.LIST [MATCH pattern]
func lockList(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	pattern := "*"
	p.options(option{"MATCH", func() { pattern = p.text("MATCH", 0, lockPatternMax) }})
	if p.err != "" {
		return p.err
	}

	locks, err := c.Locks.List(ctx, pattern)

	if err != nil {
		return lockFailure(err, Array{CodeNotTried, 0}, Array{CodeNotTried, 0})
	}
	reply := Array{CodeDone, len(locks)}
	for _, l := range locks {
		reply = append(reply, Array{l.Name, l.TTL.Milliseconds()})
	}
	return reply
}

const (
	lockPermitsMax  = 1_000_000
	lockReplicasMax = 1000
	lockPatternMax  = 1024
)

// lockTTL takes the TTL of a lock.
func (p *parser) lockTTL(o lock.Options) time.Duration { return p.lockTime("ttl_ms", 1, o.TTLMax) }

// lockWait takes the time of a WAIT; 0 doesn't wait.
func (p *parser) lockWait(o lock.Options) time.Duration { return p.lockTime("WAIT", 0, o.WaitMax) }

func (p *parser) lockTime(name string, least int64, longest time.Duration) time.Duration {
	what := "a positive integer of milliseconds"
	if least == 0 {
		what = "an integer of milliseconds"
	}
	return time.Duration(p.integer(name, what, least, longest.Milliseconds())) * time.Millisecond
}

// lockMode sets the mode of a request that had none.
func (p *parser) lockMode(req *lock.Request, mode lock.Mode) {
	if req.Mode != "" {
		p.failf("ERR syntax error: SHARED and PERMITS exclude each other")
	}
	req.Mode = mode
}

// lockNames takes the number of names and the names.
func (p *parser) lockNames(most int) []string {
	n := p.integer("n", "the number of names that follow", 1, int64(most))
	names := make([]string, 0, n)
	seen := make(map[string]bool, n)
	for range n {
		name := p.id("name")
		if p.err == "" && seen[name] {
			p.failf("ERR syntax error: a name is given twice")
		}
		seen[name] = true
		names = append(names, name)
	}
	return names
}

// lockTie is what AUTO and MAXHOLD said.
type lockTie struct {
	auto, capped bool
	holdMax      time.Duration
}

func (t *lockTie) options(p *parser, o lock.Options) []option {
	return []option{
		{"AUTO", func() { t.auto = true }},
		{"MAXHOLD", func() { t.holdMax, t.capped = p.lockTime("MAXHOLD", 1, o.TTLMax), true }},
	}
}

// of returns the tie of a lock with a TTL to a connection, nil for none.
func (t *lockTie) of(p *parser, c *Connection, ttl time.Duration) *lock.Tie {
	switch {
	case t.auto:
		if c.Probe != nil && p.err == "" {
			c.Probe(ttl)
		}
		return &lock.Tie{Of: &c.ties, HoldMax: t.holdMax}
	case t.capped:
		p.failf("ERR syntax error: MAXHOLD needs AUTO")
	}
	return nil
}

// lockCodes are the codes that go with what became of a call.
var lockCodes = map[lock.Outcome]int{
	lock.Unconfirmed: CodeUncertain,
	lock.TimedOut:    CodeTimeout,
	lock.OtherMode:   CodeConflict,
	lock.Acquired:    CodeDone,
	lock.Reentered:   CodeDone,
	lock.Renewed:     CodeDone,
	lock.Released:    CodeDone,
	lock.Held:        CodeDone,
	lock.Busy:        CodeConflict,
	lock.NoTTL:       CodeConflict,
	lock.WrongType:   CodeConflict,
	lock.NotOwner:    CodeNotYours,
	lock.Expired:     CodeExpired,
}

// lockReply is [code word token fence ttl_ms depth]. uncertain is what a command
// answers when the reply of Redis was lost.
func lockReply(result lock.Result, err error, uncertain Reply) Reply {
	if err != nil {
		return lockFailure(err, uncertain, lockNotExecuted)
	}
	return Array{lockCodes[result.Outcome], string(result.Outcome), result.Token, result.Fence, result.TTL.Milliseconds(), result.Depth}
}

// lockFailure is failure, and knows what only locks can fail for.
func lockFailure(err error, uncertain, notExecuted Reply) Reply {
	switch {
	case errors.Is(err, lock.ErrReservedName):
		return Error("ERR invalid name: " + err.Error())
	case errors.Is(err, lock.ErrQuorum):
		return Error("ERR " + err.Error())
	}
	return failure(err, uncertain, notExecuted)
}

// lockUncertain gives the client the token with which it can find out.
func lockUncertain(token string) Reply { return Array{CodeUncertain, "UNCERTAIN", token, 0, 0, 0} }

// lockNotExecuted also answers a read whose reply was lost: nothing was changed.
var lockNotExecuted = Array{CodeNotTried, "BUSY", "", 0, 0, 0}
