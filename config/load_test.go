package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// writeFile writes a configuration file and returns its name.
func writeFile(t testing.TB, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestNothingConfiguredIsTheDefault(t *testing.T) {
	c, flags, err := Load(nil, []string{"HOME=/root", "SECKILLED=no"})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, Default()) || flags != (Flags{}) {
		t.Fatalf("Load = %s, %+v", c, flags)
	}
	if err := c.Validate(); err != nil {
		t.Fatalf("the defaults are refused: %v", err)
	}
	if want := []Address{{Network: "tcp", Address: "127.0.0.1:6380"}}; !reflect.DeepEqual(c.Listen, want) {
		t.Errorf("Listen = %v, want %v", c.Listen, want)
	}
	if !reflect.DeepEqual(c.Upstream, Upstream{Scheme: SchemeEmbedded}) {
		t.Errorf("Upstream = %+v", c.Upstream)
	}
	if c.Control.ScriptTimeout != 3*time.Second || c.Limits.CommandBytesMax != 536870912 {
		t.Errorf("Control = %+v, Limits = %+v", c.Control, c.Limits)
	}
}

func TestFlagBeatsEnvironmentBeatsFileBeatsDefault(t *testing.T) {
	file := "upstream:\n  url: file:1\n"
	environment := "SECKILL_UPSTREAM=environment:1"
	flag := "-upstream=flag:1"
	for _, test := range []struct {
		file, environment, flag string
		want                    string
	}{
		{"", "", "", "embedded"},
		{file, "", "", "redis://file:1"},
		{"", environment, "", "redis://environment:1"},
		{"", "", flag, "redis://flag:1"},
		{file, environment, "", "redis://environment:1"},
		{file, "", flag, "redis://flag:1"},
		{"", environment, flag, "redis://flag:1"},
		{file, environment, flag, "redis://flag:1"},
	} {
		var args, environ []string
		if test.file != "" {
			args = append(args, "-config", writeFile(t, test.file))
		}
		if test.environment != "" {
			environ = append(environ, test.environment)
		}
		if test.flag != "" {
			args = append(args, test.flag)
		}
		c, _, err := Load(args, environ)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Upstream.String(); got != test.want {
			t.Errorf("file %q, environment %q, flag %q: upstream.url = %s, want %s",
				test.file, test.environment, test.flag, got, test.want)
		}
	}
}

func TestConfigFlagBeatsItsVariable(t *testing.T) {
	one, two := writeFile(t, "log: {level: warn}"), writeFile(t, "log: {level: error}")
	environ := []string{"SECKILL_CONFIG=" + one}
	for _, test := range []struct {
		args        []string
		level, file string
	}{
		{nil, "warn", one},
		{[]string{"-config", two}, "error", two},
		{[]string{"-config="}, "info", ""},
	} {
		c, flags, err := Load(test.args, environ)
		if err != nil {
			t.Fatal(err)
		}
		if c.Log.Level != test.level || flags.Config != test.file {
			t.Errorf("%q: level %s from %q, want %s from %q", test.args, c.Log.Level, flags.Config, test.level, test.file)
		}
	}
}

