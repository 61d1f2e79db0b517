package proxy

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"seckill-proxy/internal/rawio"
)

// outbox is the way of replies to one client. Whoever has something for the
// client gives it to write, which never waits: what the socket doesn't take at
// once is kept, within limits, and a goroutine brings it as the client reads.
type outbox struct {
	conn   net.Conn
	socket *rawio.Conn // conn, nil where it has no socket to be used at once
	limits *outboxLimits

	mu       sync.Mutex
	drained  sync.Cond   // kept became empty, or the outbox closed
	kept     net.Buffers // not yet taken by the socket
	held     int64       // bytes that count against the limits: kept and what drain is writing
	draining bool        // drain runs
	closed   bool
	reason   error // why it was closed, nil when the client left
	drains   sync.WaitGroup
}

// outboxLimits bound what slow clients can make the sidecar hold.
type outboxLimits struct {
	client int64        // bytes kept for one client
	total  int64        // bytes kept for all
	kept   atomic.Int64 // bytes kept for all now
}

var (
	errClientTooSlow = errors.New("the client doesn't read its replies: limits.client_output_bytes_max reached")
	errAllTooSlow    = errors.New("clients don't read their replies: limits.output_bytes_max reached")
)

func newOutbox(conn net.Conn, limits *outboxLimits) *outbox {
	o := &outbox{conn: conn, limits: limits}
	o.drained.L = &o.mu
	o.socket, _ = conn.(*rawio.Conn)
	return o
}

// write gives the client bytes, and doesn't wait. When that goes over a limit,
// the client is closed.
func (o *outbox) write(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	if !o.draining && o.socket != nil {
		b = b[o.try(b):]
	}
	if len(b) > 0 && !o.closed {
		o.keep(b)
	}
}

// try offers b to the socket once and returns how many bytes it took. It is
// called with the lock held.
func (o *outbox) try(b []byte) int {
	n, err := o.socket.TryWrite(b)
	if err != nil {
		o.shut(nil)
	}
	return n
}

// keep keeps bytes for drain, which it starts. It is called with the lock held.
func (o *outbox) keep(b []byte) {
	if !o.charge(int64(len(b))) {
		return
	}
	o.append(b)
	if !o.draining {
		o.draining = true
		o.drains.Go(o.drain)
	}
}

// charge puts bytes on the account; false when that closed the client. It is called
// with the lock held.
func (o *outbox) charge(n int64) bool {
	o.held += n
	switch all := o.limits.kept.Add(n); {
	case o.held > o.limits.client:
		o.shut(errClientTooSlow)
		return false
	case all > o.limits.total:
		o.shut(errAllTooSlow)
		return false
	}
	return true
}

// Bytes are kept in chunks, so that much of them isn't copied again and again.
const (
	chunkMin = 4 << 10
	chunkMax = 64 << 10
)

// append adds bytes to kept.
func (o *outbox) append(b []byte) {
	if last := len(o.kept) - 1; last >= 0 {
		room := cap(o.kept[last]) - len(o.kept[last])
		n := min(room, len(b))
		o.kept[last] = append(o.kept[last], b[:n]...)
		b = b[n:]
	}
	if len(b) > 0 {
		size := max(min(2*int(o.held), chunkMax), len(b), chunkMin)
		o.kept = append(o.kept, append(make([]byte, 0, size), b...))
	}
}

// drain brings what is kept to the client, until nothing is left.
func (o *outbox) drain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.kept) > 0 && !o.closed {
		b := o.kept[0]
		o.kept = o.kept[1:]
		o.mu.Unlock()
		_, err := o.conn.Write(b)
		o.mu.Lock()
		o.release(int64(len(b)))
		if err != nil {
			o.shut(nil)
		}
	}
	o.draining = false
	o.drained.Broadcast()
}

// release takes bytes off the account. It is called with the lock held; after
// shut there is nothing on it.
func (o *outbox) release(n int64) {
	if n = min(n, o.held); n > 0 {
		o.held -= n
		o.limits.kept.Add(-n)
	}
}

// hold puts bytes on the account that are kept for the client elsewhere, since it
// isn't their turn. When that goes over a limit, the client is closed.
func (o *outbox) hold(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.charge(int64(n))
	}
}

// unhold takes them off the account.
func (o *outbox) unhold(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.release(int64(n))
}

// writeAll gives the client bytes and waits until the socket has them, so that
// the sender feels how fast the client reads.
func (o *outbox) writeAll(b []byte) error {
	o.mu.Lock()
	for o.draining && !o.closed {
		o.drained.Wait()
	}
	if o.closed {
		o.mu.Unlock()
		return net.ErrClosed
	}
	n := 0
	if o.socket != nil {
		n = o.try(b)
	}
	o.mu.Unlock()
	if n == len(b) {
		return nil
	}
	_, err := o.conn.Write(b[n:])
	return err
}

// behind reports whether the client has not taken what it was given.
func (o *outbox) behind() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.draining
}

// waitDrained waits until the client has taken what it was given, or is closed.
func (o *outbox) waitDrained() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.draining && !o.closed {
		o.drained.Wait()
	}
}

// close ends the client's connection; what is kept is dropped.
func (o *outbox) close() {
	o.mu.Lock()
	o.shut(nil)
	o.mu.Unlock()
}

// shut is close with a reason and the lock held. It shuts the socket down but
// doesn't close it: closing waits for whoever is reading, who may be waiting for
// us. The session closes it when it has ended.
func (o *outbox) shut(reason error) {
	if o.closed {
		return
	}
	o.closed, o.reason = true, reason
	rawio.Shut(o.conn)
	o.release(o.held)
	o.kept = nil
	o.drained.Broadcast()
}

// isClosed reports whether the client's connection was ended.
func (o *outbox) isClosed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}

// wait returns when no goroutine of the outbox runs, and why it was closed.
func (o *outbox) wait() error {
	o.drains.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reason
}
