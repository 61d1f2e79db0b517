package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// file writes a configuration file and returns its name.
func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestPrecedence sets a key in all places, and takes them away one after the
// other.
func TestPrecedence(t *testing.T) {
	config := file(t, "admin:\n  listen: \"127.0.0.1:3\"\n")
	for _, test := range []struct {
		name string
		settings
		want string
	}{
		{"flag", settings{Args: []string{"-config", config, "-admin", "127.0.0.1:1"}, Env: []string{"SECKILL_ADMIN=127.0.0.1:2"}}, "127.0.0.1:1"},
		{"environment", settings{Args: []string{"-config", config}, Env: []string{"SECKILL_ADMIN=127.0.0.1:2"}}, "127.0.0.1:2"},
		{"file", settings{Args: []string{"-config", config}}, "127.0.0.1:3"},
		{"file named in the environment", settings{Env: []string{"SECKILL_CONFIG=" + config}}, "127.0.0.1:3"},
		{"default", settings{}, "127.0.0.1:9380"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.Args = append(test.Args, "-check")
			p := sidecartest.Run(t, test.settings)
			if code := p.ExitCode(); code != 0 {
				t.Errorf("exit code %d:\n%s", code, p.Log)
			}
			if want := `admin.listen: "` + test.want + `"`; !strings.Contains(p.Log.String(), want) {
				t.Errorf("no %s in:\n%s", want, p.Log)
			}
		})
	}
}

// TestConfigurationReachesItsPlace sets a key of the sales by environment and
// looks for it in Redis.
func TestConfigurationReachesItsPlace(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	config := file(t, "lock:\n  prefix: \"mutex:\"\n")
	proxy := start(t, settings{
		Args: []string{"-config", config},
		Env:  []string{"SECKILL_UPSTREAM=redis://" + server.Addr + "/2", "SECKILL_SECKILL_PREFIX=shop:"},
	})
	c := proxy.client(2)
	want(t, 200, "CREATED", c, "SECKILL.CREATE", "iphone", 1)
	want(t, 200, "ACQUIRED", c, "LOCK.ACQUIRE", "report", 60_000, "TOKEN", "me")

	direct := server.Client(t).Conn()
	defer direct.Close()
	if err := direct.Select(t.Context(), 2).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := direct.Exists(t.Context(), "shop:sales", "mutex:report").Result(); n != 2 || err != nil {
		t.Errorf("%d of shop:sales and mutex:report are in database 2, want both (%v)", n, err)
	}
}