// TestEveryKeyHasItsSources sets each key, to a value that isn't its default,
// by the file, by each of its variables and by its flag.
func TestEveryKeyHasItsSources(t *testing.T) {
	other := func(s setting) string {
		switch initial := s.initial.(type) {
		case int:
			return fmt.Sprint(initial + 1)
		case bool:
			return fmt.Sprint(!initial)
		case string:
			switch s.key {
			case "listen", "admin.listen":
				return "127.0.0.1:7000"
			case "upstream.url":
				return "redis://127.0.0.1:7000/1"
			case "lock.nodes":
				return "127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002"
			case "listen_unix_mode":
				return "0660"
			case "log.level":
				return "debug"
			case "log.format":
				return "json"
			}
			return initial + "x"
		}
		t.Fatalf("%s: a default of type %T", s.key, s.initial)
		return ""
	}
	for _, s := range settings {
		text := other(s)
		// Some keys aren't allowed without others.
		var beside []string
		set := func(c *Config, key, text string) {
			t.Helper()
			row, _ := find(key)
			if err := row.value(c).set(text); err != nil {
				t.Fatal(err)
			}
		}
		base := Default()
		for _, needed := range companions[s.key] {
			key, text, _ := strings.Cut(needed, "=")
			set(&base, key, text)
			beside = append(beside, variable(key)+"="+text)
		}
		want := base
		set(&want, s.key, text)
		if reflect.DeepEqual(want, base) {
			t.Fatalf("%s: setting it to %s changes nothing", s.key, text)
		}
		check := func(source string, args, environ []string) {
			t.Helper()
			got, _, err := Load(args, slices.Concat(environ, beside))
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s by %s: %s, %v; want %s", s.key, source, got, err, want)
			}
		}

		yaml := strings.Replace(s.key, ".", ":\n  ", 1) + ": "
		if _, isNumber := s.initial.(int); isNumber {
			yaml += text
		} else {
			yaml += strconv.Quote(text)
		}
		check("file", []string{"-config", writeFile(t, yaml)}, nil)
		for _, name := range s.variables() {
			check("variable "+name, nil, []string{name + "=" + text})
		}
		if s.flag != "" {
			check("flag", []string{"--" + s.flag, text}, nil)
		}
	}
}

// companions are what must be set for a key to be allowed.
var companions = map[string][]string{
	"listen_tls.cert_file":      {"listen=tls://:7000", "listen_tls.key_file=key"},
	"listen_tls.key_file":       {"listen=tls://:7000", "listen_tls.cert_file=cert"},
	"listen_tls.client_ca_file": {"listen=tls://:7000", "listen_tls.cert_file=cert", "listen_tls.key_file=key"},
	"upstream.tls_ca_file":      {"upstream.url=rediss://r:1"},
	"upstream.tls_cert_file":    {"upstream.url=rediss://r:1", "upstream.tls_key_file=key"},
	"upstream.tls_key_file":     {"upstream.url=rediss+cluster://r:1", "upstream.tls_cert_file=cert"},
	"upstream.tls_server_name":  {"lock.nodes=a:1,b:1,rediss://c:1"},
}

func TestNamesAreUnambiguous(t *testing.T) {
	unitLast := regexp.MustCompile(`[._](ms|bytes_max|max|shards|replicas|percent)$`)
	owner := map[string]string{variable("config"): "-config"}
	for _, s := range settings {
		for _, name := range s.variables() {
			if other, taken := owner[name]; taken {
				t.Errorf("%s stands for %s and for %s", name, other, s.key)
			}
			owner[name] = s.key
			if serviceLink.MatchString(name) {
				t.Errorf("%s is ignored: it looks like a variable of Kubernetes", name)
			}
		}
		if _, isNumber := s.initial.(int); isNumber && !unitLast.MatchString(s.key) {
			t.Errorf("%s: its unit isn't its last word", s.key)
		}
	}
	for _, name := range []string{"SECKILL_LISTEN", "SECKILL_UPSTREAM", "SECKILL_ADMIN", "SECKILL_LOCK_PREFIX", "SECKILL_SECKILL_TAKEOVER_MS"} {
		if owner[name] == "" {
			t.Errorf("%s stands for nothing", name)
		}
	}
}

func TestEmptyAdminIsNone(t *testing.T) {
	c, _, err := Load(nil, []string{"SECKILL_ADMIN="})
	if err != nil || c.Admin.Listen != "" {
		t.Fatalf("admin.listen = %q, %v", c.Admin.Listen, err)
	}
}

