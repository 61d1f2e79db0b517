// Package upstream knows where Redis is and how to get there: connections for
// the data plane, go-redis clients for the control plane, and the embedded store
// for trying things out.
package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"seckill-proxy/internal/hangup"
	"seckill-proxy/internal/rawio"
	"seckill-proxy/internal/resp"
	"seckill-proxy/internal/script"
)

// ErrDown is wrapped by every error that says that no connection to Redis could
// be had, so that nothing was sent.
var ErrDown error = script.Unsent("no connection to Redis")

// ErrUnauthenticated is returned where Redis demands authentication and the
// profile has none to offer.
var ErrUnauthenticated = errors.New("not authenticated")

// Options say where Redis is and how long to wait for it.
type Options struct {
	Network  string // "tcp" or "unix"
	Address  string
	User     string // of the sidecar itself; with Password "" it doesn't authenticate
	Password string
	DB       int // the database that a session starts in

	DialTimeout   time.Duration // for connecting and authenticating
	ScriptTimeout time.Duration // for the reply to a script; after it the outcome is unknown
	BackoffMin    time.Duration // between attempts while Redis is down
	BackoffMax    time.Duration

	// Log hears when Redis is lost and when it is back; nil for nobody.
	Log *zap.Logger

	// Hangups watches connections, of Muxes and of clients. Its owner closes it
	// when they have ended; without one some things go unnoticed for longer.
	Hangups *hangup.Watcher

	// TLS is how to secure connections to Address; nil for not at all. Without a
	// ServerName in it, that is the host of Address.
	TLS *tls.Config

	// Dialer replaces the network: the embedded store's way in.
	Dialer func(ctx context.Context) (net.Conn, error)
}

// Target is one Redis server, or the master that sentinels name. It is safe for
// concurrent use.
type Target struct {
	opts     Options
	failures *zap.Logger // of commands of the control plane, not all of many
	where    place
	sentinel *Sentinel // who finds the master; nil where the address is fixed

	// reach replaces the network for the Target of a cluster: it connects to any
	// node. nil for a server.
	reach func(ctx context.Context) (net.Conn, error)

	asking    sync.Mutex // held while Redis is asked whether strangers must authenticate
	asked     time.Time
	strangers atomic.Bool // they must

	pauseEnd atomic.Pointer[time.Time] // until which Redis was told to pause, nil if it wasn't

	mu      sync.Mutex
	failure error // of the last attempt, nil when it succeeded
	backoff time.Duration
	retryAt time.Time
}

// New returns a Target; it doesn't connect.
func New(opts Options) *Target {
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	failures := opts.Log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, failuresEvery, 1, 0)
	}))
	return newTarget(opts, failures)
}

// newTarget is New with a log of failures that Targets can share: one takes half a
// megabyte.
func newTarget(opts Options, failures *zap.Logger) *Target {
	t := &Target{opts: opts, failures: failures}
	t.where.address = opts.Address
	return t
}

// Address is where Redis is, for logs and errors.
func (t *Target) Address() string {
	if address := t.where.at(); address != "" {
		return address
	}
	return t.opts.Address
}

// Moves is how often another server has become the master.
func (t *Target) Moves() int {
	t.where.mu.Lock()
	defer t.where.mu.Unlock()
	return t.where.moves
}

// drop ends all connections, those of the control plane too. Whoever uses one
// notices as if Redis had closed it.
func (t *Target) drop() { t.where.drop() }

// restore says that the node is a master, after it was retired.
func (t *Target) restore() {
	if t.where.restore() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.retryAt, t.backoff = time.Time{}, 0
	}
}

// moveTo has the Target mean another server from now on, and ends the connections
// to the one before. It returns how many there were.
func (t *Target) moveTo(address string) (ended int) {
	ended = t.where.move(address)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retryAt, t.backoff = time.Time{}, 0 // the other one may be tried at once
	return ended
}

// doubt says that something speaks against what is known of where Redis is.
func (t *Target) doubt() {
	if t.sentinel != nil {
		t.sentinel.doubt()
	}
}

// Hangups watches connections, nil where none are watched.
func (t *Target) Hangups() *hangup.Watcher { return t.opts.Hangups }

