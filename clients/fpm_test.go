package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"seckill-proxy/internal/redistest"
)

// fpmWorkers is how many PHP-FPM workers the tests have, each with a persistent
// connection.
const fpmWorkers = 50

// TestFPM has every worker serve a request at the same time. In front of Redis
// each worker keeps a connection; the sidecar does with few.
func TestFPM(t *testing.T) {
	t.Run("direct", func(t *testing.T) {
		server := redistest.Start(t, redistest.Options{})
		direct := server.Client(t)
		shop := startFPM(t)
		shop.visit(server.Addr, "")
		clients, err := direct.ClientList(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(clients, "\n") - 1; n != fpmWorkers {
			t.Errorf("%d connections of %d workers: they don't keep them, so this tests nothing", n, fpmWorkers)
		}
	})
	t.Run("sidecar", func(t *testing.T) {
		p := start(t)
		p.create("iphone", fpmWorkers/2)
		shop := startFPM(t)
		words := shop.visit(p.addr, "&custom")
		if words["RESERVED RELEASED"] != fpmWorkers/2 || words["SOLD_OUT RELEASED"] != fpmWorkers/2 {
			t.Errorf("of %d units, the workers were told %v", fpmWorkers/2, words)
		}
		p.audit("iphone")
		// Once more, with the connections that the workers have kept.
		words = shop.visit(p.addr, "&custom")
		if words["REPLAYED RELEASED"] != fpmWorkers/2 || words["SOLD_OUT RELEASED"] != fpmWorkers/2 {
			t.Errorf("asked again, the workers were told %v", words)
		}
		if n := p.upstreams(); n > upstreamsMax {
			t.Errorf("%d connections to Redis for %d workers, want at most %d", n, fpmWorkers, upstreamsMax)
		}
		if hits := p.direct.Get(t.Context(), "hits").Val(); hits != fmt.Sprint(2*fpmWorkers) {
			t.Errorf("%s hits, want %d", hits, 2*fpmWorkers)
		}
	})
}

// fpm is a running PHP-FPM.
type fpm struct {
	t      testing.TB
	socket string
	page   string
	rounds int
}

func startFPM(t testing.TB) *fpm {
	t.Helper()
	found, err := filepath.Glob("/usr/sbin/php-fpm*")
	if err != nil || len(found) == 0 {
		t.Fatal("no PHP-FPM: .ci/tools installs it (php-fpm)")
	}
	if _, err := exec.LookPath("cgi-fcgi"); err != nil {
		t.Fatalf("no FastCGI client: .ci/tools installs it (libfcgi-bin): %v", err)
	}
	dir, err := os.MkdirTemp("", "fpm") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	page, err := filepath.Abs("php/fpm.php")
	if err != nil {
		t.Fatal(err)
	}
	f := &fpm{t: t, socket: filepath.Join(dir, "socket"), page: page}
	config := filepath.Join(dir, "fpm.conf")
	log := filepath.Join(dir, "log")
	content := fmt.Sprintf("[global]\nerror_log = %s\ndaemonize = no\n[shop]\nlisten = %s\nlisten.backlog = 128\npm = static\npm.max_children = %d\n",
		log, f.socket, fpmWorkers)
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(found[0], "--fpm-config", config, "--allow-to-run-as-root")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // ends its workers too
		timer := time.AfterFunc(hangs, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		err := cmd.Wait()
		if text, _ := os.ReadFile(log); err != nil || t.Failed() {
			t.Errorf("PHP-FPM's end: %v; its log:\n%s", err, text)
		}
	})
	eventually(t, "PHP-FPM is ready", func() bool {
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), "ready to handle connections")
	})
	return f
}

// visit has every worker serve a request at the same time, and counts what they
// answered.
func (f *fpm) visit(addr, query string) map[string]int {
	f.t.Helper()
	f.rounds++
	answers, workers := make([]string, fpmWorkers), map[string]bool{}
	err := together(fpmWorkers, func(user int) (err error) {
		answers[user], err = f.request(f.t.Context(),
			fmt.Sprintf("port=%s&user=user-%d&workers=%d&round=%d%s", port(f.t, addr), user, fpmWorkers, f.rounds, query))
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	words := map[string]int{}
	for _, answer := range answers {
		i := strings.LastIndexByte(answer, ' ')
		words[answer[:max(i, 0)]]++
		workers[answer[i+1:]] = true
	}
	if len(workers) != fpmWorkers {
		f.t.Fatalf("%d workers served %d requests: %q", len(workers), fpmWorkers, answers)
	}
	return words
}

// request asks for the page and returns its text.
func (f *fpm) request(ctx context.Context, query string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*hangs)
	defer cancel()
	cmd := exec.CommandContext(ctx, "cgi-fcgi", "-bind", "-connect", f.socket)
	cmd.Env = []string{"REQUEST_METHOD=GET", "SCRIPT_FILENAME=" + f.page, "QUERY_STRING=" + query}
	output, err := cmd.CombinedOutput()
	_, text, found := strings.Cut(string(output), "\r\n\r\n")
	if err != nil || !found {
		return "", fmt.Errorf("FastCGI: %w; it answered %q", err, output)
	}
	return text, nil
}
