package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/commands"
	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

func as(user, password string) func(*redis.Options) {
	return func(o *redis.Options) { o.Username, o.Password = user, password }
}

// TestCustomCommandsWithoutRights has a user of Redis who may do everything, but not
// with the keys of sales and locks, try each of our commands, of a sale and of a lock
// that are there. What other users' commands have made the sidecar remember is none of
// his.
func TestCustomCommandsWithoutRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	proxy := start(t, settings{Args: []string{"-upstream", server.Addr}})
	admin := server.Client(t)
	for _, rules := range [][]any{
		{"ACL", "SETUSER", "shop", "on", ">shop-pw", "&*", "+@all", "~seckill:*", "~lock:*", "~lockmeta:*"},
		{"ACL", "SETUSER", "other", "on", ">other-pw", "&*", "+@all", "~app:*"},
	} {
		if err := admin.Do(t.Context(), rules...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	shop, other := proxy.client(2, as("shop", "shop-pw")), proxy.client(2, as("other", "other-pw"))
	want(t, 200, "CREATED", shop, "SECKILL.CREATE", "iphone", 1)
	token := want(t, 200, "RESERVED", shop, "SECKILL.BUY", "iphone", "alice", "ID", "a")[2]
	want(t, 4001, "SOLD_OUT", shop, "SECKILL.BUY", "iphone", "bob")
	lock := want(t, 200, "ACQUIRED", shop, "LOCK.ACQUIRE", "l", 60_000)[2]

	tries := map[string][]any{
		"SECKILL.CREATE":  {"ipad", 1},
		"SECKILL.BUY":     {"iphone", "bob"},
		"SECKILL.CONFIRM": {token, "order"},
		"SECKILL.CANCEL":  {token},
		"SECKILL.RESULT":  {token},
		"SECKILL.FIND":    {"iphone", "alice"},
		"SECKILL.PULL":    {"iphone", "worker"},
		"SECKILL.RESTOCK": {"iphone", 1},
		"SECKILL.OPEN":    {"iphone"},
		"SECKILL.CLOSE":   {"iphone"},
		"SECKILL.DROP":    {"iphone", "FORCE"},
		"SECKILL.INFO":    {"iphone"},
		"SECKILL.LIST":    {},
		"SECKILL.AUDIT":   {"iphone"},
		"SECKILL.ORDERS":  {"iphone", 0},
		"LOCK.ACQUIRE":    {"m", 60_000},
		"LOCK.MACQUIRE":   {60_000, 1, "m"},
		"LOCK.RENEW":      {"l", lock, 60_000},
		"LOCK.RELEASE":    {"l", lock},
		"LOCK.CHECK":      {"l", lock},
		"LOCK.INFO":       {"l"},
		"LOCK.LIST":       {},
		"LOCK.FORCE":      {"l"},
	}
	for _, row := range commands.NewTable().All() {
		args, known := tries[row.Name]
		if !known {
			t.Errorf("%s isn't tried", row.Name)
		}
		reply, err := other.Do(t.Context(), append([]any{row.Name}, args...)...).Result()
		if err == nil || !strings.HasPrefix(err.Error(), "NOPERM ") {
			t.Errorf("%s %v: got %v, %v; want NOPERM", row.Name, args, reply, err)
		}
	}

	// None of it has done anything.
	want(t, 4002, "LIMIT", shop, "SECKILL.BUY", "iphone", "alice")
	want(t, 200, "PENDING", shop, "SECKILL.RESULT", token)
	want(t, 200, "CLEAN", shop, "SECKILL.AUDIT", "iphone")
	want(t, 200, "HELD", shop, "LOCK.CHECK", "l", lock)
	if keys, err := admin.Keys(t.Context(), "*ipad*").Result(); len(keys) > 0 || err != nil {
		t.Errorf("keys of a sale that nobody may create: %q, %v", keys, err)
	}
}

// TestSecretsAreNowhere looks for passwords in all that the program writes and serves,
// with the log at its most talkative and everything wrong that can be.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	const ofRedis, ofListener, ofClient, wrong = "geheim-redis", "geheim-listener", "geheim-client", "geheim-wrong"
	server := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", ofRedis}})
	environment := []string{
		"SECKILL_LOG_LEVEL=debug", "SECKILL_LISTEN_PASSWORD=" + ofListener, "SECKILL_UPSTREAM_SENTINEL_PASSWORD=" + ofRedis,
	}
	upstream := func(password string) []string {
		return []string{"-upstream", "redis://:" + password + "@" + server.Addr}
	}
	right := start(t, settings{Args: upstream(ofRedis), Env: environment})
	astray := start(t, settings{Args: upstream(wrong), Env: environment})
	direct := start(t, settings{Args: []string{"-upstream", server.Addr}, Env: environment[:1]})

	told := map[string]string{}
	say := func(of string, p *sidecar, changes ...func(*redis.Options)) {
		c := p.client(3, changes...)
		for _, command := range [][]any{
			{"SECKILL.CREATE", "iphone", 10}, {"SECKILL.BUY", "iphone", "alice"}, {"LOCK.ACQUIRE", "l", 1000}, {"GET", "k"}, {"BLPOP", "q", 0.01},
			{"AUTH", wrong}, {"AUTH", ofClient, wrong}, {"HELLO", 3, "AUTH", ofClient, wrong}, {"HELLO", 3, "AUTH", "default", wrong, "NOSUCH"},
		} {
			reply, err := c.Do(t.Context(), command...).Result()
			told[of] += fmt.Sprintln(reply, err)
		}
	}
	say("a client", right, as("", ofListener))
	say("a client with a wrong password", right, as("", wrong))
	say("a client of a sidecar whose password is wrong", astray, as("", ofListener))
	say("a client who authenticates himself", direct, as("", ofRedis))
	say("one who fails to", direct, as(ofClient, wrong))
	if err := right.client(2, as("default", ofListener)).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Errorf("with the right password: %v", err)
	}
	for name, p := range map[string]*sidecar{"right": right, "astray": astray, "direct": direct} {
		for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
			_, told[name+path] = p.get(path)
		}
		p.Stop()
		told["log of "+name] = p.Log.String()
	}
	for _, password := range []string{ofRedis, wrong} {
		check := sidecartest.Run(t, settings{Args: append(upstream(password), "-check"), Env: environment})
		check.ExitCode()
		told["-check"] += check.Log.String()
	}
	// Values that are refused, together with ones that are not.
	refused := sidecartest.Run(t, settings{Args: append(upstream(ofRedis), "-listen", "0.0.0.0:1"), Env: []string{"SECKILL_LOCK_NODES=redis://:" + wrong + "@a:1"}})
	refused.ExitCode()
	told["refused"] = refused.Log.String()

	for place, text := range told {
		if text == "" {
			t.Errorf("%s is empty, so nothing was looked at", place)
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, "geheim-redis") || strings.Contains(line, "geheim-listener") || strings.Contains(line, "geheim-wrong") {
				t.Errorf("%s: %s", place, line)
			}
		}
	}
}

