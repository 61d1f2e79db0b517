package simulator

import (
	"bufio"
	"net"
	"sync"
	"testing"
	"time"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/sidecartest"
)

// relay stands between one sidecar and Redis. It passes on whole requests and
// whole replies, so that it can count requests, hold either direction, and end
// the sidecar at any point between two of them.
type relay struct {
	addr string

	to      string
	running sync.WaitGroup

	mu           sync.Mutex
	listener     net.Listener
	moved        sync.Cond // what is below changed
	heldRequests bool
	heldReplies  bool
	ended        bool
	links        map[*link]bool
	forwarded    int
	crash        *crashPoint // nil for none
}

// moment is where in the exchange of one request a sidecar is killed.
type moment int

const (
	beforeRequest moment = iota // Redis never gets the request
	afterRequest                // Redis gets it, and may or may not answer before the end
	beforeReply                 // Redis has answered, the sidecar never hears it
	moments
)

// crashPoint kills a sidecar, or only its connection, around one of its requests.
type crashPoint struct {
	at     int // the number of the request, as relay.forwarded counts
	when   moment
	strike func(*link)
}

// link is one connection through the relay.
type link struct {
	sidecar, redis net.Conn

	// Guarded by the relay's mu.
	sent, answered int
	fatal          int // the reply of this number is struck, 0 for none
	strike         func(*link)
}

func startRelay(t testing.TB, to string) *relay {
	t.Helper()
	r := &relay{addr: sidecartest.FreeAddress(t), to: to, links: map[*link]bool{}}
	r.moved.L = &r.mu
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// open begins to accept connections.
func (r *relay) open() error {
	listener, err := net.Listen("tcp", r.addr)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listener = listener
	r.running.Go(func() { r.accept(listener) })
	return nil
}

// refuse refuses connections from now on, as a host does whose Redis is down.
func (r *relay) refuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listener.Close()
}

func (r *relay) close() {
	r.refuse()
	r.mu.Lock()
	r.ended, r.heldRequests, r.heldReplies = true, false, false
	r.moved.Broadcast()
	r.mu.Unlock()
	r.cut()
	r.running.Wait()
}

func (r *relay) accept(listener net.Listener) {
	for {
		sidecar, err := listener.Accept()
		if err != nil {
			return // closed
		}
		redis, err := net.Dial("tcp", r.to)
		if err != nil {
			sidecar.Close() // Redis goes down
			continue
		}
		l := &link{sidecar: sidecar, redis: redis}
		r.mu.Lock()
		if r.ended {
			l.close()
		}
		r.links[l] = true
		r.mu.Unlock()
		r.running.Go(func() { r.passRequests(l) })
		r.running.Go(func() { r.passReplies(l) })
	}
}

// lose ends the connection for the sidecar. What Redis has got, it carries out.
func (l *link) lose() { l.sidecar.Close() }

func (l *link) close() {
	l.sidecar.Close()
	l.redis.Close()
}

// passRequests passes on what the sidecar asks, until it is gone. What Redis has
// of it then, it will carry out.
func (r *relay) passRequests(l *link) {
	defer l.redis.(*net.TCPConn).CloseWrite()
	source := bufio.NewReaderSize(l.sidecar, 16<<10)
	var request []byte
	for {
		var err error
		if request, err = rawclient.AppendReply(request[:0], source); err != nil {
			return
		}
		point := r.passRequest(l)
		if point != nil && point.when == beforeRequest {
			point.strike(l)
			return
		}
		if _, err := l.redis.Write(request); err != nil {
			return
		}
		if point != nil && point.when == afterRequest {
			point.strike(l)
			return
		}
	}
}

// passRequest waits while requests are held, counts one, and returns the crash
// point that it is, nil for none.
func (r *relay) passRequest(l *link) *crashPoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.heldRequests {
		r.moved.Wait()
	}
	l.sent++
	r.forwarded++
	point := r.crash
	if point == nil || r.forwarded < point.at {
		return nil
	}
	r.crash = nil
	if point.when == beforeReply {
		l.fatal, l.strike = l.sent, point.strike
		// A request that isn't answered, a SUBSCRIBE over RESP3, is struck all the same.
		time.AfterFunc(unanswered, func() { point.strike(l) })
	}
	return point
}

// unanswered is how long a crash point waits for a reply.
const unanswered = 300 * time.Millisecond

// passReplies passes on what Redis answers until it closes the connection. A
// sidecar that is gone gets nothing, and Redis is heard to the end all the same:
// a connection closed with something unread would be reset, and the reset could
// take requests with it.
func (r *relay) passReplies(l *link) {
	defer r.forget(l)
	source := bufio.NewReaderSize(l.redis, 16<<10)
	var reply []byte
	for {
		var err error
		if reply, err = rawclient.AppendReply(reply[:0], source); err != nil {
			return
		}
		if strike := r.passReply(l, reply[0] == '>'); strike != nil {
			strike(l)
			continue
		}
		_, _ = l.sidecar.Write(reply) // one that is gone is noticed by passRequests
	}
}

// passReply waits while replies are held and returns what happens instead of this
// one, nil for nothing.
func (r *relay) passReply(l *link, push bool) (strike func(*link)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.heldReplies {
		r.moved.Wait()
	}
	if push {
		return nil
	}
	l.answered++
	if l.fatal != 0 && l.answered >= l.fatal {
		return l.strike
	}
	return nil
}

func (r *relay) forget(l *link) {
	l.close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.links, l)
}

// arm sets a crash point at the n-th request from now on, n from 1. It takes the
// place of one that wasn't reached.
func (r *relay) arm(n int, when moment, strike func(*link)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.crash = &crashPoint{at: r.forwarded + n, when: when, strike: strike}
}

// disarm removes a crash point that wasn't reached.
func (r *relay) disarm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.crash = nil
}

// hold sets which directions are held.
func (r *relay) hold(requests, replies bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heldRequests, r.heldReplies = requests, replies
	r.moved.Broadcast()
}

// cut closes all connections; replies on their way are lost.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		l.close()
	}
}
