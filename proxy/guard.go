package proxy

import (
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// guard stands between a listener and redcon. redcon's accept loop and reader
// trust the network more than a server should: the loop spins when Accept fails,
// as it does when file descriptors run out, and the reader can be made to panic,
// to spin and to grow without bound. So the guard waits out failing accepts,
// turns clients away above a limit, and lets redcon's reader see one command
// only, the knock, upon which the connection is taken over.
type guard struct {
	net.Listener
	clients    *atomic.Int64
	clientsMax int64
	log        *zap.Logger
}

const (
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// Accept returns the next client as a *knock. Its only error is net.ErrClosed.
func (g *guard) Accept() (net.Conn, error) {
	var pause time.Duration
	for {
		conn, err := g.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil, err
		case err != nil:
			pause = min(max(2*pause, acceptPauseMin), acceptPauseMax)
			g.log.Warn("accepting a client failed", zap.Error(err), zap.Duration("retry_in", pause))
			time.Sleep(pause)
			continue
		}
		pause = 0
		if g.clients.Add(1) > g.clientsMax {
			g.clients.Add(-1)
			turnAway(conn)
			continue
		}
		return &knock{Conn: conn}, nil
	}
}

// turnAway closes a connection with Redis's own words. A socket that was just
// opened has room for them, so this doesn't wait. With TLS there are no words
// without a handshake, so Redis says none then.
func turnAway(conn net.Conn) {
	if _, secured := conn.(*tls.Conn); !secured {
		_ = conn.SetWriteDeadline(time.Now().Add(acceptPauseMax))
		_, _ = conn.Write([]byte("-ERR max number of clients reached\r\n"))
	}
	conn.Close()
}

// knock is a client connection on its way through redcon. What redcon reads from
// it is one command, which calls the handler that detaches the connection. The
// client's own bytes stay in the socket.
type knock struct {
	net.Conn
	knocked bool
}

func (k *knock) Read(p []byte) (int, error) {
	if k.knocked {
		return 0, net.ErrClosed
	}
	k.knocked = true
	return copy(p, "*1\r\n$5\r\nKNOCK\r\n"), nil
}
