//go:build !linux

package proxy

import (
	"net"
	"time"
)

// limitUnanswered leaves it to the kernel after how long a connection ends whose bytes
// are not acknowledged.
func limitUnanswered(*net.TCPConn, time.Duration) {}
