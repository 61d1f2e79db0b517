package filewatch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestValue replaces a file in the ways that people and programs do.
func TestValue(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write := func(text string) {
		t.Helper()
		// Not in place: the clock that stamps files may be coarse.
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	core, logged := observer.New(zap.InfoLevel)
	reads := 0
	read := func() (string, error) {
		reads++
		content, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(content), "bad") {
			err = errors.New("bad content")
		}
		return string(content), err
	}
	if _, err := New(read, zap.NewNop(), file); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("without the file: %v", err)
	}
	write("one")
	synctest.Test(t, func(t *testing.T) {
		v, err := New(read, zap.New(core), file)
		if err != nil {
			t.Fatal(err)
		}
		reads = 0
		for _, step := range []struct {
			change func()
			wait   time.Duration
			want   string
			reads  int // since the step before
			errors int // in the log, all in all
		}{
			{func() {}, time.Hour, "one", 0, 0},
			{func() { write("two") }, time.Millisecond, "one", 0, 0},
			{func() {}, lookEvery, "two", 1, 0},
			{func() { write("bad") }, lookEvery, "two", 1, 1},
			{func() {}, time.Hour, "two", 0, 1},
			{func() { os.Remove(file) }, lookEvery, "two", 1, 2},
			{func() {}, time.Hour, "two", 0, 2},
			{func() { write("six") }, lookEvery, "six", 1, 2},
		} {
			step.change()
			time.Sleep(step.wait)
			for range 3 {
				if got := v.Get(); got != step.want {
					t.Fatalf("got %q, want %q", got, step.want)
				}
			}
			if failures := logged.FilterLevelExact(zap.ErrorLevel).Len(); reads != step.reads || failures != step.errors {
				t.Fatalf("%q: read %d times, want %d; %d errors in the log, want %d", step.want, reads, step.reads, failures, step.errors)
			}
			reads = 0
		}
	})
}
