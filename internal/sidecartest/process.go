package sidecartest

import (
	"encoding/json"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Hangs is how long something may take that takes milliseconds when all is well.
// It only bounds how long a broken program hangs.
const Hangs = 30 * time.Second

// Settings of a process. The zero value is in front of the embedded store.
type Settings struct {
	Args []string
	Env  []string // "NAME=value", beside Environment
}

// Process is a run of the program. Its methods end the test when something goes
// wrong, so they are called from the test's own goroutine.
type Process struct {
	Addr  string // where its first listener is: "127.0.0.1:port", or a path
	Admin string // "127.0.0.1:port", "" for none
	Log   *Log

	t      testing.TB
	handle *os.Process
	exited chan struct{} // closed when it is gone
	state  *os.ProcessState
}

// Start starts the program on free ports of 127.0.0.1, unless the settings say
// otherwise, and returns when it is ready. It is told to stop when the test ends,
// and must do so properly.
func Start(t testing.TB, s Settings) *Process {
	t.Helper()
	p := Launch(t, s)
	t.Cleanup(p.end)
	p.Await(`"msg":"ready"`)
	var ready struct{ Listen, Admin string }
	line := p.Log.Find(`"msg":"ready"`)
	if err := json.Unmarshal([]byte(line), &ready); err != nil {
		t.Fatalf("log line %q: %v", line, err)
	}
	p.Addr, p.Admin = ready.Listen, ready.Admin
	return p
}

// Launch is Start, whatever becomes of the program.
func Launch(t testing.TB, s Settings) *Process {
	t.Helper()
	s.Env = append([]string{
		"SECKILL_LISTEN=127.0.0.1:0",
		"SECKILL_ADMIN=" + FreeAddress(t),
		"SECKILL_LOG_FORMAT=json",
	}, s.Env...)
	return Run(t, s)
}

// Run starts the program with nothing but its own defaults and the settings, for
// runs that don't listen.
func Run(t testing.TB, s Settings) *Process {
	t.Helper()
	p := &Process{t: t, Log: NewLog(), exited: make(chan struct{})}
	cmd := exec.Command(program, s.Args...)
	cmd.Env = append(Environment(), s.Env...)
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
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
		p.state = cmd.ProcessState
		close(p.exited)
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting %s: %v", program, err)
	}
	t.Cleanup(p.Kill)
	return p
}

// Environment is this process's own without settings of a sidecar. A data race
// ends the program under test.
func Environment() []string {
	env := []string{"GORACE=halt_on_error=1 exitcode=66"}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SECKILL_") && !strings.HasPrefix(e, "GORACE=") {
			env = append(env, e)
		}
	}
	return env
}

// FreeAddress finds a port that nobody listens on, below those that the system
// gives to outgoing connections.
func FreeAddress(t testing.TB) string {
	t.Helper()
	const first, last = 11000, 31999
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(last-first+1)))
		if ln, err := net.Listen("tcp", address); err == nil {
			ln.Close()
			return address
		}
	}
	t.Fatal("no free port on 127.0.0.1")
	return ""
}

// Await returns when the log has a line with the text.
func (p *Process) Await(text string) {
	p.t.Helper()
	timeout := time.NewTimer(Hangs)
	defer timeout.Stop()
	for {
		changed := p.Log.Changed()
		if p.Log.Find(text) != "" {
			return
		}
		select {
		case <-changed:
		case <-p.exited:
			if p.Log.Find(text) == "" {
				p.t.Fatalf("it ended (%s) without a line with %q:\n%s", p.state, text, p.Log)
			}
		case <-timeout.C:
			p.t.Fatalf("no line with %q:\n%s", text, p.Log)
		}
	}
}

// Kill ends the program with SIGKILL, as a crash does, and returns when it is
// gone.
func (p *Process) Kill() {
	_ = p.handle.Kill() // one that has ended already is fine
	<-p.exited
}

// Signal sends a signal.
func (p *Process) Signal(signal os.Signal) {
	p.t.Helper()
	if err := p.handle.Signal(signal); err != nil {
		p.t.Fatalf("sending %s: %v", signal, err)
	}
}

// ExitCode waits for the end of the program.
func (p *Process) ExitCode() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(Hangs):
		p.Kill()
		p.t.Fatalf("it doesn't end:\n%s", p.Log)
	}
	return p.state.ExitCode()
}

// Stop tells the program to stop and wants it to end properly.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	if code := p.ExitCode(); code != 0 {
		p.t.Errorf("exit code %d after SIGTERM, want 0; its output:\n%s", code, p.Log)
	}
}

func (p *Process) end() {
	select {
	case <-p.exited:
	default:
		p.Stop()
	}
	if p.t.Failed() {
		p.t.Logf("log of the sidecar on %s:\n%s", p.Addr, p.Log)
	}
}

// Port is the port of the first listener.
func (p *Process) Port() string {
	p.t.Helper()
	_, port, err := net.SplitHostPort(p.Addr)
	if err != nil {
		p.t.Fatal(err)
	}
	return port
}
