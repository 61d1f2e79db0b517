package clients

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"seckill-proxy/internal/redistest"
)

// session is what somebody types into redis-cli.
const session = `PING
SET a 1
SELECT 2
GET a
SELECT 0
GET a
INCR a
MULTI
SET a 3
INCRBYFLOAT a 0.5
EXEC
WATCH a
SET a 4
MULTI
GET a
EXEC
MULTI
NOSUCHCOMMAND
EXEC
RPUSH q one two
BLPOP q 1
BLPOP none 0.05
EVALSHA ffffffffffffffffffffffffffffffffffffffff 0
EVAL "return {KEYS[1], ARGV[1], redis.call('GET', KEYS[1])}" 1 a x
HSET h field value
HGETALL h
CLIENT SETNAME me
CLIENT GETNAME
HELLO 3
HGETALL h
HELLO 2
ZADD z 1.5 m
ZRANGE z 0 -1 WITHSCORES
OBJECT ENCODING z
XADD s 1-1 f v
XRANGE s - +
GET q
FT.SEARCH x y
SET a
EXISTS a h z s
RESET
GET a
`

// connectionID is a part of HELLO's reply, in the forms that redis-cli has for it.
var connectionID = regexp.MustCompile(`(\bid"?(?:\n| |\s+\d+\) | => )(?:\(integer\) )?)\d+`)

// TestRedisCLI has redis-cli do the same in front of Redis and through the
// sidecar.
func TestRedisCLI(t *testing.T) {
	p := start(t)
	bare := redistest.Start(t, redistest.Options{})
	script := filepath.Join(t.TempDir(), "add.lua")
	if err := os.WriteFile(script, []byte("return redis.call('INCRBY', KEYS[1], ARGV[1])"), 0o600); err != nil {
		t.Fatal(err)
	}
	var load strings.Builder // as for redis-cli --pipe
	for i := range 1000 {
		fmt.Fprintf(&load, "SET key:%d %d\r\n", i, i)
	}
	for _, test := range []struct {
		name  string
		stdin string
		args  []string
	}{
		{"session", session, nil},
		{"session in RESP3", session, []string{"-3"}},
		{"session for people", session, []string{"--no-raw"}},
		{"session of nobody", session, []string{"-a", "wrong", "--no-auth-warning"}},
		{"other database", "SET x 1\nGET x\n", []string{"-n", "3"}},
		{"argument from stdin", "a\x00b\r\n", []string{"-x", "SET", "binary"}},
		{"repeated", "", []string{"-r", "50", "INCR", "count"}},
		{"script", "", []string{"--eval", script, "sum", ",", "5"}},
		{"mass insertion", load.String(), []string{"--pipe"}},
		{"keys", "", []string{"--scan", "--pattern", "key:99*", "--count", "2000"}},
		{"csv", "", []string{"--csv", "MGET", "key:1", "key:2", "none"}},
		{"json", "", []string{"--json", "HGETALL", "h"}},
		{"error as exit code", "", []string{"-e", "LPUSH", "a", "x"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ask := func(addr string) string {
				output, err := run(t.Context(), test.stdin, append([]string{"redis-cli", "-p", port(t, addr)}, test.args...)...)
				if err != nil {
					output += "\n" + strings.ReplaceAll(err.Error(), port(t, addr), "PORT")
				}
				return connectionID.ReplaceAllString(output, "${1}N")
			}
			want, got := ask(bare.Addr), ask(p.addr)
			if test.name == "keys" { // in the order of the hash table, whose seed is another in each server
				want, got = sorted(want), sorted(got)
			}
			if want == "" || got != want {
				t.Errorf("through the sidecar:\n%s\nwithout it:\n%s", got, want)
			}
		})
	}

	t.Run("custom", func(t *testing.T) {
		got, err := run(t.Context(), `SECKILL.CREATE iphone 1
SECKILL.BUY iphone bob ID cart-1
SECKILL.BUY iphone carol
LOCK.ACQUIRE report 60000 TOKEN me
LOCK.ACQUIRE report 60000
LOCK.RELEASE report me
`, "redis-cli", "-p", port(t, p.addr), "--no-raw")
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"CREATED", "RESERVED", "SOLD_OUT", "ACQUIRED", "BUSY", "RELEASED"} {
			if _, rest, found := strings.Cut(got, `2) "`+word+`"`); found {
				got = rest
			} else {
				t.Errorf("no %s, in its order, in:\n%s", word, got)
			}
		}
	})
}

func sorted(lines string) string {
	return strings.Join(slices.Sorted(strings.Lines(lines)), "")
}

