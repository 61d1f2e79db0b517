package commands

import (
	"slices"
	"strings"
)

// Table finds commands by name. It doesn't change after New.
type Table struct {
	rows   []Command // in the order of the documentation
	byName map[string]*Command
}

// NewTable returns the table of all custom commands.
func NewTable() *Table {
	t := &Table{rows: slices.Concat(seckillCommands, lockCommands)}
	t.byName = make(map[string]*Command, len(t.rows))
	for i := range t.rows {
		t.byName[t.rows[i].Name] = &t.rows[i]
	}
	return t
}

// All returns the rows. The caller must not change them.
func (t *Table) All() []Command { return t.rows }

// longestName is more than any name in the table needs.
const longestName = 32

// Lookup finds a command by its name in any case; nil when it isn't ours. It
// doesn't allocate: every forwarded command passes through here.
func (t *Table) Lookup(name []byte) *Command {
	if len(name) > longestName {
		return nil
	}
	var upper [longestName]byte
	for i, c := range name {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	return t.byName[string(upper[:len(name)])]
}

// ArityError returns Redis's error for a wrong number of arguments, or "" when
// count, which includes the name, is right.
func (c *Command) ArityError(count int) Error {
	if count == c.Arity || c.Arity < 0 && count >= -c.Arity {
		return ""
	}
	return Error("ERR wrong number of arguments for '" + strings.ToLower(c.Name) + "' command")
}

// Usage returns the command with its arguments as documentation writes them:
// "SECKILL.BUY sku user [QTY n] [ID request_id]".
func (c *Command) Usage() string { return strings.TrimSpace(c.Name + " " + usage(c.Arguments)) }

func usage(arguments []Argument) string {
	var words []string
	for _, a := range arguments {
		words = append(words, a.usage())
	}
	return strings.Join(words, " ")
}

func (a *Argument) usage() string {
	word := a.Name
	switch a.Type {
	case "pure-token":
		word = a.Token
	case "block":
		word = usage(a.Sub)
	case "oneof":
		var choices []string
		for _, sub := range a.Sub {
			choices = append(choices, sub.usage())
		}
		word = strings.Join(choices, " | ")
	}
	if a.Token != "" && a.Type != "pure-token" {
		word = a.Token + " " + word
	}
	if a.Multiple {
		word += " [" + word + " ...]"
	}
	if a.Optional {
		word = "[" + word + "]"
	}
	return word
}
