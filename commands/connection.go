package commands

import (
	"time"

	"seckill-proxy/commands/lock"
	"seckill-proxy/commands/seckill"
)

// Backend is the sales and locks of one database, reached with the rights of one
// user. It is safe for concurrent use.
type Backend struct {
	Sales *seckill.Store
	Locks *lock.Locker
}

// Close ends what the backend does by itself, and waits for its end. Its
// connections to Redis are its owner's to close, before.
func (b *Backend) Close() {
	b.Locks.Close()
	b.Sales.Close()
}

// Start begins what the backend does by itself, which its first command does too.
func (b *Backend) Start() { b.Sales.Start() }

// Connection is what a handler works with: the sales and locks of the user and
// database that the client has now, and what belongs to the client's connection.
// Concurrent handlers may share it; its owner changes Backend while none runs.
type Connection struct {
	*Backend
	// Probe makes sure that the connection ends within about that time when the
	// client's host is gone without a word; nil where that can't be done.
	Probe func(within time.Duration)

	ties lock.Ties // locks that end with the connection, of any user and database
}

// Close releases the locks that end with the connection, in Redis, which takes
// one round trip if there are any. The connection can be used again afterwards,
// as a client does after RESET.
func (c *Connection) Close() { c.ties.Release() }

// Idle reports whether Close has nothing to do.
func (c *Connection) Idle() bool { return c.ties.Empty() }

// Needs reports whether b has to live on for Close, though it may not be the
// present Backend.
func (c *Connection) Needs(b *Backend) bool { return c.ties.Need(b.Locks) }