func TestVariablesOfKubernetesServicesAreIgnored(t *testing.T) {
	c, _, err := Load(nil, []string{
		"SECKILL_SERVICE_HOST=10.0.0.1", "SECKILL_SERVICE_PORT=6380", "SECKILL_SERVICE_PORT_RESP=6380",
		"SECKILL_PORT=tcp://10.0.0.1:6380", "SECKILL_PORT_6380_TCP=tcp://10.0.0.1:6380",
		"SECKILL_PORT_6380_TCP_PROTO=tcp", "SECKILL_PORT_6380_TCP_PORT=6380", "SECKILL_PORT_6380_TCP_ADDR=10.0.0.1",
		"SECKILL_PROXY_SERVICE_HOST=10.0.0.1", "SECKILL_PROXY_PORT_6380_TCP_ADDR=10.0.0.1",
	})
	if err != nil || !reflect.DeepEqual(c, Default()) {
		t.Fatalf("%s, %v", c, err)
	}
}

func TestListen(t *testing.T) {
	c, _, err := Load([]string{"-listen", "127.0.0.1:0, [::1]:6380,unix:///run/seckill.sock,:7000,tls://:7000"}, []string{
		"SECKILL_LISTEN_TLS_CERT_FILE=cert", "SECKILL_LISTEN_TLS_KEY_FILE=key"})
	want := []Address{{"tcp", "127.0.0.1:0", false}, {"tcp", "[::1]:6380", false}, {"unix", "/run/seckill.sock", false},
		{"tcp", ":7000", false}, {"tcp", ":7000", true}}
	if err != nil || !reflect.DeepEqual(c.Listen, want) {
		t.Fatalf("%v, %v; want %v", c.Listen, err, want)
	}
}

func TestFlagsThatAreNotSettings(t *testing.T) {
	for _, test := range []struct {
		args []string
		want Flags
	}{
		{[]string{"-check"}, Flags{Check: true}},
		{[]string{"--health"}, Flags{Health: true}},
		{[]string{"-h"}, Flags{Help: true}},
		{[]string{"--help"}, Flags{Help: true}},
		{[]string{"-version"}, Flags{Version: true}},
		// What would be refused is not read for these two.
		{[]string{"-version", "-config", "/nowhere"}, Flags{Version: true, Config: "/nowhere"}},
	} {
		if _, got, err := Load(test.args, nil); err != nil || got != test.want {
			t.Errorf("%q: %+v, %v; want %+v", test.args, got, err, test.want)
		}
	}
	if _, _, err := Load([]string{"-help"}, []string{"SECKILL_NONSENSE=1"}); err != nil {
		t.Errorf("-help with a wrong environment: %v", err)
	}
}

func TestUsageNamesEverything(t *testing.T) {
	usage := Usage()
	for _, s := range settings {
		names := append([]string{s.key, s.why, s.written()}, s.variables()...)
		if s.flag != "" {
			names = append(names, "-"+s.flag)
		}
		for _, name := range names {
			if !strings.Contains(usage, name) {
				t.Errorf("-h doesn't mention %q", name)
			}
		}
	}
	for _, name := range []string{"-config", "SECKILL_CONFIG", "-check", "-health", "-version", "-h"} {
		if !strings.Contains(usage, name) {
			t.Errorf("-h doesn't mention %s", name)
		}
	}
}

