package upstream

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"seckill-proxy/internal/redistest"
)

// askCommands returns what a server answers to COMMAND.
func askCommands(t *testing.T, server *redistest.Server) []any {
	t.Helper()
	target := New(Options{Network: "tcp", Address: server.Addr, DialTimeout: 10 * time.Second, ScriptTimeout: 10 * time.Second})
	reply, err := target.ask(context.Background(), Identity{}, "COMMAND")
	if err != nil {
		t.Fatal(err)
	}
	return reply.([]any)
}

func tableOf(t *testing.T, rows []any) *CommandTable {
	t.Helper()
	table, err := parseCommands(rows, func() {})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// args makes a command of words; "" is a word as well when it is written ”.
func args(line string) [][]byte {
	var command [][]byte
	for _, word := range strings.Fields(line) {
		command = append(command, []byte(strings.ReplaceAll(word, "''", "")))
	}
	return command
}

// samples are arguments for commands whose keys aren't at a fixed place, or that
// want more than a few words. The others get as many words as they need.
var samples = map[string][]string{
	"bitop":                {"and d k1 k2", "NOT d k"},
	"blmpop":               {"0 2 k1 k2 LEFT", "0.5 1 k1 RIGHT COUNT 3"},
	"bzmpop":               {"0 2 k1 k2 MIN", "1 1 k1 MAX"},
	"eval":                 {"return 2 k1 k2 a", "return 1 k1"},
	"eval_ro":              {"return 2 k1 k2 a"},
	"evalsha":              {"0123456789012345678901234567890123456789 1 k1 a"},
	"evalsha_ro":           {"0123456789012345678901234567890123456789 3 k1 k2 k3"},
	"fcall":                {"f 2 k1 k2 a"},
	"fcall_ro":             {"f 1 k1"},
	"georadius":            {"k 1 2 3 m", "k 1 2 3 m STORE d", "k 1 2 3 m storedist d"},
	"georadiusbymember":    {"k member 3 m", "k member 3 m STORE d"},
	"georadiusbymember_ro": {"k member 3 m"},
	"lmpop":                {"2 k1 k2 LEFT", "1 k1 RIGHT"},
	"memory|usage":         {"k", "k SAMPLES 5"},
	"migrate":              {"host 6379 k 0 100", "host 6379 '' 0 100 KEYS k1 k2", "host 6379 '' 0 100 COPY AUTH keys KEYS k1"},
	"mset":                 {"k1 v k2 v"},
	"msetnx":               {"k1 v k2 v"},
	"object|freq":          {"k"},
	"pfmerge":              {"d k1"}, // of PFMERGE d, which is valid, Redis 7.0 finds no key
	"sintercard":           {"2 k1 k2", "2 k1 k2 LIMIT 1"},
	"sort":                 {"k", "k BY nosort GET # STORE d", "k STORE d"},
	"sort_ro":              {"k", "k BY w_* GET #"},
	"xread":                {"STREAMS k1 k2 0 0", "COUNT 2 BLOCK 0 streams k1 $", "COUNT 2 StReAmS k1 0"},
	"xreadgroup":           {"GROUP g c STREAMS k1 >", "GROUP streams c COUNT 1 NOACK STREAMS k1 k2 > >", "GROUP g streams streams k1 >"},
	"zdiff":                {"2 k1 k2", "1 k1 WITHSCORES"},
	"zdiffstore":           {"d 2 k1 k2"},
	"zinter":               {"2 k1 k2 WEIGHTS 1 2"},
	"zintercard":           {"2 k1 k2 LIMIT 1"},
	"zinterstore":          {"d 2 k1 k2 AGGREGATE MAX"},
	"zmpop":                {"1 k1 MIN COUNT 2"},
	"zunion":               {"2 k1 k2"},
	"zunionstore":          {"d 1 k1"},
}

// sample returns commands to try a row of COMMAND with.
func sample(row []any) (commands [][][]byte) {
	name := row[rowName].(string)
	words := strings.ReplaceAll(name, "|", " ")
	given, ok := samples[name]
	if !ok {
		arity := number(row[1])
		filler := ""
		for i := len(strings.Fields(words)); i < max(arity, -arity); i++ {
			filler += " a" + strconv.Itoa(i)
		}
		given = []string{filler}
		if arity < 0 {
			given = append(given, filler+" b1", filler+" b1 b2")
		}
	}
	for _, rest := range given {
		commands = append(commands, args(words+" "+rest), args(strings.ToUpper(words)+" "+rest))
	}
	return commands
}

// eachRow calls f with each command and each subcommand.
func eachRow(rows []any, f func(row []any)) {
	for _, entry := range rows {
		row := entry.([]any)
		f(row)
		if len(row) > rowSubcommands {
			eachRow(row[rowSubcommands].([]any), f)
		}
	}
}

// Of every command of the server, the first key is the one that the server's own
// COMMAND GETKEYS names first.
func TestFirstKeyIsThatOfTheServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	rows := askCommands(t, server)
	table := tableOf(t, rows)
	ctx, rdb := context.Background(), server.Client(t)

	getKeys := func(command [][]byte) []string {
		line := []any{"COMMAND", "GETKEYS"}
		for _, word := range command {
			line = append(line, word)
		}
		keys, err := rdb.Do(ctx, line...).StringSlice()
		if err != nil && !strings.Contains(err.Error(), "no key arguments") && len(command) > 1 {
			t.Errorf("COMMAND GETKEYS %q: %v", command, err)
		}
		return keys
	}
	keyed := 0
	eachRow(rows, func(row []any) {
		name := row[rowName].(string)
		if strings.HasSuffix(name, "subscribe") || name == "spublish" {
			return // shard channels aren't keys to GETKEYS
		}
		if len(row[rowSubcommands].([]any)) > 0 {
			return // it is tried with each of them
		}
		for _, command := range sample(row) {
			keys := getKeys(command)
			at, how := table.FirstKey(command)
			want := Keyless
			if len(keys) > 0 {
				want = Keyed
				keyed++
			}
			if name == "migrate" {
				want = Movable
			}
			if how != want || how == Keyed && string(command[at]) != keys[0] {
				t.Errorf("%q: argument %d, %d; the server: %q", command, at, how, keys)
			}
			if first, last, step, ok := table.AllKeys(command); ok {
				var all []string
				for i := first; i <= last; i += step {
					all = append(all, string(command[i]))
				}
				if !slices.Equal(all, keys) {
					t.Errorf("%q: keys %d to %d by %d; the server: %q", command, first, last, step, keys)
				}
			}
		}
	})
	if keyed < 300 {
		t.Errorf("only %d commands had keys", keyed)
	}
	for line, want := range map[string]Keys{
		"nosuch a":         Unknown,
		"xinfo nosuch a":   Unknown,
		"xinfo":            Keyless,
		"PING":             Keyless,
		"get":              Keyless,
		"eval return 0 a":  Keyless,
		"eval return x a":  Keyless,
		"eval return 01 a": Keyless,
		"eval return -1 a": Keyless,
		"eval return":      Keyless,
		"sunsubscribe":     Keyless,
		"ssubscribe c":     Keyed,
		"SPUBLISH c m":     Keyed,
		"xread COUNT 1":    Keyless,
		"object help":      Keyless,
		"SET k":            Keyed,
	} {
		if at, how := table.FirstKey(args(line)); how != want || how == Keyed && at != 1 {
			t.Errorf("%s: %d, %d, want %d", line, at, how, want)
		}
	}
	if at, how := table.FirstKey(nil); how != Unknown {
		t.Errorf("no command at all: %d, %d", at, how)
	}
	long := bytes.Repeat([]byte("x"), 1000)
	if at, how := table.FirstKey([][]byte{long}); how != Unknown {
		t.Errorf("a long name: %d, %d", at, how)
	}
	for line, want := range map[string][3]int{
		"MGET a b c":   {1, 3, 1},
		"MSET a 1 b 2": {1, 3, 2},
		"DEL a":        {1, 1, 1},
		"BLPOP a b 0":  {1, 2, 1},
		"GET a":        {1, 1, 1},
	} {
		if first, last, step, ok := table.AllKeys(args(line)); !ok || [3]int{first, last, step} != want {
			t.Errorf("%s: %d to %d by %d, %t; want %v", line, first, last, step, ok, want)
		}
	}
	for _, line := range []string{"MGET", "EVAL s 1 a", "ZUNIONSTORE d 1 a", "PING", "nosuch a", "XREAD STREAMS a 0"} {
		if first, last, step, ok := table.AllKeys(args(line)); ok {
			t.Errorf("%s: %d to %d by %d", line, first, last, step)
		}
	}
}

