package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"seckill-proxy/internal/redistest"
)

// TestExamples runs every program in examples/ against the real Redis and
// against the embedded store. A program ends with 0 only if everything was as it
// expects.
func TestExamples(t *testing.T) {
	for name, upstream := range map[string]string{
		"redis":    redistest.Start(t, redistest.Options{}).Addr,
		"embedded": "embedded",
	} {
		t.Run(name, func(t *testing.T) {
			proxy := start(t, settings{args: []string{"-upstream", upstream}})
			want(t, 200, "CREATED", proxy.client(2), "SECKILL.CREATE", "iphone", 100)
			for _, path := range examples(t) {
				t.Run(filepath.Base(path), func(t *testing.T) {
					if output, err := runScript(t.Context(), interpreter(t, path), path, "127.0.0.1", proxy.port()); err != nil {
						t.Fatalf("%v\n%s", err, output)
					}
				})
			}
		})
	}
}

// examples lists the programs in examples/.
func examples(t *testing.T) []string {
	t.Helper()
	var paths []string
	for _, pattern := range []string{"../examples/php/*.php", "../examples/python/*.py"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: no programs (%v)", pattern, err)
		}
		paths = append(paths, found...)
	}
	return paths
}

// interpreter returns what runs a program, by the end of its name.
func interpreter(t testing.TB, path string) string {
	t.Helper()
	if filepath.Ext(path) == ".py" {
		return python(t)
	}
	return "php"
}

// python finds a Python that has redis-py: a Debian package serves /usr/bin's,
// which needn't be the first in the path.
func python(t testing.TB) string {
	t.Helper()
	for _, candidate := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), candidate, "-c", "import redis").Run() == nil {
			return candidate
		}
	}
	t.Fatal("no python3 with redis-py: install the package python3-redis (Debian: apt-get install python3-redis)")
	return ""
}

// runScript runs a program and returns what it wrote to its standard output. The
// error says what it wrote beside that.
func runScript(ctx context.Context, program string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %q: %w\n%s", program, args, err, &stderr)
	}
	return stdout.String(), nil
}