// TestWrongConfigurationIsExplained gives one wrong thing at a time and wants
// to be told where it stands, what it is and what is allowed.
func TestWrongConfigurationIsExplained(t *testing.T) {
	for _, test := range []struct {
		file string
		env  string
		args string
		want []string
	}{
		// Names.
		{file: "lock:\n  prefx: a\n", want: []string{"test.yaml: lock.prefx: unknown key; allowed are lock."}},
		{file: "lok:\n  prefix: a\n", want: []string{"test.yaml: lok.prefix: unknown key", "admin.listen", "upstream.url"}},
		{file: "lock: a\n", want: []string{"test.yaml: lock: unknown key", "lock.prefix"}},
		{file: "lock.prefix: a\n", want: []string{"test.yaml: lock.prefix: want a section"}},
		{file: "listen:\n  port: 1\n", want: []string{"test.yaml: listen.port: unknown key"}},
		{file: "1: {2: 3}\n", want: []string{"test.yaml: 1.2: unknown key"}},
		{env: "SECKILL_LOCK_PREFX=a", want: []string{"environment: SECKILL_LOCK_PREFX: unknown variable; allowed are SECKILL_LOCK_"}},
		{env: "SECKILL_NONSENSE=a", want: []string{"environment: SECKILL_NONSENSE: unknown variable", "SECKILL_CONFIG", "SECKILL_LISTEN"}},
		{env: "SECKILL_ADMIN=:1 SECKILL_ADMIN_LISTEN=:2", want: []string{"environment: SECKILL_ADMIN and SECKILL_ADMIN_LISTEN both set admin.listen"}},
		{args: "-nonsense 1", want: []string{"command line: ", "-nonsense", "allowed are -admin, -check, -config, -health, -listen, -upstream, -version"}},
		{args: "-listen", want: []string{"command line: flag needs an argument: -listen"}},
		{args: "-check=perhaps", want: []string{"command line: ", `"perhaps"`, "-check"}},
		{args: "serve", want: []string{`command line: unexpected argument "serve"`}},

		// Files.
		{file: "log:\n  level: info\n format: json\n", want: []string{"test.yaml: yaml: line 2: "}},
		{file: "log:\n  level: info\nlog:\n  level: warn\n", want: []string{"test.yaml: ", "line 3", `"log" already defined at line 1`}},
		{file: "- a\n", want: []string{"test.yaml: ", "line 1"}},
		{args: "-config /nowhere/seckill.yaml", want: []string{"configuration file: ", "/nowhere/seckill.yaml", "no such file"}},

		// Numbers.
		{file: "limits: {clients_max: 0}", want: []string{"test.yaml: limits.clients_max: bad value 0: want an integer from 1 to 1000000"}},
		{file: "limits: {clients_max: 1.5}", want: []string{"limits.clients_max: bad value 1.5: want an integer"}},
		{file: "limits: {clients_max: 99999999999999999999}", want: []string{"limits.clients_max: bad value ", "want an integer"}},
		{file: "limits: {clients_max: many}", want: []string{`limits.clients_max: bad value "many": want an integer`}},
		{file: "limits: {clients_max: }", want: []string{"limits.clients_max: bad value", "want an integer"}},
		{file: "cluster: {split_mset: yes}", want: []string{`cluster.split_mset: bad value "yes": want true or false`}},
		{env: "SECKILL_CLUSTER_SPLIT_MSET=1", want: []string{`cluster.split_mset: bad value "1": want true or false`}},
		{env: "SECKILL_LOCK_TTL_MAX_MS=1s", want: []string{`environment: SECKILL_LOCK_TTL_MAX_MS: lock.ttl_max_ms: bad value "1s": want an integer of milliseconds from 1 to 31536000000`}},
		{env: "SECKILL_LOCK_TTL_MAX_MS=", want: []string{`lock.ttl_max_ms: bad value "": want an integer of milliseconds`}},
		{env: "SECKILL_CLIENT_IDLE_TIMEOUT_MS=-1", want: []string{`client.idle_timeout_ms: bad value "-1"`, "from 0 to"}},

		// Strings.
		{file: "seckill: {prefix: 007}", want: []string{"seckill.prefix: bad value 7: want a string", "quotes"}},
		{file: "seckill: {prefix: true}", want: []string{"seckill.prefix: bad value true: want a string"}},
		{file: "seckill: {prefix: [a]}", want: []string{"seckill.prefix: bad value [a]: want a string"}},
		{file: "seckill: {prefix: }", want: []string{"seckill.prefix: bad value <nil>: want a string"}},
		{env: "SECKILL_SECKILL_PREFIX=", want: []string{`seckill.prefix: bad value "": want 1 to 64 bytes without braces`}},
		{env: "SECKILL_SECKILL_PREFIX={a}:", want: []string{`seckill.prefix: bad value "{a}:": want 1 to 64 bytes without braces`}},
		{env: "SECKILL_LOCK_PREFIX=" + strings.Repeat("a", 65), want: []string{"lock.prefix: bad value", "want 0 to 64 bytes"}},
		{env: "SECKILL_LOG_LEVEL=INFO", want: []string{`log.level: bad value "INFO": want one of debug, info, warn, error`}},
		{env: "SECKILL_LOG_FORMAT=xml", want: []string{`log.format: bad value "xml": want one of console, json`}},

		// Addresses.
		{args: "-listen 6380", want: []string{`flag -listen: listen: bad value "6380": want host:port`}},
		{args: "-listen=", want: []string{"flag -listen: listen: bad value", "want host:port"}},
		{args: "-listen :1,", want: []string{`listen: bad value ":1,": want host:port`}},
		{args: "-listen :1,:1", want: []string{`listen: bad value ":1,:1": :1 is there twice`}},
		{args: "-listen :65536", want: []string{`listen: bad value ":65536": want host:port with a port from 0 to 65535`}},
		{args: "-listen unix://run/s", want: []string{"want an absolute path of at most 107 bytes after unix://"}},
		{args: "-listen unix:///" + strings.Repeat("a", 107), want: []string{"want an absolute path of at most 107 bytes"}},
		{args: "-admin 9380", want: []string{`flag -admin: admin.listen: bad value "9380": want host:port`}},
		{args: "-admin unix:///run/s", want: []string{"admin.listen: bad value", "want host:port"}},

		{args: "-listen tls://", want: []string{`listen: bad value "tls://": want host:port or [address]:port, tls://host:port, or unix:///path`}},
		{args: "-listen tls:///run/s", want: []string{"listen: bad value"}},
		{env: "SECKILL_LISTEN_UNIX_MODE=888", want: []string{`listen_unix_mode: bad value "888": want permissions in octal, such as "0770"`}},
		{env: "SECKILL_LISTEN_UNIX_MODE=4777", want: []string{"listen_unix_mode: bad value"}},
		{env: "SECKILL_LISTEN_UNIX_MODE=0", want: []string{"listen_unix_mode: bad value"}},
		{file: "listen_unix_mode: 0770", want: []string{"listen_unix_mode: bad value 504: want a string", "quotes"}},
		{file: "listen_password: 4711", want: []string{"listen_password: bad value ***: want a string"}},

		// Several keys at once.
		{args: "-listen tls://:1", want: []string{"listen: tls:// needs listen_tls.cert_file and listen_tls.key_file"}},
		{args: "-listen tls://:1", env: "SECKILL_LISTEN_TLS_CERT_FILE=a", want: []string{"listen: tls:// needs listen_tls.cert_file and listen_tls.key_file"}},
		{env: "SECKILL_LISTEN_TLS_CLIENT_CA_FILE=a", want: []string{"listen_tls.*: want tls:// in listen, or none of these files"}},
		{env: "SECKILL_UPSTREAM_TLS_CERT_FILE=a SECKILL_UPSTREAM=rediss://r:1", want: []string{"upstream.tls_cert_file, upstream.tls_key_file: want both or neither"}},
		{env: "SECKILL_UPSTREAM_TLS_CA_FILE=a SECKILL_UPSTREAM=redis://r:1", want: []string{"upstream.tls_*: want rediss:// in upstream.url or lock.nodes"}},
		{env: "SECKILL_UPSTREAM_BACKOFF_MIN_MS=3000", want: []string{"upstream.backoff_max_ms: 2000 is less than upstream.backoff_min_ms, 3000"}},
		{env: "SECKILL_LOCK_PREFIX=lockmeta:x", want: []string{`lock.companion_prefix: "lockmeta:" and lock.prefix "lockmeta:x": neither may be the start of the other`}},
		{env: "SECKILL_LOCK_PREFIX=lock", want: []string{`lock.companion_prefix: "lockmeta:" and lock.prefix "lock"`}},
		{env: "SECKILL_UPSTREAM=redis://:pw@r:1 SECKILL_LISTEN=127.0.0.1:1,:2", want: []string{"listen: :2 can be reached from other machines", "upstream.url", "listen_password"}},
		{env: "SECKILL_UPSTREAM=redis://:pw@r:1 SECKILL_LISTEN=example.com:1", want: []string{"listen: example.com:1 can be reached"}},
	} {
		args := strings.Fields(test.args)
		if test.file != "" {
			args = append(args, "-config", writeFile(t, test.file))
		}
		_, _, err := Load(args, strings.Fields(test.env))
		if err == nil {
			t.Errorf("%+v: accepted", test)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("file %q, environment %q, args %q:\n got %v\nwant %s", test.file, test.env, test.args, err, want)
			}
		}
	}
}

