package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// block is a fenced block of code in a document.
type block struct {
	language string // sh, console, php, python, json: a message on the channel of results, or text: what the program before it prints
	text     string
}

func (b block) lines() []string { return strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") }

var fence = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

func blocksOf(t *testing.T, document string) []block {
	t.Helper()
	content, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []block
	for _, match := range fence.FindAllStringSubmatch(string(content), -1) {
		blocks = append(blocks, block{match[1], match[2]})
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no blocks of code", document)
	}
	return blocks
}

// TestReadmesAgree wants the same examples in both languages.
func TestReadmesAgree(t *testing.T) {
	english, chinese := blocksOf(t, "../README.md"), blocksOf(t, "../README.zh-CN.md")
	for i := range max(len(english), len(chinese)) {
		if i >= len(english) || i >= len(chinese) || english[i] != chinese[i] {
			t.Fatalf("from block %d on, README.zh-CN.md has other examples than README.md", i+1)
		}
	}
}

// TestReadme does what README.md says, from its first line to its last, with one
// sidecar, as a reader would.
func TestReadme(t *testing.T) {
	for name, upstream := range map[string]string{
		"redis":    redistest.Start(t, redistest.Options{}).Addr,
		"embedded": "embedded",
	} {
		t.Run(name, func(t *testing.T) {
			proxy := start(t, settings{Args: []string{"-upstream", upstream}})
			results := subscribe(t, proxy.client(2), "seckill:results")
			printed := "" // by the last program
			for i, b := range blocksOf(t, "../README.md") {
				switch b.language {
				case "sh": // TestReadmeShell, TestReadmeCleansUp, TestReadmeRights
				case "console":
					transcript(t, proxy, b.lines())
				case "php", "python":
					printed = runBlock(t, proxy, b)
				case "json":
					if got, want := withoutTokens(next(t, results)), withoutTokens(strings.TrimSpace(b.text)); got != want {
						t.Errorf("block %d: the first result is\n%s\nREADME.md says\n%s", i+1, got, want)
					}
				case "text":
					if printed != b.text {
						t.Errorf("block %d: the program before it printed\n%s\nREADME.md says\n%s", i+1, printed, b.text)
					}
				default:
					t.Errorf("block %d is %s, which nothing here tests", i+1, b.language)
				}
			}
		})
	}
}

// subscribe returns the messages of a channel from now on.
func subscribe(t *testing.T, c *redis.Client, channel string) <-chan *redis.Message {
	t.Helper()
	subscription := c.Subscribe(t.Context(), channel)
	t.Cleanup(func() { subscription.Close() })
	if _, err := subscription.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	return subscription.Channel()
}

// next returns the next message.
func next(t *testing.T, messages <-chan *redis.Message) string {
	t.Helper()
	select {
	case message := <-messages:
		return message.Payload
	case <-time.After(hangs):
		t.Fatal("no message comes")
		return ""
	}
}

func withoutTokens(text string) string { return reservationToken.ReplaceAllString(text, "TOKEN") }

// runBlock runs a program of the document, which connects to port 6380, and
// returns what it printed.
func runBlock(t *testing.T, proxy *sidecar, b block) string {
	t.Helper()
	extension := map[string]string{"php": ".php", "python": ".py"}[b.language]
	path := filepath.Join(t.TempDir(), "example"+extension)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(b.text, "6380", proxy.Port())), 0o600); err != nil {
		t.Fatal(err)
	}
	printed, err := runScript(t.Context(), interpreter(t, path), path)
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	return printed
}

const prompt = "127.0.0.1:6380> "

var (
	reservationToken = regexp.MustCompile(`[\w-]+\.[0-9a-z]{1,4}\.[0-9a-f]{24}`)
	// times, fences and what is left of a TTL: of five digits and more
	passing = regexp.MustCompile(`\(integer\) \d{5,}$`)
)

