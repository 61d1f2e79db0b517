package commands

import (
	"context"
	"errors"
	"time"

	"seckill-proxy/commands/lock"
)

// lockCommands are the rows of the LOCK family. All of them answer
// [code word token fence ttl_ms depth].
var lockCommands = []Command{
	{
		Name:       "LOCK.ACQUIRE",
		Arity:      -3,
		Group:      "lock",
		Flags:      []string{"write", "denyoom", "fast"},
		Categories: []string{"@write", "@fast"},
		Since:      "1.0.0",
		Summary:    "Takes a lock for a limited time if it is free",
		Complexity: "O(1)",
		Arguments: []Argument{
			lockName,
			{Name: "ttl_ms", Type: "integer", Summary: "how long the lock is held unless it is renewed, in milliseconds: 10000 for ten seconds"},
			{Name: "token", Type: "string", Token: "TOKEN", Optional: true, Summary: "identifies the holder, 1 to 256 bytes; a random one is made without it; with the token that holds the lock, the lock is taken once more"},
		},
		Replies: []Outcome{
			{200, "ACQUIRED", "[200 ACQUIRED token fence ttl_ms 1]", "The lock was free and is yours; fence is larger than that of any earlier holder"},
			{200, "REENTERED", "[200 REENTERED token fence ttl_ms depth]", "The token held the lock already and has to release it depth times; the TTL is the longer of what was left and what is asked now"},
			{409, "BUSY", `[409 BUSY "" 0 ttl_ms 0]`, "Another holds the lock and has ttl_ms left"},
			{409, "NO_TTL", `[409 NO_TTL "" 0 0 0]`, "A string without a TTL stands at the key: waiting for it to lapse is in vain"},
			lockWrongType,
			{202, "UNCERTAIN", "[202 UNCERTAIN token 0 0 0]", "The reply of Redis was lost: LOCK.CHECK with the token tells whether the lock was taken, LOCK.RELEASE undoes it"},
			lockNotTried,
		},
		Handle: lockAcquire,
	},
	{
		Name:       "LOCK.RELEASE",
		Arity:      3,
		Group:      "lock",
		Flags:      []string{"write", "fast"},
		Categories: []string{"@write", "@fast"},
		Since:      "1.0.0",
		Summary:    "Gives a lock back, or one level of it, if the token holds it",
		Complexity: "O(1)",
		Arguments:  []Argument{lockName, lockToken},
		Replies: []Outcome{
			{200, "RELEASED", "[200 RELEASED token fence ttl_ms depth]", "One level is given back; with depth 0 the lock is free, else it is held depth times more, for ttl_ms"},
			lockNotOwner,
			lockExpired,
			lockWrongType,
			{202, "UNCERTAIN", "[202 UNCERTAIN token 0 0 0]", "The reply of Redis was lost: LOCK.CHECK tells whether the token still holds the lock, and how often"},
			lockNotTried,
		},
		Handle: lockRelease,
	},
	{
		Name:       "LOCK.RENEW",
		Arity:      4,
		Group:      "lock",
		Flags:      []string{"write", "fast"},
		Categories: []string{"@write", "@fast"},
		Since:      "1.0.0",
		Summary:    "Sets the TTL of a lock, longer or shorter, if the token holds it",
		Complexity: "O(1)",
		Arguments: []Argument{
			lockName,
			lockToken,
			{Name: "ttl_ms", Type: "integer", Summary: "how long the lock is held from now on, in milliseconds"},
		},
		Replies: []Outcome{
			{200, "RENEWED", "[200 RENEWED token fence ttl_ms depth]", "The lock lapses ttl_ms from now"},
			lockNotOwner,
			lockExpired,
			lockWrongType,
			{202, "UNCERTAIN", "[202 UNCERTAIN token 0 0 0]", "The reply of Redis was lost: renewing again does no harm"},
			lockNotTried,
		},
		Handle: lockRenew,
	},
	{
		Name:       "LOCK.CHECK",
		Arity:      3,
		Group:      "lock",
		Flags:      []string{"readonly", "fast"},
		Categories: []string{"@read", "@fast"},
		Since:      "1.0.0",
		Summary:    "Tells whether a token holds a lock, and for how long",
		Complexity: "O(1)",
		Arguments:  []Argument{lockName, lockToken},
		Replies: []Outcome{
			{200, "HELD", "[200 HELD token fence ttl_ms depth]", "The token holds the lock for ttl_ms more; fence is 0 when other code took it with a plain SET"},
			lockNotOwner,
			lockExpired,
			{409, "NO_TTL", "[409 NO_TTL token fence 0 depth]", "The token stands at the key, but without a TTL: LOCK.RENEW gives it one, LOCK.RELEASE deletes it"},
			lockWrongType,
			lockNotTried,
		},
		Handle: lockCheck,
	},
}

