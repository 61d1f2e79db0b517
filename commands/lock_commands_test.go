package commands

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"seckill-proxy/commands/lock"
	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
)

func lockBackend(t testing.TB, addr string) *Backend {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	return &Backend{Locks: lock.New(rdb, lock.DefaultOptions())}
}

// onEveryLockBackend runs a test on a real redis-server and on the embedded
// store.
func onEveryLockBackend(t *testing.T, test func(t *testing.T, b *Backend)) {
	t.Run("redis", func(t *testing.T) { test(t, lockBackend(t, redistest.Start(t, redistest.Options{}).Addr)) })
	t.Run("embedded", func(t *testing.T) { test(t, lockBackend(t, miniredis.RunT(t).Addr())) })
}

// callLock calls a command of the LOCK family as a client writes it.
func callLock(t *testing.T, b *Backend, name string, args ...string) Reply {
	t.Helper()
	var raw [][]byte
	for _, arg := range args {
		raw = append(raw, []byte(arg))
	}
	for _, row := range lockCommands {
		if row.Name == name {
			if err := row.ArityError(1 + len(args)); err != "" {
				return err
			}
			return row.Handle(t.Context(), &Connection{Backend: b}, raw)
		}
	}
	t.Fatalf("no command %q", name)
	return nil
}

// expectLock compares a reply with [code word token fence ttl_ms depth]. The TTL
// may have run down, but not to nothing.
func expectLock(t *testing.T, got Reply, code int, word, token string, fence, ttl, depth int64) {
	t.Helper()
	fields, ok := got.(Array)
	if !ok || len(fields) != 6 {
		t.Fatalf("not an array of 6: %v", got)
	}
	left, isInteger := fields[4].(int64)
	if !isInteger || left > ttl || (left > 0) != (ttl > 0) {
		t.Fatalf("ttl_ms is %v (%T), want %d: %v", fields[4], fields[4], ttl, got)
	}
	if want := (Array{code, word, token, fence, left, depth}); !reflect.DeepEqual(fields, want) {
		t.Fatalf("got %v, want %v", fields, want)
	}
}

func TestLockReplies(t *testing.T) {
	onEveryLockBackend(t, func(t *testing.T, b *Backend) {
		first := callLock(t, b, "LOCK.ACQUIRE", "x", "60000")
		token, fence := first.(Array)[2].(string), first.(Array)[3].(int64)
		if len(token) != 22 || fence <= 0 {
			t.Fatalf("token %q, fence %d", token, fence)
		}
		expectLock(t, first, 200, "ACQUIRED", token, fence, 60000, 1)
		expectLock(t, callLock(t, b, "LOCK.ACQUIRE", "x", "60000"), 409, "BUSY", "", 0, 60000, 0)
		expectLock(t, callLock(t, b, "LOCK.ACQUIRE", "x", "1", "TOKEN", token), 200, "REENTERED", token, fence, 60000, 2)
		expectLock(t, callLock(t, b, "LOCK.CHECK", "x", token), 200, "HELD", token, fence, 60000, 2)
		expectLock(t, callLock(t, b, "LOCK.CHECK", "x", "other"), 403, "NOT_OWNER", "", 0, 60000, 0)
		expectLock(t, callLock(t, b, "LOCK.RENEW", "x", token, "86400000"), 200, "RENEWED", token, fence, 86400000, 2)
		expectLock(t, callLock(t, b, "LOCK.RENEW", "x", token, "60000"), 200, "RENEWED", token, fence, 60000, 2)
		expectLock(t, callLock(t, b, "LOCK.RELEASE", "x", "other"), 403, "NOT_OWNER", "", 0, 60000, 0)
		expectLock(t, callLock(t, b, "LOCK.RELEASE", "x", token), 200, "RELEASED", token, fence, 60000, 1)
		expectLock(t, callLock(t, b, "LOCK.RELEASE", "x", token), 200, "RELEASED", token, fence, 0, 0)
		expectLock(t, callLock(t, b, "LOCK.RELEASE", "x", token), 410, "EXPIRED", "", 0, 0, 0)
		expectLock(t, callLock(t, b, "LOCK.RENEW", "x", token, "60000"), 410, "EXPIRED", "", 0, 0, 0)
		expectLock(t, callLock(t, b, "LOCK.CHECK", "x", token), 410, "EXPIRED", "", 0, 0, 0)

		named := callLock(t, b, "LOCK.ACQUIRE", "x", "60000", "token", "a b\r\n用户锁")
		expectLock(t, named, 200, "ACQUIRED", "a b\r\n用户锁", named.(Array)[3].(int64), 60000, 1)
	})
}

