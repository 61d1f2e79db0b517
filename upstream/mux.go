package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"seckill-proxy/internal/pump"
	"seckill-proxy/internal/rawio"
	"seckill-proxy/internal/resp"
)

// Sink is the client that a run of commands came from. A Mux calls it from its
// own goroutine, so neither method may wait.
type Sink interface {
	// Replies hands over the next bytes of the sink's replies, in which ended
	// replies end. The bytes are the sink's only during the call.
	Replies(b []byte, ended int)
	// Lost says that the last n replies will not come. torn tells that a part
	// of the first of them was handed over; sent, that the commands may have
	// reached Redis.
	Lost(n int, torn, sent bool)
}

// Single is a command whose one reply has a sink of its own, for SubmitEach.
type Single struct {
	Sink    Sink
	Command []byte
}

// Batch is whom the sinks of one SubmitEach belong to.
type Batch interface {
	// Landed says that some of the sinks were given replies, or lost them, and
	// that none of them gets more for the moment. It must not wait.
	Landed()
}

// Mux is one connection to Redis that many clients share: their commands travel
// in one pipeline, and each gets its replies in its own order. It connects when
// it is first used, and again after a loss; what was under way then is lost and
// never sent again.
//
// Commands of many clients are gathered into one write: whoever finds no write
// under way writes, after letting the other runnable goroutines go first, and
// goes on until nothing is left. While some writes are not answered, commands
// gather for the next one. So the more there is to do, the more one system call
// carries, here and in Redis.
type Mux struct {
	target *Target
	as     Profile

	mu       sync.Mutex
	changed  sync.Cond // conn, failing or the length of out
	conn     net.Conn  // nil while there is none
	dialing  bool
	failing  bool   // lost sinks are being told
	closed   bool   // by Close
	barred   bool   // Redis demands authentication of conn
	out      []byte // commands that no write has taken
	queued   int    // replies that they will have
	spare    []byte // the buffer that out takes turns with
	writing  bool
	pending  ring // whose replies are to come
	taken    int  // entries of pending that a write has taken
	written  int  // replies that all commands written on conn have or will have
	answered int  // of those, how many have come
	flights  []flight
	running  sync.WaitGroup // the reader, and who finishes a write
}

// flight is a write that isn't answered whole.
type flight struct {
	written int // Mux.written after it
	at      time.Time
}

// Limits of a Mux.
const (
	flightsMax   = 4                      // writes under way
	flightMax    = 200 * time.Millisecond // older, and what comes next had better go another way
	muxOutMax    = 4 << 20                // more than this waiting to be written makes Submit wait
	muxReadBytes = 64 << 10               // read at a time
	muxKeptBytes = 1 << 20                // larger write buffers are given back
)

// NewMux returns a Mux whose connection is made for a profile. It doesn't
// connect yet. The caller closes it.
func NewMux(target *Target, as Profile) *Mux {
	m := &Mux{target: target, as: as}
	m.changed.L = &m.mu
	return m
}

// ErrClosed is returned by Submit after Close.
var ErrClosed = errors.New("closed")

// Connect makes the connection, if there is none.
func (m *Mux) Connect(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.usable(ctx)
}

// Stuck reports whether commands may have to wait for long: Redis was told to
// pause, or has left unanswered for a while what was sent before. So it does with
// all that stands behind a command that it holds back.
func (m *Mux) Stuck() bool {
	if m.target.redisPaused() {
		return true
	}
	return m.Waits() > flightMax
}

// Waits returns for how long Redis has left unanswered what was sent, 0 when it is
// all answered.
func (m *Mux) Waits() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.flights) == 0 {
		return 0
	}
	return time.Since(m.flights[0].at)
}

// Idle reports whether nobody waits for a reply.
func (m *Mux) Idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pending.length() == 0
}

// Submit sends n commands, and sink gets their replies, later. It returns when
// they are on their way or queued behind a write under way, at the latest when ctx
// ends. On an error, which wraps ErrDown, or is ErrClosed, ErrUnauthenticated or
// that of ctx, nothing was sent and sink isn't called.
func (m *Mux) Submit(ctx context.Context, sink Sink, commands []byte, n int) error {
	m.mu.Lock()
	if err := m.usable(ctx); err != nil {
		m.mu.Unlock()
		return err
	}
	m.out = append(m.out, commands...)
	m.pending.push(entry{sink: sink, replies: n})
	m.queued += n
	m.submitted()
	return nil
}