func TestEverythingWrongIsToldAtOnce(t *testing.T) {
	file := writeFile(t, "log: {level: loud}\nnonsense: 1\n")
	_, _, err := Load([]string{"-config", file, "-listen", "x"}, []string{"SECKILL_LOG_FORMAT=xml", "SECKILL_NONSENSE=1"})
	if err == nil {
		t.Fatal("accepted")
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 5 {
		t.Fatalf("%d lines, want 5:\n%v", len(lines), err)
	}
}

func TestWhatLooksWrongAndIsNot(t *testing.T) {
	for _, environ := range []string{
		"SECKILL_LOCK_PREFIX=", // a shop whose lock names are whole keys
		"SECKILL_UPSTREAM=redis://:pw@r:1 SECKILL_LISTEN=localhost:1,127.0.0.2:1,[::1]:1,unix:///run/s",
		"SECKILL_UPSTREAM=redis://r:1 SECKILL_LISTEN=0.0.0.0:1",
		"SECKILL_UPSTREAM=redis://:pw@r:1 SECKILL_LISTEN=0.0.0.0:1 SECKILL_LISTEN_PASSWORD=pw",
		"SECKILL_UPSTREAM_BACKOFF_MIN_MS=2000",
	} {
		if _, _, err := Load(nil, strings.Fields(environ)); err != nil {
			t.Errorf("%s: %v", environ, err)
		}
	}
	for _, file := range []string{"", "# nothing\n", "lock:\n#  prefix: a\n", "lock: {}\n"} {
		c, _, err := Load([]string{"-config", writeFile(t, file)}, nil)
		if err != nil || !reflect.DeepEqual(c, Default()) {
			t.Errorf("file %q: %s, %v", file, c, err)
		}
	}
}

func TestOpen(t *testing.T) {
	const tls = " SECKILL_LISTEN_TLS_CERT_FILE=c SECKILL_LISTEN_TLS_KEY_FILE=k"
	for environ, want := range map[string]string{
		"SECKILL_LISTEN=127.0.0.1:1,[::1]:1,localhost:2,unix:///run/s":                           "[]",
		"SECKILL_LISTEN=0.0.0.0:1,127.0.0.1:2,:3,r:4":                                            "[0.0.0.0:1 :3 r:4]",
		"SECKILL_LISTEN=0.0.0.0:1 SECKILL_LISTEN_PASSWORD=pw":                                    "[]",
		"SECKILL_LISTEN=tls://0.0.0.0:1" + tls:                                                   "[tls://0.0.0.0:1]",
		"SECKILL_LISTEN=tls://0.0.0.0:1,:2 SECKILL_LISTEN_TLS_CLIENT_CA_FILE=ca" + tls:           "[:2]",
		"SECKILL_LISTEN=tls://0.0.0.0:1 SECKILL_LISTEN_PASSWORD=pw SECKILL_LOG_LEVEL=info" + tls: "[]",
	} {
		c, _, err := Load(nil, strings.Fields(environ))
		if got := fmt.Sprint(c.Open()); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", environ, got, err, want)
		}
	}
}