// TestWrongConfiguration wants the whole of what the program says: where the
// wrong thing stands, the key, the value and what is allowed.
func TestWrongConfiguration(t *testing.T) {
	wrongFile := file(t, "log:\n  levl: info\nseckill:\n  takeover_ms: 0\n")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := taken.Addr().String()

	for _, test := range []struct {
		name string
		settings
		want string // all that it writes; lines without their "seckill-proxy: "
	}{
		{"flag's value", settings{Args: []string{"-listen", "nope"}},
			`flag -listen: listen: bad value "nope": want host:port or [address]:port, tls://host:port, or unix:///path`},
		{"unknown flag", settings{Args: []string{"-port", "6380"}},
			"command line: flag provided but not defined: -port; allowed are -admin, -check, -config, -health, -listen, -upstream, -version"},
		{"argument", settings{Args: []string{"127.0.0.1:6379"}},
			`command line: unexpected argument "127.0.0.1:6379"; allowed are -admin, -check, -config, -health, -listen, -upstream, -version`},
		{"environment's value", settings{Env: []string{"SECKILL_LOG_LEVEL=loud"}},
			`environment: SECKILL_LOG_LEVEL: log.level: bad value "loud": want one of debug, info, warn, error`},
		{"unknown variable", settings{Env: []string{"SECKILL_LOG_LEVL=info"}},
			"environment: SECKILL_LOG_LEVL: unknown variable; allowed are SECKILL_LOG_FORMAT, SECKILL_LOG_LEVEL"},
		{"file", settings{Args: []string{"-config", wrongFile}},
			wrongFile + ": log.levl: unknown key; allowed are log.format, log.level\n" +
				wrongFile + ": seckill.takeover_ms: bad value 0: want an integer of milliseconds from 1 to 31536000000"},
		{"no such file", settings{Env: []string{"SECKILL_CONFIG=/nowhere/config.yaml"}},
			"configuration file: open /nowhere/config.yaml: no such file or directory"},
		{"password for everybody", settings{Args: []string{"-listen", "0.0.0.0:6380", "-upstream", "redis://shop:geheim@127.0.0.1:6379"}},
			"listen: 0.0.0.0:6380 can be reached from other machines while upstream.url carries a password: " +
				"whoever connects would have that user's rights; allowed are loopback addresses and unix sockets, or any with listen_password"},
		{"password in a wrong URL", settings{Args: []string{"-upstream", "redis://geheim@127.0.0.1:6379"}},
			`flag -upstream: upstream.url: bad value "redis://***": a user needs a password: user:password@, or :password@ for Redis's default user`},
		{"TLS without a certificate", settings{Args: []string{"-listen", "tls://127.0.0.1:0"}},
			"listen: tls:// needs listen_tls.cert_file and listen_tls.key_file"},
		{"no such certificate", settings{Args: []string{"-listen", "tls://127.0.0.1:0"}, Env: []string{
			"SECKILL_LISTEN_TLS_CERT_FILE=/nowhere/cert", "SECKILL_LISTEN_TLS_KEY_FILE=/nowhere/key"}},
			"listen_tls.cert_file, listen_tls.key_file: open /nowhere/cert: no such file or directory"},
		{"no such authority", settings{Args: []string{"-upstream", "rediss://127.0.0.1:1"}, Env: []string{"SECKILL_UPSTREAM_TLS_CA_FILE=/nowhere/ca"}},
			"upstream.tls_ca_file: open /nowhere/ca: no such file or directory"},
		{"an authority that is none", settings{Args: []string{"-upstream", "rediss://127.0.0.1:1"}, Env: []string{"SECKILL_UPSTREAM_TLS_CA_FILE=" + wrongFile}},
			"upstream.tls_ca_file: " + wrongFile + ": no certificate in it; want PEM"},
		{"port taken", settings{Args: []string{"-listen", busy}},
			"listen: listen tcp " + busy + ": bind: address already in use"},
		{"admin's port taken", settings{Args: []string{"-listen", "127.0.0.1:0", "-admin", busy}},
			"admin.listen: listen tcp " + busy + ": bind: address already in use"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := sidecartest.Run(t, test.settings)
			if code := p.ExitCode(); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			var want strings.Builder
			for line := range strings.Lines(test.want) {
				want.WriteString("seckill-proxy: " + strings.TrimSpace(line) + "\n")
			}
			if p.Log.String() != want.String() {
				t.Errorf("it wrote:\n%swant:\n%s", p.Log, want.String())
			}
		})
	}
}

