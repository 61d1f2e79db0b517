package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// hangs is how long something may take that takes milliseconds when all is well.
// It only bounds how long a broken program hangs.
const hangs = 30 * time.Second

// down begins what the program says, in several places, when Redis is not to be had.
const down = "no connection to Redis at "

// sidecar is a running seckill-proxy.
type sidecar struct {
	addr  string // where its first listener is: "127.0.0.1:port", or a path
	admin string // "127.0.0.1:port", "" for none

	t       testing.TB
	process *os.Process
	log     *output
	exited  chan struct{} // closed when the process is gone
	state   *os.ProcessState
}

// settings of a sidecar. The zero value listens on free ports of 127.0.0.1, in
// front of the embedded store.
type settings struct {
	args []string
	env  []string // "NAME=value", all that it gets beside the defaults below
}

// start starts the program and returns when it is ready. It is told to stop when
// the test ends, and must do so properly.
func start(t testing.TB, s settings) *sidecar {
	t.Helper()
	p := launch(t, s)
	t.Cleanup(p.cleanup)
	p.await(`"msg":"ready"`)
	var ready struct{ Listen, Admin string }
	line := p.log.find(`"msg":"ready"`)
	if err := json.Unmarshal([]byte(line), &ready); err != nil {
		t.Fatalf("log line %q: %v", line, err)
	}
	p.addr, p.admin = ready.Listen, ready.Admin
	return p
}

// launch starts the program, whatever becomes of it.
func launch(t testing.TB, s settings) *sidecar {
	t.Helper()
	s.env = append([]string{
		"SECKILL_LISTEN=127.0.0.1:0",
		"SECKILL_ADMIN=" + freeAddress(t),
		"SECKILL_LOG_FORMAT=json",
	}, s.env...)
	return launchBare(t, s)
}

// launchBare starts the program with its own defaults, for runs that don't
// listen.
func launchBare(t testing.TB, s settings) *sidecar {
	t.Helper()
	p := &sidecar{t: t, log: newOutput(), exited: make(chan struct{})}
	cmd := exec.Command(program, s.args...)
	cmd.Env = append(environment(), s.env...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	dieWithParent(cmd)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // dieWithParent means this thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.process = cmd.Process
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
	t.Cleanup(p.kill)
	return p
}

// environment is this process's own without settings of a sidecar. A data race
// ends the program under test.
func environment() []string {
	env := []string{"GORACE=halt_on_error=1 exitcode=66"}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SECKILL_") && !strings.HasPrefix(e, "GORACE=") {
			env = append(env, e)
		}
	}
	return env
}

// freeAddress finds a port that nobody listens on, below those that the system
// gives to outgoing connections.
func freeAddress(t testing.TB) string {
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

// await returns when the log has a line with the text.
func (p *sidecar) await(text string) {
	p.t.Helper()
	timeout := time.NewTimer(hangs)
	defer timeout.Stop()
	for {
		changed := p.log.changed()
		if p.log.find(text) != "" {
			return
		}
		select {
		case <-changed:
		case <-p.exited:
			if p.log.find(text) == "" {
				p.t.Fatalf("it ended (%s) without a line with %q:\n%s", p.state, text, p.log)
			}
		case <-timeout.C:
			p.t.Fatalf("no line with %q:\n%s", text, p.log)
		}
	}
}

// kill ends the program with SIGKILL, as a crash does, and returns when it is
// gone.
func (p *sidecar) kill() {
	_ = p.process.Kill() // one that has ended already is fine
	<-p.exited
}

// signal sends a signal.
func (p *sidecar) signal(signal os.Signal) {
	p.t.Helper()
	if err := p.process.Signal(signal); err != nil {
		p.t.Fatalf("sending %s: %v", signal, err)
	}
}

// exitCode waits for the end of the program.
func (p *sidecar) exitCode() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(hangs):
		p.kill()
		p.t.Fatalf("it doesn't end:\n%s", p.log)
	}
	return p.state.ExitCode()
}

// stop tells the program to stop and wants it to end properly.
func (p *sidecar) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.exitCode(); code != 0 {
		p.t.Errorf("exit code %d after SIGTERM, want 0; its output:\n%s", code, p.log)
	}
}

func (p *sidecar) cleanup() {
	select {
	case <-p.exited:
	default:
		p.stop()
	}
	if p.t.Failed() {
		p.t.Logf("log of the sidecar on %s:\n%s", p.addr, p.log)
	}
}

func (p *sidecar) port() string {
	_, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	return port
}

// client returns a client of the sidecar that sends nothing twice and nothing of
// its own accord.
func (p *sidecar) client(protocol int) *redis.Client {
	network := "tcp"
	if strings.HasPrefix(p.addr, "/") {
		network = "unix"
	}
	c := redis.NewClient(&redis.Options{
		Network:                  network,
		Addr:                     p.addr,
		Protocol:                 protocol,
		MaxRetries:               -1,
		DialerRetries:            1,
		DisableIdentity:          true,
		ReadTimeout:              hangs,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	p.t.Cleanup(func() { c.Close() })
	return c
}

// get asks the admin side and returns status and body.
func (p *sidecar) get(path string) (int, string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), hangs)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// do executes a custom command and returns its array.
func do(t testing.TB, c *redis.Client, args ...any) []any {
	t.Helper()
	reply, err := c.Do(t.Context(), args...).Slice()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// want executes a custom command and returns its array, which must start with
// code and word.
func want(t testing.TB, code int64, word string, c *redis.Client, args ...any) []any {
	t.Helper()
	reply := do(t, c, args...)
	if reply[0] != code || reply[1] != word {
		t.Fatalf("%v: got %v, want %d %s", args, reply, code, word)
	}
	return reply
}

// fields returns the map in the reply of SECKILL.INFO and SECKILL.AUDIT as text,
// whichever protocol brought it.
func fields(t testing.TB, reply []any) map[string]string {
	t.Helper()
	named := map[string]string{}
	switch m := reply[2].(type) {
	case []any:
		for i := 0; i+1 < len(m); i += 2 {
			named[fmt.Sprint(m[i])] = fmt.Sprint(m[i+1])
		}
	case map[any]any:
		for name, value := range m {
			named[fmt.Sprint(name)] = fmt.Sprint(value)
		}
	default:
		t.Fatalf("no map in %v", reply)
	}
	return named
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(hangs); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not so after %s", what, hangs)
		}
	}
}

// output collects what a program writes.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	grown chan struct{} // closed at the next write
}

func newOutput() *output { return &output{grown: make(chan struct{})} }

// Write never fails.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	close(o.grown)
	o.grown = make(chan struct{})
	return len(p), nil
}

func (o *output) changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.grown
}

// find returns the first whole line with the text, "" for none.
func (o *output) find(text string) string {
	for line := range strings.Lines(o.String()) {
		if strings.Contains(line, text) && strings.HasSuffix(line, "\n") {
			return line
		}
	}
	return ""
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
