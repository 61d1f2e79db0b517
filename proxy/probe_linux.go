package proxy

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnanswered ends a connection whose bytes were not acknowledged for so long.
func limitUnanswered(tcp *net.TCPConn, limit time.Duration) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}