// old makes of the rows of Redis 7 those of an older server: without key
// specifications, and with subcommands not listed.
func old(rows []any, elements int) []any {
	var older []any
	for _, entry := range rows {
		row := slices.Clone(entry.([]any)[:elements])
		switch row[rowName] {
		case "object", "xinfo", "xgroup": // they were given for all subcommands then
			row[rowFirst], row[rowLast], row[rowStep] = int64(2), int64(2), int64(1)
		case "memory":
			row[rowFlags] = append(slices.Clone(row[rowFlags].([]any)), "movablekeys")
		case "migrate":
			row[rowFirst], row[rowLast], row[rowStep] = int64(0), int64(0), int64(0)
		}
		older = append(older, row)
	}
	return older
}

// A server older than Redis 7 says less of its commands, and the keys are found
// all the same.
func TestFirstKeyOfAnOldServer(t *testing.T) {
	t.Parallel()
	rows := askCommands(t, redistest.Start(t, redistest.Options{}))
	now := tableOf(t, rows)
	for elements := 6; elements <= 7; elements++ {
		table := tableOf(t, old(rows, elements))
		eachRow(rows, func(row []any) {
			for _, command := range sample(row) {
				at, how := table.FirstKey(command)
				wantAt, want := now.FirstKey(command)
				if how == Keyed && want == Keyless && strings.EqualFold(string(command[len(command)-1]), "b1") || want == Unknown {
					continue // XINFO HELP b1 had a key then
				}
				if how != want || at != wantAt {
					t.Errorf("%d elements: %q: argument %d, %d; by its specifications %d, %d", elements, command, at, how, wantAt, want)
				}
			}
		})
	}
	unheard := []any{[]any{"lib.odd", int64(-2), []any{"write", "movablekeys"}, int64(0), int64(0), int64(0)}}
	if at, how := tableOf(t, unheard).FirstKey(args("LIB.ODD a b")); how != Movable {
		t.Errorf("a module's command with movable keys: %d, %d", at, how)
	}
}

