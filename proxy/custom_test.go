package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"seckill-proxy/commands"
	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// step is a command of a pipeline and what its reply must start with; a reply
// that is known whole ends where the prefix does.
type step struct {
	raw  string
	want string
	open bool // more may follow the prefix
}

func exactly(want string, args ...string) step {
	return step{rawclient.Encode(args...), want, false}
}

func startingWith(want string, args ...string) step {
	return step{rawclient.Encode(args...), want, true}
}

// sendCut sends bytes in pieces of random length, each a segment of its own as
// far as the network leaves it one.
func sendCut(c *rawclient.Conn, random *rand.Rand, raw string) {
	for len(raw) > 0 {
		n := 1 + random.IntN(min(len(raw), 1+random.IntN(200)))
		c.Send(raw[:n])
		raw = raw[n:]
	}
}

func newRandom(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// noSales is SECKILL.LIST's reply in an empty database.
const noSales = "*2\r\n:200\r\n:0\r\n"

func TestCustomCommandsAnswerInTheirPlaceInPipelines(t *testing.T) {
	p := startPair(t)
	random := newRandom(t)
	for mix := range 100 {
		c := p.dial(t)
		sku, counter, lock := fmt.Sprint("sku", mix), fmt.Sprint("counter", mix), fmt.Sprint("lock", mix)
		steps := []step{exactly(created(sku), "SECKILL.CREATE", sku, "1000", "LIMIT", "0")}
		count, buyers := 0, 0
		for range 1 + random.IntN(60) {
			switch random.IntN(12) {
			case 0, 1:
				count++
				steps = append(steps, exactly(fmt.Sprintf(":%d\r\n", count), "INCR", counter))
			case 2:
				word := fmt.Sprint("word", random.IntN(1000))
				steps = append(steps, exactly(rawclient.Bulk(word), "ECHO", word))
			case 3:
				steps = append(steps, exactly(null, "GET", "missing"))
			case 4:
				steps = append(steps, exactly("-ERR wrong number of arguments for 'get' command\r\n", "GET"))
			case 5, 6, 7, 8: // often in a run
				buyers++
				steps = append(steps, startingWith("*5\r\n:200\r\n$8\r\nRESERVED\r\n", "SECKILL.BUY", sku, fmt.Sprint("user", buyers)))
			case 9:
				steps = append(steps, exactly("-ERR wrong number of arguments for 'seckill.buy' command\r\n", "SECKILL.BUY", sku))
			case 10:
				// LOCK.CHECK names a token that nobody has.
				steps = append(steps, startingWith("*6\r\n:410\r\n$7\r\nEXPIRED\r\n", "lock.CHECK", lock, "token"))
			case 11:
				count++
				steps = append(steps, exactly(ok, "MULTI"), exactly(queued, "INCR", counter),
					exactly(fmt.Sprintf("*1\r\n:%d\r\n", count), "EXEC"))
			}
		}
		steps = append(steps, startingWith("*3\r\n:200\r\n$4\r\nINFO\r\n", "SECKILL.INFO", sku), exactly(pong, "PING"))
		var raw strings.Builder
		for _, s := range steps {
			raw.WriteString(s.raw)
		}
		sendCut(c, random, raw.String())
		var reply string
		for i, s := range steps {
			reply = c.Reply()
			if reply != s.want && !(s.open && strings.HasPrefix(reply, s.want)) {
				t.Fatalf("mix %d, command %d %q: got %q, want %q", mix, i, s.raw, reply, s.want)
			}
			if i == len(steps)-2 && !strings.Contains(reply, fmt.Sprintf("$7\r\npending\r\n:%d\r\n", buyers)) {
				t.Fatalf("mix %d: not %d units are pending: %q", mix, buyers, reply)
			}
		}
		c.HalfClose()
		c.ExpectClosed()
	}
}

func TestABuyerSeesWhatStoodBeforeItInThePipeline(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	c.Want(created("s"), "SECKILL.CREATE", "s", "10", "LIMIT", "1")
	// The keys are gone when the second purchase runs, and back for the third.
	c.Send(rawclient.Encode("SECKILL.BUY", "s", "a") + rawclient.Encode("FLUSHALL") +
		rawclient.Encode("SECKILL.BUY", "s", "b") + rawclient.Encode("SECKILL.CREATE", "s", "1") +
		rawclient.Encode("SECKILL.BUY", "s", "c") + rawclient.Encode("SECKILL.BUY", "none", "c"))
	for _, want := range []string{"*5\r\n:200\r\n$8\r\nRESERVED\r\n", ok, "*5\r\n:404\r\n$7\r\nNO_SALE\r\n",
		created("s"), "*5\r\n:200\r\n$8\r\nRESERVED\r\n", "*5\r\n:404\r\n$7\r\nNO_SALE\r\n"} {
		if got := c.Reply(); !strings.HasPrefix(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// What is certain needs no Redis, and is answered between purchases that do.
func TestCertainAnswersKeepTheirPlaceInARunOfPurchases(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	c.Want(created("gone"), "SECKILL.CREATE", "gone", "1")
	c.Want(created("there"), "SECKILL.CREATE", "there", "100")
	wantPrefix(t, c, "*5\r\n:200\r\n$8\r\nRESERVED\r\n", "SECKILL.BUY", "gone", "first")
	const soldOut = "*5\r\n:4001\r\n$8\r\nSOLD_OUT\r\n$0\r\n\r\n:0\r\n:0\r\n"
	scripts := func() string {
		_, stats, _ := strings.Cut(p.direct(t).Do("INFO", "commandstats"), "cmdstat_evalsha:calls=")
		calls, _, _ := strings.Cut(stats, ",")
		return calls
	}
	eventually(t, "it is certain that the sale is sold out", func() bool {
		before := scripts()
		c.Want(soldOut, "SECKILL.BUY", "gone", "late")
		return scripts() == before
	})
	for n := range 20 {
		user := fmt.Sprint("user", n)
		c.Send(rawclient.Encode("SECKILL.BUY", "gone", user) + rawclient.Encode("SECKILL.BUY", "there", user) +
			rawclient.Encode("SECKILL.BUY", "gone", user, "QTY") + rawclient.Encode("SECKILL.BUY", "gone", user, "ID", "r") +
			rawclient.Encode("SECKILL.BUY", "there", user) + rawclient.Encode("PING"))
		for _, want := range []string{soldOut, "*5\r\n:", "-ERR syntax error: QTY needs a value\r\n", soldOut, "*5\r\n:", pong} {
			if got := c.Reply(); !strings.HasPrefix(got, want) {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
	}
	wantPrefix(t, c, "*3\r\n:200\r\n$4\r\nINFO\r\n", "SECKILL.INFO", "there")
}

func TestArityErrorsAreInTheWordsOfRedis(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	// The words are Redis's for a command of its own.
	words := c.Do("GET")
	for _, row := range commands.NewTable().All() {
		want := strings.Replace(words, "'get'", "'"+strings.ToLower(row.Name)+"'", 1)
		for count := 1; count <= 8; count++ {
			if row.Arity < 0 && count >= -row.Arity || count == row.Arity {
				continue
			}
			args := append([]string{row.Name}, make([]string, count-1)...)
			c.Want(want, args...)
		}
	}
	c.Want(pong, "PING")
}

func TestCustomCommandsByAnyCaseAndInline(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	c.Send("secKILL.create \"a sku\\x00\" 3\r\nSECKILL.LIST\nseckill.nosuch x\r\nseckill.buy\r\n")
	c.Expect(created("a sku\x00"))
	c.Expect("*3\r\n:200\r\n:1\r\n*3\r\n" + rawclient.Bulk("a sku\x00") + "$4\r\nOPEN\r\n:3\r\n")
	c.Expect("-ERR unknown command 'seckill.nosuch', with args beginning with: 'x' \r\n")
	c.Expect("-ERR wrong number of arguments for 'seckill.buy' command\r\n")
}

func TestInMultiACustomCommandIsRefusedAndExecAborts(t *testing.T) {
	p := startPair(t)
	const aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n"
	for _, row := range commands.NewTable().All() {
		for _, count := range []int{1, 2, 3, 4} {
			c := p.dial(t)
			args := append([]string{row.Name}, make([]string, count-1)...)
			c.Want(ok, "MULTI")
			c.Want(queued, "SET", "k", "v")
			refusal := wantPrefix(t, c, "-", args...)
			if strings.Contains(refusal, "unknown") {
				t.Errorf("%s in MULTI: %q denies that the command exists", row.Name, refusal)
			}
			c.Want(aborted, "EXEC")
			c.Want(null, "GET", "k")
			// The transaction is over.
			c.Want("-ERR EXEC without MULTI\r\n", "EXEC")
			c.Close()
		}
	}
	// All in one pipeline, with DISCARD, and with a transaction after it.
	c := p.dial(t)
	pipeline := []string{"MULTI", "SECKILL.LIST", "DISCARD", "MULTI", "SECKILL.LIST", "PING", "EXEC", "SECKILL.LIST", "MULTI", "PING", "EXEC"}
	c.Send(strings.Join(pipeline, "\r\n") + "\r\n")
	for i, want := range []string{ok, "-", ok, ok, "-", queued, aborted, noSales, ok, queued, "*1\r\n+PONG\r\n"} {
		if got := c.Reply(); !strings.HasPrefix(got, want) {
			t.Fatalf("%s: got %q, want %q", pipeline[i], got, want)
		}
	}
}

func TestAWatchedKeyThatACustomCommandChangesAbortsExec(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	c.Want(ok, "WATCH", "lock:l")
	wantPrefix(t, c, "*6\r\n:200\r\n$8\r\nACQUIRED\r\n", "LOCK.ACQUIRE", "l", "60000")
	c.Want(ok, "MULTI")
	c.Want(queued, "PING")
	c.Want("*-1\r\n", "EXEC")
	// And one that it doesn't touch stays unchanged.
	c.Want(ok, "WATCH", "other")
	wantPrefix(t, c, "*6\r\n:409\r\n$4\r\nBUSY\r\n", "LOCK.ACQUIRE", "l", "60000")
	c.Want(ok, "MULTI")
	c.Want(queued, "PING")
	c.Want("*1\r\n+PONG\r\n", "EXEC")
}

func TestInSubscribedModeCustomCommandsAreRefusedInTheWordsOfRedis(t *testing.T) {
	p := startPair(t)
	for _, subscribe := range []string{"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"} {
		c := p.dial(t)
		wantPrefix(t, c, "*3\r\n", subscribe, "ch")
		words := c.Do("GET", "k")
		c.Want(strings.Replace(words, "'get'", "'seckill.list'", 1), "SECKILL.LIST")
		c.Want("*2\r\n$4\r\npong\r\n$0\r\n\r\n", "PING")
		wantPrefix(t, c, "*3\r\n", strings.Replace(subscribe, "SUB", "UNSUB", 1))
		c.Want(noSales, "SECKILL.LIST")
	}
}

func TestCustomCommandsActInTheSelectedDatabase(t *testing.T) {
	p := startPair(t)
	a, b, direct := p.dial(t), p.dial(t), p.direct(t)
	a.Want(ok, "SELECT", "2")
	a.Want(created("s"), "SECKILL.CREATE", "s", "1")
	wantPrefix(t, b, "*5\r\n:404\r\n", "SECKILL.BUY", "s", "u")
	// In one pipeline.
	b.Send(rawclient.Encode("SELECT", "2") + rawclient.Encode("SECKILL.BUY", "s", "u") +
		rawclient.Encode("SELECT", "0") + rawclient.Encode("SECKILL.BUY", "s", "u") +
		rawclient.Encode("SELECT", "99") + rawclient.Encode("SECKILL.BUY", "s", "u"))
	b.Expect(ok)
	if got := b.Reply(); !strings.HasPrefix(got, "*5\r\n:200\r\n") {
		t.Fatalf("in db 2: %q", got)
	}
	b.Expect(ok)
	if got := b.Reply(); !strings.HasPrefix(got, "*5\r\n:404\r\n") {
		t.Fatalf("back in db 0: %q", got)
	}
	b.Expect("-ERR DB index is out of range\r\n")
	if got := b.Reply(); !strings.HasPrefix(got, "*5\r\n:404\r\n") {
		t.Fatalf("after a SELECT that was refused: %q", got)
	}
	direct.Want(":0\r\n", "DBSIZE")
	// A SELECT inside a transaction counts once it was executed.
	for _, s := range []struct{ end, code string }{{"DISCARD", ":404"}, {"EXEC", ":4002"}} {
		b.Want(ok, "MULTI")
		b.Want(queued, "SELECT", "2")
		b.Do(s.end)
		wantPrefix(t, b, "*5\r\n"+s.code+"\r\n", "SECKILL.BUY", "s", "u")
	}
	// RESET goes back to db 0, SWAPDB moves the data under the session.
	b.Want("+RESET\r\n", "RESET")
	wantPrefix(t, b, "*5\r\n:404\r\n", "SECKILL.BUY", "s", "u")
	b.Want(ok, "SWAPDB", "0", "2")
	// That there was no sale is remembered for a moment; nobody says that there is
	// one now.
	for deadline := time.Now().Add(rawclient.Patience); !strings.HasPrefix(b.Do("SECKILL.BUY", "s", "u"), "*5\r\n:4002\r\n"); {
		if time.Now().After(deadline) {
			t.Fatal("the sale of the database that was swapped in isn't found")
		}
	}
}

func TestASelectInsideMultiThatFailsChangesNothing(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	c.Want(created("s"), "SECKILL.CREATE", "s", "1")
	c.Want(ok, "MULTI")
	c.Want(queued, "SELECT", "99")
	c.Want(queued, "LRANGE", "l", "0", "-1")
	c.Want("*2\r\n-ERR DB index is out of range\r\n*0\r\n", "EXEC")
	wantPrefix(t, c, "*5\r\n:200\r\n", "SECKILL.BUY", "s", "u")
	// The watched key changes, so the SELECT isn't executed.
	c.Want(ok, "WATCH", "w")
	c.Want(ok, "SET", "w", "1")
	c.Want(ok, "MULTI")
	c.Want(queued, "SELECT", "3")
	c.Want("*-1\r\n", "EXEC")
	wantPrefix(t, c, "*5\r\n:4002\r\n", "SECKILL.BUY", "s", "u")
	// The last of several counts, and elements that are arrays don't confuse it.
	c.Want(ok, "MULTI")
	c.Want(queued, "SELECT", "3")
	c.Want(queued, "COMMAND", "INFO", "get", "set")
	c.Want(queued, "SELECT", "x")
	c.Want(queued, "SELECT", "0")
	c.Want(queued, "SELECT", "99")
	wantPrefix(t, c, "*5\r\n+OK\r\n", "EXEC")
	wantPrefix(t, c, "*5\r\n:4002\r\n", "SECKILL.BUY", "s", "u")
}

func TestCustomCommandsRunWithTheRightsOfTheClient(t *testing.T) {
	p := startPair(t)
	admin := p.direct(t)
	admin.Want(ok, "ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all")
	admin.Want(ok, "ACL", "SETUSER", "other", "on", ">pw", "~app:*", "&*", "+@all")
	admin.Want(ok, "ACL", "SETUSER", "open", "on", "nopass", "~app:*", "&*", "+@all")
	admin.Want(ok, "ACL", "SETUSER", "unscripted", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
	admin.Want(ok, "SET", "app:k", "v")

	const noPermission = "-NOPERM "
	buy := []string{"SECKILL.BUY", "s", "u"}
	owner := p.dial(t)
	owner.Want(created("s"), "SECKILL.CREATE", "s", "100", "LIMIT", "0")

	cases := []struct {
		name string
		as   []string // "" separates commands
		want string
	}{
		{"nobody in particular", nil, "*5\r\n:200\r\n"},
		{"AUTH with rights", []string{"AUTH shop pw"}, "*5\r\n:200\r\n"},
		{"AUTH without rights", []string{"AUTH other pw"}, noPermission},
		{"HELLO 2 AUTH", []string{"HELLO 2 AUTH other pw"}, noPermission},
		{"HELLO 3 SETNAME AUTH", []string{"HELLO 3 SETNAME AUTH AUTH other pw"}, noPermission},
		{"a user without a password", []string{"AUTH open anything"}, noPermission},
		{"an empty password", []string{`AUTH open ""`}, noPermission},
		{"no right to scripts", []string{"AUTH unscripted pw"}, noPermission},
		{"a wrong password changes nothing", []string{"AUTH other pw", "AUTH shop wrong"}, noPermission},
		{"a wrong password in HELLO changes nothing", []string{"AUTH other pw", "HELLO 3 AUTH shop wrong"}, noPermission},
		{"a second AUTH counts", []string{"AUTH shop pw", "AUTH other pw"}, noPermission},
		{"and back", []string{"AUTH other pw", "AUTH shop pw"}, "*5\r\n:200\r\n"},
		{"HELLO without AUTH keeps the user", []string{"AUTH other pw", "HELLO 3"}, noPermission},
		{"RESET is the default user again", []string{"AUTH other pw", "RESET"}, "*5\r\n:200\r\n"},
		{"AUTH in MULTI", []string{"MULTI", "AUTH other pw", "EXEC"}, noPermission},
		{"AUTH in MULTI, discarded", []string{"MULTI", "AUTH other pw", "DISCARD"}, "*5\r\n:200\r\n"},
		{"AUTH in MULTI, wrong", []string{"AUTH other pw", "MULTI", "AUTH shop wrong", "EXEC"}, noPermission},
		{"HELLO in MULTI", []string{"MULTI", "HELLO 3 AUTH other pw", "EXEC"}, noPermission},
		{"AUTH whose reply is skipped", []string{"CLIENT REPLY SKIP", "AUTH other pw"}, noPermission},
		{"AUTH whose reply is off", []string{"CLIENT REPLY OFF", "AUTH other pw", "CLIENT REPLY ON"}, noPermission},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c := p.dial(t)
			for _, line := range tc.as {
				c.Send(line + "\r\n")
			}
			// What the setup answers is of no interest: the command's own reply
			// follows the marker's.
			c.SendCommand("ECHO", "marker")
			for c.Reply() != rawclient.Bulk("marker") {
			}
			wantPrefix(t, c, tc.want, buy...)
			// Redis agrees about who this is.
			reply := c.Do("GET", "seckill:sales")
			if isDenied := strings.HasPrefix(reply, noPermission); isDenied != (tc.want == noPermission) && !strings.Contains(tc.name, "script") {
				t.Errorf("a GET by the same client: %q", reply)
			}
		})
	}
}

func TestCustomCommandsOfAClientThatDidNotAuthenticate(t *testing.T) {
	server := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", "secret"}})
	p := startSidecar(t, server.Addr)
	c := p.dial(t)
	noAuth := c.Do("GET", "k")
	if !strings.HasPrefix(noAuth, "-NOAUTH ") {
		t.Fatalf("GET before AUTH: %q", noAuth)
	}
	c.Want(noAuth, "SECKILL.BUY", "s", "u")
	c.Want(noAuth, "LOCK.ACQUIRE", "l", "1000")
	wantPrefix(t, c, "-WRONGPASS ", "AUTH", "wrong")
	c.Want(noAuth, "SECKILL.BUY", "s", "u")
	// CLIENT REPLY is refused too, and so doesn't silence anybody.
	c.Want(noAuth, "CLIENT", "REPLY", "OFF")
	c.Want(noAuth, "CLIENT", "REPLY", "SKIP")
	c.Want(ok, "AUTH", "secret")
	c.Want(created("s"), "SECKILL.CREATE", "s", "10")
	c.Want("+RESET\r\n", "RESET")
	c.Want(noAuth, "SECKILL.BUY", "s", "u")
	wantPrefix(t, c, "%7\r\n", "HELLO", "3", "AUTH", "default", "secret")
	wantPrefix(t, c, "*5\r\n:200\r\n", "SECKILL.BUY", "s", "u")
}

func TestCustomRepliesOverRESP3(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	c.Want(created("s"), "SECKILL.CREATE", "s", "1")
	wantPrefix(t, c, "*3\r\n:200\r\n$4\r\nINFO\r\n*", "SECKILL.INFO", "s")
	wantPrefix(t, c, "%7\r\n", "HELLO", "3")
	wantPrefix(t, c, "*3\r\n:200\r\n$4\r\nINFO\r\n%", "SECKILL.INFO", "s")
	wantPrefix(t, c, "-NOPROTO ", "HELLO", "4")
	wantPrefix(t, c, "*3\r\n:200\r\n$4\r\nINFO\r\n%", "SECKILL.INFO", "s")
	// A subscriber may go on working over RESP3.
	c.Want(">3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n", "SUBSCRIBE", "ch")
	wantPrefix(t, c, "*5\r\n:200\r\n", "SECKILL.BUY", "s", "u")
	c.Send(rawclient.Encode("PUBLISH", "ch", "m") + rawclient.Encode("SECKILL.BUY", "s", "v"))
	c.Expect(">3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$1\r\nm\r\n:1\r\n")
	if got := c.Reply(); !strings.HasPrefix(got, "*5\r\n:4001\r\n") {
		t.Fatalf("BUY after a message: %q", got)
	}
	wantPrefix(t, c, "*", "HELLO", "2")
	c.Want("-ERR Can't execute 'seckill.list': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context\r\n", "SECKILL.LIST")
	c.Want("+RESET\r\n", "RESET")
	wantPrefix(t, c, "*3\r\n:200\r\n$4\r\nINFO\r\n*", "SECKILL.INFO", "s")
}

func TestClientReplySilencesCustomCommandsToo(t *testing.T) {
	p := startPair(t)
	c := p.dial(t)
	send := func(lines ...string) { c.Send(strings.Join(lines, "\r\n") + "\r\n") }
	send("CLIENT REPLY SKIP", "SECKILL.CREATE a 1", "SECKILL.CREATE a 1")
	c.Expect("*4\r\n:409\r\n$6\r\nEXISTS\r\n$1\r\na\r\n:1\r\n")
	send("CLIENT REPLY SKIP", "SECKILL.BUY", "PING")
	c.Expect(pong)
	send("CLIENT REPLY OFF", "SECKILL.CREATE b 1", "GET k", "SECKILL.BUY", "SECKILL.BUY b u", "SECKILL.BUY b u", "CLIENT REPLY ON", "SECKILL.CREATE b 1")
	c.Expect(ok + "*4\r\n:409\r\n$6\r\nEXISTS\r\n$1\r\nb\r\n:1\r\n")
	// A refused CLIENT REPLY silences nobody.
	send("CLIENT REPLY MAYBE", "SECKILL.CREATE a 1")
	c.Expect("-ERR syntax error\r\n*4\r\n:409\r\n$6\r\nEXISTS\r\n$1\r\na\r\n:1\r\n")
	// RESET ends the silence.
	send("CLIENT REPLY OFF", "RESET", "SECKILL.CREATE a 1")
	c.Expect("+RESET\r\n*4\r\n:409\r\n$6\r\nEXISTS\r\n$1\r\na\r\n:1\r\n")
	// What happens in silence has happened.
	send("CLIENT REPLY SKIP", "SELECT 3", "SECKILL.CREATE a 1")
	c.Expect(created("a"))
	send("CLIENT REPLY OFF", "SELECT 4", "CLIENT REPLY ON", "SECKILL.CREATE a 1")
	c.Expect(ok + created("a"))
	send("CLIENT REPLY SKIP", "MULTI", "SECKILL.LIST")
	if got := c.Reply(); !strings.HasPrefix(got, "-ERR ") {
		t.Fatalf("a custom command after a silent MULTI: %q", got)
	}
	send("EXEC", "SECKILL.CREATE a 1")
	c.Expect("-EXECABORT Transaction discarded because of previous errors.\r\n*4\r\n:409\r\n$6\r\nEXISTS\r\n$1\r\na\r\n:1\r\n")
}