func TestPasswordsAreNeverPrinted(t *testing.T) {
	const secret = "hunter2"
	c, _, err := Load([]string{"-upstream", "redis://shop:" + secret + "@127.0.0.1:6379/3"}, []string{
		"SECKILL_LISTEN_PASSWORD=" + secret, "SECKILL_UPSTREAM_SENTINEL_PASSWORD=" + secret,
		"SECKILL_LOCK_NODES=redis://:" + secret + "@a:1,redis://:" + secret + "@b:1,redis://:" + secret + "@c:1"})
	if err != nil {
		t.Fatal(err)
	}
	if string(c.Upstream.Password) != secret {
		t.Fatalf("the password is %q", string(c.Upstream.Password))
	}
	printed := []string{c.String(), c.Upstream.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		printed = append(printed, fmt.Sprintf(verb, c), fmt.Sprintf(verb, c.Upstream), fmt.Sprintf(verb, &c.Upstream),
			fmt.Sprintf(verb, c.Upstream.Password), fmt.Sprintf(verb, []any{c.Upstream.Password}))
	}
	inJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range append(printed, string(inJSON)) {
		if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
			t.Errorf("the password stands in %s", text)
		}
	}
	if want := `upstream.url: "redis://shop:***@127.0.0.1:6379/3"`; !strings.Contains(c.String(), want) {
		t.Errorf("String() = %s, want %s in it", c, want)
	}

	for _, url := range []string{
		"redis://shop:hunter2@127.0.0.1", "redis://shop:hunter2@:1", "redis://shop:hunter2", "redis://:hunter2",
		"redis://shop:hunter2@r:1/x", "redis://shop:hunter2@r:x", "redis://shop:hunter2#@r:1", "redis://shop:%zzhunter2@r:1",
		"redis://hunter2@r:1", "redis://r:1?password=hunter2", "redis://r:1/?password=hunter2", "shop:hunter2@r:1", ":hunter2", "shop:hunter2",
		"rediss://shop:hunter2@r:1", "redis+sentinel://shop:hunter2@r:1/m", "redis+cluster://:hunter2@r:1", "http://shop:hunter2@r:1",
		"redis+sentinel://shop:hunter2@r:1", "redis+sentinel://shop:hunter2/m", "redis+sentinel://r:1/m/hunter2", "redis+sentinel://r:1,shop:hunter2@r:2,/m",
		"redis+cluster://shop:hunter2@r:1,r:1", "redis+cluster://r:1,shop:hunter2", "redis+cluster://r:1/hunter2",
		"unix://shop:hunter2@r/s", "unix:///s?password=hunter2", "redis:///shop:hunter2", "redis://shop:hunter2/r:1",
	} {
		_, _, err := Load([]string{"-listen", "0.0.0.0:1", "-upstream", url}, nil)
		if err == nil {
			t.Errorf("%s: accepted", url)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the password stands in: %v", url, err)
		}
	}
	file := writeFile(t, "upstream:\n  password: hunter2\n  url: [\"redis://:hunter2@r:1\"]\n")
	_, _, err = Load([]string{"-config", file}, []string{"SECKILL_UPSTREAM_PASSWORD=hunter2"})
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("the password stands in: %v", err)
	}
}

// FuzzLoad holds that whatever is in a file and a variable, it is read or
// explained, and that what was read is valid.
func FuzzLoad(f *testing.F) {
	f.Add("lock: {prefix: a}", "SECKILL_LISTEN", ":1")
	f.Add("a: &a [*a]", "SECKILL_UPSTREAM", "redis://u:p@h:1/2")
	f.Add("{1: 2, ~: 3, [4]: 5}", "SECKILL_LOG_LEVEL", "")
	f.Add("lock: {prefix.x: 1, ? {a: b} : c}", "SECKILL_", "=")
	name := filepath.Join(f.TempDir(), "fuzz.yaml")
	f.Fuzz(func(t *testing.T, file, variable, text string) {
		if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		c, _, err := Load([]string{"-config", name}, []string{variable + "=" + text})
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without words")
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("read and then refused: %v", err)
		}
	})
}
