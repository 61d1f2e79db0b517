package listen

import (
	"net"
	"sync"
	"testing"
)

// direction is one way through a relay.
type direction int

const (
	toRedis direction = iota
	fromRedis
)

// relay stands between a Listener and Redis. It can swallow what is sent, in one
// direction or both, while its connections stay open: a network that has lost
// the way, with nobody to say so.
type relay struct {
	addr string

	to       string
	listener net.Listener
	running  sync.WaitGroup

	mu       sync.Mutex
	swallows [2]bool
	ended    bool
	conns    map[net.Conn]bool
}

func startRelay(t *testing.T, to string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: listener.Addr().String(), to: to, listener: listener, conns: map[net.Conn]bool{}}
	r.running.Go(r.accept)
	t.Cleanup(func() {
		listener.Close()
		r.mu.Lock()
		r.ended = true
		for conn := range r.conns {
			conn.Close()
		}
		r.mu.Unlock()
		r.running.Wait()
	})
	return r
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", r.to)
		if err != nil {
			client.Close()
			continue
		}
		r.mu.Lock()
		r.conns[client], r.conns[server] = true, true
		if r.ended {
			client.Close()
			server.Close()
		}
		r.mu.Unlock()
		r.running.Go(func() { r.copy(server, client, toRedis) })
		r.running.Go(func() { r.copy(client, server, fromRedis) })
	}
}

// copy moves bytes one way until one side ends.
func (r *relay) copy(dst, src net.Conn, way direction) {
	defer dst.Close()
	piece := make([]byte, 64<<10)
	for {
		n, err := src.Read(piece)
		if err != nil {
			return
		}
		r.mu.Lock()
		swallowed := r.swallows[way]
		r.mu.Unlock()
		if swallowed {
			continue
		}
		if _, err := dst.Write(piece[:n]); err != nil {
			return
		}
	}
}

// swallow makes bytes that go these ways disappear, and no others.
func (r *relay) swallow(ways ...direction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.swallows = [2]bool{}
	for _, way := range ways {
		r.swallows[way] = true
	}
}