// What the rows have in common.
var (
	lockName  = Argument{Name: "name", Type: "string", Summary: "the name of the lock, 1 to 256 bytes of any kind"}
	lockToken = Argument{Name: "token", Type: "string", Summary: "the token that the lock was acquired with"}

	lockNotOwner  = Outcome{403, "NOT_OWNER", `[403 NOT_OWNER "" 0 ttl_ms 0]`, "Another holds the lock and has ttl_ms left (0: it never lapses)"}
	lockExpired   = Outcome{410, "EXPIRED", `[410 EXPIRED "" 0 0 0]`, "Nobody holds the lock: it lapsed or was released"}
	lockWrongType = Outcome{409, "WRONG_TYPE", `[409 WRONG_TYPE "" 0 0 0]`, "Something that isn't a string stands at the key, so it isn't a lock"}
	lockNotTried  = Outcome{503, "BUSY", `[503 BUSY "" 0 0 0]`, "Not executed, try later"}
)

// LOCK.ACQUIRE name ttl_ms [TOKEN token]
func lockAcquire(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	req := lock.Request{Name: p.id("name"), TTL: p.lockTTL(b.Locks.TTLMax())}
	for p.more() {
		switch option := p.option(); {
		case option != "TOKEN":
			p.unknownOption(option, "TOKEN token")
		case req.Token != "":
			p.failf("ERR syntax error: TOKEN is given twice")
		default:
			req.Token = p.id("TOKEN")
		}
	}
	if p.err != "" {
		return p.err
	}

	result, err := b.Locks.Acquire(ctx, req)

	return lockReply(result, err, lockUncertain(result.Token))
}

// LOCK.RELEASE name token
func lockRelease(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	name, token := p.id("name"), p.id("token")
	if p.err != "" {
		return p.err
	}

	result, err := b.Locks.Release(ctx, name, token)

	return lockReply(result, err, lockUncertain(result.Token))
}

// LOCK.RENEW name token ttl_ms
func lockRenew(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	name, token, ttl := p.id("name"), p.id("token"), p.lockTTL(b.Locks.TTLMax())
	if p.err != "" {
		return p.err
	}

	result, err := b.Locks.Renew(ctx, name, token, ttl)

	return lockReply(result, err, lockUncertain(result.Token))
}

// LOCK.CHECK name token
func lockCheck(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	name, token := p.id("name"), p.id("token")
	if p.err != "" {
		return p.err
	}

	result, err := b.Locks.Check(ctx, name, token)

	return lockReply(result, err, lockNotExecuted)
}

// lockTTL takes the TTL of a lock.
func (p *parser) lockTTL(longest time.Duration) time.Duration {
	ms := p.integer("ttl_ms", "a positive integer of milliseconds", 1, longest.Milliseconds())
	return time.Duration(ms) * time.Millisecond
}

// lockCodes are the codes that go with what became of a call.
var lockCodes = map[lock.Outcome]int{
	lock.Acquired:  CodeDone,
	lock.Reentered: CodeDone,
	lock.Renewed:   CodeDone,
	lock.Released:  CodeDone,
	lock.Held:      CodeDone,
	lock.Busy:      CodeConflict,
	lock.NoTTL:     CodeConflict,
	lock.WrongType: CodeConflict,
	lock.NotOwner:  CodeNotYours,
	lock.Expired:   CodeExpired,
}

// lockReply is [code word token fence ttl_ms depth]. uncertain is what a command
// answers when the reply of Redis was lost.
func lockReply(result lock.Result, err error, uncertain Reply) Reply {
	switch {
	case errors.Is(err, lock.ErrReservedName):
		return Error("ERR invalid name: " + err.Error())
	case err != nil:
		return failure(err, uncertain, lockNotExecuted)
	}
	return Array{lockCodes[result.Outcome], string(result.Outcome), result.Token, result.Fence, result.TTL.Milliseconds(), result.Depth}
}

// lockUncertain gives the client the token with which it can find out.
func lockUncertain(token string) Reply { return Array{CodeUncertain, "UNCERTAIN", token, 0, 0, 0} }

// lockNotExecuted also answers a read whose reply was lost: nothing was changed.
var lockNotExecuted = Array{CodeNotTried, "BUSY", "", 0, 0, 0}
