package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a server under measurement.
type process struct {
	name   string
	handle *os.Process
	log    string        // file with what it wrote
	exited chan struct{} // closed when it has ended
}

// spawn starts a program with only this environment, its output in a file of
// dir. The kernel kills it when the thread that started it ends, so that nothing
// stays behind whatever happens to this program; one goroutine keeps the thread.
func spawn(dir, name string, env []string, program string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = dir, append(env, "PATH="+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	dieWithParent(cmd)

	p := &process{name: name, log: log.Name(), exited: make(chan struct{})}
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
		_ = cmd.Wait() // it was killed, or its log says why it ended
		close(p.exited)
	}()
	return p, <-started
}

// kill ends the process and waits for its end.
func (p *process) kill() {
	_ = p.handle.Kill() // it may have ended by itself
	<-p.exited
}

// readyTimeout bounds how long a server that doesn't come up is waited for.
const readyTimeout = 30 * time.Second

// ready waits until the server at addr, which p runs, answers PING.
func (p *process) ready(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := ping(addr)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return p.failure(errors.New("it ended by itself"))
		case <-ctx.Done():
			return p.failure(fmt.Errorf("not ready: %w", err))
		case <-time.After(20 * time.Millisecond): // until the next try
		}
	}
}

// failure adds the process's name and log to an error.
func (p *process) failure(err error) error {
	text, _ := os.ReadFile(p.log) // without it the error says less
	return fmt.Errorf("%s: %w\n%s", p.name, err, text)
}

func ping(addr string) error {
	c, err := dial(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.do("PING")
	return err
}

// tick is the unit of CPU times in /proc, USER_HZ, which is 100 per second on
// every Linux.
const tick = 10 * time.Millisecond

// cpu returns the CPU time that all threads of the process have used, in user
// and in kernel mode, to the tick.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.handle.Pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(text))
}

// parseStat adds utime and stime, the fields 14 and 15 of proc(5)'s stat. The
// second field is the name in parentheses, which may contain anything.
func parseStat(text string) (time.Duration, error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const utime, stime = 14 - 3, 15 - 3 // from the third field on
	if len(fields) <= stime {
		return 0, fmt.Errorf("unexpected /proc/PID/stat: %q", text)
	}
	user, errUser := strconv.ParseInt(fields[utime], 10, 64)
	system, errSystem := strconv.ParseInt(fields[stime], 10, 64)
	return time.Duration(user+system) * tick, errors.Join(errUser, errSystem)
}

// rss returns the memory of the process that is in RAM, in bytes.
func (p *process) rss() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.handle.Pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(text), "\nVmRSS:")
	line, _, _ := strings.Cut(after, "kB")
	kib, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return kib << 10, err
}

// freeAddress returns an address of 127.0.0.1 that nobody listens on. Its port
// lies below those that systems give to outgoing connections, which the load
// makes by the thousand.
func freeAddress() (string, error) {
	const first, last = 11000, 31999
	var err error
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(last-first+1)))
		var listener net.Listener
		if listener, err = net.Listen("tcp", addr); err == nil {
			return addr, listener.Close()
		}
	}
	return "", fmt.Errorf("no free port: %w", err)
}

// raiseOpenFiles raises the limit of open files to what the system allows, for
// this process and those that it starts, and wants enough for so many clients.
func raiseOpenFiles(clients int) error {
	const others = 1000 // files besides the clients' connections
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Max < uint64(clients+others) {
		return fmt.Errorf("%d clients need a limit of %d open files, it is %d (ulimit -Hn)", clients, clients+others, limit.Max)
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}
