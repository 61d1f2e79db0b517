package e2e

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// overTLS makes a client one with TLS.
func overTLS(config *tls.Config) func(*redis.Options) {
	return func(o *redis.Options) { o.TLSConfig = config }
}

// install copies files to where a program reads them, by renaming, as tools that
// renew certificates do.
func install(t testing.TB, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", content, 0o600)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTLS has TLS on both sides: certificates that each side demands of the other, and
// that are replaced while the sidecar runs.
func TestTLS(t *testing.T) {
	t.Parallel()
	old, renewed := redistest.NewCertificates(t), redistest.NewCertificates(t)
	server := redistest.Start(t, redistest.Options{TLS: renewed, Args: []string{"--tls-auth-clients", "yes"}})
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	install(t, old.CertFile, file("cert"))
	install(t, old.KeyFile, file("key"))
	install(t, old.CAFile, file("client_ca"))
	install(t, old.ClientCertFile, file("own_cert"))
	install(t, old.ClientKeyFile, file("own_key"))
	configured := settings{Args: []string{"-listen", "tls://127.0.0.1:0", "-upstream", "rediss://" + server.Addr}, Env: []string{
		"SECKILL_LISTEN_TLS_CERT_FILE=" + file("cert"), "SECKILL_LISTEN_TLS_KEY_FILE=" + file("key"), "SECKILL_LISTEN_TLS_CLIENT_CA_FILE=" + file("client_ca"),
		"SECKILL_UPSTREAM_TLS_CA_FILE=" + renewed.CAFile, "SECKILL_UPSTREAM_TLS_SERVER_NAME=localhost",
		"SECKILL_UPSTREAM_TLS_CERT_FILE=" + file("own_cert"), "SECKILL_UPSTREAM_TLS_KEY_FILE=" + file("own_key"),
	}}
	proxy := start(t, configured)

	// Redis doesn't know the authority of the sidecar's certificate.
	early := proxy.client(2, overTLS(old.Client()))
	if err := early.Get(t.Context(), "k").Err(); err == nil {
		t.Error("Redis lets in whose certificate it can't know")
	}
	check := sidecartest.Run(t, settings{Args: append([]string{"-check"}, configured.Args...), Env: configured.Env})
	if code := check.ExitCode(); code != 1 || !strings.Contains(check.Log.String(), "upstream: "+down+server.Addr+": TLS: ") {
		t.Errorf("-check: exit code %d, output:\n%s", code, check.Log)
	}
	install(t, renewed.ClientCertFile, file("own_cert"))
	install(t, renewed.ClientKeyFile, file("own_key"))
	eventually(t, "the sidecar's renewed certificate is used", func() bool { return early.Set(t.Context(), "k", "v", 0).Err() == nil })
	want(t, 200, "CREATED", early, "SECKILL.CREATE", "iphone", 1)

	anonymous := old.Client()
	anonymous.Certificates = nil
	for name, config := range map[string]*tls.Config{"none": anonymous, "another authority's": renewedButTrusting(old, renewed)} {
		if err := proxy.client(2, overTLS(config)).Ping(t.Context()).Err(); err == nil {
			t.Errorf("a client whose certificate is %s is let in", name)
		}
	}

	// Half of the change is no certificate: what was there before still holds.
	install(t, renewed.CertFile, file("cert"))
	const noGood = "files have changed and are no good"
	eventually(t, "the half change is noticed", func() bool { // by who shakes hands
		if err := proxy.client(2, overTLS(old.Client())).Ping(t.Context()).Err(); err != nil {
			t.Fatalf("with a certificate and another's key: %v", err)
		}
		return proxy.Log.Find(noGood) != ""
	})
	install(t, renewed.KeyFile, file("key"))
	install(t, renewed.CAFile, file("client_ca"))
	eventually(t, "the listener's renewed files are used", func() bool {
		return proxy.client(2, overTLS(renewed.Client())).Get(t.Context(), "k").Val() == "v"
	})
	if err := proxy.client(2, overTLS(old.Client())).Ping(t.Context()).Err(); err == nil {
		t.Error("a client of the old authority is let in")
	}
	if n := strings.Count(proxy.Log.String(), noGood); n > 3 { // one for each file at the most
		t.Errorf("the log tells %d times of files that are no good:\n%s", n, proxy.Log)
	}
	want(t, 200, "RESERVED", early, "SECKILL.BUY", "iphone", "alice") // its connection goes on
}

// renewedButTrusting is a client of one authority that trusts another.
func renewedButTrusting(trusted, own *redistest.Certificates) *tls.Config {
	config := own.Client()
	config.RootCAs = trusted.Client().RootCAs
	return config
}

// TestManyBytesOverTLS sends large values, long pipelines and messages over TLS on both
// sides, next to clients without TLS on another port.
func TestManyBytesOverTLS(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t)
	server := redistest.Start(t, redistest.Options{TLS: certificates})
	proxy := start(t, settings{Args: []string{"-listen", "tls://127.0.0.1:0,127.0.0.1:0", "-upstream", "rediss://" + server.Addr}, Env: []string{
		"SECKILL_LISTEN_TLS_CERT_FILE=" + certificates.CertFile, "SECKILL_LISTEN_TLS_KEY_FILE=" + certificates.KeyFile,
		"SECKILL_UPSTREAM_TLS_CA_FILE=" + certificates.CAFile,
	}})
	c := proxy.client(3, overTLS(certificates.Client()))
	big := strings.Repeat("0123456789abcdef", 10<<20/16)
	if err := c.Set(t.Context(), "big", big, 0).Err(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := c.Get(t.Context(), "big").Result(); got != big || err != nil {
			t.Fatalf("%d bytes came back, want %d (%v)", len(got), len(big), err)
		}
	}
	messages := c.Subscribe(t.Context(), "news")
	defer messages.Close()
	if _, err := messages.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	const n = 5000
	replies, err := c.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			pipe.Echo(t.Context(), i)
			if i%100 == 0 {
				pipe.Publish(t.Context(), "news", i)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	echoed := 0
	for _, reply := range replies {
		if echo, ok := reply.(*redis.StringCmd); ok {
			if echo.Val() != fmt.Sprint(echoed) {
				t.Fatalf("ECHO %d: %q", echoed, echo.Val())
			}
			echoed++
		}
	}
	for i := 0; i < n; i += 100 {
		if message, err := messages.ReceiveMessage(t.Context()); err != nil || message.Payload != fmt.Sprint(i) {
			t.Fatalf("message %d: %v, %v", i, message, err)
		}
	}
}
