// Package upstream knows where Redis is and how to get there: connections for
// the data plane, go-redis clients for the control plane, and the embedded store
// for trying things out.
package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"seckill-proxy/internal/resp"
)

// ErrDown is wrapped by every error that says that no connection to Redis could
// be had, so that nothing was sent.
var ErrDown = errors.New("Redis cannot be reached")

// Identity is who a session is to Redis. The zero value is who a connection is
// before AUTH: the configured user, or Redis's default user.
type Identity struct {
	User     string // "" with a Password: the default user, by AUTH password
	Password string
	Known    bool // the client authenticated itself
}

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

	// Dialer replaces the network: the embedded store's way in.
	Dialer func(ctx context.Context) (net.Conn, error)
}

// Target is one Redis server. It is safe for concurrent use.
type Target struct {
	opts Options

	mu      sync.Mutex
	failure error // of the last attempt, nil when it succeeded
	backoff time.Duration
	retryAt time.Time
}

// New returns a Target; it doesn't connect.
func New(opts Options) *Target { return &Target{opts: opts} }

// Address is where Redis is, for logs and errors.
func (t *Target) Address() string { return t.opts.Address }

// DB is the database that a session starts in.
func (t *Target) DB() int { return t.opts.DB }

// HasCredentials reports whether sessions are authenticated by the sidecar.
func (t *Target) HasCredentials() bool { return t.opts.Password != "" }

// Dial opens a connection for the data plane: connected, and where the sidecar
// has credentials or a database of its own, authenticated and selected. While
// Redis is down it fails at once with the last error and tries again only after
// a pause, which doubles from BackoffMin to BackoffMax. Errors wrap ErrDown.
func (t *Target) Dial(ctx context.Context) (net.Conn, error) {
	if err := t.paused(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.DialTimeout)
	defer cancel()
	conn, err := t.dialNetwork(ctx)
	if err == nil {
		if err = t.handshake(ctx, conn); err != nil {
			conn.Close()
		}
	}
	if err != nil {
		return nil, t.failed(err)
	}
	t.mu.Lock()
	t.failure, t.backoff = nil, 0
	t.mu.Unlock()
	return conn, nil
}

// paused returns the last failure while its pause lasts. The first caller after
// the pause may try; the others go on failing until it has succeeded.
func (t *Target) paused() error {
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

func (t *Target) failed(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.backoff = min(max(2*t.backoff, t.opts.BackoffMin), t.opts.BackoffMax)
	// Jitter of half the pause: sidecars that lost Redis together don't return
	// together.
	t.retryAt = time.Now().Add(t.backoff/2 + rand.N(t.backoff/2+1))
	t.failure = fmt.Errorf("%w at %s: %w", ErrDown, t.opts.Address, err)
	return t.failure
}

func (t *Target) dialNetwork(ctx context.Context) (net.Conn, error) {
	if t.opts.Dialer != nil {
		return t.opts.Dialer(ctx)
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, t.opts.Network, t.opts.Address)
}

// Setup returns the commands that make a fresh or a reset connection one of the
// sidecar's: AUTH and SELECT, where configured.
func (t *Target) Setup() [][][]byte {
	var commands [][][]byte
	if t.opts.Password != "" {
		auth := [][]byte{[]byte("AUTH"), []byte(t.opts.Password)}
		if t.opts.User != "" {
			auth = [][]byte{[]byte("AUTH"), []byte(t.opts.User), []byte(t.opts.Password)}
		}
		commands = append(commands, auth)
	}
	if t.opts.DB != 0 {
		commands = append(commands, [][]byte{[]byte("SELECT"), []byte(strconv.Itoa(t.opts.DB))})
	}
	return commands
}

func (t *Target) handshake(ctx context.Context, conn net.Conn) error {
	commands := t.Setup()
	if len(commands) == 0 {
		return nil
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	rd := bufio.NewReader(oneByteReader{conn})
	for _, command := range commands {
		if _, err := conn.Write(resp.AppendCommand(nil, command)); err != nil {
			return err
		}
		line, err := rd.ReadString('\n')
		if err != nil {
			return err
		}
		if !strings.HasPrefix(line, "+OK") {
			return fmt.Errorf("%s refused: %s", command[0], strings.TrimSpace(line))
		}
	}
	return conn.SetDeadline(time.Time{})
}

// oneByteReader keeps a buffered reader from reading past the line it returns.
type oneByteReader struct{ rd io.Reader }

func (r oneByteReader) Read(p []byte) (int, error) { return r.rd.Read(p[:1]) }

// controlConnections is how many connections the control plane of one identity
// and database opens: enough to keep Redis's one core busy with scripts.
const controlConnections = 8

// Client returns a go-redis client for scripts, for one identity and database.
// It never retries: a script could run twice. The caller closes it.
func (t *Target) Client(id Identity, db int) *redis.Client {
	user, password := t.opts.User, t.opts.Password
	if id.Known {
		user, password = id.User, id.Password
	}
	return redis.NewClient(&redis.Options{
		Network:  t.opts.Network,
		Addr:     t.opts.Address,
		Dialer:   t.controlDialer,
		Username: user,
		Password: password,
		DB:       db,
		Protocol: 2,

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
}

// controlDialer is Dial for go-redis, which authenticates by itself.
func (t *Target) controlDialer(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := t.dialNetwork(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w at %s: %w", ErrDown, t.opts.Address, err)
	}
	return conn, nil
}

// Ping reports whether Redis answers, for readiness and -check. Errors are
// Redis's own, or wrap ErrDown.
func (t *Target) Ping(ctx context.Context) error {
	conn, err := t.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(t.opts.DialTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return fmt.Errorf("PING: %w", err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	switch {
	case err != nil:
		return fmt.Errorf("PING: %w", err)
	case strings.HasPrefix(line, "-NOAUTH"):
		return nil // it answers; clients bring their own password
	case strings.HasPrefix(line, "-"):
		return errors.New(strings.TrimSpace(line[1:]))
	}
	return nil
}