// transcript types the commands of a redis-cli session into redis-cli. Its output
// must be that of the document, but for what is another each time: tokens, which
// are put in place of the document's in later commands, and times.
func transcript(t *testing.T, proxy *sidecar, lines []string) {
	t.Helper()
	if lines[0] != "$ redis-cli -p 6380" || len(lines) < 2 {
		t.Fatalf("a session begins with %q, want redis-cli", lines[0])
	}
	tokens := map[string]string{} // of the document → the real one
	for _, entry := range strings.Split("\n"+strings.Join(lines[1:], "\n"), "\n"+prompt)[1:] {
		command, output, _ := strings.Cut(entry, "\n")
		for old, token := range tokens {
			command = strings.ReplaceAll(command, old, token)
		}
		cli := exec.CommandContext(t.Context(), "redis-cli", "-p", proxy.Port(), "--no-raw")
		cli.Stdin = strings.NewReader(command + "\n")
		printed, err := cli.CombinedOutput()
		if err != nil {
			t.Fatalf("redis-cli: %v\n%s", err, printed)
		}
		got := strings.TrimSuffix(string(printed), "\n")
		documented, real := reservationToken.FindAllString(output, -1), reservationToken.FindAllString(got, -1)
		if len(documented) == len(real) {
			for i := range documented {
				tokens[documented[i]] = real[i]
			}
		}
		if !reflect.DeepEqual(masked(output, tokens), masked(got, nil)) {
			t.Errorf("> %s\nprinted\n%s\nREADME.md says\n%s", command, got, output)
		}
	}
}

// masked returns the lines of a session without what is another each time.
func masked(output string, tokens map[string]string) []string {
	for old, token := range tokens {
		output = strings.ReplaceAll(output, old, token)
	}
	lines := strings.Split(output, "\n")
	for i, line := range lines {
		lines[i] = passing.ReplaceAllString(line, "(integer) N")
	}
	return lines
}

// TestReadmeShell runs the commands that README.md has for the shell: servers
// come up and stop on Ctrl-C; make knows its targets, one of which runs this test.
func TestReadmeShell(t *testing.T) {
	// What go run has to compile may take longer than anything may hang.
	if output, err := runScript(t.Context(), "go", "build", "-o", t.TempDir(), module); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	server := redistest.Start(t, redistest.Options{})
	for _, b := range blocksOf(t, "../README.md") {
		if b.language != "sh" || isRecipe(b) {
			continue
		}
		for _, line := range b.lines() {
			t.Run(line, func(t *testing.T) {
				if targets, isMake := strings.CutPrefix(line, "make "); isMake {
					if output, err := runScript(t.Context(), "make", "-C", "..", "-n", targets); err != nil {
						t.Errorf("%v\n%s", err, output)
					}
					return
				}
				serve(t, strings.ReplaceAll(line, "127.0.0.1:6379", server.Addr))
			})
		}
	}
}

// TestReadmeCleansUp drops a sale with the commands that README.md has for that,
// and wants everything of it gone and all else as it was.
func TestReadmeCleansUp(t *testing.T) {
	recipe := recipeWith(t, "SECKILL.DROP")
	for name, upstream := range map[string]string{
		"redis":    redistest.Start(t, redistest.Options{}).Addr,
		"embedded": "embedded",
	} {
		t.Run(name, func(t *testing.T) {
			proxy := start(t, settings{Args: []string{"-upstream", upstream}})
			c := proxy.client(2)
			others := []string{"iphone 17", "sale:iphone", "x}:sale:iphone", "*"}
			for _, sku := range others {
				want(t, 200, "CREATED", c, "SECKILL.CREATE", sku, 10)
				want(t, 200, "RESERVED", c, "SECKILL.BUY", sku, "alice")
			}
			before := keysOf(t, c)
			want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 10, "SHARDS", 3)
			token := want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", "alice")[2]
			want(t, 200, "CONFIRMED", c, "SECKILL.CONFIRM", token, "order-1")
			want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", "bob")
			want(t, 200, "RESTOCKED", c, "SECKILL.RESTOCK", "iphone", 5, "ID", "delivery-7")

			output, err := runScript(t.Context(), "sh", "-euc", strings.ReplaceAll(recipe, "6380", proxy.Port()))
			if want := "200\nCLOSED\niphone\n200\nDROPPED\niphone\n1\n"; err != nil || output != want {
				t.Errorf("it printed %q, want %q (%v)", output, want, err)
			}

			if after := keysOf(t, c); !slices.Equal(after, before) {
				t.Errorf("the keys are now\n%q\nand were\n%q", after, before)
			}
			want(t, 404, "NO_SALE", c, "SECKILL.AUDIT", "iphone")
			for _, sku := range others {
				want(t, 200, "CLEAN", c, "SECKILL.AUDIT", sku)
			}
			if listed := do(t, c, "SECKILL.LIST"); listed[1] != int64(len(others)) {
				t.Errorf("%v is listed, want %d sales", listed, len(others))
			}
			want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 100)
		})
	}
}

