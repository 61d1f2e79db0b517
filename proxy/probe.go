package proxy

import (
	"crypto/tls"
	"net"
	"time"

	"seckill-proxy/internal/rawio"
)

// How a client is probed that is silent: so often before it counts as gone, and
// never more often than the kernel can.
const (
	probeCount = 3
	probeLeast = time.Second
)

// probe has the kernel find out within about a time that the host of a client is gone
// without a word, or with replies that it never took: then the connection ends. A
// host that only stopped the client's process is not gone.
func probe(client net.Conn, within time.Duration) {
	if secured, ok := client.(*tls.Conn); ok {
		client = secured.NetConn()
	}
	if socket, ok := client.(*rawio.Conn); ok {
		client = socket.NetConn()
	}
	tcp, ok := client.(*net.TCPConn)
	if !ok {
		return // the client is on this host, which ends its connections with it
	}
	every := max(within/(probeCount+1), probeLeast).Truncate(time.Second)
	// A kernel that can't do it leaves the default, which takes minutes.
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: probeCount})
	limitUnanswered(tcp, every*(probeCount+1))
}
