package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// describe says when, where and with what the results were made.
func describe(ctx context.Context, opts options) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d rounds of %d operations, seckill-proxy %s.\n", time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		opts.rounds, opts.n, treeVersion(ctx))
	fmt.Fprintf(&b, "%d × %s, %s; load average before the start %s.\n", runtime.NumCPU(), cpuModel(), kernel(), loadAverage())
	versions, err := programVersions(ctx, opts.peers)
	fmt.Fprintf(&b, "%s.\n\n", strings.Join(versions, ", "))
	return b.String(), err
}

// programVersions returns what the programs call themselves.
func programVersions(ctx context.Context, peers []string) ([]string, error) {
	versions := []string{runtime.Version()}
	ask := func(program, flag string) error {
		path, err := find(program)
		if err != nil {
			return err
		}
		// nutcracker writes its version to stderr.
		output, err := exec.CommandContext(ctx, path, flag).CombinedOutput()
		line, _, _ := strings.Cut(string(output), "\n")
		line, _, _ = strings.Cut(line, " - ") // HAProxy's address on the web
		versions = append(versions, line)
		return err
	}
	if err := ask("redis-server", "--version"); err != nil {
		return nil, err
	}
	flags := map[string][2]string{twemproxy: {"nutcracker", "--version"}, haproxy: {"haproxy", "-v"}}
	for _, peer := range peers {
		if err := ask(flags[peer][0], flags[peer][1]); err != nil {
			return nil, err
		}
	}
	return versions, nil
}

// treeVersion names the commit, and whether the tree differs from it.
func treeVersion(ctx context.Context) string {
	output, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		return "of an unknown version" // not a clone, or no git
	}
	return strings.TrimSpace(string(output))
}

const unknown = "unknown"

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	_, after, found := strings.Cut(string(text), "model name")
	line, _, _ := strings.Cut(after, "\n")
	if !found {
		return unknown + " CPU"
	}
	return strings.TrimLeft(line, "\t :")
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return unknown + " kernel"
	}
	return "Linux " + strings.TrimSpace(string(text))
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(text), " ")
	if err != nil {
		return unknown
	}
	return one
}

// The results in README.md stand between these lines.
const (
	resultsBegin = "<!-- results: written by go run ./bench -update, lost at the next one -->\n"
	resultsEnd   = "<!-- end of results -->\n"
)

// updateReadme writes the results into bench/README.md of the module that this
// program is run in.
func updateReadme(ctx context.Context, text string) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("looking for bench/README.md: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(root)), "bench", "README.md")
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	updated, err := replaceResults(old, text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, updated, 0o644)
}

// replaceResults puts text between the marks.
func replaceResults(readme []byte, text string) ([]byte, error) {
	head, rest, begun := bytes.Cut(readme, []byte(resultsBegin))
	_, tail, ended := bytes.Cut(rest, []byte(resultsEnd))
	if !begun || !ended {
		return nil, fmt.Errorf("no lines %q and %q", resultsBegin, resultsEnd)
	}
	return bytes.Join([][]byte{head, []byte(resultsBegin), []byte(text), []byte(resultsEnd), tail}, nil), nil
}