// Profile is what the sidecar itself starts with, and a session of a client that
// need not authenticate.
func (t *Target) Profile() Profile { return Profile{DB: t.opts.DB, Protocol: 2} }

// Dial opens a connection for the data plane and makes it what the profile says.
// While Redis is down it fails at once with the last error and tries again only
// after a pause, which doubles from BackoffMin to BackoffMax. Errors wrap
// ErrDown.
func (t *Target) Dial(ctx context.Context, as Profile) (net.Conn, error) {
	if err := t.paused(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.DialTimeout)
	defer cancel()
	address := t.where.at()
	conn, err := t.dialNetwork(ctx)
	if err != nil {
		return nil, t.failedAt(address, err)
	}
	if err := t.introduce(ctx, conn, as); err != nil {
		conn.Close()
		var refused refusal
		if errors.As(err, &refused) {
			// Redis is there; it is this profile that it doesn't take.
			return nil, downAt(t.Address(), err)
		}
		return nil, t.failedAt(address, err)
	}
	t.reached()
	return conn, nil
}

// reached notes that Redis is there.
func (t *Target) reached() {
	t.mu.Lock()
	back := t.failure != nil
	t.failure, t.backoff = nil, 0
	t.mu.Unlock()
	if back {
		t.opts.Log.Info("Redis is back", zap.String("address", t.Address()))
	}
}

// paused returns the last failure while its pause lasts. The first caller after
// the pause may try; the others go on failing until it has succeeded.
func (t *Target) paused() error {
	if t.where.isRetired() {
		return downAt(t.Address(), errRetired)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure == nil {
		return nil
	}
	now := time.Now()
	if now.Before(t.retryAt) {
		return t.failure
	}
	t.retryAt = now.Add(t.opts.DialTimeout)
	return nil
}

// failedAt is failed, unless the Target has left that address meanwhile: that says
// nothing of the new one.
func (t *Target) failedAt(address string, err error) error {
	if address != "" && t.where.at() != address {
		return downAt(address, err)
	}
	return t.failed(err)
}

func (t *Target) failed(err error) error {
	t.doubt()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.backoff = min(max(2*t.backoff, t.opts.BackoffMin), t.opts.BackoffMax)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return downAt(t.Address(), err) // our fault, not Redis's
	}
	// Jitter of half the pause: sidecars that lost Redis together don't return
	// together.
	t.retryAt = time.Now().Add(t.backoff/2 + rand.N(t.backoff/2+1))
	if t.failure == nil {
		t.opts.Log.Warn("Redis is lost: commands fail until it is back", zap.String("address", t.Address()), zap.Error(err))
	}
	t.failure = downAt(t.Address(), err)
	return t.failure
}

func (t *Target) dialNetwork(ctx context.Context) (net.Conn, error) {
	if t.opts.Dialer != nil {
		return t.opts.Dialer(ctx)
	}
	if t.reach != nil {
		return t.reach(ctx)
	}
	if t.sentinel != nil {
		if err := t.sentinel.await(ctx); err != nil {
			return nil, err
		}
	}
	if t.where.isRetired() {
		return nil, errRetired
	}
	var dialer net.Dialer
	address := t.where.at()
	conn, err := dialer.DialContext(ctx, t.opts.Network, address)
	if err != nil {
		return nil, err
	}
	if conn, err = t.where.track(conn, address); err != nil {
		return nil, err
	}
	return t.secure(ctx, rawio.Wrap(conn), address)
}

// introduce makes a fresh connection what the profile says. Where sentinels said
// where to go, it also makes sure that the master is there.
func (t *Target) introduce(ctx context.Context, conn net.Conn, as Profile) error {
	err := greet(ctx, conn, t.greeting(as))
	if err == nil && t.sentinel != nil {
		err = checkMaster(ctx, conn, as.Protocol)
	}
	return t.hint(err)
}