// TestCheck reads everything, tries the upstream, reports and ends.
func TestCheck(t *testing.T) {
	server := redistest.Start(t, redistest.Options{Args: []string{"--requirepass", "geheim"}})
	nobody := sidecartest.FreeAddress(t)
	for _, test := range []struct {
		name, upstream string
		code           int
		want           string // in what it writes
	}{
		{"right password", "redis://:geheim@" + server.Addr, 0, "\nupstream: ok: " + server.Addr + " answers\n"},
		{"none, clients bring their own", server.Addr, 0, "\nupstream: ok: " + server.Addr + " answers, and wants clients to authenticate\n"},
		{"embedded", "embedded", 0, "\nupstream: ok: the embedded store answers\n"},
		{"wrong password", "redis://:falsch@" + server.Addr, 1,
			"\nseckill-proxy: upstream: " + down + server.Addr + ": WRONGPASS"},
		{"no such database", "redis://:geheim@" + server.Addr + "/99", 1,
			"\nseckill-proxy: upstream: " + down + server.Addr + ": ERR DB index is out of range"},
		{"nobody there", nobody, 1, "\nseckill-proxy: upstream: " + down + nobody + ": dial tcp"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := sidecartest.Run(t, settings{Args: []string{"-check", "-upstream", test.upstream}})
			if code := p.ExitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, text := range []string{"configuration: ok\nlisten: ", test.want} {
				if !strings.Contains(p.Log.String(), text) {
					t.Errorf("no %q in:\n%s", text, p.Log)
				}
			}
			if strings.Contains(p.Log.String(), "geheim") || strings.Contains(p.Log.String(), "falsch") {
				t.Errorf("it shows the password:\n%s", p.Log)
			}
		})
	}
}

// TestCheckFindsWhatCannotWork points URLs at servers of another kind than they say,
// and at ports with and without TLS.
func TestCheckFindsWhatCannotWork(t *testing.T) {
	t.Parallel()
	alone := redistest.Start(t, redistest.Options{})
	secured := redistest.Start(t, redistest.Options{TLS: redistest.NewCertificates(t)})
	replica := redistest.Start(t, redistest.Options{Args: []string{"--replicaof", "127.0.0.1", "1", "--unixsocket", "redis.sock"}})
	node := redistest.Start(t, redistest.Options{Args: []string{"--cluster-enabled", "yes"}})
	if err := node.Client(t).ClusterAddSlots(t.Context(), 0).Err(); err != nil {
		t.Fatal(err)
	}
	barred := redistest.Start(t, redistest.Options{Args: []string{"--cluster-enabled", "yes", "--requirepass", "geheim"}})
	nobody := sidecartest.FreeAddress(t)

	const program = "\nseckill-proxy: "
	for _, test := range []struct {
		name, upstream, locks string
		code                  int
		says                  []string
	}{
		{"node of a cluster", node.Addr, "", 1, []string{program + "upstream: " + node.Addr + " is a node of a cluster: want redis+cluster://" + node.Addr + "\n"}},
		{"replica", "redis://" + replica.Addr, "", 1, []string{program + "upstream: " + replica.Addr + " is a replica, which refuses writes: want its master\n"}},
		{"replica at a socket", "unix://" + replica.Dir + "/redis.sock", "", 1, []string{"/redis.sock is a replica, which refuses writes"}},
		{"TLS", secured.Addr, "", 1, []string{down + secured.Addr + ": ", "does the port want TLS? want rediss in place of redis"}},
		{"no TLS", "rediss://" + alone.Addr, "", 1, []string{down + alone.Addr + ": TLS: ", "does the port speak TLS? want redis in place of rediss"}},
		{"no cluster", "redis+cluster://" + alone.Addr + "," + node.Addr, "", 1, []string{
			program + "seed: " + alone.Addr + " is no node of a cluster: its mode is standalone\n", "\nseed: " + node.Addr + " answers\n", "\nmaster: " + node.Addr + " answers; its first slot is 0\n"}},
		{"nothing but no cluster", "redis+cluster://" + alone.Addr, "", 1, []string{" is no node of a cluster", program + "cluster: no seed answers as a node of a cluster\n"}},
		{"slots", "redis+cluster://" + nobody + ", " + node.Addr, "", 1, []string{
			"\nseed: " + down + nobody + ": dial tcp ", "(no failure: one that answers is enough)\n", program + "cluster: 16383 slots aren't served, the first is 1\n"}},
		{"no seed", "redis+cluster://" + nobody, "", 1, []string{"\nseed: " + down + nobody, program + "cluster: no seed answers"}},
		{"cluster, clients bring a password", "redis+cluster://" + barred.Addr, "", 0, []string{
			"\nseed: " + barred.Addr + " answers, and wants clients to authenticate\n", "\ncluster: its masters aren't known without the credentials", "\nupstream: ok: "}},
		{"no sentinel", "redis+sentinel://" + alone.Addr + "/main", "", 1, []string{
			"\nsentinel: " + alone.Addr + " is no sentinel: ERR unknown command", "no sentinel names it: " + alone.Addr + " is no sentinel: "}},
		{"lock nodes", "embedded", alone.Addr + "," + nobody + "," + replica.Addr, 1, []string{
			"\nupstream: ok: ", "\nlock.nodes: " + alone.Addr + " answers\n", "\nlock.nodes: " + down + nobody,
			program + "lock.nodes: " + replica.Addr + " is a replica", program + "lock.nodes: 1 of 3 can be used, more than half are needed\n"}},
		{"lock nodes that bar", "embedded", alone.Addr + "," + barred.Addr + "," + nobody, 1, []string{
			program + "lock.nodes: " + barred.Addr + " answers, and wants clients to authenticate: want their password in its URL\n"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := sidecartest.Run(t, settings{Args: []string{"-check", "-upstream", test.upstream}, Env: []string{"SECKILL_LOCK_NODES=" + test.locks}})
			if code := p.ExitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, text := range test.says {
				if !strings.Contains(p.Log.String(), text) {
					t.Errorf("no %q in:\n%s", text, p.Log)
				}
			}
		})
	}
}

