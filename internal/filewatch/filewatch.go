// Package filewatch holds values that are read from files, and reads them again
// when the files are replaced.
package filewatch

import (
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// lookEvery is how often the files are looked at, at most.
const lookEvery = time.Second

// Value is what some files say. It is safe for concurrent use.
type Value[T any] struct {
	files []string
	read  func() (T, error)
	log   *zap.Logger

	mu     sync.Mutex
	value  T
	seen   []fs.FileInfo // of the files, before they were read last
	looked time.Time
}

// unchanged tells one content of a file from another; nil is none.
func unchanged(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// New reads the files for the first time. The error is that of read.
func New[T any](read func() (T, error), log *zap.Logger, files ...string) (*Value[T], error) {
	v := &Value[T]{files: files, read: read, log: log, looked: time.Now()}
	v.seen = v.look()
	var err error
	v.value, err = read()
	return v, err
}

// Get returns what the files said at most a second ago. As long as what they say is
// no good, it is what they said before, and the log hears of it once.
func (v *Value[T]) Get() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if now.Sub(v.looked) < lookEvery {
		return v.value
	}
	v.looked = now
	present := v.look()
	if slices.EqualFunc(present, v.seen, unchanged) {
		return v.value
	}
	v.seen = present
	value, err := v.read()
	if err != nil {
		v.log.Error("files have changed and are no good; what they said before still holds", zap.Strings("files", v.files), zap.Error(err))
		return v.value
	}
	v.log.Info("files have changed and were read again", zap.Strings("files", v.files))
	v.value = value
	return value
}

func (v *Value[T]) look() []fs.FileInfo {
	infos := make([]fs.FileInfo, len(v.files))
	for i, name := range v.files {
		if info, err := os.Stat(name); err == nil {
			infos[i] = info
		}
	}
	return infos
}
