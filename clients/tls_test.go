package clients

import (
	"context"
	"crypto/tls"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// TestTLS has clients speak TLS to the sidecar, and the sidecar to Redis: what they do
// comes out as on a direct connection with TLS.
func TestTLS(t *testing.T) {
	certificates := redistest.NewCertificates(t)
	// fresh starts a Redis for the comparison, and a sidecar in front of another.
	fresh := func(t *testing.T) (bare, sidecar string) {
		t.Helper()
		server := redistest.Start(t, redistest.Options{TLS: certificates})
		p := sidecartest.Start(t, sidecartest.Settings{Env: []string{
			"SECKILL_ADMIN=", "SECKILL_UPSTREAM=rediss://" + server.Addr, "SECKILL_UPSTREAM_TLS_CA_FILE=" + certificates.CAFile,
			"SECKILL_LISTEN=tls://127.0.0.1:0",
			"SECKILL_LISTEN_TLS_CERT_FILE=" + certificates.CertFile, "SECKILL_LISTEN_TLS_KEY_FILE=" + certificates.KeyFile,
		}})
		return redistest.Start(t, redistest.Options{TLS: certificates}).Addr, p.Addr
	}
	t.Setenv("TLS_CA", certificates.CAFile) // for the scripts
	cli := func(addr, stdin string, args ...string) (string, error) {
		argv := append([]string{"redis-cli", "--tls", "--cacert", certificates.CAFile, "--sni", "localhost", "-p", port(t, addr)}, args...)
		return run(t.Context(), stdin, argv...)
	}

	t.Run("redis-cli", func(t *testing.T) {
		bare, sidecar := fresh(t)
		want, err := cli(bare, session)
		if err != nil {
			t.Fatal(err)
		}
		got, err := cli(sidecar, session)
		if want, got = connectionID.ReplaceAllString(want, "${1}N"), connectionID.ReplaceAllString(got, "${1}N"); got != want || err != nil {
			t.Errorf("through the sidecar (%v):\n%s\nwithout it:\n%s", err, got, want)
		}
		if output, err := run(t.Context(), "", "redis-cli", "-p", port(t, sidecar), "PING"); err == nil && strings.Contains(output, "PONG") {
			t.Errorf("without TLS: %q", output)
		}
	})
	for _, script := range [][]string{{"php/phpredis.php", "connect"}, {"php/phpredis.php", "pconnect"}, {"php/predis.php"}} {
		t.Run(strings.Join(script, " "), func(t *testing.T) {
			argv := func(addr string, more ...string) []string {
				return append(append(append([]string{"php"}, script...), "127.0.0.1", port(t, addr)), more...)
			}
			bare, sidecar := fresh(t)
			want, err := run(t.Context(), "", argv(bare, "alone")...)
			if err != nil {
				t.Fatalf("without the sidecar: %v", err)
			}
			if _, err := cli(sidecar, "", "SECKILL.CREATE", "shared", "10"); err != nil {
				t.Fatal(err)
			}
			output, err := run(t.Context(), "", argv(sidecar, "worker", "custom")...)
			if got, _, _ := strings.Cut(output, "custom commands\n"); got != want || err != nil {
				t.Errorf("through the sidecar (%v):\n%s\nwithout it:\n%s", err, got, want)
			}
		})
	}
	t.Run("go-redis", func(t *testing.T) {
		_, sidecar := fresh(t)
		for _, protocol := range []int{2, 3} {
			c := client(t, sidecar, protocol, func(o *redis.Options) { o.TLSConfig = certificates.Client() })
			pipelines(t, c)
			transactions(t, c)
			receives(t, c)
			blocks(t, c)
		}
		untrusting := client(t, sidecar, 2, func(o *redis.Options) {
			o.TLSConfig = &tls.Config{ServerName: "localhost", MinVersion: tls.VersionTLS12}
		})
		if err := untrusting.Ping(context.WithoutCancel(t.Context())).Err(); err == nil {
			t.Error("a client that doesn't know the authority trusts the sidecar")
		}
	})
}
