// Package commands is the table of the custom commands: what each is called,
// what it takes, what it answers and who handles it. Dispatch, arity errors,
// COMMAND, COMMAND INFO, COMMAND DOCS and COMMANDS.md all read the same rows.
// It knows no sockets: a handler gets arguments and returns a Reply.
package commands

import (
	"context"

	"seckill-proxy/commands/lock"
	"seckill-proxy/commands/seckill"
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

// Backend is what a handler works with: the sales and locks of one database,
// reached with the rights of one user. It is safe for concurrent use.
type Backend struct {
	Sales *seckill.Store
	Locks *lock.Locker
}

// Handler executes a command. args are the arguments after the command's name,
// already counted against Arity; they are only valid until the handler returns.
// ctx ends when the client is gone or the sidecar stops.
type Handler func(ctx context.Context, b *Backend, args [][]byte) Reply
