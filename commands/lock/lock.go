// Package lock is the distributed lock behind LOCK.*: one holder per name,
// known by a token, for a limited time, with a number (the fence) that grows
// with every grant.
//
// An exclusive lock is an ordinary Redis string with a TTL, so code that locks
// with SET NX PX and this package exclude each other. What more is known about a
// hold stands in companion keys of the same slot; keys.go lists them.
package lock

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

// ErrReservedName is returned for a name whose key would lie among the companion
// keys. It can only happen where Options.Prefix is empty.
var ErrReservedName = errors.New("the name begins with the prefix of the companion keys")

// Outcome is what became of a call. Its text is the word of the reply.
type Outcome string

// All outcomes. A Result says which of its other fields go with them.
const (
	Acquired  Outcome = "ACQUIRED"   // the lock was free and is the caller's now
	Reentered Outcome = "REENTERED"  // the caller had it and has it once more
	Renewed   Outcome = "RENEWED"    // the TTL is what was asked for
	Released  Outcome = "RELEASED"   // one level given back; free when the depth is 0
	Held      Outcome = "HELD"       // the caller holds it
	Busy      Outcome = "BUSY"       // another holds it
	NotOwner  Outcome = "NOT_OWNER"  // another holds it; nothing was changed
	Expired   Outcome = "EXPIRED"    // nobody holds it; nothing was changed
	NoTTL     Outcome = "NO_TTL"     // a string that never lapses stands at the key
	WrongType Outcome = "WRONG_TYPE" // something that isn't a string stands at the key
)

// Result is the answer to a call. Fields that don't apply are zero.
type Result struct {
	Outcome Outcome
	// Token is the caller's where the caller holds the lock or did until now,
	// else "": another holder's token is never told.
	Token string
	// Fence is larger than that of any earlier hold of the name. 0 for a lock
	// that other code took, until it is acquired once more through here.
	Fence int64
	// TTL is what the holder has left, whoever it is; 0 when nobody holds the
	// lock, or when it never lapses.
	TTL time.Duration
	// Depth is how often the caller has the lock.
	Depth int64
}

// Locker takes, keeps and gives back locks in one database, with the rights of
// one user. It is safe for concurrent use.
//
// Errors of its methods are ErrReservedName, or those of script.Script.Run: a
// redis.Error, or one that wraps script.ErrNotExecuted or script.ErrUncertain.
type Locker struct {
	rdb  redis.UniversalClient
	opts Options
}

// New returns a Locker that works through rdb, which must have been made with
// MaxRetries -1 and stays its owner's to close. It panics when opts aren't
// valid: whoever read them from somewhere has called Validate.
func New(rdb redis.UniversalClient, opts Options) *Locker {
	if err := opts.Validate(); err != nil {
		panic("lock: " + err.Error())
	}
	return &Locker{rdb: rdb, opts: opts}
}

// TTLMax is the longest TTL that Acquire and Renew may be asked for.
func (l *Locker) TTLMax() time.Duration { return l.opts.TTLMax }

// Request is what Acquire is asked for.
type Request struct {
	Name string
	// TTL is how long the lock is held unless it is renewed, from one millisecond
	// to TTLMax.
	TTL time.Duration
	// Token identifies the holder. With "" a random one is made. With the token
	// that holds the lock already, the lock is taken once more.
	Token string
}

// Acquire takes a lock if it is free: Acquired, Reentered, Busy, NoTTL or
// WrongType. Taking it once more never shortens its TTL. With an uncertain error,
// the Result has the token, with which Check tells what happened and Release
// undoes it.
func (l *Locker) Acquire(ctx context.Context, req Request) (Result, error) {
	k, err := l.keys(req.Name)
	if err != nil {
		return Result{}, err
	}
	token := req.Token
	if token == "" {
		token = newToken()
	}
	return l.run(ctx, acquireScript, token, []string{k.lock, k.record, k.fence}, req.TTL.Milliseconds())
}

// Release gives back one level of a lock: Released, NotOwner, Expired or
// WrongType. Only who holds a lock can release it.
func (l *Locker) Release(ctx context.Context, name, token string) (Result, error) {
	k, err := l.keys(name)
	if err != nil {
		return Result{}, err
	}
	return l.run(ctx, releaseScript, token, []string{k.lock, k.record})
}

// Renew sets the TTL of a lock, which may become shorter too: Renewed, NotOwner,
// Expired or WrongType. Only who holds a lock can renew it, and a lock that
// lapsed stays so.
func (l *Locker) Renew(ctx context.Context, name, token string, ttl time.Duration) (Result, error) {
	k, err := l.keys(name)
	if err != nil {
		return Result{}, err
	}
	return l.run(ctx, renewScript, token, []string{k.lock, k.record}, ttl.Milliseconds())
}

// Check tells whether a token holds a lock: Held, NotOwner, Expired, NoTTL or
// WrongType.
func (l *Locker) Check(ctx context.Context, name, token string) (Result, error) {
	k, err := l.keys(name)
	if err != nil {
		return Result{}, err
	}
	return l.run(ctx, checkScript, token, []string{k.lock, k.record})
}

//go:embed acquire.lua
var acquireSource string

//go:embed release.lua
var releaseSource string

//go:embed renew.lua
var renewSource string

//go:embed check.lua
var checkSource string

var (
	acquireScript = script.New("lock.acquire", acquireSource)
	releaseScript = script.New("lock.release", releaseSource)
	renewScript   = script.New("lock.renew", renewSource)
	checkScript   = script.New("lock.check", checkSource)
)

// run executes one of the scripts, all of which take the token first and return
// {outcome, fence, ttl_ms, depth}.
func (l *Locker) run(ctx context.Context, s *script.Script, token string, keys []string, args ...any) (Result, error) {
	value, err := s.Run(ctx, l.rdb, keys, append([]any{token}, args...)...)
	if err != nil {
		return Result{Token: token}, err
	}
	result, ok := decode(value)
	if !ok {
		return Result{Token: token}, fmt.Errorf("%w: unexpected answer of a script: %v", script.ErrUncertain, value)
	}
	if result.Depth > 0 || result.Outcome == Released {
		result.Token = token
	}
	return result, nil
}

// decode reads {outcome, fence, ttl_ms, depth}.
func decode(value any) (Result, bool) {
	fields, ok := value.([]any)
	if !ok || len(fields) != 4 {
		return Result{}, false
	}
	word, okWord := fields[0].(string)
	fence, okFence := fields[1].(int64)
	ttl, okTTL := fields[2].(int64)
	depth, okDepth := fields[3].(int64)
	return Result{
		Outcome: Outcome(word),
		Fence:   fence,
		TTL:     time.Duration(ttl) * time.Millisecond,
		Depth:   depth,
	}, okWord && okFence && okTTL && okDepth
}

// newToken returns 128 random bits as 22 characters of base64url.
func newToken() string {
	var random [16]byte
	rand.Read(random[:]) // never fails: crypto/rand ends the process instead
	return base64.RawURLEncoding.EncodeToString(random[:])
}
