package proxy

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/redcon"

	"seckill-proxy/commands"
	"seckill-proxy/internal/resp"
)

// rewrite returns what the client gets instead of Redis's reply to a command
// that the sidecar has a part in. A reply that isn't what it should be, an
// error or QUEUED for instance, stays as it is.
func (s *Server) rewrite(e effect, reply []byte, protocol int) []byte {
	switch e.kind {
	case effectRefused:
		// Redis took it for an unknown command, and so will abort the EXEC.
		if bytes.HasPrefix(reply, []byte("-ERR unknown command")) {
			return redcon.AppendError(nil, e.refusal())
		}
	case effectCommandCount:
		if n, rest, ok := head(reply, ':'); ok && len(rest) == 0 {
			return redcon.AppendInt(nil, int64(n+len(s.table.All())))
		}
	case effectCommandList:
		return s.appendToArray(reply, protocol, func(dst []byte, row *commands.Command) []byte {
			return redcon.AppendBulkString(dst, strings.ToLower(row.Name))
		})
	case effectCommandAll:
		fields := fieldsOfInfo(reply)
		return s.appendToArray(reply, protocol, func(dst []byte, row *commands.Command) []byte {
			return appendInfo(dst, row, fields, protocol)
		})
	case effectCommandInfo:
		return s.fillInfo(reply, e.names, protocol)
	case effectCommandDocAll, effectCommandDocs:
		return s.appendDocs(reply, e, protocol)
	}
	return reply
}

// head splits the first line of a reply of the given type into its number and
// what follows.
func head(reply []byte, kind byte) (n int, rest []byte, ok bool) {
	line, rest, ok := bytes.Cut(reply, []byte("\r\n"))
	if !ok || len(line) == 0 || line[0] != kind {
		return 0, nil, false
	}
	n, err := strconv.Atoi(string(line[1:]))
	return n, rest, err == nil && n >= 0
}

// appendToArray appends an element for each row of the table to an array, or in
// RESP3 to a set.
func (s *Server) appendToArray(reply []byte, protocol int, element func([]byte, *commands.Command) []byte) []byte {
	if len(reply) == 0 {
		return reply
	}
	n, rest, ok := head(reply, reply[0])
	if !ok || reply[0] != '*' && reply[0] != '~' {
		return reply
	}
	rows := s.table.All()
	out := strconv.AppendInt([]byte{reply[0]}, int64(n+len(rows)), 10)
	out = append(append(out, "\r\n"...), rest...)
	for i := range rows {
		out = element(out, &rows[i])
	}
	return out
}

// fieldsOfInfo is how many fields the server's entries in COMMAND have: 6 until
// Redis 5, 7 in Redis 6, 10 since Redis 7.
func fieldsOfInfo(reply []byte) int {
	_, elements, ok := head(reply, '*')
	for ok && len(elements) > 0 {
		if n, _, isArray := head(elements, '*'); isArray && n > 0 {
			return n
		}
		var n int
		if n, ok = elementLength(elements); ok {
			elements = elements[n:]
		}
	}
	return infoFields
}

const infoFields = 10

// elementLength is the length in bytes of the first value in b.
func elementLength(b []byte) (int, bool) {
	var scanner resp.ReplyScanner
	n, done, err := scanner.Scan(b)
	return n, done && err == nil
}

// fillInfo replaces the nulls with which Redis answers for commands of ours.
func (s *Server) fillInfo(reply []byte, names []string, protocol int) []byte {
	n, rest, ok := head(reply, '*')
	if !ok || n != len(names) {
		return reply
	}
	fields := fieldsOfInfo(reply)
	out := redcon.AppendArray(nil, n)
	for _, name := range names {
		length, ok := elementLength(rest)
		if !ok {
			return reply
		}
		if row := s.table.Lookup([]byte(name)); row != nil {
			out = appendInfo(out, row, fields, protocol)
		} else {
			out = append(out, rest[:length]...)
		}
		rest = rest[length:]
	}
	return out
}

// appendInfo appends a row as COMMAND INFO describes a command. None has keys in
// Redis's sense: a sku or a lock's name is no key by itself.
func appendInfo(dst []byte, row *commands.Command, fields, protocol int) []byte {
	entry := []func(){
		func() { dst = redcon.AppendBulkString(dst, strings.ToLower(row.Name)) },
		func() { dst = redcon.AppendInt(dst, int64(row.Arity)) },
		func() { dst = appendStatusSet(dst, row.Flags, protocol) },
		func() { dst = redcon.AppendInt(dst, 0) }, // first key
		func() { dst = redcon.AppendInt(dst, 0) }, // last key
		func() { dst = redcon.AppendInt(dst, 0) }, // step
		func() { dst = appendStatusSet(dst, row.Categories, protocol) },
		func() { dst = redcon.AppendArray(dst, 0) }, // tips
		func() { dst = redcon.AppendArray(dst, 0) }, // key specifications
		func() { dst = redcon.AppendArray(dst, 0) }, // subcommands
	}
	entry = entry[:min(fields, len(entry))]
	dst = redcon.AppendArray(dst, len(entry))
	for _, field := range entry {
		field()
	}
	return dst
}

func appendStatusSet(dst []byte, words []string, protocol int) []byte {
	if protocol < 3 {
		dst = redcon.AppendArray(dst, len(words))
	} else {
		dst = append(strconv.AppendInt(append(dst, '~'), int64(len(words)), 10), "\r\n"...)
	}
	for _, word := range words {
		dst = redcon.AppendString(dst, word)
	}
	return dst
}

// appendDocs adds the documentation of our commands to Redis's map, or in RESP2
// flat array, of documentation.
func (s *Server) appendDocs(reply []byte, e effect, protocol int) []byte {
	kind, perEntry := byte('%'), 1
	if protocol < 3 {
		kind, perEntry = '*', 2
	}
	n, rest, ok := head(reply, kind)
	if !ok {
		return reply
	}
	var docs []byte
	added := 0
	for i, row := range s.table.All() {
		if e.kind == effectCommandDocs && !slices.Contains(e.names, row.Name) {
			continue
		}
		docs = redcon.AppendBulkString(docs, strings.ToLower(row.Name))
		docs = appendReply(docs, s.table.All()[i].Docs(), protocol)
		added++
	}
	out := strconv.AppendInt([]byte{kind}, int64(n+added*perEntry), 10)
	out = append(append(out, "\r\n"...), rest...)
	return append(out, docs...)
}