func TestLockRepliesForKeysThatAreNoLocks(t *testing.T) {
	server := miniredis.RunT(t)
	b := lockBackend(t, server.Addr())
	server.RPush("lock:list", "a")
	server.Set("lock:stock", "100")

	expectLock(t, callLock(t, b, "LOCK.ACQUIRE", "list", "1000"), 409, "WRONG_TYPE", "", 0, 0, 0)
	expectLock(t, callLock(t, b, "LOCK.RELEASE", "list", "a"), 409, "WRONG_TYPE", "", 0, 0, 0)
	expectLock(t, callLock(t, b, "LOCK.RENEW", "list", "a", "1000"), 409, "WRONG_TYPE", "", 0, 0, 0)
	expectLock(t, callLock(t, b, "LOCK.CHECK", "list", "a"), 409, "WRONG_TYPE", "", 0, 0, 0)
	expectLock(t, callLock(t, b, "LOCK.ACQUIRE", "stock", "1000"), 409, "NO_TTL", "", 0, 0, 0)
	expectLock(t, callLock(t, b, "LOCK.CHECK", "stock", "100"), 409, "NO_TTL", "100", 0, 0, 1)
	expectLock(t, callLock(t, b, "LOCK.CHECK", "stock", "1"), 403, "NOT_OWNER", "", 0, 0, 0)
}

