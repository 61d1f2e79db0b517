// Package commands is the table of the custom commands: what each is called,
// what it takes, what it answers and who handles it. Dispatch, arity errors,
// COMMAND, COMMAND INFO, COMMAND DOCS and COMMANDS.md all read the same rows.
// It knows no sockets: a handler gets arguments and returns a Reply.
package commands

import (
	"context"
	"slices"
)

// Command is one row of the table.
type Command struct {
	Name       string   // upper case, with the family: "SECKILL.BUY"
	Arity      int      // as in Redis: counts the name; negative means "at least"
	Group      string   // "seckill" or "lock"
	Flags      []string // as in COMMAND INFO: "write", "readonly", "denyoom", "fast", "blocking"
	Categories []string // ACL categories as in COMMAND INFO: "@write", "@fast"
	Since      string   // first version that has it
	Summary    string   // one sentence, no full stop
	Complexity string   // as in COMMAND DOCS
	Arguments  []Argument
	Replies    []Outcome // every business outcome, documented in COMMANDS.md
	Concurrent bool      // a run of these in one pipeline executes concurrently
	Handle     Handler

	// AtOnce answers a Concurrent command that needs no Redis, without waiting for
	// anything, and says whether it did; nil where there are none.
	AtOnce func(c *Connection, args [][]byte) (reply Reply, ok bool)
}

// Argument describes one argument, as COMMAND DOCS does.
type Argument struct {
	Name     string
	Type     string // "string", "integer", "pure-token", "block" or "oneof"
	Token    string // the keyword in front of the value, "" for a positional one
	Optional bool
	Multiple bool // may be repeated
	Summary  string
	Sub      []Argument // of "block" and "oneof"
}

// Outcome documents one reply of a command.
type Outcome struct {
	Code    int    // 200, 409, 4001, …
	Word    string // RESERVED, SOLD_OUT, …
	Shape   string // the whole array: "[200 RESERVED token left at]"
	Meaning string // one sentence, no full stop
}

// Blocks reports whether the command may wait for something to happen.
func (c *Command) Blocks() bool { return slices.Contains(c.Flags, "blocking") }

// Handler executes a command. args are the arguments after the command's name,
// already counted against Arity; they are only valid until the handler returns.
//
// ctx ends when the sidecar's clients are cut. That of a command that Blocks ends
// as soon as its client is gone or has closed its sending side, or the sidecar
// drains: a handler must not wait any longer then, and may still do what needs
// no waiting. It may have ended before the handler is called.
type Handler func(ctx context.Context, c *Connection, args [][]byte) Reply
