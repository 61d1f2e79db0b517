package seckill

import (
	"strconv"
	"strings"
)

// record is an order record, as records.lua describes it.
type record struct {
	state, entry, prev, user, request string
	qty, deadline                     int64
}

// parseRecord reads an order record; ok is false for what isn't one.
func parseRecord(text string) (r record, ok bool) {
	head, body, found := strings.Cut(text, ":")
	fields := strings.Split(head, ",")
	const named, lengths = 4, 5
	if !found || len(fields) != named+lengths || len(fields[0]) != 1 || !strings.Contains("PCXE", fields[0]) || !isEntryID(fields[2]) {
		return record{}, false
	}
	r = record{state: fields[0], entry: fields[2]}
	if r.qty, ok = parseDigits(fields[1]); !ok {
		return record{}, false
	}
	if r.deadline, ok = parseDigits(fields[3]); !ok {
		return record{}, false
	}
	var parts [lengths]string // prev, user, request, order id, reason
	for i := range parts {
		n, ok := parseDigits(fields[named+i])
		if !ok || n > int64(len(body)) {
			return record{}, false
		}
		parts[i], body = body[:n], body[n:]
	}
	r.prev, r.user, r.request = parts[0], parts[1], parts[2]
	return r, body == ""
}

// parseMark reads a user's mark; ok is false for what isn't one.
func parseMark(text string) (units int64, latest string, ok bool) {
	digits, latest, _ := strings.Cut(text, ":")
	units, ok = parseDigits(digits)
	return units, latest, ok && latest != "" && strings.Trim(latest, "0123456789abcdefABCDEF") == ""
}

// isEntryID reports whether text is the id of a stream entry.
func isEntryID(text string) bool {
	at, number, found := strings.Cut(text, "-")
	_, okAt := parseDigits(at)
	_, okNumber := parseDigits(number)
	return found && okAt && okNumber
}

// entryTime is the Unix milliseconds of a stream entry's id.
func entryTime(id string) int64 {
	at, _, _ := strings.Cut(id, "-")
	n, _ := parseDigits(at)
	return n
}

// parseDigits reads a decimal integer that has nothing but digits.
func parseDigits(text string) (n int64, ok bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}