func TestLockMisuse(t *testing.T) {
	const (
		ttl  = "ERR syntax error: ttl_ms needs a positive integer of milliseconds (1 to 86400000)"
		long = " 257 bytes, allowed are 1 to 256"
	)
	tooLong := strings.Repeat("n", 257)
	cases := []struct {
		want string
		args []string // with the command's name
	}{
		{ttl, []string{"LOCK.ACQUIRE", "x", "0"}},
		{ttl, []string{"LOCK.ACQUIRE", "x", "-1"}},
		{ttl, []string{"LOCK.ACQUIRE", "x", "1.5"}},
		{ttl, []string{"LOCK.ACQUIRE", "x", "1e3"}},
		{ttl, []string{"LOCK.ACQUIRE", "x", " 1"}},
		{ttl, []string{"LOCK.ACQUIRE", "x", "+1"}},
		{ttl, []string{"LOCK.ACQUIRE", "x", "01"}},
		{ttl, []string{"LOCK.ACQUIRE", "x", ""}},
		{ttl, []string{"LOCK.ACQUIRE", "x", "ten"}},
		{ttl, []string{"LOCK.ACQUIRE", "x", "86400001"}},
		{ttl, []string{"LOCK.ACQUIRE", "x", "99999999999999999999"}},
		{ttl, []string{"LOCK.RENEW", "x", "t", "0"}},
		{ttl, []string{"LOCK.RENEW", "x", "t", "99999999999999999999"}},
		{"ERR invalid name: 0 bytes, allowed are 1 to 256", []string{"LOCK.ACQUIRE", "", "1000"}},
		{"ERR invalid name:" + long, []string{"LOCK.ACQUIRE", tooLong, "1000"}},
		{"ERR invalid name:" + long, []string{"LOCK.RELEASE", tooLong, "t"}},
		{"ERR invalid token:" + long, []string{"LOCK.RELEASE", "x", tooLong}},
		{"ERR invalid token: 0 bytes, allowed are 1 to 256", []string{"LOCK.CHECK", "x", ""}},
		{"ERR invalid token: 0 bytes, allowed are 1 to 256", []string{"LOCK.RENEW", "x", "", "1000"}},
		{"ERR invalid TOKEN: 0 bytes, allowed are 1 to 256", []string{"LOCK.ACQUIRE", "x", "1000", "TOKEN", ""}},
		{"ERR invalid TOKEN:" + long, []string{"LOCK.ACQUIRE", "x", "1000", "TOKEN", tooLong}},
		{"ERR syntax error: TOKEN needs a value", []string{"LOCK.ACQUIRE", "x", "1000", "TOKEN"}},
		{"ERR syntax error: TOKEN is given twice", []string{"LOCK.ACQUIRE", "x", "1000", "TOKEN", "t", "TOKEN", "t"}},
		{`ERR syntax error: unknown option "A\r\n", allowed are AUTO, MAXHOLD, WAIT, TOKEN, SHARED, PERMITS, SYNC`, []string{"LOCK.ACQUIRE", "x", "1000", "a\r\n"}},
		{"ERR syntax error: WAIT needs an integer of milliseconds (0 to 3600000)", []string{"LOCK.ACQUIRE", "x", "1000", "WAIT", "-1"}},
		{"ERR syntax error: WAIT needs an integer of milliseconds (0 to 3600000)", []string{"LOCK.ACQUIRE", "x", "1000", "WAIT", "3600001"}},
		{"ERR syntax error: MAXHOLD needs a positive integer of milliseconds (1 to 86400000)", []string{"LOCK.ACQUIRE", "x", "1000", "AUTO", "MAXHOLD", "86400001"}},
		{"ERR syntax error: MAXHOLD needs AUTO", []string{"LOCK.ACQUIRE", "x", "1000", "MAXHOLD", "1"}},
		{"ERR syntax error: PERMITS needs a positive number of holders (1 to 1000000)", []string{"LOCK.ACQUIRE", "x", "1000", "PERMITS", "0"}},
		{"ERR syntax error: SHARED and PERMITS exclude each other", []string{"LOCK.ACQUIRE", "x", "1000", "SHARED", "PERMITS", "2"}},
		{"ERR syntax error: SYNC needs a positive number of replicas (1 to 1000)", []string{"LOCK.ACQUIRE", "x", "1000", "SYNC", "0"}},
		{"ERR syntax error: n needs the number of names that follow (1 to 64)", []string{"LOCK.MACQUIRE", "1000", "0", "x"}},
		{"ERR syntax error: n needs the number of names that follow (1 to 64)", []string{"LOCK.MACQUIRE", "1000", "65", "x"}},
		{"ERR syntax error: name needs a value", []string{"LOCK.MACQUIRE", "1000", "2", "x"}},
		{"ERR syntax error: a name is given twice", []string{"LOCK.MACQUIRE", "1000", "2", "x", "x"}},
		{`ERR syntax error: unknown option "Y", allowed are AUTO, MAXHOLD, WAIT`, []string{"LOCK.MACQUIRE", "1000", "1", "x", "y"}},
		{"ERR invalid name: 0 bytes, allowed are 1 to 256", []string{"LOCK.INFO", ""}},
		{"ERR invalid name: 0 bytes, allowed are 1 to 256", []string{"LOCK.FORCE", ""}},
		{`ERR syntax error: unknown option "X*", allowed are MATCH`, []string{"LOCK.LIST", "x*"}},
		{"ERR wrong number of arguments for 'lock.acquire' command", []string{"LOCK.ACQUIRE", "x"}},
		{"ERR wrong number of arguments for 'lock.release' command", []string{"LOCK.RELEASE", "x", "t", "1"}},
		{"ERR wrong number of arguments for 'lock.renew' command", []string{"LOCK.RENEW", "x", "t"}},
		{"ERR wrong number of arguments for 'lock.check' command", []string{"LOCK.CHECK"}},
	}
	server := miniredis.RunT(t)
	b := lockBackend(t, server.Addr())
	for _, c := range cases {
		if got := callLock(t, b, c.args[0], c.args[1:]...); got != Error(c.want) {
			t.Errorf("%.80q:\n got %v\nwant %s", c.args, got, c.want)
		}
	}
	if keys := server.Keys(); len(keys) > 0 {
		t.Errorf("misuse left keys: %q", keys)
	}
}

func TestLockFailures(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	b := lockBackend(t, server.Addr)
	server.Kill()
	notTried := Array{503, "BUSY", "", 0, 0, 0}
	for _, call := range [][]string{
		{"LOCK.ACQUIRE", "x", "1000", "TOKEN", "t"},
		{"LOCK.ACQUIRE", "x", "1000", "WAIT", "60000", "AUTO"},
		{"LOCK.MACQUIRE", "1000", "2", "x", "y"},
		{"LOCK.FORCE", "x"},
		{"LOCK.RELEASE", "x", "t"},
		{"LOCK.RENEW", "x", "t", "1000"},
		{"LOCK.CHECK", "x", "t"},
	} {
		if got := callLock(t, b, call[0], call[1:]...); !reflect.DeepEqual(got, notTried) {
			t.Errorf("%q with Redis down: %v", call, got)
		}
	}
	if got, want := callLock(t, b, "LOCK.LIST"), (Array{503, 0}); !reflect.DeepEqual(got, want) {
		t.Errorf("LOCK.LIST with Redis down: %v", got)
	}
	if got, want := callLock(t, b, "LOCK.INFO", "x"), (Array{503, "BUSY", Map{}}); !reflect.DeepEqual(got, want) {
		t.Errorf("LOCK.INFO with Redis down: %v", got)
	}

	lost := fmt.Errorf("lock.acquire: %w: EOF", script.ErrUncertain)
	got := lockReply(lock.Result{Token: "t"}, lost, lockUncertain("t"))
	if want := (Array{202, "UNCERTAIN", "t", 0, 0, 0}); !reflect.DeepEqual(got, want) {
		t.Errorf("a lost reply: %v, want %v", got, want)
	}
	got = lockReply(lock.Result{}, lock.ErrReservedName, lockNotExecuted)
	if want := Error("ERR invalid name: the name begins with the prefix of the companion keys"); got != want {
		t.Errorf("a reserved name: %v, want %v", got, want)
	}
}

