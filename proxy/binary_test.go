package proxy_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"seckill-proxy/internal/rawclient"
)

// built is the sidecar's program, made once for the tests that must look at a
// process of its own: its memory, its file descriptors.
var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func binary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "seckill-proxy-test"); built.err != nil {
			return
		}
		built.path = filepath.Join(built.dir, "seckill-proxy")
		if out, err := exec.Command("go", "build", "-o", built.path, "seckill-proxy").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

func removeBinary() {
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
}

// program is the sidecar as a process.
type program struct {
	addr string
	cmd  *exec.Cmd
	t    testing.TB
}

// startProgram runs the built sidecar in front of the server at upstreamAddr.
// prefix is put before its command line: a shell that sets limits, for instance.
func startProgram(t testing.TB, upstreamAddr string, prefix []string, environ ...string) *program {
	t.Helper()
	// The port is chosen by the kernel, held by nobody for a moment; the program
	// says so if somebody else was faster.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	args := append(prefix, binary(t), "-listen", addr, "-upstream", upstreamAddr, "-admin", "")
	p := &program{addr: addr, cmd: exec.Command(args[0], args[1:]...), t: t}
	p.cmd.Env = append(os.Environ(), environ...)
	log, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready, ended := make(chan struct{}), make(chan struct{})
	var text strings.Builder
	go func() {
		defer close(ended)
		isReady := false
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if text.Len() < 1<<20 {
				text.WriteString(lines.Text() + "\n")
			}
			if !isReady && strings.Contains(lines.Text(), "ready") {
				isReady = true
				close(ready)
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if err := p.cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the sidecar's end: %v; its log:\n%s", err, text.String())
		}
	})
	select {
	case <-ready:
	case <-ended:
		t.Fatalf("the sidecar didn't start:\n%s", text.String())
	}
	return p
}

func (p *program) dial(t testing.TB) *rawclient.Conn {
	t.Helper()
	return rawclient.Dial(t, p.addr)
}

// peakMemory is the most memory that the process has had resident so far, in
// bytes.
func (p *program) peakMemory() int {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			kilobytes, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			if err != nil {
				p.t.Fatal(err)
			}
			return kilobytes << 10
		}
	}
	p.t.Fatal("no VmHWM in the process's status")
	return 0
}

// cpuTicks is the processor time that the process has used, in clock ticks, of
// which a second has 100.
func (p *program) cpuTicks() int {
	p.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	// The second field is the program's name in parentheses; utime and stime are
	// the 14th and the 15th.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		p.t.Fatal(err)
	}
	system, err := strconv.Atoi(fields[12])
	if err != nil {
		p.t.Fatal(err)
	}
	return user + system
}