// TestListenPassword has clients of a sidecar that vouches for them: with its password
// they are its own user, without it nobody.
func TestListenPassword(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", "of-redis"}})
	proxy := start(t, settings{
		Args: []string{"-upstream", "redis://:of-redis@" + server.Addr},
		Env:  []string{"SECKILL_LISTEN_PASSWORD=of-sidecar"},
	})
	for name, credentials := range map[string]func(*redis.Options){
		"nobody": as("", ""), "of Redis": as("", "of-redis"), "a user of Redis": as("default", "of-redis"), "another user": as("shop", "of-sidecar"),
	} {
		for _, protocol := range []int{2, 3} {
			c := proxy.client(protocol, credentials)
			for _, command := range [][]any{{"SET", "k", "v"}, {"SECKILL.CREATE", "iphone", 1}, {"LOCK.ACQUIRE", "l", 1000}} {
				if err := c.Do(t.Context(), command...).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOAUTH ") && !strings.HasPrefix(err.Error(), "WRONGPASS ") {
					t.Errorf("%s, RESP%d: %v: %v", name, protocol, command, err)
				}
			}
		}
	}
	for _, user := range []string{"", "default"} {
		for _, protocol := range []int{2, 3} {
			c := proxy.client(protocol, as(user, "of-sidecar"))
			sku := fmt.Sprint("iphone", user, protocol)
			want(t, 200, "CREATED", c, "SECKILL.CREATE", sku, 1)
			want(t, 200, "RESERVED", c, "SECKILL.BUY", sku, "alice")
			if _, err := c.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error { return pipe.Incr(t.Context(), "n").Err() }); err != nil {
				t.Error(err)
			}
		}
	}
}