// SubmitEach is Submit for commands that have a sink each: they travel in one
// piece, nothing of anybody else's between them. Their bytes are the caller's when
// it returns.
func (m *Mux) SubmitEach(ctx context.Context, batch Batch, commands []Single) error {
	m.mu.Lock()
	if err := m.usable(ctx); err != nil {
		m.mu.Unlock()
		return err
	}
	for _, c := range commands {
		m.out = append(m.out, c.Command...)
		m.pending.push(entry{sink: c.Sink, replies: 1, batch: batch})
	}
	m.queued += len(commands)
	m.submitted()
	return nil
}

// submitted has what was queued written. It is called with the lock held, and
// releases it.
func (m *Mux) submitted() {
	writer := m.mayWrite()
	m.mu.Unlock()
	if writer { // else who writes takes it along, or the reader does when replies have come
		m.write()
	}
}

// mayWrite makes the caller the writer, which it reports, where there is something
// to write and nobody does. While flightsMax writes are under way, commands rather
// gather: Redis has enough to do. It is called with the lock held.
func (m *Mux) mayWrite() bool {
	if m.writing || len(m.out) == 0 || len(m.flights) >= flightsMax {
		return false
	}
	m.writing = true
	return true
}

// usable waits, with the lock held, until commands can be queued, connecting if
// need be.
func (m *Mux) usable(ctx context.Context) error {
	for {
		switch {
		case m.closed:
			return ErrClosed
		case ctx.Err() != nil:
			return ctx.Err()
		case m.failing || m.dialing || m.conn != nil && len(m.out) > muxOutMax:
			m.wait(ctx)
		case m.conn != nil && m.barred:
			return ErrUnauthenticated
		case m.conn != nil:
			return nil
		default:
			m.dialing = true
			m.mu.Unlock()
			conn, err := m.target.Dial(ctx, m.as)
			barred := false
			if err == nil && !m.as.Identity.Known {
				if barred, err = m.target.barred(ctx, conn); err != nil {
					conn.Close()
					err = downAt(m.target.Address(), err)
				}
			}
			m.mu.Lock()
			m.dialing = false
			m.changed.Broadcast()
			if err != nil {
				return err
			}
			m.conn, m.taken, m.barred = conn, 0, barred
			m.running.Go(func() { m.read(conn) })
		}
	}
}

// wait waits, with the lock held, for a change or the end of ctx.
func (m *Mux) wait(ctx context.Context) {
	defer context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.changed.Broadcast()
	})()
	m.changed.Wait()
}

// write writes what is queued, until nothing is left or enough is under way. It
// doesn't wait for Redis to read: what the socket doesn't take at once, and what
// comes after it, is left to a goroutine.
func (m *Mux) write() {
	runtime.Gosched() // others may have something for the same write
	for conn, commands := m.takeOut(); conn != nil; conn, commands = m.takeOut() {
		n, err := tryWrite(conn, commands)
		if err == nil && n < len(commands) && m.later(conn, func() {
			_, err := conn.Write(commands[n:])
			m.wrote(conn, commands, err)
			m.write()
		}) {
			return
		}
		m.wrote(conn, commands, err)
	}
}

// tryWrite writes what can be written without waiting.
func tryWrite(conn net.Conn, b []byte) (int, error) {
	if socket, ok := conn.(*rawio.Conn); ok {
		return socket.TryWrite(b)
	}
	return 0, nil // TLS and what else can't be asked
}

// takeOut takes the commands of the next write. Where there is none the caller is
// not the writer any more.
func (m *Mux) takeOut() (net.Conn, []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.out) == 0 || m.conn == nil || len(m.flights) >= flightsMax {
		m.writing = false
		return nil, nil
	}
	commands := m.out
	m.written += m.queued
	m.queued = 0
	m.flights = append(m.flights, flight{m.written, time.Now()})
	m.out, m.spare = m.spare[:0], nil
	m.taken = m.pending.length()
	return m.conn, commands
}

// later has f run, unless the connection has ended: then it returns false.
func (m *Mux) later(conn net.Conn, f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != conn {
		return false // nobody may be waiting for m.running any more
	}
	m.running.Go(f)
	return true
}

