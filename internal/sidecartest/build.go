// Package sidecartest builds the program and runs it as a process of its own, for
// tests that meet it as its users do.
package sidecartest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// program is the path of the built seckill-proxy.
var program string

// Main is what a TestMain calls: it builds the program, runs the tests and returns
// the exit code. flags are further ones of go build.
func Main(m *testing.M, flags ...string) int {
	dir, err := os.MkdirTemp("", "seckill-proxy-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if program, err = Build(dir, flags...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Build builds the program into a directory, with the race detector where the
// tests have it, and returns its path.
func Build(dir string, flags ...string) (string, error) {
	path := filepath.Join(dir, "seckill-proxy")
	args := append([]string{"build", "-o", path}, flags...)
	if RaceEnabled {
		args = append(args, "-race")
	}
	if output, err := exec.Command("go", append(args, "seckill-proxy")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the program: %w\n%s", err, output)
	}
	return path, nil
}
