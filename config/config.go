// Package config reads the sidecar's configuration: flags beat environment
// variables, they beat the file, and that beats the defaults. The table in
// settings.go says of every key what it is called, what it is by default, what
// it is for and what is allowed.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"time"
)

// Config is a complete, checked configuration. Durations in it come from keys
// in milliseconds.
type Config struct {
	Processors int       // that goroutines run on at a time
	Listen     []Address // where clients connect, at least one
	Entry      Entry
	Upstream   Upstream
	Control    Control
	Cluster    Cluster
	Admin      Admin
	Limits     Limits
	Client     Client
	Seckill    Seckill
	Lock       Lock
	Log        Log
	Shutdown   Shutdown
}

// Entry is how clients are let in (listen_*).
type Entry struct {
	Password Secret      // that each client must give; "" for none
	UnixMode fs.FileMode // of the unix sockets; 0 for what the umask makes it
	TLS      ListenTLS   // of the tls:// listeners
}

// Control is how the sidecar keeps in touch with Redis (upstream.*).
type Control struct {
	DialTimeout   time.Duration // connecting and authenticating
	ScriptTimeout time.Duration // the reply to a script; after it the outcome is unknown
	BackoffMin    time.Duration // pause after the first failed attempt to connect
	BackoffMax    time.Duration // longest pause, not below BackoffMin
	IdentitiesMax int           // clients kept for distinct users and databases
	PinnedIdle    time.Duration // an unused connection for one client is closed

	SentinelUser     string // "" for the sentinels' default user
	SentinelPassword Secret // "" for none

	TLS UpstreamTLS // of rediss:// and its kin
}

// Cluster is what an ordinary client may do in front of a Redis Cluster.
type Cluster struct {
	SplitMSET bool // over several slots; it isn't one step then
}

// Admin is the HTTP side: metrics and health.
type Admin struct {
	Listen string // "host:port", "" for none
}

// Limits bound what clients can make the sidecar hold.
type Limits struct {
	ProcessorsMax   int // that goroutines run on at a time
	ClientsMax      int // connections at a time
	CommandBytesMax int // one bulk string of a command
	InlineBytesMax  int // one inline command
	CustomBytesMax  int // all arguments of one SECKILL.* or LOCK.* command
	PipelineMax     int // BUYs of one connection executing at a time
	PinnedMax       int // upstream connections that clients have to themselves
	PinnedWait      time.Duration
	ClientOutputMax int // bytes of replies kept for one client
	OutputMax       int // the same for all clients together
}

// Client is what holds for each client connection.
type Client struct {
	IdleTimeout   time.Duration // 0 for none
	LingerTimeout time.Duration // for the last replies of one that won't send more
}

// Seckill configures the sales.
type Seckill struct {
	Prefix         string        // of every key, not empty, without braces
	Shards         int           // of a sale that doesn't say how many, 0 for one per master
	Takeover       time.Duration // an order that a worker hasn't settled goes to another
	BatchMax       int           // purchases of one script call
	QueueMax       int           // purchases of one sale that wait
	QueuesMax      int           // purchases of all sales that wait
	QueueWait      time.Duration // how long each waits
	SyncReplicas   int           // that must have a purchase which doesn't say how many
	SyncTimeout    time.Duration // for them to have it
	AuditInterval  time.Duration // of each sale, 0 for never
	AuditOrdersMax int           // reservations of a sale whose records are audited
	Cache          Cache
}

// Cache bounds what is remembered of the sales of one user and database.
type Cache struct {
	SalesMax    int // SKUs with a sale
	AbsentMax   int // SKUs without
	RatesMax    int // users who were too fast
	BuyersMax   int // buyers of sold-out sales
	ReceiptsMax int // answers to them
}

// Lock configures the locks.
type Lock struct {
	Prefix          string        // of the locks themselves, may be empty
	CompanionPrefix string        // of the keys beside them, not empty
	TTLMax          time.Duration // the longest TTL that a client may ask for
	WaitMax         time.Duration // the longest WAIT
	QueueMax        int           // clients that wait for one lock
	NamesMax        int           // locks of one LOCK.MACQUIRE
	Hold            time.Duration // for which AUTO keeps a lock without MAXHOLD
	AutoMax         int           // locks kept for one connection
	LongHoldPercent int           // of its TTL for which a lock may be held without a word in the log; 0: any
	SyncTimeout     time.Duration // for replicas to confirm a lock
	Nodes           []Upstream    // independent servers that locks are on; none: where everything is
	NodeTimeout     time.Duration // for each of them to answer
}

// Log configures the log.
type Log struct {
	Level  string // debug, info, warn or error
	Format string // console or json
}

// Shutdown configures the end.
type Shutdown struct {
	DrainTimeout time.Duration // what running commands have to finish
}

// Default returns the configuration that holds when nothing is configured.
func Default() Config {
	var c Config
	for _, s := range settings {
		if err := s.value(&c).set(s.initial); err != nil {
			panic("default of " + s.key + ": " + err.Error())
		}
	}
	return c
}

// Validate checks what concerns several keys at once; a single value was
// checked when it was read. The error names each key concerned.
func (c Config) Validate() error {
	var problems []error
	if c.Control.BackoffMax < c.Control.BackoffMin {
		problems = append(problems, fmt.Errorf("upstream.backoff_max_ms: %d is less than upstream.backoff_min_ms, %d",
			c.Control.BackoffMax.Milliseconds(), c.Control.BackoffMin.Milliseconds()))
	}
	// Were one the start of the other, a lock's name could make its key
	// another lock's companion. Without a prefix that can't be ruled out, and
	// is what a shop asks for whose locks have names of their own.
	if c.Lock.Prefix != "" && overlap(c.Lock.Prefix, c.Lock.CompanionPrefix) {
		problems = append(problems, fmt.Errorf("lock.companion_prefix: %q and lock.prefix %q: neither may be the start of the other",
			c.Lock.CompanionPrefix, c.Lock.Prefix))
	}
	if c.Upstream.Password != "" && c.Entry.Password == "" {
		for _, a := range c.Listen {
			if !a.local() {
				problems = append(problems, fmt.Errorf("listen: %s can be reached from other machines while upstream.url carries a password: "+
					"whoever connects would have that user's rights; allowed are loopback addresses and unix sockets, or any with listen_password", a))
			}
		}
	}
	return errors.Join(append(problems, c.checkTLS()...)...)
}

// Open returns the addresses that other machines can connect to without a password
// and without a certificate.
func (c Config) Open() []Address {
	if c.Entry.Password != "" {
		return nil
	}
	var open []Address
	for _, a := range c.Listen {
		if certified := a.TLS && c.Entry.TLS.ClientCAFile != ""; !a.local() && !certified {
			open = append(open, a)
		}
	}
	return open
}

func overlap(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) }

// String lists every key and its value, a line each, passwords masked.
func (c Config) String() string {
	var b strings.Builder
	for i, s := range settings {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s: %s", s.key, s.value(&c))
	}
	return b.String()
}

// Address is where the sidecar listens, as net.Listen takes it.
type Address struct {
	Network string // "tcp" or "unix"
	Address string // "host:port", or the path of a socket
	TLS     bool
}

// String writes the address as it is configured.
func (a Address) String() string {
	switch {
	case a.Network == "unix":
		return "unix://" + a.Address
	case a.TLS:
		return "tls://" + a.Address
	}
	return a.Address
}

// local reports whether only this machine can connect. A name other than
// localhost could be anything.
func (a Address) local() bool {
	if a.Network == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(a.Address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}