// wrote ends a write.
func (m *Mux) wrote(conn net.Conn, commands []byte, err error) {
	if err != nil {
		rawio.Shut(conn) // the reader, who may be the caller, finds out and tells
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if cap(commands) <= muxKeptBytes {
		m.spare = commands[:0]
	}
	if len(commands) > muxOutMax {
		m.changed.Broadcast()
	}
}

// read hands out replies until the connection ends.
func (m *Mux) read(conn net.Conn) {
	replies := muxReader{mux: m, buf: make([]byte, muxReadBytes)}
	// Whatever ends it, the connection is of no more use then, and the sinks whose
	// replies are missing are told.
	_ = pump.Run(conn, m.target.opts.Hangups, &replies)
	conn.Close()
	m.fail(replies.scanner.Within())
}

// muxReader is a pump.Reader of the replies on a Mux's connection.
type muxReader struct {
	mux     *Mux
	buf     []byte
	scanner resp.ReplyScanner
}

func (r *muxReader) Room() []byte    { return r.buf }
func (r *muxReader) Got(n int) error { return r.mux.digest(&r.scanner, r.buf[:n]) }
func (r *muxReader) Idle()           {}
func (r *muxReader) HungUp()         {}

// errUnasked is a reply that belongs to no command.
var errUnasked = fmt.Errorf("%w: nobody asked for it", resp.ErrMalformedReply)

// digest hands out the replies in b, which continues the stream.
func (m *Mux) digest(scanner *resp.ReplyScanner, b []byte) error {
	m.mu.Lock()
	answered, due := 0, m.pending.replies // what is sent from here on isn't answered in b
	m.mu.Unlock()
	var landing Batch // has replies, and wasn't told so
	defer func() { land(landing, nil) }()
	for len(b) > 0 {
		if due == 0 || !scanner.Within() && b[0] == '>' {
			return errUnasked // a shared connection subscribes to nothing
		}
		m.mu.Lock()
		first := m.pending.first()
		m.mu.Unlock()
		used, ended, err := scanner.Skip(b, min(first.replies, due))
		if err != nil {
			return err
		}
		due -= ended
		m.mu.Lock()
		if m.pending.take(ended) {
			m.taken--
		}
		m.mu.Unlock()
		first.sink.Replies(b[:used], ended)
		landing = land(landing, first.batch)
		b = b[used:]
		answered += ended
	}
	m.mu.Lock()
	m.answered += answered
	landed := 0
	for landed < len(m.flights) && m.flights[landed].written <= m.answered {
		landed++
	}
	m.flights = slices.Delete(m.flights, 0, landed)
	writer := m.mayWrite()
	m.mu.Unlock()
	if writer {
		m.write()
	}
	return nil
}

// fail tells everybody whose replies will not come, and makes the Mux ready to
// connect again.
func (m *Mux) fail(torn bool) {
	m.mu.Lock()
	m.failing = true
	pending, taken := m.pending, m.taken
	m.pending, m.taken, m.out, m.queued = ring{}, 0, nil, 0
	m.written, m.answered, m.flights = 0, 0, nil
	m.mu.Unlock()
	var landing Batch
	for i := 0; pending.length() > 0; i++ {
		first := pending.first()
		first.sink.Lost(first.replies, torn && i == 0, i < taken)
		landing = land(landing, first.batch)
		pending.take(first.replies)
	}
	land(landing, nil)
	m.mu.Lock()
	m.conn, m.failing = nil, false
	m.changed.Broadcast()
	m.mu.Unlock()
}

// land tells a batch that its replies are out, unless the next are its own as
// well. It returns next.
func land(landing, next Batch) Batch {
	if landing != nil && landing != next {
		landing.Landed()
	}
	return next
}

// Close ends the connection and waits until everybody who lost replies was told.
// Once more does no harm.
func (m *Mux) Close() {
	m.mu.Lock()
	m.closed = true
	conn := m.conn
	m.changed.Broadcast()
	m.mu.Unlock()
	if conn != nil {
		conn.Close() // waits for the reader, who may be waiting for the lock
	}
	m.running.Wait()
}

// ring is a queue of sinks, each with the number of replies it waits for.
type ring struct {
	replies int     // that all entries together wait for
	entries []entry // its length is a power of two
	head    int     // of the oldest
	tail    int     // after the newest; head and tail only grow
}

type entry struct {
	sink    Sink
	replies int
	batch   Batch // that the sink belongs to, nil for none
}

func (r *ring) length() int { return r.tail - r.head }

func (r *ring) at(i int) *entry { return &r.entries[i&(len(r.entries)-1)] }

func (r *ring) push(e entry) {
	if r.length() == len(r.entries) {
		grown := make([]entry, max(2*len(r.entries), 64))
		for i := r.head; i < r.tail; i++ {
			grown[i&(len(grown)-1)] = *r.at(i)
		}
		r.entries = grown
	}
	*r.at(r.tail) = e
	r.tail++
	r.replies += e.replies
}

// first returns the oldest entry; without one, one of 0 replies.
func (r *ring) first() entry {
	if r.length() == 0 {
		return entry{}
	}
	return *r.at(r.head)
}

// take takes n replies off the oldest entry, and the entry when none are left,
// which it reports.
func (r *ring) take(n int) bool {
	e := r.at(r.head)
	r.replies -= n
	e.replies -= n
	if e.replies > 0 {
		return false
	}
	*e = entry{}
	r.head++
	return true
}
