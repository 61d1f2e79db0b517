package upstream

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"seckill-proxy/internal/rawio"
)

// place is where a Target's server is, and the connections that lead there.
type place struct {
	mu      sync.Mutex
	address string    // "" while it isn't known
	moves   int       // how often it has become another
	retired time.Time // until then nobody may connect; zero for who never was
	open    map[*tracked]struct{}
}

// errMoved is why a connection that was just made is of no use.
var errMoved = errors.New("the master has changed meanwhile")

// errRetired is why nobody connects to a node that was a master.
var errRetired = errors.New("another node has taken its place")

// retiredFor is how long nobody connects to a master that another one has replaced,
// unless somebody names it as a master again. It is longer than anybody goes by an
// old map.
const retiredFor = 10 * time.Second

// at returns the address.
func (p *place) at() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address
}

// track notes a connection that was made to an address, until it is closed.
func (p *place) track(conn net.Conn, address string) (net.Conn, error) {
	s, ok := conn.(socket)
	if !ok {
		return conn, nil // no network's: the Target doesn't move
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if address != p.address {
		conn.Close()
		return nil, errMoved
	}
	if time.Now().Before(p.retired) {
		conn.Close()
		return nil, errRetired
	}
	if p.open == nil {
		p.open = map[*tracked]struct{}{}
	}
	c := &tracked{socket: s, place: p}
	p.open[c] = struct{}{}
	return c, nil
}

// move sets the address and ends the connections to another. It returns how many
// there were.
func (p *place) move(address string) (ended int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if address == p.address {
		return 0
	}
	if p.address != "" {
		p.moves++
	}
	p.address = address
	return p.end()
}

// drop ends all connections.
func (p *place) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}

// retire ends all connections, and for a while has nobody make another. It returns
// how many there were.
func (p *place) retire() (ended int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = time.Now().Add(retiredFor)
	return p.end()
}

// restore ends what retire began, if it did; then it returns true.
func (p *place) restore() (was bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was = !p.retired.IsZero()
	p.retired = time.Time{}
	return was
}

// isRetired reports whether nobody may connect.
func (p *place) isRetired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.retired)
}

// end ends all connections, with the lock held. Their owners notice as if Redis
// had closed them.
func (p *place) end() (ended int) {
	ended = len(p.open)
	for c := range p.open {
		if tcp, ok := c.socket.(*net.TCPConn); ok {
			// What the kernel still has of commands is thrown away, and not
			// sent to whoever is at the old address later.
			_ = tcp.SetLinger(0)
		}
		rawio.Shut(rawio.Wrap(c.socket))
	}
	clear(p.open)
	return ended
}

// socket is what net.Dial returns.
type socket interface {
	net.Conn
	syscall.Conn
}

// tracked is a connection of a place.
type tracked struct {
	socket
	place *place
}

// Close implements net.Conn.
func (c *tracked) Close() error {
	c.place.mu.Lock()
	delete(c.place.open, c)
	c.place.mu.Unlock()
	return c.socket.Close()
}
