package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"seckill-proxy/internal/redistest"
)

// TestScripts runs each script in front of Redis and through the sidecar, once
// alone and then as many at the same time. The scripts end with 0 only if all was
// as it should be.
func TestScripts(t *testing.T) {
	predis := needs(t, "Predis", "php-predis", "php", "-r", "require 'Predis/autoload.php';")
	phpredis := needs(t, "phpredis", "php-redis", "php", "-r", "extension_loaded('redis') && function_exists('pcntl_fork') || exit(1);")
	node := node(t)
	python := python(t)

	for _, script := range []struct {
		name    string
		argv    []string
		workers int
	}{
		{"phpredis connect", []string{phpredis, "php/phpredis.php", "connect"}, 10},
		{"phpredis pconnect", []string{phpredis, "php/phpredis.php", "pconnect"}, 20},
		{"Predis", []string{predis, "php/predis.php"}, 10},
		{"redis-py", []string{python, "python/redispy.py"}, 4},
		{"ioredis RESP2", []string{node, "node/ioredis.js", "2"}, 1},
		{"ioredis RESP3", []string{node, "node/ioredis.js", "3"}, 2},
		{"node-redis RESP2", []string{node, "node/noderedis.js", "2"}, 1},
		{"node-redis RESP3", []string{node, "node/noderedis.js", "3"}, 2},
	} {
		t.Run(script.name, func(t *testing.T) {
			t.Parallel()
			argv := func(addr string, more ...string) []string {
				return slices.Concat(script.argv, []string{"127.0.0.1", port(t, addr)}, more)
			}
			bare := redistest.Start(t, redistest.Options{})
			want, err := run(t.Context(), "", argv(bare.Addr, "alone")...)
			if err != nil {
				t.Fatalf("without the sidecar: %v", err)
			}

			p := start(t)
			stock := (script.workers + 1) / 2
			p.create("shared", stock)
			sold := make([]string, script.workers) // what each was told of the shared sale
			err = together(script.workers, func(worker int) error {
				name := fmt.Sprintf("worker-%d", worker)
				output, err := run(t.Context(), "", argv(p.addr, name, "custom")...)
				if err != nil {
					return err
				}
				got, custom, _ := strings.Cut(output, "custom commands\n")
				if got != want {
					return fmt.Errorf("through the sidecar:\n%s\nwithout it:\n%s", got, want)
				}
				_, rest, _ := strings.Cut(custom, "\nshared: ")
				sold[worker], _, _ = strings.Cut(rest, "\n")
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(sold)
			outcomes := append(slices.Repeat([]string{"RESERVED"}, stock), slices.Repeat([]string{"SOLD_OUT"}, script.workers-stock)...)
			if !slices.Equal(sold, outcomes) {
				t.Errorf("of %d units, the workers were told %q", stock, sold)
			}
			p.audit("shared")
			if n := p.info("clients", "blocked_clients"); n != 0 {
				t.Errorf("%d clients are still blocked in Redis", n)
			}
		})
	}
}

// needs runs a program that shows that what a test needs is there, and returns its
// name.
func needs(t testing.TB, what, packages string, argv ...string) string {
	t.Helper()
	if _, err := run(t.Context(), "", argv...); err != nil {
		t.Fatalf("no %s: .ci/tools installs it (%s)\n%v", what, packages, err)
	}
	return argv[0]
}

// python finds a Python that has redis-py: a Debian package serves /usr/bin's,
// which needn't be the first in the path.
func python(t testing.TB) string {
	t.Helper()
	if _, err := run(t.Context(), "", "python3", "-c", "import redis"); err == nil {
		return "python3"
	}
	return needs(t, "redis-py", "python3-redis", "/usr/bin/python3", "-c", "import redis")
}

// node finds a Node.js, and wants the clients that clients/node/package.json names
// beside it.
func node(t testing.TB) string {
	t.Helper()
	type manifest struct {
		Version      string
		Dependencies map[string]string
	}
	read := func(path string) (m manifest) {
		content, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(content, &m)
		}
		if err != nil {
			t.Fatalf("%v: .ci/tools installs what is missing (npm install --no-package-lock in clients/node)", err)
		}
		return m
	}
	for name, version := range read("node/package.json").Dependencies {
		if installed := read("node/node_modules/" + name + "/package.json").Version; installed != version {
			t.Fatalf("%s %s is installed, not %s: .ci/tools installs it", name, installed, version)
		}
	}
	return needs(t, "Node.js 20", "nodejs", "node", "-e", "process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)")
}