// All commands, as a client sees them.
func TestLockFamily(t *testing.T) {
	onEveryLockBackend(t, func(t *testing.T, b *Backend) {
		call := func(line string) Reply {
			t.Helper()
			words := strings.Fields(line)
			return callLock(t, b, words[0], words[1:]...)
		}
		all := call("LOCK.MACQUIRE 60000 2 b a WAIT 10").(Array)
		token, fence := all[2].(string), all[3].(int64)
		expectLock(t, all, 200, "ACQUIRED", token, fence, 60000, 1)
		expectLock(t, call("LOCK.ACQUIRE a 60000 WAIT 1"), 408, "TIMEOUT", "", 0, 0, 0)
		expectLock(t, call("LOCK.MACQUIRE 60000 2 a c WAIT 0"), 409, "BUSY", "", 0, 60000, 0)
		list := call("LOCK.LIST MATCH ?").(Array)
		if len(list) != 4 || list[0] != 200 || list[1] != 2 {
			t.Fatalf("LOCK.LIST: %v", list)
		}
		expectLock(t, call("LOCK.FORCE a"), 200, "RELEASED", "", fence, 0, 0)
		expectLock(t, call("LOCK.FORCE a"), 410, "EXPIRED", "", 0, 0, 0)
		info := call("LOCK.INFO b").(Array)
		if fields := info[2].(Map); info[0] != 200 || info[1] != "INFO" || fields[1] != "b" || fields[3] != "HELD" || fields[5] != "exclusive" || fields[7] != fence {
			t.Fatalf("LOCK.INFO: %v", info)
		}
		shared := call("LOCK.ACQUIRE a 60000 SHARED AUTO MAXHOLD 70000").(Array)
		expectLock(t, shared, 200, "ACQUIRED", shared[2].(string), shared[3].(int64), 60000, 1)
		expectLock(t, call("LOCK.ACQUIRE a 60000 TOKEN "+shared[2].(string)), 409, "OTHER_MODE", "", 0, 60000, 0)
		expectLock(t, call("LOCK.ACQUIRE a 60000 PERMITS 3"), 409, "BUSY", "", 0, 60000, 0)
		// There are no replicas.
		synced := call("LOCK.ACQUIRE c 60000 SYNC 1").(Array)
		if synced[0] != 202 && synced[0] != CodeUncertain || synced[3].(int64) == 0 {
			t.Fatalf("SYNC: %v", synced)
		}
		expectLock(t, call("LOCK.CHECK c "+synced[2].(string)), 200, "HELD", synced[2].(string), synced[3].(int64), 60000, 1)
	})
}

// What Redis itself says to a command is repeated.
func TestLockRepeatsErrorsOfRedis(t *testing.T) {
	server := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", "pw"}})
	got := callLock(t, lockBackend(t, server.Addr), "LOCK.CHECK", "x", "t")
	if err, ok := got.(Error); !ok || !strings.HasPrefix(string(err), "NOAUTH ") {
		t.Fatalf("got %v", got)
	}
}