// TestReadmeRights makes the user that README.md describes, and wants that all
// custom commands work for it, and that Redis had to refuse it nothing.
func TestReadmeRights(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	_, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	recipe := strings.ReplaceAll(recipeWith(t, "ACL SETUSER"), "6379", port)
	if output, err := runScript(t.Context(), "sh", "-euc", recipe); err != nil || output != "OK\n" {
		t.Fatalf("it printed %q, want OK (%v)", output, err)
	}
	proxy := start(t, settings{Args: []string{"-upstream", server.Addr}})
	as := *proxy.client(2).Options()
	as.Username, as.Password = "shop", "secret"
	c := redis.NewClient(&as)
	t.Cleanup(func() { c.Close() })

	want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 6, "LIMIT", 0, "SHARDS", 3, "RATE", 100, 1000, "PAYTTL", 60_000)
	var tokens []string
	for range 6 { // more than there are in one shard
		tokens = append(tokens, want(t, 200, "RESERVED", c, "SECKILL.BUY", "iphone", "alice")[2].(string))
	}
	want(t, 4001, "SOLD_OUT", c, "SECKILL.BUY", "iphone", "bob")
	want(t, 200, "RESTOCKED", c, "SECKILL.RESTOCK", "iphone", 1, "ID", "delivery-7")
	want(t, 202, "UNCERTAIN", c, "SECKILL.BUY", "iphone", "bob", "ID", "cart-1", "SYNC", 1) // there is no replica
	if pulled := do(t, c, "SECKILL.PULL", "iphone", "worker", "COUNT", 10, "BLOCK", 5000); pulled[1] != int64(7) {
		t.Errorf("PULL: %v, want 7 orders", pulled)
	}
	if none := do(t, c, "SECKILL.PULL", "iphone", "worker", "BLOCK", 1); none[0] != int64(200) || none[1] != int64(0) {
		t.Errorf("PULL: %v, want no order", none)
	}
	want(t, 200, "CONFIRMED", c, "SECKILL.CONFIRM", tokens[0], "order-1")
	want(t, 200, "CANCELLED", c, "SECKILL.CANCEL", tokens[1], "changed her mind")
	want(t, 408, "PENDING", c, "SECKILL.RESULT", tokens[2], "BLOCK", 1)
	for _, command := range [][]any{{"SECKILL.FIND", "iphone", "alice"}, {"SECKILL.ORDERS", "iphone", 0}, {"SECKILL.LIST"}, {"LOCK.LIST"}} {
		if reply := do(t, c, command...); reply[0] != int64(200) {
			t.Errorf("%v: %v", command, reply)
		}
	}
	want(t, 200, "INFO", c, "SECKILL.INFO", "iphone")
	want(t, 200, "CLEAN", c, "SECKILL.AUDIT", "iphone")
	want(t, 200, "CLOSED", c, "SECKILL.CLOSE", "iphone")
	want(t, 200, "OPENED", c, "SECKILL.OPEN", "iphone")
	want(t, 200, "DROPPED", c, "SECKILL.DROP", "iphone", "FORCE")

	want(t, 200, "ACQUIRED", c, "LOCK.ACQUIRE", "report", 60_000, "TOKEN", "job-7", "AUTO")
	want(t, 408, "TIMEOUT", c, "LOCK.ACQUIRE", "report", 60_000, "WAIT", 1)
	want(t, 200, "RENEWED", c, "LOCK.RENEW", "report", "job-7", 60_000)
	want(t, 200, "HELD", c, "LOCK.CHECK", "report", "job-7")
	want(t, 200, "INFO", c, "LOCK.INFO", "report")
	want(t, 200, "RELEASED", c, "LOCK.RELEASE", "report", "job-7")
	want(t, 200, "ACQUIRED", c, "LOCK.ACQUIRE", "prices", 60_000, "SHARED", "TOKEN", "job-7")
	want(t, 200, "RELEASED", c, "LOCK.RELEASE", "prices", "job-7")
	want(t, 202, "UNCERTAIN", c, "LOCK.ACQUIRE", "api", 60_000, "PERMITS", 2, "SYNC", 1)
	want(t, 200, "RELEASED", c, "LOCK.FORCE", "api")
	want(t, 200, "ACQUIRED", c, "LOCK.MACQUIRE", 60_000, 2, "from", "to")

	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { admin.Close() })
	refusals, err := admin.ACLLog(t.Context(), 100).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, refusal := range refusals {
		if refusal.Username == "shop" {
			t.Errorf("Redis refused %s %s, and README.md says it is all that it needs", refusal.Reason, refusal.Object)
		}
	}
}

