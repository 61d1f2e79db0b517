package lock

import (
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Options are what an operator decides about locks.
type Options struct {
	// Prefix stands in front of a lock's name in its key. It may be empty.
	Prefix string
	// CompanionPrefix stands in front of all other keys.
	CompanionPrefix string
	// TTLMax is the longest TTL that can be asked for, in whole milliseconds.
	TTLMax time.Duration
	// WaitMax is the longest wait that can be asked for.
	WaitMax time.Duration
	// QueueMax is how many clients may wait for one lock.
	QueueMax int
	// NamesMax is how many locks can be taken at once.
	NamesMax int
	// Hold is for how long at most a lock is kept for a connection that doesn't say.
	Hold time.Duration
	// AutoMax is how many locks are kept for one connection at a time.
	AutoMax int
	// LongHoldPercent is the part of its TTL for which a lock may be held
	// without being called long, or of MAXHOLD where it is kept. 0: for ever.
	LongHoldPercent int
	// SyncTimeout is how long replicas have to confirm a lock.
	SyncTimeout time.Duration

	// Observer hears what becomes of locks; nil for nobody.
	Observer Observer
	// Log is where losses and long holds are written to; nil for nowhere.
	Log *zap.Logger
}

// Observer counts. Its methods are called from many goroutines and must not wait.
type Observer interface {
	// Waiting is called with 1 when a client begins to wait, and with -1 at the
	// end of that.
	Waiting(change int)
	// Waited is called at the end of each wait, with the word of its reply.
	Waited(outcome string, d time.Duration)
	// HandedOver is called when a release gave the lock to a client that waited
	// here, in one call.
	HandedOver()
	// Held is called when a hold was given back; long: it was longer than it
	// should be.
	Held(d time.Duration, long bool)
	// Kept is called with 1 when a lock begins to be kept for a connection, and
	// with -1 at the end of that.
	Kept(change int)
	// Lost is called when a lock that was kept is not held any more.
	Lost(reason string)
}

// Reasons for which a kept lock is lost.
const (
	LostHoldMax = "max_hold" // it was kept as long as it may be
	LostLapsed  = "lapsed"   // Redis could not be reached in time, or the key was deleted
	LostTaken   = "taken"    // another has it
	LostRefused = "refused"  // Redis refused to renew it
)

// DefaultOptions returns what holds when nothing is configured.
func DefaultOptions() Options {
	return Options{
		Prefix: "lock:", CompanionPrefix: "lockmeta:", TTLMax: 24 * time.Hour,
		WaitMax: time.Hour, QueueMax: 10_000, NamesMax: 64,
		Hold: 10 * time.Minute, AutoMax: 128, LongHoldPercent: 50, SyncTimeout: time.Second,
	}
}

// Validate returns an error that says what is wrong and what is allowed. The
// two prefixes must keep locks and companions apart, and may not contain braces,
// which would decide about the slot.
func (o Options) Validate() error {
	switch {
	case strings.ContainsAny(o.Prefix, "{}"):
		return fmt.Errorf("prefix %q: braces are not allowed", o.Prefix)
	case strings.ContainsAny(o.CompanionPrefix, "{}"):
		return fmt.Errorf("companion prefix %q: braces are not allowed", o.CompanionPrefix)
	case o.CompanionPrefix == "":
		return fmt.Errorf("companion prefix %q: must not be empty", o.CompanionPrefix)
	case strings.HasPrefix(o.CompanionPrefix, o.Prefix) && o.Prefix != "",
		strings.HasPrefix(o.Prefix, o.CompanionPrefix):
		return fmt.Errorf("prefix %q and companion prefix %q: neither may begin with the other", o.Prefix, o.CompanionPrefix)
	case o.TTLMax < time.Millisecond, o.TTLMax%time.Millisecond != 0:
		return fmt.Errorf("longest TTL %s: must be a positive whole number of milliseconds", o.TTLMax)
	case o.WaitMax < time.Millisecond, o.WaitMax%time.Millisecond != 0:
		return fmt.Errorf("longest wait %s: must be a positive whole number of milliseconds", o.WaitMax)
	case o.Hold < time.Millisecond, o.SyncTimeout < time.Millisecond:
		return fmt.Errorf("longest hold %s, time for replicas %s: must be at least a millisecond", o.Hold, o.SyncTimeout)
	case o.QueueMax < 1, o.NamesMax < 1, o.AutoMax < 1:
		return fmt.Errorf("%d waiters, %d names, %d kept locks: must be positive", o.QueueMax, o.NamesMax, o.AutoMax)
	case o.LongHoldPercent < 0 || o.LongHoldPercent > 100:
		return fmt.Errorf("a long hold of %d percent: must be from 0 to 100", o.LongHoldPercent)
	}
	return nil
}

// reserved reports whether the key of a lock with this name could be a
// companion's, which only happens where locks have no prefix.
func (o Options) reserved(name string) bool {
	return strings.HasPrefix(o.Prefix+name, o.CompanionPrefix)
}

// long reports whether a hold of d was longer than it should be, of at most life.
func (o Options) long(d, life time.Duration) bool {
	return o.LongHoldPercent > 0 && life > 0 && d*100 > life*time.Duration(o.LongHoldPercent)
}

// silent is the Observer of those who have none.
type silent struct{}

func (silent) Waiting(int)                  {}
func (silent) Waited(string, time.Duration) {}
func (silent) HandedOver()                  {}
func (silent) Held(time.Duration, bool)     {}
func (silent) Kept(int)                     {}
func (silent) Lost(string)                  {}
