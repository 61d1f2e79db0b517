package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// lab is where the servers run: a temporary directory with the built sidecar and
// the configurations, and the processes.
type lab struct {
	dir       string
	sidecar   string // the built program
	processes []*process
}

// openLab builds the sidecar from the tree that this program is run in.
func openLab(ctx context.Context) (*lab, error) {
	dir, err := os.MkdirTemp("", "seckill-bench")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, sidecar: filepath.Join(dir, "seckill-proxy")}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", l.sidecar, "seckill-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build does
	if output, err := build.CombinedOutput(); err != nil {
		l.close()
		return nil, fmt.Errorf("building the sidecar: %w\n%s", err, output)
	}
	return l, nil
}

// close ends all processes and removes the directory.
func (l *lab) close() {
	for _, p := range l.processes {
		p.kill()
	}
	_ = os.RemoveAll(l.dir) // temporary anyway
}

// contender is a way to Redis.
type contender struct {
	name    string
	addr    string
	admin   string   // where a sidecar serves its metrics
	process *process // nil for the direct way
	ours    bool     // it understands SECKILL.*
}

// Names of contenders.
const (
	direct    = "direct"
	twemproxy = "twemproxy"
	haproxy   = "HAProxy"
)

var peerNames = []string{twemproxy, haproxy}

// sidecarVariants are the sidecars that are compared: with the number of Go
// processors that the program chooses itself, and with others.
var sidecarVariants = []struct {
	name string
	env  []string
}{
	{"sidecar", nil},
	{"sidecar, GOMAXPROCS=1", []string{"GOMAXPROCS=1"}},
	{"sidecar, GOMAXPROCS=2", []string{"GOMAXPROCS=2"}},
}

// start starts a server that answers at addr.
func (l *lab) start(ctx context.Context, addr, name string, env []string, program string, args ...string) (*process, error) {
	path, err := find(program)
	if err != nil {
		return nil, err
	}
	p, err := spawn(l.dir, strings.Map(fileName, name+"-"+addr), env, path, args...)
	if err != nil {
		return nil, err
	}
	l.processes = append(l.processes, p)
	return p, p.ready(ctx, addr)
}

// fileName keeps the characters that are harmless in a file's name.
func fileName(r rune) rune {
	if strings.ContainsRune(" ,=:/", r) {
		return '-'
	}
	return r
}

// find looks for a program also where Debian has those of administrators.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err == nil || strings.Contains(program, "/") {
		return path, err
	}
	if path, err := exec.LookPath(filepath.Join("/usr/sbin", program)); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%w: `.ci/tools bench` installs what is missing", err)
}

// startRedis starts an empty Redis that keeps nothing on disk.
func (l *lab) startRedis(ctx context.Context) (*process, string, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, "", err
	}
	p, err := l.start(ctx, addr, "redis", nil, "redis-server",
		"--bind", "127.0.0.1", "--port", port(addr), "--save", "", "--dir", l.dir, "--maxclients", "10000")
	return p, addr, err
}

func port(addr string) string {
	_, port, _ := net.SplitHostPort(addr) // addr is one of ours
	return port
}

// startSidecar starts a sidecar with its default configuration.
func (l *lab) startSidecar(ctx context.Context, name string, env []string, redis string) (contender, error) {
	addr, errAddr := freeAddress()
	admin, errAdmin := freeAddress()
	if err := errors.Join(errAddr, errAdmin); err != nil {
		return contender{}, err
	}
	p, err := l.start(ctx, addr, name, env, l.sidecar, "-listen", addr, "-upstream", redis, "-admin", admin)
	return contender{name: name, addr: addr, admin: admin, process: p, ours: true}, err
}

// startTwemproxy starts a nutcracker with what a cache of one server needs and
// its defaults otherwise.
func (l *lab) startTwemproxy(ctx context.Context, redis string) (contender, error) {
	addr, errAddr := freeAddress()
	stats, errStats := freeAddress()
	config, errConfig := l.write("nutcracker.yml", fmt.Sprintf(`bench:
  listen: %s
  redis: true
  hash: fnv1a_64
  distribution: ketama
  servers:
    - %s:1
`, addr, redis))
	if err := errors.Join(errAddr, errStats, errConfig); err != nil {
		return contender{}, err
	}
	p, err := l.start(ctx, addr, twemproxy, nil, "nutcracker", "--conf-file="+config,
		"--output="+filepath.Join(l.dir, "nutcracker.log"), "--pid-file="+filepath.Join(l.dir, "nutcracker.pid"),
		"--stats-addr=127.0.0.1", "--stats-port="+port(stats))
	return contender{name: twemproxy, addr: addr, process: p}, err
}

// startHAProxy starts an HAProxy that forwards TCP, with as many threads as it
// chooses itself.
func (l *lab) startHAProxy(ctx context.Context, redis string) (contender, error) {
	addr, errAddr := freeAddress()
	config, errConfig := l.write("haproxy.cfg", fmt.Sprintf(`global
  maxconn 4000
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen bench
  bind %s
  server redis %s
`, addr, redis))
	if err := errors.Join(errAddr, errConfig); err != nil {
		return contender{}, err
	}
	p, err := l.start(ctx, addr, haproxy, nil, "haproxy", "-db", "-f", config)
	return contender{name: haproxy, addr: addr, process: p}, err
}

func (l *lab) write(name, content string) (string, error) {
	path := filepath.Join(l.dir, name)
	return path, os.WriteFile(path, []byte(content), 0o600)
}

// field is one Redis and all the ways to it.
type field struct {
	redis      *process
	addr       string // of Redis
	contenders []contender
}

// startField starts a Redis and the contenders in front of it.
func (l *lab) startField(ctx context.Context, peers []string) (*field, error) {
	redis, addr, err := l.startRedis(ctx)
	if err != nil {
		return nil, err
	}
	f := &field{redis: redis, addr: addr, contenders: []contender{{name: direct, addr: addr}}}
	for _, variant := range sidecarVariants {
		c, err := l.startSidecar(ctx, variant.name, variant.env, addr)
		if err != nil {
			return nil, err
		}
		f.contenders = append(f.contenders, c)
	}
	startPeer := map[string]func(context.Context, string) (contender, error){twemproxy: l.startTwemproxy, haproxy: l.startHAProxy}
	for _, name := range peers {
		c, err := startPeer[name](ctx, addr)
		if err != nil {
			return nil, err
		}
		f.contenders = append(f.contenders, c)
	}
	return f, nil
}

// anySidecar is the sidecar that prepares sales.
func (f *field) anySidecar() contender { return f.contenders[1] }
