//go:build !linux

// Package hangup notices that the other side of a connection has gone while
// nobody reads from it. It does so on Linux only.
package hangup

// Watcher watches nothing here: that a client is gone shows when its connection
// is read or written next.
type Watcher struct{}

// New returns a Watcher.
func New() (*Watcher, error) { return &Watcher{}, nil }

// Watch does nothing.
func (*Watcher) Watch(any, func()) (stop func()) { return func() {} }

// Close does nothing.
func (*Watcher) Close() {}
