package upstream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"seckill-proxy/internal/nettest"
	"seckill-proxy/internal/redistest"
)

// inquiring are the options of tests in which servers are asked what they are.
func inquiring(address string) Options {
	return Options{Network: "tcp", Address: address, DialTimeout: 2 * time.Second, BackoffMin: 1, BackoffMax: 1}
}

// What a server is, as far as it says so, decides what it can be used as.
func TestInquire(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ping, hello  string
		single, node string // what is wrong with it as such, "" for nothing
		barred       bool
	}{
		"alone":            {"+PONG", bulks("server", "redis", "mode", "standalone", "role", "master"), "", "is no node of a cluster: its mode is standalone", false},
		"a cluster's":      {"+PONG", bulks("mode", "cluster", "role", "master"), "is a node of a cluster: want redis+cluster://", "", false},
		"its replica":      {"+PONG", bulks("mode", "cluster", "role", "replica"), "is a node of a cluster: want redis+cluster://", "", false},
		"a sentinel":       {"+PONG", bulks("mode", "sentinel"), "is a sentinel: want redis+sentinel://", "is no node of a cluster: its mode is sentinel", false},
		"a replica":        {"+PONG", bulks("mode", "standalone", "role", "replica"), "is a replica, which refuses writes", "is no node of a cluster", false},
		"no rights":        {"-NOPERM no ping", bulks("mode", "standalone", "role", "replica"), "is a replica", "is no node", false},
		"HELLO is unknown": {"+PONG", "-ERR unknown command 'HELLO'", "", "", false},
		"password":         {"-NOAUTH Authentication required.", "-NOAUTH HELLO must be called with", "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			addr, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
				for {
					command, err := readCommand(rd)
					if err != nil {
						return
					}
					reply := test.ping
					if command[0] == "HELLO" {
						reply = test.hello
					}
					_, _ = io.WriteString(conn, strings.TrimSuffix(reply, "\r\n")+"\r\n")
				}
			})
			target := New(inquiring(addr))
			report, err := target.Inquire(t.Context())
			if err != nil || report.Barred != test.barred {
				t.Fatalf("%+v, %v", report, err)
			}
			for want, got := range map[string]error{"single " + test.single: report.CheckSingle(), "node " + test.node: report.CheckNode()} {
				_, want, _ = strings.Cut(want, " ")
				if (got == nil) != (want == "") || got != nil && !strings.HasPrefix(got.Error(), addr+" "+want) {
					t.Errorf("%v, want %q", got, want)
				}
			}
			wants := strings.HasSuffix(report.String(), " answers, and wants clients to authenticate")
			if wants != test.barred || !strings.HasPrefix(report.String(), addr+" answers") {
				t.Errorf("%s", report)
			}
			if err := target.Ping(t.Context()); err != nil {
				t.Errorf("Ping: %v", err)
			}
		})
	}
	loading, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
		_, _ = readCommand(rd)
		_, _ = io.WriteString(conn, "-LOADING Redis is loading\r\n")
	})
	if _, err := New(inquiring(loading)).Inquire(t.Context()); err == nil || err.Error() != "LOADING Redis is loading" {
		t.Errorf("one that loads: %v", err)
	}
}

