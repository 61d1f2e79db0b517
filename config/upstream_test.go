package config

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseUpstream(t *testing.T) {
	for _, test := range []struct {
		url   string
		want  Upstream
		shown string
	}{
		{"embedded", Upstream{Scheme: SchemeEmbedded}, "embedded"},
		{"127.0.0.1:6379", Upstream{Scheme: SchemeRedis, Addresses: []string{"127.0.0.1:6379"}}, "redis://127.0.0.1:6379"},
		{"[::1]:6379", Upstream{Scheme: SchemeRedis, Addresses: []string{"[::1]:6379"}}, "redis://[::1]:6379"},
		{"redis://r", Upstream{Scheme: SchemeRedis, Addresses: []string{"r:6379"}}, "redis://r:6379"},
		{"redis://[::1]", Upstream{Scheme: SchemeRedis, Addresses: []string{"[::1]:6379"}}, "redis://[::1]:6379"},
		{"redis://r:1/", Upstream{Scheme: SchemeRedis, Addresses: []string{"r:1"}}, "redis://r:1"},
		{"redis://r:1/15", Upstream{Scheme: SchemeRedis, Addresses: []string{"r:1"}, DB: 15}, "redis://r:1/15"},
		{"redis://:pw@r:1", Upstream{Scheme: SchemeRedis, Addresses: []string{"r:1"}, Password: "pw"}, "redis://:***@r:1"},
		{"redis://u:p%40%2F%3A%23@r:1/2", Upstream{Scheme: SchemeRedis, Addresses: []string{"r:1"}, User: "u", Password: "p@/:#", DB: 2}, "redis://u:***@r:1/2"},
		{"unix:///run/redis.sock", Upstream{Scheme: SchemeUnix, Addresses: []string{"/run/redis.sock"}}, "unix:///run/redis.sock"},
		{"unix:///run/a%20b.sock?db=3", Upstream{Scheme: SchemeUnix, Addresses: []string{"/run/a b.sock"}, DB: 3}, "unix:///run/a%20b.sock?db=3"},
		{"unix://u:pw@/run/redis.sock", Upstream{Scheme: SchemeUnix, Addresses: []string{"/run/redis.sock"}, User: "u", Password: "pw"}, "unix://u:***@/run/redis.sock"},
		{"rediss://u:p@r", Upstream{Scheme: SchemeRedis, TLS: true, Addresses: []string{"r:6379"}, User: "u", Password: "p"}, "rediss://u:***@r:6379"},
		{"redis+sentinel://r/main", Upstream{Scheme: SchemeSentinel, Addresses: []string{"r:26379"}, Master: "main"}, "redis+sentinel://r:26379/main"},
		{"redis+sentinel://u:p%2C@r:1,[::1]:2,s/my.main_-1/3", Upstream{Scheme: SchemeSentinel, Addresses: []string{"r:1", "[::1]:2", "s:26379"},
			Master: "my.main_-1", User: "u", Password: "p,", DB: 3}, "redis+sentinel://u:***@r:1,[::1]:2,s:26379/my.main_-1/3"},
		{"rediss+sentinel://:p,@r:1/m/0", Upstream{Scheme: SchemeSentinel, TLS: true, Addresses: []string{"r:1"}, Master: "m", Password: "p,"}, "rediss+sentinel://:***@r:1/m"},
		{"redis+cluster://r:1,[::1],s", Upstream{Scheme: SchemeCluster, Addresses: []string{"r:1", "[::1]:6379", "s:6379"}}, "redis+cluster://r:1,[::1]:6379,s:6379"},
		{"redis+cluster://r:1, [::1] ,\ts", Upstream{Scheme: SchemeCluster, Addresses: []string{"r:1", "[::1]:6379", "s:6379"}}, "redis+cluster://r:1,[::1]:6379,s:6379"},
		{"redis+sentinel://:p@r:1, s /m/1", Upstream{Scheme: SchemeSentinel, Addresses: []string{"r:1", "s:26379"}, Master: "m", Password: "p", DB: 1}, "redis+sentinel://:***@r:1,s:26379/m/1"},
		{"rediss+cluster://:p@r:1,r:2/0", Upstream{Scheme: SchemeCluster, TLS: true, Addresses: []string{"r:1", "r:2"}, Password: "p"}, "rediss+cluster://:***@r:1,r:2"},
	} {
		got, err := ParseUpstream(test.url)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %#v, %v; want %#v", test.url, got, err, test.want)
		}
		if got.String() != test.shown {
			t.Errorf("%s is shown as %s, want %s", test.url, got, test.shown)
		}
	}
}