// recipeWith returns the commands in README.md for a running sidecar that have a
// text in them.
func recipeWith(t *testing.T, text string) string {
	t.Helper()
	for _, b := range blocksOf(t, "../README.md") {
		if b.language == "sh" && isRecipe(b) && strings.Contains(b.text, text) {
			return b.text
		}
	}
	t.Fatalf("README.md has no commands with %s", text)
	return ""
}

// isRecipe tells commands to a running sidecar from those that start one.
func isRecipe(b block) bool { return strings.Contains(b.text, "redis-cli ") }

// keysOf lists the keys in the store, in order.
func keysOf(t *testing.T, c *redis.Client) []string {
	t.Helper()
	names, err := c.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// serve runs a command at the top of the repository until the sidecar that it
// starts is ready, and stops it as Ctrl-C does.
func serve(t *testing.T, command string) {
	t.Helper()
	log := sidecartest.NewLog()
	words := strings.Fields(command)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = ".."
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(sidecartest.Environment(), "SECKILL_LISTEN=127.0.0.1:0", "SECKILL_ADMIN="+sidecartest.FreeAddress(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // all of a group get Ctrl-C
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // after Ctrl-C, go run itself ends with 1
		close(ended)
	}()
	hasEnded := func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
	send := func(signal syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, signal) }
	defer func() {
		if !hasEnded() {
			send(syscall.SIGKILL)
		}
	}()
	eventually(t, "ready", func() bool { return strings.Contains(log.String(), "ready") || hasEnded() })
	send(syscall.SIGINT)
	eventually(t, "it ends", hasEnded)
	if !strings.Contains(log.String(), "\tstopped\n") {
		t.Errorf("it didn't stop by itself; it wrote:\n%s", log)
	}
}

// TestReadmeConfiguration wants every flag with its names in the tables of both
// documents, and nothing that the program doesn't know.
func TestReadmeConfiguration(t *testing.T) {
	p := sidecartest.Run(t, settings{Args: []string{"-h"}})
	if code := p.ExitCode(); code != 0 {
		t.Fatalf("-h: exit code %d\n%s", code, p.Log)
	}
	setting := regexp.MustCompile(`(?m)^  (\S+)  .*?(SECKILL_\w+)  -(\w+) \(default "(.*)"\)$`)
	for _, document := range []string{"../README.md", "../README.zh-CN.md"} {
		content, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		rows := setting.FindAllStringSubmatch(p.Log.String(), -1)
		if len(rows) != 3 {
			t.Fatalf("-h has %d settings with flags, want 3:\n%s", len(rows), p.Log)
		}
		for _, m := range rows {
			row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| `-%s \\w+` \\| `%s` \\| `%s` \\| `%s` \\|$", m[3], m[2], m[1], regexp.QuoteMeta(m[4])))
			if !row.Match(content) {
				t.Errorf("%s has no row for -%s that matches %s", document, m[3], row)
			}
		}
	}
}

// TestLinks wants every file that the documents link to.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)(?:#[^)]*)?\)`)
	for _, document := range []string{"../README.md", "../README.zh-CN.md", "../ARCHITECTURE.md", "../COMMANDS.md"} {
		content, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(content), -1) {
			if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
				t.Errorf("%s links to %s, which isn't there", document, m[1])
			}
		}
	}
}