// The URL that is hinted at is the one that would do.
func TestReportNamesTheURL(t *testing.T) {
	for _, test := range []struct {
		r    Report
		want string
	}{
		{Report{Address: "r:1", Mode: "cluster", scheme: "rediss", listed: "r:1"}, "r:1 is a node of a cluster: want rediss+cluster://r:1"},
		{Report{Address: "/s", Mode: "cluster", scheme: "redis", listed: "host:port"}, "/s is a node of a cluster: want redis+cluster://host:port"},
		{Report{Address: "r:1", Mode: "sentinel", scheme: "redis", listed: "r:1"}, "r:1 is a sentinel: want redis+sentinel://r:1/master, with what the sentinels call the master"},
	} {
		if err := test.r.CheckSingle(); err == nil || err.Error() != test.want {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
}

// A port that speaks TLS where none is configured, or none where it is, is what the
// error says that it may be; that of another failure doesn't.
func TestHintsAtTLS(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t)
	plain, secured := redistest.Start(t, redistest.Options{}), redistest.Start(t, redistest.Options{TLS: certificates})
	const wantsTLS, wantsNone = "want rediss in place of redis", "want redis in place of rediss"
	check := func(what string, err error, want string) {
		t.Helper()
		if !errors.Is(err, ErrDown) {
			t.Errorf("%s: %v isn't ErrDown", what, err)
			return
		}
		for _, hint := range []string{wantsTLS, wantsNone} {
			if n := strings.Count(err.Error(), hint); n != strings.Count(want, hint) {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
	}

	opts := inquiring(secured.Addr)
	check("PING at TLS", New(opts).Ping(t.Context()), wantsTLS)
	mux := NewMux(New(opts), Profile{Protocol: 2})
	check("a Mux at TLS", mux.Connect(t.Context()), wantsTLS)
	mux.Close()
	client := New(opts).Client(Identity{}, 0)
	check("a script at TLS", client.Get(t.Context(), "k").Err(), wantsTLS)
	client.Close()
	opts.Password = "pw"
	check("AUTH at TLS", New(opts).Ping(t.Context()), wantsTLS)

	opts = inquiring(plain.Addr)
	opts.DialTimeout = 200 * time.Millisecond // it waits for the end of a line
	opts.TLS = certificates.Client()
	check("TLS at none", New(opts).Ping(t.Context()), wantsNone)
	opts.Address, opts.DialTimeout = secured.Addr, 5*time.Second
	opts.TLS = redistest.NewCertificates(t).Client()
	check("another authority", New(opts).Ping(t.Context()), "")
	check("nobody", New(inquiring(nettest.Dead(t))).Ping(t.Context()), "")

	sentinel := &Sentinel{target: New(inquiring("")), name: "shop"}
	a := &asked{address: secured.Addr}
	a.client = sentinel.client(a.address, SentinelOptions{})
	defer a.client.Close()
	if answer := sentinel.ask(t.Context(), a); answer.Err == nil || !strings.Contains(answer.Err.Error(), wantsTLS) {
		t.Errorf("a sentinel with TLS: %v", answer.Err)
	}
}

// Errors of a cluster say once that there is no connection, and each address once.
func TestClusterErrorsSayThingsOnce(t *testing.T) {
	t.Parallel()
	one, other := nettest.Dead(t), nettest.Dead(t)
	c := startCluster(t, clusterOptions(), one, other)
	_, mapped := c.Map(t.Context(), Profile{})
	_, dialed := c.Seed().Dial(t.Context(), c.Seed().Profile())
	target := New(inquiring(one))
	_, first := target.dialPatiently(t.Context(), Profile{Protocol: 2})
	for what, err := range map[string]error{"the map": mapped, "the seed": dialed, "a script": first, "a script in the pause": target.failure} {
		if !errors.Is(err, ErrDown) {
			t.Errorf("%s: %v isn't ErrDown", what, err)
			continue
		}
		text := err.Error()
		if strings.Count(text, "no connection to Redis") != 1 || strings.Count(text, "dial tcp "+one) != 1 || strings.Contains(text, "\n") {
			t.Errorf("%s: %q", what, text)
		}
	}
	if !strings.Contains(dialed.Error(), "dial tcp "+other) {
		t.Errorf("the seed: %v", dialed)
	}
}

// A server that is no node of a cluster says so, and that is what is told.
func TestNoNodeOfACluster(t *testing.T) {
	t.Parallel()
	alone := redistest.Start(t, redistest.Options{})
	sentinel, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
		for {
			if _, err := readCommand(rd); err != nil {
				return
			}
			_, _ = io.WriteString(conn, "-ERR unknown command 'CLUSTER', with args beginning with: 'SLOTS' \r\n")
		}
	})
	for address, said := range map[string]string{alone.Addr: "ERR This instance has cluster support disabled", sentinel: "ERR unknown command 'CLUSTER'"} {
		_, err := startCluster(t, clusterOptions(), address).Map(t.Context(), Profile{Protocol: 2})
		want := fmt.Sprintf("no connection to Redis: %s is no node of a cluster: %s", address, said)
		if !errors.Is(err, ErrDown) || !IsStranger(err) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	_, err := startCluster(t, clusterOptions(), nettest.Dead(t)).Map(t.Context(), Profile{Protocol: 2})
	if IsStranger(err) {
		t.Errorf("one that is down: %v", err)
	}
}

// The clients of a cluster's nodes say which node each is, with its host.
func TestNodeClientsAreNamed(t *testing.T) {
	t.Parallel()
	addr, _ := fakeNode(t, func([]string) string { return ":1\r\n" })
	client := startedClient(t, startCluster(t, clusterOptions(), addr), Identity{})
	node, err := client.MasterForKey(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if got := node.Options().Addr; got != addr {
		t.Errorf("%s, want %s", got, addr)
	}
}
