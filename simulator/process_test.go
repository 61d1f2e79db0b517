package simulator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"seckill-proxy/internal/sidecartest"
)

// takeover is how long a worker has for an order before it is handed out again.
const takeover = 400 * time.Millisecond

// sidecar is one place where a seckill-proxy runs, one process after the other.
// Its methods may be called from any goroutine.
type sidecar struct {
	addr  string // where clients connect, the same for all processes
	relay *relay

	name string
	dir  string                           // of its logs
	fail func(format string, args ...any) // reports what must not happen

	mu     sync.Mutex
	now    *process // the latest one
	starts int
}

// process is one run of the program.
type process struct {
	handle  *os.Process
	log     *processLog
	skew    time.Duration
	started time.Time
	exited  chan struct{} // closed when it is gone
	killed  bool          // by us; guarded by the sidecar's mu
}

// start starts a process, unless one runs, and doesn't wait until it is ready.
func (s *sidecar) start(skew time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil && !s.now.gone() {
		return
	}
	s.starts++
	log, err := newProcessLog(filepath.Join(s.dir, fmt.Sprintf("%s-%d.log", s.name, s.starts)))
	if err != nil {
		s.fail("%s: %v", s.name, err)
		return
	}
	p := &process{log: log, skew: skew, started: time.Now(), exited: make(chan struct{})}
	cmd := exec.Command(program)
	cmd.Env = append(sidecartest.Environment(),
		"SECKILL_LISTEN="+s.addr,
		"SECKILL_ADMIN=",
		"SECKILL_UPSTREAM="+s.relay.addr,
		"SECKILL_UPSTREAM_SCRIPT_TIMEOUT_MS=1000",
		"SECKILL_UPSTREAM_DIAL_TIMEOUT_MS=500",
		"SECKILL_UPSTREAM_BACKOFF_MAX_MS=200",
		"SECKILL_SECKILL_TAKEOVER_MS="+strconv.FormatInt(takeover.Milliseconds(), 10),
		"SECKILL_LOG_FORMAT=json",
		"SECKILL_LOG_LEVEL=debug", // it is looked at when something went wrong
		skewVariable+"="+strconv.FormatInt(int64(skew.Seconds()), 10),
	)
	cmd.Stdout, cmd.Stderr = log, log
	dieWithParent(cmd)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // dieWithParent means this thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.handle = cmd.Process
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // the state says all
		s.ended(p, cmd.ProcessState)
	}()
	if err := <-started; err != nil {
		s.fail("starting %s: %v", program, err)
		return
	}
	s.now = p
}

// ended notes the end of a process. One that ends of its own accord is a fault,
// unless somebody else took the port while it was down.
func (s *sidecar) ended(p *process, state *os.ProcessState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.log.close()
	close(p.exited)
	if !p.killed && !p.log.contains("address already in use") {
		s.fail("%s ended by itself, %s: see %s", s.name, state, p.log.file.Name())
	}
}

func (p *process) gone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// kill ends the process with SIGKILL, as a crash does, without waiting for its
// end. It reports whether there was one.
func (s *sidecar) kill() bool { return s.killer()() }

// killer returns what kills the process that runs now, and none after it.
func (s *sidecar) killer() func() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.now
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p == nil || p.gone() || p.killed {
			return false
		}
		p.killed = true
		_ = p.handle.Kill() // one that is ending already is fine
		return true
	}
}

// wait waits for the end of a process that was killed.
func (s *sidecar) wait() {
	s.mu.Lock()
	p := s.now
	s.mu.Unlock()
	if p != nil {
		<-p.exited
	}
}

// dead reports whether nothing runs.
func (s *sidecar) dead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now == nil || s.now.gone()
}

// signal sends a signal to the process, if there is one.
func (s *sidecar) signal(signal syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil && !s.now.gone() {
		_ = s.now.handle.Signal(signal) // one that is ending already is fine
	}
}

// awaitReady waits until the latest process serves clients and checks that its
// clock is as wrong as it should be.
func (s *sidecar) awaitReady(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	p := s.now
	s.mu.Unlock()
	select {
	case <-p.log.ready:
	case <-p.exited:
		t.Fatalf("%s ended before it was ready: see %s", s.name, p.log.file.Name())
	case <-time.After(hangs):
		t.Fatalf("%s isn't ready after %s: see %s", s.name, hangs, p.log.file.Name())
	}
	var ready struct{ TS string }
	if err := json.Unmarshal(p.log.readyLine, &ready); err != nil {
		t.Fatalf("log line %q: %v", p.log.readyLine, err)
	}
	at, err := time.Parse("2006-01-02T15:04:05.000Z0700", ready.TS)
	if err != nil {
		t.Fatal(err)
	}
	if off := at.Sub(p.started) - p.skew; off < -time.Second || off > hangs {
		t.Fatalf("the clock of %s is off by %s, want %s: the overlay doesn't work", s.name, at.Sub(p.started), p.skew)
	}
}

// hangs bounds how long something broken hangs that takes milliseconds, or at
// most the length of a fault.
const hangs = 20 * time.Second

// processLog writes what a process says to a file.
type processLog struct {
	file      *os.File
	ready     chan struct{} // closed when clients are served
	readyLine []byte        // that says so; read it when ready is closed

	mu   sync.Mutex
	last []byte // the end of what it said
}

func newProcessLog(path string) (*processLog, error) {
	file, err := os.Create(path)
	return &processLog{file: file, ready: make(chan struct{})}, err
}

// Write never fails.
func (l *processLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.file.Write(p)
	const most = 16 << 10
	l.last = append(l.last, p...)
	for line := range bytes.Lines(p) {
		if l.readyLine == nil && bytes.Contains(line, []byte(`"msg":"ready"`)) {
			l.readyLine = bytes.Clone(line)
			close(l.ready)
		}
	}
	if len(l.last) > most {
		l.last = append(l.last[:0], l.last[len(l.last)-most:]...)
	}
	return len(p), nil
}

func (l *processLog) contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.last, []byte(text))
}

func (l *processLog) close() { l.file.Close() }
