// Package lock is the distributed lock behind LOCK.*: one holder per name,
// known by a token, for a limited time, with a number (the fence) that grows
// with every grant.
//
// An exclusive lock is an ordinary Redis string with a TTL, so code that locks
// with SET NX PX and this package exclude each other. What more is known about a
// hold stands in companion keys of the same slot; keys.go lists them.
//
// Who waits stands in a queue (queue.go), a lock can be kept for a connection
// (keep.go), several can be taken at once (multi.go), and all that can be on most of
// several independent servers instead of one (quorum.go).
package lock

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"seckill-proxy/internal/listen"
	"seckill-proxy/internal/script"
)

var (
	// ErrReservedName is returned for a name whose key would lie among the companion
	// keys. It can only happen where Options.Prefix is empty.
	ErrReservedName = errors.New("the name begins with the prefix of the companion keys")
	// ErrBusy is returned when nothing was done since a limit was reached, of those
	// who wait for a lock, or of locks kept for a connection; or since the wait
	// was over before anything happened: the client is gone, or the sidecar stops.
	ErrBusy = fmt.Errorf("%w: a limit is reached, or the sidecar stops", script.ErrNotExecuted)
)

// Outcome is what became of a call. Its text is the word of the reply.
type Outcome string

// All outcomes. A Result says which of its other fields go with them.
const (
	Acquired  Outcome = "ACQUIRED"   // the lock was free and is the caller's now
	Reentered Outcome = "REENTERED"  // the caller had it and has it once more
	Renewed   Outcome = "RENEWED"    // the TTL is what was asked for
	Released  Outcome = "RELEASED"   // one level given back; free when the depth is 0
	Held      Outcome = "HELD"       // the caller holds it
	Busy      Outcome = "BUSY"       // another holds it, or goes first
	TimedOut  Outcome = "TIMEOUT"    // another held it for as long as the caller would wait
	OtherMode Outcome = "OTHER_MODE" // the caller holds it, exclusively and not shared, or the like
	NotOwner  Outcome = "NOT_OWNER"  // another holds it; nothing was changed
	Expired   Outcome = "EXPIRED"    // nobody holds it; nothing was changed
	NoTTL     Outcome = "NO_TTL"     // a string that never lapses stands at the key
	WrongType Outcome = "WRONG_TYPE" // something that isn't a string stands at the key
	// Unconfirmed is Acquired, but fewer replicas than asked for have it.
	Unconfirmed Outcome = "UNCERTAIN"
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

// Mode is how a lock is held.
type Mode string

// All modes. A lock that is held in one mode is not open to those who want it in
// another, whatever the number of holders.
const (
	Exclusive Mode = "exclusive" // by one
	Shared    Mode = "shared"    // by any number
	Permits   Mode = "permits"   // by fewer than the next one allows
)

// Locker takes, keeps and gives back locks in one database, with the rights of
// one user. It is safe for concurrent use.
//
// Errors of its methods are ErrReservedName, ErrQuorum, or those of
// script.Script.Run: a redis.Error, or one that wraps script.ErrNotExecuted, as
// ErrBusy does, or script.ErrUncertain.
type Locker struct {
	rdb  redis.UniversalClient // of the database that LOCK.LIST and waiting are about; nil for independent servers
	at   servers               // where locks are
	opts Options
	id   string // of this sidecar in the lines of those who wait

	lookMax time.Duration // the longest time without a look
	log     *zap.Logger
	told    Observer

	mu     sync.Mutex // guards what follows, and the queues with their waiters
	queues map[string]*queue
	holds  map[holdKey][]*hold
	debts  int // locks that are being given back
	voice  voice
	closed bool

	listening *listen.Nodes // nil until somebody waits
	leaving   chan string   // names of locks for which nobody waits any more
	ending    chan struct{} // closed by Close
	running   sync.WaitGroup
}

// New returns a Locker that works through rdb, which must have been made with
// MaxRetries -1 and stays its owner's to close. It panics when opts aren't
// valid: whoever read them from somewhere has called Validate.
func New(rdb redis.UniversalClient, opts Options) *Locker {
	if err := opts.Validate(); err != nil {
		panic("lock: " + err.Error())
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	if opts.Observer == nil {
		opts.Observer = silent{}
	}
	return &Locker{
		rdb:     rdb,
		at:      single{rdb},
		opts:    opts,
		id:      newToken(),
		lookMax: lookMax,
		log:     opts.Log,
		told:    opts.Observer,
		queues:  make(map[string]*queue),
		holds:   make(map[holdKey][]*hold),
		leaving: make(chan string, leavingMax),
		ending:  make(chan struct{}),
	}
}

// Close ends what the Locker does by itself, and waits for its end. Nobody may
// wait any more. It may be called again.
func (l *Locker) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.ending)
	}
	listening := l.listening
	l.mu.Unlock()
	if listening != nil {
		listening.Close()
	}
	l.running.Wait()
}

