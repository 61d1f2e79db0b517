package upstream

import (
	"bytes"
	"fmt"
	"strings"
)

// CommandTable knows where the keys of commands are, as the server's own COMMAND
// says: by the key specifications of Redis 7, or by the first, last and step of
// older ones. It is immutable and safe for concurrent use.
type CommandTable struct {
	rows map[string]*commandRow // by name in lower case
	miss func()                 // called when a command isn't there; it must not wait
}

// commandRow is a command, or a subcommand.
type commandRow struct {
	specs []keySpec              // in the server's order
	even  *keySpec               // all of its keys, where one range has them
	subs  map[string]*commandRow // by their own names in lower case; nil when it has none
}

// Keys says what is known of the keys of a command.
type Keys int

// What FirstKey finds.
const (
	// Unknown: the server doesn't have the command, or the subcommand.
	Unknown Keys = iota
	// Keyless: it has no keys, or lacks the arguments in which they would stand,
	// so that any node refuses it.
	Keyless
	// Keyed: the first key, or shard channel, was found.
	Keyed
	// Movable: it may have keys that only COMMAND GETKEYS finds.
	Movable
)

// FirstKey returns which of the arguments, the name first, is the first key or
// shard channel of a command; at is only meaningful when how is Keyed. Arguments
// behind the first key may be missing.
func (t *CommandTable) FirstKey(args [][]byte) (at int, how Keys) {
	row := t.row(args)
	if row == nil {
		t.miss()
		return 0, Unknown
	}
	for i := range row.specs {
		if row.specs[i].begin == beginUnknown {
			return 0, Movable
		}
		if at := row.specs[i].first(args); at > 0 {
			return at, Keyed
		}
	}
	return 0, Keyless
}

// AllKeys returns which of the arguments are the keys of a command whose keys
// are evenly spaced, such as MGET, MSET and DEL: first, first+step, … up to last.
// ok is false for other commands, and where an argument is missing.
func (t *CommandTable) AllKeys(args [][]byte) (first, last, step int, ok bool) {
	row := t.row(args)
	if row == nil || row.even == nil {
		return 0, 0, 0, false
	}
	first, last, step = row.even.at, row.even.last, row.even.step
	if last < 0 {
		last += len(args)
	} else {
		last += first
	}
	// MSET k v: the last key is before the last argument.
	last -= (last - first) % step
	return first, last, step, first <= last && last < len(args)
}

// row finds a command without allocating; nil when there is none.
func (t *CommandTable) row(args [][]byte) *commandRow {
	if len(args) == 0 {
		return nil
	}
	row := lookUp(t.rows, args[0])
	if row == nil || row.subs == nil || len(args) == 1 {
		return row
	}
	return lookUp(row.subs, args[1])
}

// lookUp finds a name whatever its case.
func lookUp(rows map[string]*commandRow, name []byte) *commandRow {
	var stack [64]byte
	lower := stack[:0]
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower = append(lower, c)
	}
	return rows[string(lower)] // the compiler makes no string of it
}

// keySpec says where some of a command's keys are ("Command key specifications"
// in Redis's documentation).
type keySpec struct {
	begin begin
	at    int    // index: of the argument; keyword: from which on it is looked for
	word  []byte // the keyword

	counted bool // the number of keys stands in an argument
	number  int  // where, from the beginning
	offset  int  // of the first key, from the beginning

	last, step int // of a range: counted from the first key, or, when negative, from the end
}

// begin is how the beginning of a keySpec's keys is found.
type begin int

const (
	beginUnknown begin = iota // only the server knows
	beginIndex
	beginKeyword
)

// first returns the position of the first key, 0 when there is none.
func (s *keySpec) first(args [][]byte) int {
	at := s.at
	if s.begin == beginKeyword {
		for at < len(args) && !bytes.EqualFold(args[at], s.word) {
			at++
		}
		at++
	}
	if s.counted {
		if at+s.number >= len(args) || !positive(args[at+s.number]) {
			return 0
		}
		at += s.offset
	}
	if at >= len(args) {
		return 0
	}
	return at
}

// positive reports whether an argument is what Redis takes for a number above 0.
func positive(b []byte) bool {
	if len(b) == 0 || len(b) > 18 || b[0] == '0' {
		return false
	}
	for _, c := range b {
		if c < '0' || '9' < c {
			return false
		}
	}
	return true
}

// parseCommands makes a table of the reply to COMMAND, as readReply returns it.
func parseCommands(reply any, miss func()) (*CommandTable, error) {
	rows, ok := reply.([]any)
	if !ok {
		return nil, fmt.Errorf("the reply to COMMAND is a %T", reply)
	}
	table := &CommandTable{rows: make(map[string]*commandRow, len(rows)), miss: miss}
	for _, row := range rows {
		name, parsed, err := parseCommand(row)
		if err != nil {
			return nil, fmt.Errorf("the reply to COMMAND: %w", err)
		}
		table.rows[name] = parsed
	}
	return table, nil
}

// The places in a row of COMMAND. Rows have six elements up to Redis 5, seven in
// Redis 6 and ten in Redis 7.
const (
	rowName = iota
	_       // arity
	rowFlags
	rowFirst
	rowLast
	rowStep
	_ // ACL categories
	_ // tips
	rowSpecs
	rowSubcommands
)

