package sidecartest

import (
	"bytes"
	"strings"
	"sync"
)

// Log collects what a program writes.
type Log struct {
	mu    sync.Mutex
	text  bytes.Buffer
	grown chan struct{} // closed at the next write
}

// NewLog returns an empty one.
func NewLog() *Log { return &Log{grown: make(chan struct{})} }

// Write never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	close(l.grown)
	l.grown = make(chan struct{})
	return len(p), nil
}

// Changed returns what is closed when something is written.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grown
}

// Find returns the first whole line with the text, "" for none.
func (l *Log) Find(text string) string {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) && strings.HasSuffix(line, "\n") {
			return line
		}
	}
	return ""
}

// String returns everything so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
