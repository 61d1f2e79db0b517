// Package hangup notices that the other side of a connection has gone while
// nobody reads from it: a client that waits for a blocking command has nothing
// to say, and what it sent before it died may lie unread in front of its end.
package hangup

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Watcher watches connections. It uses epoll's EPOLLRDHUP, which reports the end
// of a stream whether or not there are bytes in front of it.
type Watcher struct {
	epoll  int
	wake   int // an eventfd that ends run
	closed chan struct{}

	mu      sync.Mutex
	last    uint64
	watched map[uint64]func()
}

// New starts a watcher. The caller closes it.
func New() (*Watcher, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN})
	}
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	w := &Watcher{epoll: epoll, wake: wake, closed: make(chan struct{}), watched: make(map[uint64]func())}
	go w.run()
	return w, nil
}

// Watch calls gone once when the other side of the connection closes it or its
// sending half, or is lost; it may have done so already. gone is called from the
// watcher's goroutine and must not wait. stop ends the watch; gone may be running
// then. Of a connection with TLS the socket below is watched. A connection without
// a socket is not, nor is any by a nil Watcher.
func (w *Watcher) Watch(conn any, gone func()) (stop func()) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok || w == nil {
		return func() {}
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return func() {}
	}
	w.mu.Lock()
	w.last++
	id := w.last
	w.watched[id] = gone
	w.mu.Unlock()
	event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: int32(id), Pad: int32(id >> 32)}
	control := func(operation int) {
		// An error means that the connection is closed on this side, which
		// ends the watch as well.
		_ = raw.Control(func(fd uintptr) { _ = unix.EpollCtl(w.epoll, operation, int(fd), &event) })
	}
	control(unix.EPOLL_CTL_ADD)
	return func() {
		control(unix.EPOLL_CTL_DEL)
		w.mu.Lock()
		delete(w.watched, id)
		w.mu.Unlock()
	}
}

// run waits for events until Close.
func (w *Watcher) run() {
	defer close(w.closed)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, e := range events[:max(n, 0)] {
			id := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if id == 0 {
				return
			}
			w.mu.Lock()
			gone := w.watched[id]
			delete(w.watched, id)
			w.mu.Unlock()
			if gone != nil {
				gone()
			}
		}
	}
}

// Close ends all watches and waits until no gone is running.
func (w *Watcher) Close() {
	_, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-w.closed
	unix.Close(w.wake)
	unix.Close(w.epoll)
}