// parseCommand reads one row.
func parseCommand(reply any) (name string, row *commandRow, err error) {
	fields, ok := reply.([]any)
	if !ok || len(fields) <= rowStep {
		return "", nil, fmt.Errorf("%v is no row of it", reply)
	}
	name, _ = fields[rowName].(string)
	name = strings.ToLower(name)
	flags := words(fields[rowFlags])
	row = &commandRow{}
	if len(fields) > rowSubcommands {
		row.specs = parseSpecs(fields[rowSpecs], flags)
		subcommands, _ := fields[rowSubcommands].([]any)
		for _, sub := range subcommands {
			subname, parsed, err := parseCommand(sub)
			if err != nil {
				return "", nil, err
			}
			if row.subs == nil {
				row.subs = make(map[string]*commandRow, len(subcommands))
			}
			row.subs[strings.TrimPrefix(subname, name+"|")] = parsed
		}
	} else {
		row.parseOld(name, number(fields[rowFirst]), number(fields[rowLast]), number(fields[rowStep]), flags["movablekeys"])
	}
	if len(row.specs) == 1 && row.specs[0].begin == beginIndex && !row.specs[0].counted && row.specs[0].step > 0 {
		row.even = &row.specs[0]
	}
	return name, row, nil
}

// parseSpecs reads key specifications. What it can't follow, or what the server
// itself doesn't go by, becomes one that is unknown.
func parseSpecs(reply any, flags map[string]bool) []keySpec {
	list, _ := reply.([]any)
	specs := make([]keySpec, 0, len(list))
	plain := true // nothing but what first, last and step could say as well
	for _, entry := range list {
		spec, specFlags := parseSpec(pairs(entry))
		// A module that has its own function for the keys need say no more of
		// them than their first, last and step, which Redis marks so.
		if flags["module"] && specFlags["variable_flags"] && flags["movablekeys"] {
			return []keySpec{{}}
		}
		// Of MIGRATE: what stands at the index isn't a key where a keyword follows.
		if specFlags["incomplete"] {
			return []keySpec{{}}
		}
		plain = plain && spec.begin == beginIndex && !spec.counted
		specs = append(specs, spec)
	}
	if flags["module"] && flags["movablekeys"] && plain {
		return []keySpec{{}} // a function of the module's, again
	}
	return specs
}

// parseSpec reads one key specification and its flags.
func parseSpec(fields map[string]any) (keySpec, map[string]bool) {
	var spec keySpec
	search, find := pairs(fields["begin_search"]), pairs(fields["find_keys"])
	at, how := pairs(search["spec"]), pairs(find["spec"])
	flags := words(fields["flags"])

	switch find["type"] {
	case "range":
		spec.last, spec.step = number(how["lastkey"]), number(how["keystep"])
		if number(how["limit"]) > 1 {
			spec.step = 0 // as of XREAD, where IDs follow the keys
		}
	case "keynum":
		spec.counted, spec.number, spec.offset = true, number(how["keynumidx"]), number(how["firstkey"])
	default:
		return spec, flags
	}
	switch search["type"] {
	case "index":
		spec.begin, spec.at = beginIndex, number(at["index"])
	case "keyword":
		word, _ := at["keyword"].(string)
		if from := number(at["startfrom"]); from > 0 { // else from the end, which Redis 7.0 gets wrong
			spec.begin, spec.at, spec.word = beginKeyword, from, []byte(word)
		}
	}
	return spec, flags
}

// parseOld makes the specifications of a command of a server older than Redis 7.
func (row *commandRow) parseOld(name string, first, last, step int, movable bool) {
	switch {
	case first > 0:
		if last >= 0 {
			last -= first
		}
		row.specs = []keySpec{{begin: beginIndex, at: first, last: last, step: step}}
	case !movable:
	case name == "memory":
		row.specs = []keySpec{{begin: beginKeyword, at: 1, word: []byte("usage")}}
	default:
		row.specs = []keySpec{wellKnown[name]} // of others nothing is known
	}
}

// wellKnown are commands with movable keys whose place is documented.
var wellKnown = map[string]keySpec{
	"eval":       countedAt(2),
	"evalsha":    countedAt(2),
	"eval_ro":    countedAt(2),
	"evalsha_ro": countedAt(2),
	"fcall":      countedAt(2),
	"fcall_ro":   countedAt(2),
	"zunion":     countedAt(1),
	"zinter":     countedAt(1),
	"zdiff":      countedAt(1),
	"zintercard": countedAt(1),
	"sintercard": countedAt(1),
	"lmpop":      countedAt(1),
	"zmpop":      countedAt(1),
	"blmpop":     countedAt(2),
	"bzmpop":     countedAt(2),
	"xread":      {begin: beginKeyword, at: 1, word: []byte("STREAMS")},
	"xreadgroup": {begin: beginKeyword, at: 4, word: []byte("STREAMS")},
}

// countedAt is a number of keys at an index, and the keys behind it.
func countedAt(index int) keySpec {
	return keySpec{begin: beginIndex, at: index, counted: true, offset: 1}
}

// pairs makes a map of a reply that is one in RESP3.
func pairs(reply any) map[string]any {
	list, _ := reply.([]any)
	fields := make(map[string]any, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		if key, ok := list[i].(string); ok {
			fields[key] = list[i+1]
		}
	}
	return fields
}

// words makes a set of a reply that is a list of strings.
func words(reply any) map[string]bool {
	list, _ := reply.([]any)
	set := make(map[string]bool, len(list))
	for _, entry := range list {
		if word, ok := entry.(string); ok {
			set[word] = true
		}
	}
	return set
}

// number is a reply that is an integer, 0 for any other.
func number(reply any) int {
	n, _ := reply.(int64)
	return int(n)
}
