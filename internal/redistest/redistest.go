// Package redistest gives tests real redis-servers: each on a free port of
// 127.0.0.1, in a directory of its own, killed at the end of the test, and also
// when the test's process dies without an end. They come alone (Start), as a
// replica (StartReplica), as a cluster (StartCluster), or with sentinels
// (StartSentinels).
package redistest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Options of a server. The zero value is an empty Redis that keeps nothing on
// disk.
type Options struct {
	// AppendOnly makes every write durable before it is answered (appendonly
	// yes, appendfsync always), so that Restart finds it again.
	AppendOnly bool
	// Args are further arguments for redis-server, "--maxmemory", "10mb". They
	// win over those that this package sets. A loglevel above notice is not
	// possible: the log says when the server is ready.
	Args []string
	// TLS makes the server's port one for TLS, with the server certificate of
	// these. Client certificates are asked for and checked, but who has none is
	// let in as well, unless Args say "--tls-auth-clients", "yes". nil: no TLS.
	TLS *Certificates
}

// Server is a running redis-server. Its methods end the test when something
// goes wrong, so they are called from the test's own goroutine.
type Server struct {
	Addr string // "127.0.0.1:port", the same after Restart
	Port int
	Dir  string // working directory of the server, removed after the test

	t       testing.TB
	binary  string
	options Options
	args    []string      // those of its kind, which options.Args come after
	process *process      // the running one, or the last one
	client  *redis.Client // this package's own, see admin; nil until it is needed
}

// readyTimeout is how long a server may take to accept connections. It only
// bounds how long a broken one hangs.
const readyTimeout = 30 * time.Second

// Start starts a redis-server and returns when it answers. It is stopped when
// the test ends; its log is shown when the test failed. A missing redis-server
// fails the test.
func Start(t testing.TB, options Options) *Server {
	t.Helper()
	return launch(t, options, func(*Server) []string { return nil })
}

// launch starts a server of a kind: prepare gets it when its port is known,
// before there is a process, and returns the arguments of that kind. It is
// called again when the port was taken meanwhile.
func launch(t testing.TB, options Options, prepare func(*Server) []string) *Server {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("redis-server isn't installed (%v): install the package redis-server (Debian: apt-get install redis-server)", err)
	}
	s := &Server{Dir: t.TempDir(), t: t, binary: binary, options: options}
	t.Cleanup(s.cleanup)
	for range 20 {
		s.Port = freePort(t)
		s.Addr = address(s.Port)
		s.args = prepare(s)
		err = s.start()
		if !errors.Is(err, errAddressInUse) {
			break
		}
	}
	if err != nil {
		t.Fatalf("starting redis-server: %v", err)
	}
	return s
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Kill ends the server with SIGKILL, as a crash does, and returns when it is
// gone.
func (s *Server) Kill() {
	s.closeAdmin()
	s.process.kill()
}

// Restart starts the server again on the same port and directory, after killing
// it where it still runs. Data is there again when Options.AppendOnly is set.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.start(); err != nil {
		s.t.Fatalf("restarting redis-server on %s: %v", s.Addr, err)
	}
}

// Pause stops the server with SIGSTOP: it keeps its connections and its port,
// and answers nothing. It returns when the server has stopped.
func (s *Server) Pause() {
	s.t.Helper()
	if err := s.process.signal(syscall.SIGSTOP); err != nil {
		s.t.Fatalf("pausing redis-server: %v", err)
	}
	if err := waitStopped(s.process.pid); err != nil {
		s.t.Fatalf("waiting for redis-server to pause: %v", err)
	}
}

// Resume lets a paused server go on.
func (s *Server) Resume() {
	s.t.Helper()
	if err := s.process.signal(syscall.SIGCONT); err != nil {
		s.t.Fatalf("resuming redis-server: %v", err)
	}
}

// PID is the process id of the running server.
func (s *Server) PID() int { return s.process.pid }

// Client returns a client of the server that never sends a command twice. It is
// closed when the test t ends.
func (s *Server) Client(t testing.TB) *redis.Client {
	client := redis.NewClient(&redis.Options{
		Addr:       s.Addr,
		TLSConfig:  s.options.TLS.Client(),
		MaxRetries: -1,
		// Commands of the client's own accord would show in MONITOR and in
		// command statistics.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() {
		if err := client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("closing the client of %s: %v", s.Addr, err)
		}
	})
	return client
}

func (s *Server) cleanup() {
	if s.process == nil {
		return
	}
	s.Kill()
	if s.t.Failed() {
		s.t.Logf("log of redis-server on %s, process %d:\n%s", s.Addr, s.process.pid, s.process.log)
	}
}

// errAddressInUse is returned by start when the port was taken meanwhile.
var errAddressInUse = errors.New("address already in use")

