package simulator

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"seckill-proxy/internal/sidecartest"
)

// skewVariable sets how many seconds the clock of a sidecar is ahead.
const skewVariable = "SIMULATOR_SKEW_SECONDS"

// The wall clock of the program under test is moved inside of time.Now; its
// monotonic reading, and so timers and deadlines, stay as they are.
const (
	clockReading = "sec, nsec, mono := runtimeNow()\n"
	skewedClock  = clockReading + "\tsec += skewSeconds\n"
	skewSource   = `package time

import "syscall"

var skewSeconds = func() int64 {
	text, _ := syscall.Getenv("` + skewVariable + `")
	if text == "" {
		return 0
	}
	n, err := atoi(text)
	if err != nil {
		panic("` + skewVariable + ` is " + text)
	}
	return int64(n)
}()
`
)

// build builds the program with a clock that can be wrong and returns its path.
func build(dir string) (string, error) {
	overlay, err := overlayClock(dir)
	if err != nil {
		return "", err
	}
	return sidecartest.Build(dir, "-overlay", overlay)
}

// overlayClock makes, of the installed Go's own source, a time package whose
// clock is moved, and the file that go build -overlay takes.
func overlayClock(dir string) (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %v", err)
	}
	installed := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	clock := filepath.Join(installed, "time.go")
	source, err := os.ReadFile(clock)
	if err != nil {
		return "", err
	}
	_, now, found := strings.Cut(string(source), "\nfunc Now() Time {\n\t")
	if !found || !strings.HasPrefix(now, clockReading) || strings.Count(string(source), clockReading) != 1 {
		return "", fmt.Errorf("%s doesn't read its clock by %q first and only in Now: this Go needs another patch", clock, clockReading)
	}
	write := func(name, content string) (string, error) {
		path := filepath.Join(dir, name)
		return path, os.WriteFile(path, []byte(content), 0o600)
	}
	patched, err := write("time.go", strings.Replace(string(source), clockReading, skewedClock, 1))
	if err != nil {
		return "", err
	}
	skew, err := write("skew.go", skewSource)
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		clock: patched,
		filepath.Join(installed, "simulator_skew.go"): skew,
	}})
	if err != nil {
		return "", err
	}
	return write("overlay.json", string(overlay))
}
