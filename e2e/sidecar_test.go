package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"seckill-proxy/internal/sidecartest"
)

// hangs is how long a broken program may hang.
const hangs = sidecartest.Hangs

// down begins what the program says, in several places, when Redis is not to be had.
const down = "no connection to Redis at "

// sidecar is a running seckill-proxy.
type sidecar struct {
	*sidecartest.Process
	t testing.TB
}

// settings of a sidecar. The zero value listens on free ports of 127.0.0.1, in
// front of the embedded store.
type settings = sidecartest.Settings

// start starts the program and returns when it is ready.
func start(t testing.TB, s settings) *sidecar {
	t.Helper()
	return &sidecar{sidecartest.Start(t, s), t}
}

// client returns a client of the sidecar that sends nothing twice and nothing of
// its own accord.
func (p *sidecar) client(protocol int, changes ...func(*redis.Options)) *redis.Client {
	network := "tcp"
	if strings.HasPrefix(p.Addr, "/") {
		network = "unix"
	}
	options := &redis.Options{
		Network:                  network,
		Addr:                     p.Addr,
		Protocol:                 protocol,
		MaxRetries:               -1,
		DialerRetries:            1,
		DisableIdentity:          true,
		ReadTimeout:              hangs,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, change := range changes {
		change(options)
	}
	c := redis.NewClient(options)
	p.t.Cleanup(func() { c.Close() })
	return c
}

// get asks the admin side and returns status and body.
func (p *sidecar) get(path string) (int, string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), hangs)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Admin+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// do executes a custom command and returns its array.
func do(t testing.TB, c *redis.Client, args ...any) []any {
	t.Helper()
	reply, err := c.Do(t.Context(), args...).Slice()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// want executes a custom command and returns its array, which must start with
// code and word.
func want(t testing.TB, code int64, word string, c *redis.Client, args ...any) []any {
	t.Helper()
	reply := do(t, c, args...)
	if reply[0] != code || reply[1] != word {
		t.Fatalf("%v: got %v, want %d %s", args, reply, code, word)
	}
	return reply
}

// fields returns the map in the reply of SECKILL.INFO and SECKILL.AUDIT as text,
// whichever protocol brought it.
func fields(t testing.TB, reply []any) map[string]string {
	t.Helper()
	named := map[string]string{}
	switch m := reply[2].(type) {
	case []any:
		for i := 0; i+1 < len(m); i += 2 {
			named[fmt.Sprint(m[i])] = fmt.Sprint(m[i+1])
		}
	case map[any]any:
		for name, value := range m {
			named[fmt.Sprint(name)] = fmt.Sprint(value)
		}
	default:
		t.Fatalf("no map in %v", reply)
	}
	return named
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(hangs); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not so after %s", what, hangs)
		}
	}
}