// start starts a process on s.Port and waits until it answers.
func (s *Server) start() error {
	args := slices.Concat(s.args, s.commonArgs(), s.options.Args)
	p, err := spawn(exec.Command(s.binary, args...))
	if err != nil {
		return err
	}
	s.process = p

	timeout := time.NewTimer(readyTimeout)
	defer timeout.Stop()
	select {
	case <-p.log.ready:
		return s.ping()
	case <-p.exited:
		if p.log.contains("Address already in use") {
			return errAddressInUse
		}
		return fmt.Errorf("it ended by itself:\n%s", p.log)
	case <-timeout.C:
		return fmt.Errorf("not ready after %s:\n%s", readyTimeout, p.log)
	}
}

// commonArgs are the arguments of a server of any kind.
func (s *Server) commonArgs() []string {
	args := []string{
		"--bind", "127.0.0.1",
		"--dir", s.Dir,
		"--save", "",
		"--repl-diskless-sync-delay", "0", // a replica is in sync at once
	}
	if tls := s.options.TLS; tls != nil {
		args = append(args, tls.serverArgs(s.Port)...)
	} else {
		args = append(args, "--port", strconv.Itoa(s.Port))
	}
	if password := s.options.password(); password != "" {
		args = append(args, "--masterauth", password)
	}
	if s.options.AppendOnly {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	return args
}

// password is the one that Args make the server ask for; empty: none.
func (o Options) password() string {
	at := slices.Index(o.Args, "--requirepass") + 1
	if at == 0 || at == len(o.Args) {
		return ""
	}
	return o.Args[at]
}

// ping checks that the server answers. A server that demands a password answers
// too.
func (s *Server) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	reply := make([]byte, 64)
	n, err := conn.Read(reply)
	if err != nil {
		return fmt.Errorf("no answer to PING: %w", err)
	}
	if reply = reply[:n]; !bytes.HasPrefix(reply, []byte("+PONG")) && !bytes.HasPrefix(reply, []byte("-NOAUTH")) {
		return fmt.Errorf("answer to PING: %q", reply)
	}
	return nil
}

func (s *Server) dial(ctx context.Context) (net.Conn, error) {
	if s.options.TLS != nil {
		dialer := tls.Dialer{Config: s.options.TLS.Client()}
		return dialer.DialContext(ctx, "tcp", s.Addr)
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", s.Addr)
}

// freePort finds a port that nobody listens on. It lies below the range from
// which systems take the ports of outgoing connections: a client that dials a
// killed server again and again would sooner or later be given that very port,
// connect to itself and keep the server from coming back.
func freePort(t testing.TB) int {
	t.Helper()
	const first, last = 11000, 31999
	var err error
	for range 100 {
		port := first + rand.IntN(last-first+1)
		var listener net.Listener
		listener, err = net.Listen("tcp", address(port))
		if err == nil {
			if err = listener.Close(); err == nil {
				return port
			}
		}
	}
	t.Fatalf("no free port on 127.0.0.1 between %d and %d: %v", first, last, err)
	return 0
}

// process is one run of a redis-server.
type process struct {
	pid    int
	handle *os.Process
	log    *serverLog
	exited chan struct{} // closed when the process is gone and its log complete
}

// spawn starts cmd so that it dies with this process. The kernel ties that to
// the thread that started it (PR_SET_PDEATHSIG), so one goroutine keeps its
// thread from the start of the server to its end.
func spawn(cmd *exec.Cmd) (*process, error) {
	p := &process{log: newServerLog(), exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	dieWithParent(cmd)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.handle = cmd.Process
		started <- err
		if err != nil {
			return
		}
		// How it ended is of no interest: it was killed, or its log says why.
		_ = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.pid = p.handle.Pid
	return p, nil
}

func (p *process) signal(signal os.Signal) error { return p.handle.Signal(signal) }

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// kill ends the process and waits for its end. A process that has ended already
// is fine.
func (p *process) kill() {
	_ = p.signal(os.Kill)
	<-p.exited
}

// serverLog collects what a server writes, its last logMaxBytes.
type serverLog struct {
	ready chan struct{} // closed when the server says that it accepts connections

	mu      sync.Mutex
	isReady bool
	text    []byte
}

const logMaxBytes = 64 << 10

func newServerLog() *serverLog { return &serverLog{ready: make(chan struct{})} }

// Write appends to the log. It never fails.
func (l *serverLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	if !l.isReady && saysReady(l.text) {
		l.isReady = true
		close(l.ready)
	}
	if excess := len(l.text) - logMaxBytes; excess > 0 {
		l.text = append(l.text[:0], l.text[excess:]...)
	}
	return len(p), nil
}

// saysReady tells whether a server or a sentinel accepts connections.
func saysReady(log []byte) bool {
	return bytes.Contains(log, []byte("Ready to accept connections")) || bytes.Contains(log, []byte("Sentinel ID is"))
}

func (l *serverLog) contains(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.text, []byte(s))
}

func (l *serverLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}