func TestUpstreamNetwork(t *testing.T) {
	for scheme, want := range map[Scheme]string{SchemeEmbedded: "", SchemeRedis: "tcp", SchemeUnix: "unix", SchemeSentinel: "tcp", SchemeCluster: "tcp"} {
		if got := (Upstream{Scheme: scheme}).Network(); got != want {
			t.Errorf("%s: network %q, want %q", scheme, got, want)
		}
	}
}

func TestParseUpstreamSaysWhatIsAllowed(t *testing.T) {
	for url, want := range map[string]string{
		"":                           "allowed are embedded, host:port",
		"Embedded":                   "allowed are embedded, host:port",
		"6379":                       "want a host and a port",
		":6379":                      "want a host and a port",
		"r:0":                        "want host:port with a port from 1 to 65535",
		"r:65536":                    "want host:port with a port from 1 to 65535",
		"r:redis":                    "want host:port with a port from 1 to 65535",
		"u:p@r:1":                    "want redis:// in front",
		"redis://":                   "want a host and a port",
		"redis:///0":                 "want a host and a port",
		"redis://r:1/x":              "want the number of a database",
		"redis://r:1/-1":             "want the number of a database",
		"redis://r:1/0/1":            "want the number of a database",
		"redis://r:1/2147483648":     "want the number of a database",
		"redis://r:1?db=1":           "want the database as redis://host:port/db",
		"redis://u@r:1":              "a user needs a password",
		"redis://u:@r:1":             "a user needs a password",
		"redis://u:p#w@r:1":          "percent-encoded",
		"redis://r:1#x":              "%23",
		"redis://r:x":                "want host:port with a port from 1 to 65535",
		"redis://u:%zz@r:1":          "not a URL",
		"redis://r:1,s:2":            "several hosts need redis+cluster://",
		"r:1,s:2":                    "several hosts need redis+cluster://",
		"r:1, s:2":                   "several hosts need redis+cluster://",
		"r,s":                        "several hosts need redis+cluster://",
		"redis+cluster://r:1, r:1":   "one of the hosts is there twice",
		"redis+cluster://r:1, ,r:2":  "want a host and a port",
		"redis+cluster://r:1 r:2":    "want a host and a port",
		"rediss://r:1?db=1":          "want the database as redis://host:port/db",
		"redis+sentinel://r:1":       "want what the sentinels call the master",
		"redis+sentinel://r:1/":      "want what the sentinels call the master",
		"redis+sentinel://r:1/a b":   "want what the sentinels call the master",
		"redis+sentinel://r:1/m/x":   "want the number of a database",
		"redis+sentinel://r:1,r:1/m": "one of the hosts is there twice",
		"redis+sentinel://r:1,/m":    "want a host and a port",
		"redis+sentinel:///m":        "want a host and a port",
		"redis+sentinel://u@r:1/m":   "a user needs a password",
		"redis+cluster://r:1,r:2/1":  "a cluster has only database 0",
		"redis+cluster://r:1,,r:2":   "want a host and a port",
		"rediss+unix:///s":           "unknown scheme; allowed are embedded",
		"unixs:///s":                 "unknown scheme; allowed are embedded",
		"http://r:1":                 "unknown scheme; allowed are embedded",
		"unix://run/redis.sock":      "three slashes",
		"unix://":                    "want an absolute path",
		"unix:///s?db=x":             "want the number of a database",
		"unix:///s?db=1&db=2":        "want nothing but ?db=n",
		"unix:///s?timeout=1":        "want nothing but ?db=n",
	} {
		got, err := ParseUpstream(url)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", url, got, err, want)
		}
	}
}

// FuzzParseUpstream holds that what is shown of an upstream without a password
// is read as the same upstream again.
func FuzzParseUpstream(f *testing.F) {
	for _, url := range []string{"embedded", "r:1", "redis://u:p@[::1]:6379/1", "unix:///a%20b?db=2", "redis://r/3", "unix://:p@/s",
		"rediss+sentinel://r:1,[::1]/m/2", "redis+cluster://r,s:1"} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		u, err := ParseUpstream(url)
		if err != nil || u.Password != "" {
			return
		}
		again, err := ParseUpstream(u.String())
		if err != nil || !reflect.DeepEqual(again, u) {
			t.Fatalf("%q is %#v, shown as %s, which is %#v, %v", url, u, u, again, err)
		}
	})
}