// Options returns what the operator has decided.
func (l *Locker) Options() Options { return l.opts }

// Request is what Acquire is asked for.
type Request struct {
	Name string
	// TTL is how long the lock is held unless it is renewed, from one millisecond
	// to Options.TTLMax.
	TTL time.Duration
	// Wait is how long to wait for it, up to Options.WaitMax.
	Wait time.Duration
	// Token identifies the holder. With "" a random one is made. With the token
	// that holds the lock already, the lock is taken once more.
	Token string
	// Mode is how to hold it; "" is Exclusive.
	Mode Mode
	// Most is how many may hold it, the caller included; only of Permits.
	Most int64
	// Tie says for which connection the lock is kept, nil for none.
	Tie *Tie
	// Replicas is how many replicas shall have confirmed it.
	Replicas int64
}

// want returns what a request asks of Redis, with the token.
func (l *Locker) want(req Request) want {
	w := want{token: req.Token, ttl: req.TTL, mode: req.Mode, most: req.Most}
	if w.token == "" {
		w.token = newToken()
	}
	if w.mode == "" {
		w.mode = Exclusive
	}
	if w.mode != Exclusive {
		w.marker = newToken()
	}
	if req.Tie != nil {
		w.ttl = min(w.ttl, req.Tie.max(l.opts))
	}
	return w
}

// want is a hold that somebody wants.
type want struct {
	token  string
	ttl    time.Duration
	mode   Mode
	most   int64
	marker string // what the key shall hold in a shared mode
}

// args are the first six of acquire.lua.
func (w want) args(wakes bool) []any {
	return []any{w.token, w.ttl.Milliseconds(), string(w.mode), w.most, w.marker, flag(wakes)}
}

// Acquire takes a lock if it is free: Acquired, Unconfirmed, Reentered, Busy,
// OtherMode, NoTTL or WrongType; with Request.Wait TimedOut instead of Busy.
// Taking it once more never shortens its TTL. With an uncertain error, the Result
// has the token, with which Check tells what happened and Release undoes it.
//
// ctx ends the waiting, and nothing else.
func (l *Locker) Acquire(ctx context.Context, req Request) (Result, error) {
	k, err := l.keys(req.Name)
	if err != nil {
		return Result{}, err
	}
	if l.rdb == nil && (req.Mode == Permits || req.Replicas > 0) {
		return Result{}, ErrQuorum
	}
	if req.Tie != nil && !req.Tie.room(l.opts) {
		return Result{}, ErrBusy
	}
	w := l.want(req)
	result, err := l.acquire(ctx, req, k, w)
	if req.Tie != nil {
		req.Tie.Of.settle(l, req.Name, w, *req.Tie, result, err)
	}
	if err == nil && req.Replicas > 0 && (result.Outcome == Acquired || result.Outcome == Reentered) {
		return l.confirm(ctx, k, req, result)
	}
	return result, err
}

