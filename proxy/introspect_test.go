package proxy_test

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"seckill-proxy/commands"
	"seckill-proxy/internal/rawclient"
)

// decode makes a value of the bytes of one reply: a string for what is simple,
// with its type in front unless it is a bulk string, a []any for an array or a
// set, and for a map a []any with keys and values in turn.
func decode(t testing.TB, raw string) any {
	t.Helper()
	return decodeNext(t, bufio.NewReader(strings.NewReader(raw)))
}

func decodeNext(t testing.TB, rd *bufio.Reader) any {
	t.Helper()
	raw, err := rd.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSuffix(raw, "\r\n")
	n, _ := strconv.Atoi(line[1:])
	switch line[0] {
	case '$':
		if n < 0 {
			return nil
		}
		b := make([]byte, n+2)
		for i := range b {
			if b[i], err = rd.ReadByte(); err != nil {
				t.Fatal(err)
			}
		}
		return string(b[:n])
	case '_':
		return nil
	case '*', '~', '%':
		if line[0] == '%' {
			n *= 2
		}
		if n < 0 {
			return nil
		}
		all := make([]any, n)
		for i := range all {
			all[i] = decodeNext(t, rd)
		}
		return all
	}
	return line
}

// asMap makes a map of a RESP3 map or of RESP2's flat array.
func asMap(t testing.TB, value any) map[string]any {
	t.Helper()
	flat, isArray := value.([]any)
	if !isArray || len(flat)%2 != 0 {
		t.Fatalf("%v is no map", value)
	}
	m := make(map[string]any)
	for i := 0; i < len(flat); i += 2 {
		m[flat[i].(string)] = flat[i+1]
	}
	return m
}

// TestCommandListsAreMerged has what redis-cli asks for: the commands of Redis,
// unchanged, and those of the sidecar.
func TestCommandListsAreMerged(t *testing.T) {
	p := startPair(t)
	rows := commands.NewTable().All()
	for _, protocol := range []string{"2", "3"} {
		t.Run("RESP"+protocol, func(t *testing.T) {
			c, direct := p.dial(t), p.direct(t)
			c.Do("HELLO", protocol)
			direct.Do("HELLO", protocol)

			count := func(conn *rawclient.Conn) int {
				var n int
				if _, err := fmt.Sscanf(conn.Do("COMMAND", "COUNT"), ":%d\r\n", &n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			if got, want := count(c), count(direct)+len(rows); got != want {
				t.Errorf("COMMAND COUNT is %d, want %d", got, want)
			}

			// Redis's own part is unchanged, whatever its order.
			for _, list := range [][]string{{"COMMAND"}, {"COMMAND", "INFO"}, {"command", "list"}} {
				got, want := decode(t, c.Do(list...)).([]any), decode(t, direct.Do(list...)).([]any)
				if len(got) != len(want)+len(rows) {
					t.Errorf("%v has %d entries, want %d", list, len(got), len(want)+len(rows))
				}
				have := make(map[string]bool)
				for _, entry := range got {
					have[fmt.Sprint(entry)] = true
				}
				for _, entry := range want {
					if !have[fmt.Sprint(entry)] {
						t.Errorf("%v lacks %v", list, entry)
					}
				}
				for _, row := range rows {
					name := strings.ToLower(row.Name)
					if !slices.ContainsFunc(got, func(entry any) bool {
						fields, isArray := entry.([]any)
						return entry == name || isArray && fields[0] == name
					}) {
						t.Errorf("%v lacks %s", list, name)
					}
				}
			}

			// By name, in any case, between Redis's own and unknown ones.
			got := decode(t, c.Do("COMMAND", "INFO", "get", "nosuch", "Seckill.BUY", "lock.acquire", "SET", "seckill.nosuch", "get")).([]any)
			want := decode(t, direct.Do("COMMAND", "INFO", "get", "nosuch", "SET", "get")).([]any)
			for i, j := range []int{0, 1, -1, -1, 2, 1, 3} {
				if j >= 0 && fmt.Sprint(got[i]) != fmt.Sprint(want[j]) {
					t.Errorf("COMMAND INFO, entry %d: got %v, want %v", i, got[i], want[j])
				}
			}
			table := commands.NewTable()
			for i, name := range map[int]string{2: "seckill.buy", 3: "lock.acquire"} {
				entry, _ := got[i].([]any)
				row := table.Lookup([]byte(name))
				if len(entry) != len(want[0].([]any)) || entry[0] != name || entry[1] != fmt.Sprintf(":%d", row.Arity) {
					t.Errorf("COMMAND INFO %s: %v", name, got[i])
				}
				for _, flag := range row.Flags {
					if !slices.Contains(entry[2].([]any), any("+"+flag)) {
						t.Errorf("COMMAND INFO %s lacks the flag %s: %v", name, flag, entry[2])
					}
				}
			}
			c.Want(direct.Do("COMMAND", "INFO", "nosuch"), "COMMAND", "INFO", "nosuch")

			all, own := asMap(t, decode(t, c.Do("COMMAND", "DOCS"))), asMap(t, decode(t, direct.Do("COMMAND", "DOCS")))
			if len(all) != len(own)+len(rows) {
				t.Errorf("COMMAND DOCS has %d entries, want %d", len(all), len(own)+len(rows))
			}
			for name, doc := range own {
				if fmt.Sprint(all[name]) != fmt.Sprint(doc) {
					t.Errorf("COMMAND DOCS of %s changed", name)
				}
			}
			some := asMap(t, decode(t, c.Do("COMMAND", "DOCS", "GET", "nosuch", "SecKill.Buy", "lock.nosuch")))
			if len(some) != 2 || some["get"] == nil || some["seckill.buy"] == nil {
				t.Errorf("COMMAND DOCS of four names, two of them known: %v", some)
			}
			doc := asMap(t, some["seckill.buy"])
			for _, field := range []string{"summary", "since", "group", "complexity", "arguments"} {
				if doc[field] == nil || doc[field] == "" {
					t.Errorf("COMMAND DOCS seckill.buy lacks %s: %v", field, doc)
				}
			}
			for _, argument := range doc["arguments"].([]any) {
				if a := asMap(t, argument); a["name"] == nil || a["type"] == nil {
					t.Errorf("an argument of seckill.buy lacks its name or type: %v", a)
				}
			}
			c.Want(direct.Do("COMMAND", "DOCS", "nosuch"), "COMMAND", "DOCS", "nosuch")

			// Inside a transaction Redis answers for itself, and stays in step.
			c.Want(ok, "MULTI")
			c.Want(queued, "COMMAND", "COUNT")
			wantPrefix(t, c, "*1\r\n:", "EXEC")
			c.Send("COMMAND COUNT\r\nPING\r\nCOMMAND COUNT x\r\nSECKILL.LIST\r\n")
			wantCount := fmt.Sprintf(":%d\r\n", count(p.direct(t))+len(rows))
			c.Expect(wantCount + pong + "-ERR wrong number of arguments for 'command|count' command\r\n" + noSales)
			// A user who may not ask is told so.
			p.direct(t).Want(ok, "ACL", "SETUSER", "alice", "on", "nopass", "~*", "+get")
			c.Want(ok, "AUTH", "alice", "x")
			wantPrefix(t, c, "-NOPERM ", "COMMAND", "COUNT")
			wantPrefix(t, c, "-NOPERM ", "COMMAND")
		})
	}
}
