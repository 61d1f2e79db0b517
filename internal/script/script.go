// Package script runs Lua scripts on Redis and says of every failure whether
// the script may have run, which is what decides between "try again" and
// "outcome unknown".
package script

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrNotExecuted is returned when the script certainly didn't run: nothing
	// was sent, or Redis said that it refused (LOADING, READONLY, OOM, …).
	ErrNotExecuted = errors.New("not executed")
	// ErrUncertain is returned when the script was sent and no answer came: it
	// may have run or not.
	ErrUncertain = errors.New("outcome unknown")
)

// Unsent is an error that says that nothing was sent. A client's dialer wraps one
// in every error of its own.
type Unsent string

func (e Unsent) Error() string { return string(e) }

// Script is a Lua script and its SHA-1.
type Script struct {
	name   string
	script *redis.Script
}

// New makes a Script of a Lua source; name is for errors.
func New(name, source string) *Script {
	return &Script{name: name, script: redis.NewScript(source)}
}

// Run executes the script: by EVALSHA, and by EVAL where Redis doesn't know it
// yet (also after SCRIPT FLUSH). It never sends a script a second time unless
// Redis said NOSCRIPT; the client must have been made with MaxRetries -1. That of
// a cluster sends one again that Redis said it didn't execute.
//
// An error is a redis.Error where Redis answered one that concerns the caller
// (NOPERM, WRONGTYPE, NOAUTH, …), else it wraps ErrNotExecuted or ErrUncertain.
func (s *Script) Run(ctx context.Context, rdb redis.Scripter, keys []string, args ...any) (any, error) {
	value, err := s.script.Run(ctx, rdb, keys, args...).Result()
	if err == nil || errors.Is(err, redis.Nil) {
		return value, nil
	}
	var answered redis.Error
	switch {
	case errors.As(err, &answered) && Refused(err):
		return nil, fmt.Errorf("%s: %w: %s", s.name, ErrNotExecuted, answered)
	case errors.As(err, &answered):
		return nil, err
	case nothingSent(err):
		return nil, fmt.Errorf("%s: %w: %w", s.name, ErrNotExecuted, err)
	default:
		return nil, fmt.Errorf("%s: %w: %w", s.name, ErrUncertain, err)
	}
}

// refusals are the prefixes of errors with which Redis says that it didn't
// execute the command, for reasons that pass. Of a cluster's MOVED and ASK a
// client hands out only what is left after it has followed some.
var refusals = []string{
	"LOADING ", "BUSY ", "MASTERDOWN ", "READONLY ", "CLUSTERDOWN ", "TRYAGAIN ", "MOVED ", "ASK ",
	"OOM ", "MISCONF ", "NOREPLICAS ", "max number of clients reached",
}

// Refused reports errors with which Redis said that it didn't execute a command,
// for a reason that passes: it loads, is a replica, is full, is busy, or the slot
// is elsewhere.
func Refused(err error) bool {
	for _, prefix := range refusals {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// nothingSent reports errors from before the first byte: no connection could be
// had.
func nothingSent(err error) bool {
	var unsent Unsent
	var op *net.OpError
	switch {
	case errors.As(err, &unsent):
		return true
	case errors.As(err, &op) && op.Op == "dial":
		return true
	}
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed)
}