// TestWarnings has the log say what clients would wonder at: once Redis can be asked,
// that it is a replica, and that a listener lets anybody in.
func TestWarnings(t *testing.T) {
	t.Parallel()
	replica := redistest.Start(t, redistest.Options{Args: []string{"--replicaof", "127.0.0.1", "1"}})
	replica.Kill()
	const open = "LOCALHOST:0" // a name could be anything; this one is 127.0.0.1, so the test opens nothing
	proxy := start(t, settings{Args: []string{"-upstream", replica.Addr}, Env: []string{"SECKILL_LISTEN=127.0.0.1:0," + open}})
	proxy.Await("Redis can't be asked yet")
	replica.Restart()
	proxy.Await(replica.Addr + " is a replica, which refuses writes")
	for _, text := range []string{"can't be asked yet", "is a replica", "whoever reaches this listener"} {
		if n := strings.Count(proxy.Log.String(), text); n != 1 {
			t.Errorf("the log says %d times that %s:\n%s", n, text, proxy.Log)
		}
	}
	if !strings.Contains(proxy.Log.Find("whoever reaches this listener"), open) {
		t.Errorf("it doesn't name the listener %s:\n%s", open, proxy.Log)
	}

	strange := start(t, settings{Args: []string{"-upstream", "redis+cluster://" + redistest.Start(t, redistest.Options{}).Addr}})
	strange.Await("is no node of a cluster: ERR This instance has cluster support disabled")
}

// TestVersionAndHealth runs the flags that only ask.
func TestVersionAndHealth(t *testing.T) {
	version := sidecartest.Run(t, settings{Args: []string{"-version"}})
	if code, text := version.ExitCode(), version.Log.String(); code != 0 || text != "seckill-proxy "+builtVersion+"\n" {
		t.Errorf("-version: exit code %d, output %q", code, text)
	}

	proxy := start(t, settings{})
	healthy := sidecartest.Run(t, settings{Args: []string{"-health", "-admin", proxy.Admin}})
	if code := healthy.ExitCode(); code != 0 || healthy.Log.String() != "" {
		t.Errorf("-health of a running sidecar: exit code %d, output %q", code, healthy.Log)
	}
	proxy.Kill()
	gone := sidecartest.Run(t, settings{Args: []string{"-health", "-admin", proxy.Admin}})
	if code := gone.ExitCode(); code != 1 || !strings.Contains(gone.Log.String(), "connection refused") {
		t.Errorf("-health of a killed sidecar: exit code %d, output %q", code, gone.Log)
	}
}
