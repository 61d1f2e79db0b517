package commands

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxIDBytes is the longest sku, user, lock name, request id or token.
const MaxIDBytes = 256

// parser takes a command's arguments from left to right. The first thing wrong
// is remembered in err, and everything taken after it is zero, so a handler
// checks once, at the end.
type parser struct {
	args [][]byte
	err  Error
}

func parse(args [][]byte) *parser { return &parser{args: args} }

// more reports whether arguments are left and nothing was wrong so far.
func (p *parser) more() bool { return p.err == "" && len(p.args) > 0 }

// next takes one argument; called name in errors.
func (p *parser) next(name string) []byte {
	if p.err != "" {
		return nil
	}
	if len(p.args) == 0 {
		p.failf("ERR syntax error: %s needs a value", name)
		return nil
	}
	arg := p.args[0]
	p.args = p.args[1:]
	return arg
}

// id takes a binary-safe byte string of 1 to MaxIDBytes bytes.
func (p *parser) id(name string) string { return p.text(name, 1, MaxIDBytes) }

// text takes a binary-safe byte string of shortest to longest bytes.
func (p *parser) text(name string, shortest, longest int) string {
	arg := p.next(name)
	if p.err == "" && (len(arg) < shortest || len(arg) > longest) {
		p.failf("ERR invalid %s: %d bytes, allowed are %d to %d", name, len(arg), shortest, longest)
	}
	return string(arg)
}

// integer takes a decimal integer from least to most; what says what it counts,
// for the error: "a positive integer of milliseconds".
func (p *parser) integer(name, what string, least, most int64) int64 {
	arg := p.next(name)
	if p.err != "" {
		return 0
	}
	n, err := strconv.ParseInt(string(arg), 10, 64)
	if err != nil || n < least || n > most || strconv.FormatInt(n, 10) != string(arg) {
		p.failf("ERR syntax error: %s needs %s (%d to %d)", name, what, least, most)
		return 0
	}
	return n
}

// option is a keyword that a command takes, and what takes its value.
type option struct {
	keyword string
	take    func()
}

// options takes all arguments that are left: the allowed options, in any order,
// each at most once.
func (p *parser) options(allowed ...option) {
	given := make(map[string]bool, len(allowed))
	for p.more() {
		keyword := p.option()
		i := slices.IndexFunc(allowed, func(o option) bool { return o.keyword == keyword })
		switch {
		case i < 0:
			var keywords []string
			for _, o := range allowed {
				keywords = append(keywords, o.keyword)
			}
			p.unknownOption(keyword, keywords...)
		case given[keyword]:
			p.failf("ERR syntax error: %s is given twice", keyword)
		default:
			given[keyword] = true
			allowed[i].take()
		}
	}
}

// option takes the keyword of an option, upper case.
func (p *parser) option() string { return strings.ToUpper(string(p.next("option"))) }

// unknownOption says which options a command has.
func (p *parser) unknownOption(got string, allowed ...string) {
	if len(got) > 32 {
		got = got[:32] + "..."
	}
	p.failf("ERR syntax error: unknown option %q, allowed are %s", got, strings.Join(allowed, ", "))
}

func (p *parser) failf(format string, args ...any) {
	if p.err == "" {
		p.err = Error(fmt.Sprintf(format, args...))
	}
}