// TestRedisCLIListens has one redis-cli wait in SUBSCRIBE, one in MONITOR and one
// in BLPOP, and ends them as Ctrl-C does.
func TestRedisCLIListens(t *testing.T) {
	p := start(t)
	listen := func(args ...string) (printed func() string, stop func()) {
		var output lockedBuffer
		cmd := exec.Command("redis-cli", append([]string{"-p", port(t, p.addr)}, args...)...)
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Start(); err != nil {
			t.Fatalf("no redis-cli: .ci/tools installs it (redis-tools): %v", err)
		}
		return output.String, func() {
			_ = cmd.Process.Signal(os.Interrupt)
			_ = cmd.Wait() // it ends with the signal
		}
	}
	news, endNews := listen("SUBSCRIBE", "news", "weather")
	lines, endLines := listen("MONITOR")
	popped, endPopped := listen("BLPOP", "queue", "0")
	waiting, endWaiting := listen("BLPOP", "never", "0")
	defer endNews()
	defer endLines()
	defer endPopped()
	defer endWaiting()

	eventually(t, "all listen", func() bool {
		return p.direct.PubSubNumSub(t.Context(), "news").Val()["news"] == 1 && p.info("clients", "blocked_clients") == 2 &&
			strings.Contains(p.direct.ClientList(t.Context()).Val(), "cmd=monitor")
	})
	p.direct.Publish(t.Context(), "news", "hello")
	eventually(t, "the message is printed", func() bool { return strings.Contains(news(), "hello") })
	p.direct.RPush(t.Context(), "queue", "element")
	eventually(t, "the element is printed", func() bool { return strings.Contains(popped(), "element") })
	eventually(t, "the push is seen", func() bool { return strings.Contains(lines(), `"rpush" "queue" "element"`) })
	if text := waiting(); text != "" {
		t.Errorf("BLPOP of an empty list printed %q", text)
	}

	endNews()
	endLines()
	endWaiting()
	eventually(t, "nobody listens", func() bool {
		return p.direct.PubSubNumSub(t.Context(), "news").Val()["news"] == 0 && p.info("clients", "blocked_clients") == 0 &&
			!strings.Contains(p.direct.ClientList(t.Context()).Val(), "cmd=monitor")
	})
	p.direct.RPush(t.Context(), "never", "kept")
	if n := p.direct.LLen(t.Context(), "never").Val(); n != 1 {
		t.Error("an element was taken for a client that has gone")
	}
}

// lockedBuffer collects what a program writes while it is read.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestRedisBenchmark wants everything that redis-benchmark sends to be done once.
func TestRedisBenchmark(t *testing.T) {
	p := start(t)
	benchmark := func(args ...string) {
		t.Helper()
		output, err := run(t.Context(), "", append([]string{"redis-benchmark", "-p", port(t, p.addr), "--csv"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.ToLower(output); strings.Contains(text, "error") || !strings.HasPrefix(text, `"test","rps"`) {
			t.Fatalf("redis-benchmark %q:\n%s", args, output)
		}
	}
	count := func(want int64, command ...any) {
		t.Helper()
		if got, err := p.direct.Do(t.Context(), command...).Int64(); got != want || err != nil {
			t.Errorf("%v: %d, %v; want %d", command, got, err, want)
		}
	}

	benchmark("-c", "50", "-n", "2000", "-P", "16", "-t", "ping,set,get,incr,lpush,sadd,hset,zadd,mset", "-d", "100")
	count(2000, "INCRBY", "counter:__rand_int__", 0)
	count(2000, "LLEN", "mylist")
	benchmark("-3", "-c", "20", "-n", "1000", "-t", "incr,rpop")
	count(3000, "INCRBY", "counter:__rand_int__", 0)
	count(1000, "LLEN", "mylist")
	// Every pop finds an element, though each of 20 clients waits for its own.
	benchmark("-c", "20", "-n", "1000", "BLPOP", "mylist", "0")
	count(0, "EXISTS", "mylist")
	benchmark("-c", "20", "-n", "1000", "-P", "8", "EVAL", "return redis.call('INCR', KEYS[1])", "1", "evals")
	count(1000, "INCRBY", "evals", 0)
	benchmark("-c", "20", "-n", "1000", "-r", "1000", "SET", "key:__rand_int__", "x")

	p.create("iphone", 300)
	benchmark("-c", "50", "-n", "1000", "-P", "8", "-r", "100000", "SECKILL.BUY", "iphone", "user-__rand_int__")
	reply, err := client(t, p.addr, 2).Do(t.Context(), "SECKILL.BUY", "iphone", "late").Slice()
	if err != nil || reply[1] != "SOLD_OUT" || reply[3] != int64(0) {
		t.Errorf("after 1,000 purchases of 300 units: %v, %v; want SOLD_OUT", reply, err)
	}
	p.audit("iphone")
}
