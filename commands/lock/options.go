package lock

import (
	"fmt"
	"strings"
	"time"
)

// Options are what an operator decides about locks.
type Options struct {
	// Prefix stands in front of a lock's name in its key. It may be empty.
	Prefix string
	// CompanionPrefix stands in front of all other keys.
	CompanionPrefix string
	// TTLMax is the longest TTL that can be asked for, in whole milliseconds.
	TTLMax time.Duration
}

// DefaultOptions returns what holds when nothing is configured.
func DefaultOptions() Options {
	return Options{Prefix: "lock:", CompanionPrefix: "lockmeta:", TTLMax: 24 * time.Hour}
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
	}
	return nil
}

// reserved reports whether the key of a lock with this name could be a
// companion's, which only happens where locks have no prefix.
func (o Options) reserved(name string) bool {
	return strings.HasPrefix(o.Prefix+name, o.CompanionPrefix)
}