// greet sends the commands that a fresh connection begins with, and waits until
// Redis has accepted them all.
func greet(ctx context.Context, conn net.Conn, commands [][][]byte) error {
	if len(commands) == 0 {
		return nil
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	defer conn.SetDeadline(time.Time{})
	var out []byte
	for _, command := range commands {
		out = resp.AppendCommand(out, command)
	}
	if _, err := conn.Write(out); err != nil {
		return err
	}
	buf := make([]byte, 4<<10)
	var scanner resp.ReplyScanner
	for answered := 0; answered < len(commands); {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		for b := buf[:n]; len(b) > 0; {
			used, done, err := scanner.Scan(b)
			if err != nil {
				return err
			}
			if done && scanner.Kind == '-' {
				return refusal(bytes.TrimSpace(b[1:used]))
			}
			if done {
				answered++
			}
			b = b[used:]
		}
	}
	return nil
}

// refusal is what Redis answered to a command of the greeting. It is a
// redis.Error, so it reaches a client in Redis's own words.
type refusal string

func (r refusal) Error() string { return string(r) }

// IsRefusal reports errors with which Redis turned the profile away, such as that
// of a user who was deleted.
func IsRefusal(err error) bool {
	var refused refusal
	return errors.As(err, &refused)
}

// RedisError makes a refusal a redis.Error.
func (r refusal) RedisError() {}

// controlConnections is how many connections the control plane of one identity
// and database opens: enough to keep Redis's one core busy with scripts.
const controlConnections = 4

// Client returns a go-redis client for scripts, for one identity and database.
// It never retries: a script could run twice. The caller closes it.
func (t *Target) Client(id Identity, db int) *redis.Client {
	as := Profile{Identity: id, DB: db, Protocol: 2}
	client := redis.NewClient(&redis.Options{
		Network:  t.opts.Network,
		Addr:     t.Address(),
		Protocol: 2,
		// The dialer authenticates and selects: go-redis wouldn't authenticate
		// a user whose password is empty.
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) { return t.dialControl(ctx, as) },

		MaxRetries:      -1,
		DialerRetries:   1,
		DialTimeout:     t.opts.DialTimeout,
		ReadTimeout:     t.opts.ScriptTimeout,
		WriteTimeout:    t.opts.ScriptTimeout,
		PoolTimeout:     t.opts.ScriptTimeout,
		PoolSize:        controlConnections,
		DisableIdentity: true,

		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	client.AddHook(failures{log: t.failures, readOnly: t.doubt})
	return client
}

// barred reports whether Redis demands authentication of a connection.
func (t *Target) barred(ctx context.Context, conn net.Conn) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, t.opts.DialTimeout)
	defer cancel()
	err := greet(ctx, conn, [][][]byte{{[]byte("PING")}})
	var refused refusal
	if errors.As(err, &refused) {
		// Another refusal is of a user who may not send PING.
		return strings.HasPrefix(string(refused), "NOAUTH"), nil
	}
	return false, t.hint(err)
}

// dialControl is Dial for the control plane, which go-redis calls when it needs
// a connection, with its own pauses.
func (t *Target) dialControl(ctx context.Context, as Profile) (net.Conn, error) {
	conn, err := t.dialNetwork(ctx)
	if err == nil {
		err = t.introduce(ctx, conn, as)
	}
	if err == nil && !as.Identity.Known {
		// To a script, one with many arguments, Redis would answer with a
		// protocol error.
		var barred bool
		if barred, err = t.barred(ctx, conn); barred {
			err = refusal("NOAUTH Authentication required.")
		}
	}
	if err == nil {
		return pooled(conn), nil
	}
	if conn != nil {
		conn.Close()
	}
	var refused refusal
	if errors.As(err, &refused) {
		return nil, refused
	}
	t.doubt()
	return nil, downAt(t.Address(), err)
}

// Pause notes that Redis was told to pause for a while; 0 ends it.
func (t *Target) Pause(d time.Duration) {
	end := time.Now().Add(d)
	t.pauseEnd.Store(&end)
}

// redisPaused reports whether it was, by way of this sidecar.
func (t *Target) redisPaused() bool {
	end := t.pauseEnd.Load()
	if end == nil {
		return false
	}
	lasts := time.Now().Before(*end)
	if !lasts {
		t.pauseEnd.CompareAndSwap(end, nil) // so that the clock isn't asked again
	}
	return lasts
}