func (l *Locker) acquire(ctx context.Context, req Request, k keys, w want) (Result, error) {
	if req.Wait <= 0 {
		a, err := l.take(context.WithoutCancel(ctx), req.Name, k, w, turnOf{})
		return a.Result, err
	}
	if req.Token != "" && l.waited(req.Name) && l.mayHold(ctx, k, w.token) {
		// Whoever holds the lock already doesn't stand in line behind those who
		// wait for it.
		a, err := l.take(context.WithoutCancel(ctx), req.Name, k, w, turnOf{})
		if err != nil || a.Outcome != Busy {
			return a.Result, err
		}
	}
	return l.wait(ctx, req.Name, k, w, req.Wait)
}

// mayHold reports whether a token may hold a lock, false when it certainly doesn't. It
// asks by commands that cost less than a script, since nearly always it doesn't.
func (l *Locker) mayHold(ctx context.Context, k keys, token string) bool {
	if l.rdb == nil {
		return true
	}
	ask := l.rdb.Pipeline()
	value, share := ask.Get(ctx, k.lock), ask.HGet(ctx, k.record, "="+token)
	_, _ = ask.Exec(context.WithoutCancel(ctx)) // each command has its own error
	none := errors.Is(value.Err(), redis.Nil) || value.Err() == nil && value.Val() != token
	return !none || !errors.Is(share.Err(), redis.Nil)
}

// turnOf says for whom a lock is asked.
type turnOf struct {
	waits  bool // for the head of this sidecar's queue
	others bool // behind which more wait
	doubt  bool // and which may hold it without knowing
}

// take runs acquire.lua.
func (l *Locker) take(ctx context.Context, name string, k keys, w want, t turnOf) (answer, error) {
	me := ""
	if t.waits && l.rdb != nil {
		me = l.id
	}
	args := append(w.args(l.audible()), me, flag(t.others), flag(t.doubt), l.channel(), name)
	return l.at.run(ctx, acquireScript, w.token, k.all(), args...)
}

// confirm waits until enough replicas have a lock. On the connection on which it
// waits, the lock is written once more: Redis waits for what this connection wrote.
func (l *Locker) confirm(ctx context.Context, k keys, req Request, result Result) (Result, error) {
	ctx = context.WithoutCancel(ctx)
	confirmed, err := l.replicas(ctx, k, req, result)
	for attempt := 1; errors.Is(err, script.ErrNotExecuted) && attempt < confirmAttempts; attempt++ {
		if cluster, ok := l.rdb.(*redis.ClusterClient); ok {
			cluster.ReloadState(ctx) // the slot may have moved
		}
		time.Sleep(confirmPause << attempt)
		confirmed, err = l.replicas(ctx, k, req, result)
	}
	if err != nil || confirmed < req.Replicas {
		result.Outcome = Unconfirmed
	}
	return result, nil
}

// How a lock is written once more where Redis refuses it: a slot moves, or a replica
// takes over.
const (
	confirmAttempts = 5
	confirmPause    = 5 * time.Millisecond // doubled with each attempt
)

// errGone says that a lock isn't held any more: a replica took over that didn't have it.
var errGone = errors.New("the lock is not held any more")

// replicas writes a lock once more, and returns how many replicas have it.
func (l *Locker) replicas(ctx context.Context, k keys, req Request, result Result) (int64, error) {
	master, err := l.masterOf(ctx, k)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", script.ErrNotExecuted, err)
	}
	conn := master.Conn()
	defer conn.Close()
	a, err := single{conn}.run(ctx, renewScript, result.Token, k.all(), l.renewal(req.Name, result.Token, result.TTL, true)...)
	switch {
	case err != nil:
		return 0, err
	case a.Outcome != Renewed || a.Fence != result.Fence:
		return 0, errGone
	}
	return conn.Wait(ctx, int(req.Replicas), l.opts.SyncTimeout).Result()
}

// masterOf returns a client of the server that has a lock, as far as is known.
func (l *Locker) masterOf(ctx context.Context, k keys) (*redis.Client, error) {
	switch rdb := l.rdb.(type) {
	case *redis.Client:
		return rdb, nil
	case *redis.ClusterClient:
		return rdb.MasterForKey(ctx, k.lock)
	default:
		return nil, fmt.Errorf("no connection of its own by a %T", rdb)
	}
}

