package e2e

import (
	"net"
	"sync"
	"testing"
)

// relay stands between a sidecar and Redis. It can hold back what Redis answers,
// so that a test knows what is under way, and cut all connections.
type relay struct {
	addr string

	to       string
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	moved sync.Cond // held or cut changed
	held  bool
	ended bool
	conns map[net.Conn]bool
}

func startRelay(t testing.TB, to string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: listener.Addr().String(), to: to, listener: listener, conns: map[net.Conn]bool{}}
	r.moved.L = &r.mu
	r.running.Go(r.accept)
	t.Cleanup(func() {
		listener.Close()
		r.mu.Lock()
		r.ended, r.held = true, false
		r.moved.Broadcast()
		r.mu.Unlock()
		r.cut()
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
		r.running.Go(func() { r.copy(server, client, func() {}) })
		r.running.Go(func() { r.copy(client, server, r.pass) })
	}
}

// copy moves bytes until one side ends, each piece when pass allows it.
func (r *relay) copy(dst, src net.Conn, pass func()) {
	defer dst.Close()
	piece := make([]byte, 64<<10)
	for {
		n, err := src.Read(piece)
		if n > 0 {
			pass()
			if _, err := dst.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits while answers are held.
func (r *relay) pass() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.held {
		r.moved.Wait()
	}
}

// hold holds back whatever Redis answers from now on.
func (r *relay) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = true
}

// release lets the answers go.
func (r *relay) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = false
	r.moved.Broadcast()
}

// cut closes all connections; held answers are lost.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		conn.Close()
	}
	clear(r.conns)
}