// The rows document what the code does.
func TestLockRows(t *testing.T) {
	usages := map[string]string{
		"LOCK.ACQUIRE":  "LOCK.ACQUIRE name ttl_ms [WAIT ms] [TOKEN token] [AUTO [MAXHOLD ms]] [SHARED | PERMITS n] [SYNC replicas]",
		"LOCK.MACQUIRE": "LOCK.MACQUIRE ttl_ms n name [name ...] [WAIT ms] [AUTO [MAXHOLD ms]]",
		"LOCK.INFO":     "LOCK.INFO name",
		"LOCK.LIST":     "LOCK.LIST [MATCH pattern]",
		"LOCK.FORCE":    "LOCK.FORCE name",
		"LOCK.RELEASE":  "LOCK.RELEASE name token",
		"LOCK.RENEW":    "LOCK.RENEW name token ttl_ms",
		"LOCK.CHECK":    "LOCK.CHECK name token",
	}
	documented := map[string]int{}
	for _, row := range lockCommands {
		if got := row.Usage(); got != usages[row.Name] {
			t.Errorf("usage %q, want %q", got, usages[row.Name])
		}
		for _, reply := range row.Replies {
			if row.Name == "LOCK.INFO" || row.Name == "LOCK.LIST" {
				continue
			}
			if !strings.HasPrefix(reply.Shape, fmt.Sprintf("[%d %s ", reply.Code, reply.Word)) || len(strings.Fields(reply.Shape)) != 6 {
				t.Errorf("%s: shape %q of %d %s", row.Name, reply.Shape, reply.Code, reply.Word)
			}
			if code, isOutcome := lockCodes[lock.Outcome(reply.Word)]; isOutcome && reply.Code != code && reply.Word != "BUSY" && reply.Word != "UNCERTAIN" {
				t.Errorf("%s: %s is documented as %d, answered as %d", row.Name, reply.Word, reply.Code, code)
			}
			documented[reply.Word]++
		}
	}
	for outcome := range lockCodes {
		if documented[string(outcome)] == 0 {
			t.Errorf("%s is not documented", outcome)
		}
	}
	for _, outcome := range []lock.Outcome{
		lock.Acquired, lock.Reentered, lock.Renewed, lock.Released, lock.Held,
		lock.Busy, lock.NotOwner, lock.Expired, lock.NoTTL, lock.WrongType, lock.TimedOut, lock.OtherMode, lock.Unconfirmed,
	} {
		if lockCodes[outcome] == 0 {
			t.Errorf("%s has no code", outcome)
		}
	}
}

// Whatever the arguments are, the reply is an error or an array of six, and
// whatever was acquired has a TTL.
func FuzzLockArguments(f *testing.F) {
	server := miniredis.RunT(f)
	b := lockBackend(f, server.Addr())
	for _, seed := range []string{
		"x\n1000", "x\n1000\nTOKEN\nt", "x\nt", "x\nt\n1000", "x\n0", "x\n-1\nTOKEN", "\n\n\n",
		"x\n1000\nWAIT\n5", "1000\n2\nx\ny\nAUTO", "x\n1000\nSHARED\nAUTO\nMAXHOLD\n5", "x\n1000\nPERMITS\n2\nWAIT\n1", "MATCH\n*", "用户锁\n99999999999999999999", "a}b{\n86400000\ntoken\n\xff",
	} {
		for row := range lockCommands {
			f.Add(row, seed)
		}
	}
	f.Fuzz(func(t *testing.T, row int, line string) {
		command := lockCommands[uint(row)%uint(len(lockCommands))]
		var args [][]byte
		for _, arg := range strings.Split(line, "\n") {
			args = append(args, []byte(arg))
		}
		if command.ArityError(1+len(args)) != "" {
			return
		}
		conn := &Connection{Backend: b}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		switch reply := command.Handle(ctx, conn, args).(type) {
		case Error:
			if !strings.HasPrefix(string(reply), "ERR ") || strings.ContainsAny(string(reply), "\r\n") {
				t.Fatalf("%s %q: %q", command.Name, args, reply)
			}
		case Array:
			switch command.Name {
			case "LOCK.INFO":
				if len(reply) != 3 {
					t.Fatalf("%s %q: %v", command.Name, args, reply)
				}
			case "LOCK.LIST":
				if len(reply) != 2+reply[1].(int) {
					t.Fatalf("%s %q: %v", command.Name, args, reply)
				}
			default:
				if len(reply) != 6 {
					t.Fatalf("%s %q: %v", command.Name, args, reply)
				}
			}
			for _, key := range server.Keys() {
				if strings.HasPrefix(key, "lock:") && server.TTL(key) <= 0 {
					t.Fatalf("%q has no TTL", key)
				}
			}
			conn.Close()
			if reply[1] == "ACQUIRED" {
				server.FlushAll()
			}
		default:
			t.Fatalf("%s %q: %T", command.Name, args, reply)
		}
	})
}