// Release gives back one level of a lock: Released, NotOwner, Expired or
// WrongType. Only who holds a lock can release it. ties are the caller's, from
// which it is untied if they keep it; nil for none.
func (l *Locker) Release(ctx context.Context, name, token string, ties *Ties) (Result, error) {
	k, err := l.keys(name)
	if err != nil {
		return Result{}, err
	}
	result, err := l.release(ctx, name, k, giving{token: token, levels: 1, life: l.lifeOf(holdKey{name, token})})
	if err == nil && result.Outcome == Released {
		l.untie(holdKey{name, token}, ties, result)
	}
	return result, err
}

// Force frees a lock, whoever holds it, and whatever other code stored there as
// long as it is a string: Released, Expired or WrongType.
func (l *Locker) Force(ctx context.Context, name string) (Result, error) {
	k, err := l.keys(name)
	if err != nil {
		return Result{}, err
	}
	return l.release(ctx, name, k, giving{force: true})
}

// giving is what is given back.
type giving struct {
	token  string
	levels int64
	life   time.Duration // that the hold may have had, if it is longer than its TTL
	force  bool          // whoever has it, and all of it
}

// release runs release.lua, with the next of this sidecar's waiters on board.
func (l *Locker) release(ctx context.Context, name string, k keys, g giving) (Result, error) {
	o := l.offer(name)
	args := append([]any{g.token, g.levels, flag(g.force), l.id, o.waiters, flag(o.first), l.channel(), name}, o.want().args(l.audible())...)
	a, err := l.at.run(context.WithoutCancel(ctx), releaseScript, g.token, k.all(), args...)
	if l.settleOffer(name, o, a, err) {
		runtime.Gosched() // who has the lock now is told before who gave it back
	}
	if err == nil && a.Outcome == Released && a.Depth == 0 {
		l.ended(name, milliseconds(a.more[0]), max(milliseconds(a.more[1]), g.life))
	}
	return a.Result, err
}

// ended counts a hold of d that may have lived for life.
func (l *Locker) ended(name string, d, life time.Duration) {
	long := l.opts.long(d, life)
	l.told.Held(d, long)
	if long {
		l.log.Warn("a lock was held too long", zap.String("lock", name), zap.Duration("held", d), zap.Duration("of", life))
	}
}

// Renew sets the TTL of a lock, which may become shorter too: Renewed, NotOwner,
// Expired or WrongType. Only who holds a lock can renew it, and a lock that
// lapsed stays so.
func (l *Locker) Renew(ctx context.Context, name, token string, ttl time.Duration) (Result, error) {
	return l.renew(ctx, name, token, ttl, false)
}

func (l *Locker) renew(ctx context.Context, name, token string, ttl time.Duration, longer bool) (Result, error) {
	k, err := l.keys(name)
	if err != nil {
		return Result{}, err
	}
	a, err := l.at.run(ctx, renewScript, token, k.all(), l.renewal(name, token, ttl, longer)...)
	if err == nil && a.Outcome == Renewed {
		l.ofQueue(name, func(q *queue) { l.lookWithin(q, a.TTL+lapseMargin) })
	}
	return a.Result, err
}

// renewal are the arguments of renew.lua.
func (l *Locker) renewal(name, token string, ttl time.Duration, longer bool) []any {
	return []any{token, ttl.Milliseconds(), flag(longer), l.channel(), name}
}

// Check tells whether a token holds a lock: Held, NotOwner, Expired, NoTTL or
// WrongType.
func (l *Locker) Check(ctx context.Context, name, token string) (Result, error) {
	k, err := l.keys(name)
	if err != nil {
		return Result{}, err
	}
	a, err := l.at.run(ctx, checkScript, token, k.all(), token)
	return a.Result, err
}

// newToken returns 128 random bits as 22 characters of base64url.
func newToken() string {
	var random [16]byte
	rand.Read(random[:]) // never fails: crypto/rand ends the process instead
	return base64.RawURLEncoding.EncodeToString(random[:])
}