// A module that finds its keys by a function of its own tells no more than that.
func TestModulesWithAFunctionForTheirKeys(t *testing.T) {
	t.Parallel()
	spec := func(flags ...any) []any {
		return []any{
			"flags", flags,
			"begin_search", []any{"type", "index", "spec", []any{"index", int64(1)}},
			"find_keys", []any{"type", "range", "spec", []any{"lastkey", int64(0), "keystep", int64(1), "limit", int64(0)}},
		}
	}
	row := func(name string, flags []any, specs ...any) []any {
		return []any{name, int64(-2), flags, int64(1), int64(1), int64(1), []any{}, []any{}, specs, []any{}}
	}
	unknown := []any{"flags", []any{"RW"}, "begin_search", []any{"type", "unknown", "spec", []any{}}, "find_keys", []any{"type", "unknown", "spec", []any{}}}
	table := tableOf(t, []any{
		row("m.plain", []any{"module"}, spec("RW", "variable_flags")),
		row("m.function", []any{"module", "movablekeys"}, spec("RW", "variable_flags")),
		row("m.function2", []any{"module", "movablekeys"}, spec("RW")),
		row("m.unknown", []any{"module", "movablekeys"}, unknown),
		row("m.first", []any{"write"}, spec("RW"), unknown),
	})
	for name, want := range map[string]Keys{"m.plain": Keyed, "m.function": Movable, "m.function2": Movable, "m.unknown": Movable, "m.first": Keyed} {
		if at, how := table.FirstKey(args(name + " k")); how != want {
			t.Errorf("%s: %d, %d, want %d", name, at, how, want)
		}
	}
}

// A reply that isn't one of COMMAND's is an error.
func TestWhatIsNoTableOfCommands(t *testing.T) {
	for _, reply := range []any{nil, "OK", []any{"get"}, []any{[]any{"get", int64(2)}}} {
		if table, err := parseCommands(reply, nil); err == nil {
			t.Errorf("%v: %v", reply, slices.Collect(maps.Keys(table.rows)))
		}
	}
}

// FirstKey is called for every command, and allocates nothing.
func TestFirstKeyAllocatesNothing(t *testing.T) {
	table := tableOf(t, askCommands(t, redistest.Start(t, redistest.Options{})))
	for _, line := range []string{"GET k", "mget a b", "EVALSHA s 1 k", "XREADGROUP GROUP g c STREAMS s >", "Object Encoding k", "nosuchcommand"} {
		command := args(line)
		if n := testing.AllocsPerRun(100, func() { table.FirstKey(command) }); n != 0 {
			t.Errorf("%s: %v allocations", line, n)
		}
	}
}

func BenchmarkFirstKey(b *testing.B) {
	rows := []any{}
	for i := range 250 {
		rows = append(rows, []any{fmt.Sprint("command", i), int64(-2), []any{}, int64(1), int64(1), int64(1)})
	}
	table, err := parseCommands(rows, func() {})
	if err != nil {
		b.Fatal(err)
	}
	command := args("COMMAND17 key")
	for b.Loop() {
		table.FirstKey(command)
	}
}
