package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"seckill-proxy/internal/hangup"
	"seckill-proxy/internal/nettest"
	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/resp"
)

// rarely is how often sentinels are asked in tests of what makes them be asked at
// once.
const rarely = time.Hour

// fakeSentinel names a master, as the test says.
type fakeSentinel struct {
	addr string
	stop func()

	mu        sync.Mutex
	answer    SentinelAnswer
	asked     int // how often it was
	listeners []net.Conn
}

func startFakeSentinel(t *testing.T) *fakeSentinel {
	t.Helper()
	s := &fakeSentinel{}
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	addr, stop := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
		mu.Lock()
		conns[conn] = true
		mu.Unlock()
		defer func() {
			mu.Lock()
			delete(conns, conn)
			mu.Unlock()
		}()
		for {
			words, err := readCommand(rd)
			if err != nil {
				return
			}
			if _, err := io.WriteString(conn, s.reply(conn, words)); err != nil {
				return
			}
		}
	})
	s.addr = addr
	s.stop = func() {
		mu.Lock()
		for conn := range conns {
			conn.Close()
		}
		mu.Unlock()
		stop()
	}
	return s
}

// readCommand reads a command in RESP.
func readCommand(rd *bufio.Reader) ([]string, error) {
	head, err := rd.ReadString('\n')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(head, "*")))
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		if _, err := rd.ReadString('\n'); err != nil { // the length
			return nil, err
		}
		word, err := rd.ReadString('\n')
		if err != nil {
			return nil, err
		}
		words[i] = strings.TrimSuffix(word, "\r\n")
	}
	return words, nil
}

func bulks(words ...string) string {
	var b [][]byte
	for _, word := range words {
		b = append(b, []byte(word))
	}
	return string(resp.AppendCommand(nil, b))
}

func (s *fakeSentinel) reply(conn net.Conn, words []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch strings.ToUpper(words[0]) {
	case "SENTINEL":
		if s.answer.Err != nil {
			return "-" + s.answer.Err.Error() + "\r\n"
		}
		host, port, _ := net.SplitHostPort(s.answer.Master)
		if strings.EqualFold(words[1], "master") {
			s.asked++
			return bulks("name", words[2], "config-epoch", fmt.Sprint(s.answer.Epoch), "ip", host, "port", port)
		}
		return bulks(host, port)
	case "SUBSCRIBE":
		s.listeners = append(s.listeners, conn)
		var confirmed strings.Builder
		for i, channel := range words[1:] {
			fmt.Fprintf(&confirmed, "*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:%d\r\n", len(channel), channel, i+1)
		}
		return confirmed.String()
	case "PING":
		return bulks("pong", "")
	}
	return "-ERR unknown command\r\n"
}

// says sets the answer.
func (s *fakeSentinel) says(master string, epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = SentinelAnswer{Master: master, Epoch: epoch}
}

// tell publishes to all who have subscribed, which it waits for.
func (s *fakeSentinel) tell(t *testing.T, channel, message string) {
	t.Helper()
	eventually(t, "somebody listens", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, conn := range s.listeners {
			_, _ = io.WriteString(conn, bulks("message", channel, message))
		}
		return len(s.listeners) > 0
	})
}

// wasAsked returns how often.
func (s *fakeSentinel) wasAsked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// fakeServer answers HELLO as a server with that role, PING, and everything else by
// otherwise.
func fakeServer(t *testing.T, role, otherwise string) string {
	t.Helper()
	addr, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
		for {
			words, err := readCommand(rd)
			if err != nil {
				return
			}
			reply := otherwise
			switch strings.ToUpper(words[0]) {
			case "HELLO":
				reply = bulks("server", "redis", "proto", words[1], "role", role)
			case "PING":
				reply = "+PONG\r\n"
			}
			if _, err := io.WriteString(conn, reply); err != nil {
				return
			}
		}
	})
	return addr
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not so", what)
		}
	}
}

// follow starts a Target that follows fake sentinels.
func follow(t *testing.T, every time.Duration, opts Options, sentinels ...*fakeSentinel) *Target {
	t.Helper()
	opts.Network, opts.DialTimeout, opts.ScriptTimeout = "tcp", 10*time.Second, 10*time.Second
	opts.BackoffMin, opts.BackoffMax = time.Millisecond, time.Millisecond
	which := SentinelOptions{Master: "shop", Every: every}
	for _, s := range sentinels {
		which.Addresses = append(which.Addresses, s.addr)
	}
	target, sentinel := StartSentinel(opts, which)
	t.Cleanup(sentinel.Close)
	return target
}

// TestWhichAnswerIsBelieved gives the answers of sentinels one after the other.
func TestWhichAnswerIsBelieved(t *testing.T) {
	failed := SentinelAnswer{Err: errors.New("no answer")}
	at := func(master string, epoch int64) SentinelAnswer {
		return SentinelAnswer{Master: master, Epoch: epoch, settled: true}
	}
	leading := func(master string, epoch int64) SentinelAnswer { return SentinelAnswer{Master: master, Epoch: epoch} }
	type step struct {
		sentinel int
		says     SentinelAnswer
		want     string // the address of the Target after it
	}
	for name, test := range map[string]struct {
		sentinels int
		steps     []step
	}{
		"one is enough where there is one": {1, []step{{0, at("a:1", 0), "a:1"}, {0, at("b:1", 1), "b:1"}}},
		"half of them are enough":          {4, []step{{0, at("a:1", 0), ""}, {1, at("a:1", 0), "a:1"}}},
		"fewer when the others don't answer": {3, []step{
			{0, failed, ""}, {1, failed, ""}, {2, at("a:1", 0), "a:1"}}},
		"the newer configuration is believed of one": {3, []step{
			{0, at("a:1", 1), ""}, {1, at("a:1", 1), "a:1"}, {2, at("b:1", 2), "b:1"}}},
		"at first too": {3, []step{{0, at("a:1", 1), ""}, {1, at("b:1", 2), "b:1"}, {2, at("a:1", 1), "b:1"}}},
		"who lags isn't believed": {3, []step{
			{0, at("a:1", 1), ""}, {1, at("b:1", 2), "b:1"}, {0, at("a:1", 1), "b:1"}, {2, at("a:1", 1), "b:1"}}},
		"not even when the newest is silent": {3, []step{
			{0, at("a:1", 1), ""}, {1, at("b:1", 2), "b:1"}, {1, failed, "b:1"}, {2, at("a:1", 1), "b:1"}}},
		"all of them may begin anew": {3, []step{
			{0, at("a:1", 8), ""}, {1, at("a:1", 8), "a:1"}, {2, at("a:1", 8), "a:1"},
			{0, at("b:1", 0), "a:1"}, {1, at("b:1", 0), "a:1"}, {2, at("b:1", 0), "b:1"},
			{0, at("c:1", 1), "c:1"}}},
		"of equally new ones most votes": {3, []step{
			{0, failed, ""}, {1, at("a:1", 0), ""}, {2, at("b:1", 0), "a:1"}, {0, at("b:1", 0), "a:1"}, {1, at("b:1", 0), "b:1"}}},
		"who leads a failover knows first": {3, []step{
			{0, at("a:1", 1), ""}, {1, at("a:1", 1), "a:1"}, {2, leading("b:1", 2), "b:1"}, {0, at("b:1", 2), "b:1"}, {1, at("a:1", 1), "b:1"}}},
		// It promoted b, which died; the others have promoted a since.
		"who can't end a failover isn't believed": {3, []step{
			{0, leading("b:1", 1), ""}, {1, at("b:1", 1), "b:1"},
			{0, leading("b:1", 2), "b:1"}, {1, at("a:1", 2), "a:1"}, {0, leading("b:1", 2), "a:1"}}},
		"silence changes nothing": {2, []step{{0, at("a:1", 1), "a:1"}, {0, failed, "a:1"}, {1, failed, "a:1"}}},
	} {
		target := New(Options{})
		s := &Sentinel{target: target, known: make(chan struct{}), tried: make(chan struct{}), rank: -1}
		for range test.sentinels {
			s.asked = append(s.asked, &asked{})
		}
		for i, step := range test.steps {
			s.take(s.asked[step.sentinel], step.says)
			if got := target.Address(); got != step.want {
				t.Errorf("%s, after step %d: the Target is at %q, want %q", name, i, got, step.want)
			}
		}
	}
}

// TestSentinelTells has a message, and nothing else, be the reason to ask.
func TestSentinelTells(t *testing.T) {
	t.Parallel()
	for _, message := range []struct{ channel, text string }{
		{"+switch-master", "shop 127.0.0.1 1 127.0.0.1 2"},
		{"+promoted-slave", "slave 127.0.0.1:2 127.0.0.1 2 @ shop 127.0.0.1 1"},
	} {
		sentinel := startFakeSentinel(t)
		sentinel.says("127.0.0.1:1", 1)
		target := follow(t, rarely, Options{}, sentinel)
		eventually(t, "the first master is known", func() bool { return target.Address() == "127.0.0.1:1" })
		sentinel.says("127.0.0.1:2", 2)
		sentinel.tell(t, "+switch-master", "another 127.0.0.1 1 127.0.0.1 2")
		asked := sentinel.wasAsked()
		sentinel.tell(t, message.channel, message.text)
		eventually(t, "the second master is known", func() bool { return target.Address() == "127.0.0.1:2" })
		if n := sentinel.wasAsked(); n != asked+1 {
			t.Errorf("%s: it was asked %d times more, want once: not about another master", message.channel, n-asked)
		}
	}
}

// TestSentinelsAreAskedAgain has nobody tell anything.
func TestSentinelsAreAskedAgain(t *testing.T) {
	t.Parallel()
	sentinel := startFakeSentinel(t)
	sentinel.says("127.0.0.1:1", 1)
	target := follow(t, time.Millisecond, Options{}, sentinel)
	eventually(t, "the first master is known", func() bool { return target.Address() == "127.0.0.1:1" })
	sentinel.says("127.0.0.1:2", 2)
	eventually(t, "the second master is known", func() bool { return target.Address() == "127.0.0.1:2" })
}

// TestReplicaIsNoMaster has sentinels name a server that says that it is a replica:
// neither the data plane nor the control plane gets a connection, and both attempts
// have the sentinels asked again.
func TestReplicaIsNoMaster(t *testing.T) {
	t.Parallel()
	replica, master := fakeServer(t, "replica", "+OK\r\n"), fakeServer(t, "master", "+OK\r\n")
	for _, protocol := range []int{2, 3} {
		sentinel := startFakeSentinel(t)
		sentinel.says(replica, 1)
		target := follow(t, rarely, Options{}, sentinel)
		conn, err := target.Dial(t.Context(), Profile{Protocol: protocol})
		if !errors.Is(err, ErrDown) || !errors.Is(err, errReplica) {
			t.Fatalf("dialling a replica: %v, %v", conn, err)
		}
		eventually(t, "the sentinel was asked again", func() bool { return sentinel.wasAsked() > 1 })
		client := target.Client(Identity{}, 0)
		defer client.Close()
		asked := sentinel.wasAsked()
		if err := client.Ping(t.Context()).Err(); !errors.Is(err, errReplica) {
			t.Errorf("the control plane got through to a replica: %v", err)
		}
		eventually(t, "the sentinel was asked again", func() bool { return sentinel.wasAsked() > asked })

		sentinel.says(master, 2)
		eventually(t, "the master is found", func() bool {
			conn, err := target.Dial(t.Context(), Profile{Protocol: protocol})
			if err == nil {
				conn.Close()
			}
			return err == nil
		})
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Error(err)
		}
	}
}

// TestReadOnlyMakesDoubt has a script be refused by a server that became a replica
// while it was connected.
func TestReadOnlyMakesDoubt(t *testing.T) {
	t.Parallel()
	sentinel := startFakeSentinel(t)
	sentinel.says(fakeServer(t, "master", "-READONLY You can't write against a read only replica.\r\n"), 1)
	target := follow(t, rarely, Options{}, sentinel)
	client := target.Client(Identity{}, 0)
	defer client.Close()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	asked := sentinel.wasAsked()
	if err := client.Eval(t.Context(), "return 1", nil).Err(); !redis.HasErrorPrefix(err, "READONLY") {
		t.Fatal(err)
	}
	eventually(t, "the sentinel was asked again", func() bool { return sentinel.wasAsked() > asked })
}

// TestMoveEndsConnections moves a Target while connections of all kinds are open,
// and one is being made.
func TestMoveEndsConnections(t *testing.T) {
	t.Parallel()
	accepted := make(chan struct{}, 10)
	mute, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
		accepted <- struct{}{}
		_, _ = io.Copy(io.Discard, rd)
	})
	opts := fakeRedis(t, func(conn net.Conn, rd *bufio.Reader) { echo(conn, rd) })
	target := New(opts)
	idle, err := target.Dial(t.Context(), target.Profile())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	mux := NewMux(target, target.Profile())
	defer mux.Close()
	if err := mux.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	control, err := target.dialControl(t.Context(), target.Profile())
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()

	if ended := target.moveTo(mute); ended != 3 {
		t.Errorf("%d connections ended, want 3", ended)
	}
	for _, conn := range []net.Conn{idle, control} {
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a connection to the old address: %v, want EOF", err)
		}
	}
	eventually(t, "the Mux has no connection", func() bool {
		mux.mu.Lock()
		defer mux.mu.Unlock()
		return mux.conn == nil
	})

	dialled := make(chan error)
	go func() {
		_, err := target.Dial(context.WithoutCancel(t.Context()), Profile{Protocol: 3})
		dialled <- err
	}()
	<-accepted
	target.moveTo(opts.Address)
	if err := <-dialled; !errors.Is(err, ErrDown) {
		t.Errorf("dialling while the Target moves: %v, want ErrDown", err)
	}
	again, err := target.Dial(t.Context(), target.Profile())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	target.drop()
	if target.moveTo(mute) != 0 {
		t.Error("a closed connection is still counted")
	}
}

// TestConnectionMadeTooLate has the Target move between connecting and noting the
// connection.
func TestConnectionMadeTooLate(t *testing.T) {
	here, there := nettest.Pair(t)
	p := place{address: "new"}
	if conn, err := p.track(here, "old"); !errors.Is(err, errMoved) {
		t.Errorf("%v, %v", conn, err)
	}
	if _, err := there.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("it is still open: %v", err)
	}
}

// TestNoSentinel has sentinels that don't help.
func TestNoSentinel(t *testing.T) {
	t.Parallel()
	core, log := observer.New(zap.InfoLevel)
	strange := startFakeSentinel(t)
	strange.answer.Err = errors.New("ERR No such master with that name")
	gone := startFakeSentinel(t)
	gone.stop()
	target := follow(t, time.Millisecond, Options{Log: zap.New(core)}, strange, gone)
	_, err := target.Dial(t.Context(), Profile{})
	for _, part := range []string{"at the master shop: no sentinel knows it: ", strange.addr + ": ERR No such master", gone.addr + ": "} {
		if !errors.Is(err, ErrDown) || !strings.Contains(err.Error(), part) {
			t.Errorf("%v, want %q in it", err, part)
		}
	}

	told := func(message, said string) func() bool {
		return func() bool {
			for _, entry := range log.FilterMessage(message).All() {
				if strings.Contains(fmt.Sprint(entry.ContextMap()["said"]), said) {
					return true
				}
			}
			return false
		}
	}
	eventually(t, "the log says that they don't know it", told("no sentinel knows the master shop", strange.addr+": ERR No such master"))

	// One that is something else says that.
	strange.mu.Lock()
	strange.answer.Err = errors.New("ERR unknown command 'SENTINEL'")
	strange.mu.Unlock()
	eventually(t, "the log says that it is no sentinel", told("no sentinel names the master shop", strange.addr+" is no sentinel: ERR unknown command"))
	if log.FilterMessageSnippet("no sentinel answers").Len() > 0 {
		t.Errorf("the log says of one that answers that it doesn't: %v", log.All())
	}

	// One that helps later is enough.
	master := fakeServer(t, "master", "+OK\r\n")
	strange.mu.Lock()
	strange.answer = SentinelAnswer{Master: master}
	strange.mu.Unlock()
	reach := func() bool {
		conn, err := target.Dial(t.Context(), Profile{})
		if err == nil {
			conn.Close()
		}
		return err == nil
	}
	eventually(t, "the master is found", reach)

	// And what it said is enough when none is there.
	strange.stop()
	eventually(t, "the log says that no sentinel answers", func() bool {
		return log.FilterMessage("no sentinel answers: the one that was named last stays").Len() == 1
	})
	if !reach() || target.Address() != master {
		t.Error("the master that was known is left")
	}
	if log.FilterMessageSnippet("sentinels answer again").Len() != 1 {
		t.Errorf("the log doesn't say once that they answered meanwhile: %v", log.All())
	}
}

// TestAskReports asks for what -check prints.
func TestAskReports(t *testing.T) {
	t.Parallel()
	one, gone := startFakeSentinel(t), startFakeSentinel(t)
	one.says("127.0.0.1:1", 7)
	gone.stop()
	opts := Options{Network: "tcp", DialTimeout: 10 * time.Second}
	_, sentinel := StartSentinel(opts, SentinelOptions{Addresses: []string{one.addr, gone.addr}, Master: "shop"})
	defer sentinel.Close()
	answers := sentinel.Ask(t.Context())
	if want := (SentinelAnswer{Sentinel: one.addr, Master: "127.0.0.1:1", Epoch: 7, settled: true}); answers[0] != want {
		t.Errorf("%+v, want %+v", answers[0], want)
	}
	if answers[1].Sentinel != gone.addr || answers[1].Err == nil {
		t.Errorf("one that is gone: %+v", answers[1])
	}
	if slices.ContainsFunc(answers, func(a SentinelAnswer) bool { return (a.Err == nil) != (a.Master != "") }) {
		t.Errorf("%+v", answers)
	}
}

// TestFollowsTheMaster lets real sentinels name another master, in order and after
// a crash, while connections of all kinds are open.
func TestFollowsTheMaster(t *testing.T) {
	t.Parallel()
	group := redistest.StartSentinels(t, redistest.SentinelOptions{
		Replicas: 2, Sentinels: 3, Password: "watch",
		Options: redistest.Options{Args: []string{"--requirepass", "master"}},
	})
	hangups, err := hangup.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hangups.Close)
	opts := Options{
		Network: "tcp", Password: "master", DialTimeout: 5 * time.Second, ScriptTimeout: 5 * time.Second,
		BackoffMin: time.Millisecond, BackoffMax: 50 * time.Millisecond, Hangups: hangups,
	}
	target, sentinel := StartSentinel(opts, SentinelOptions{Addresses: group.Addrs, Master: group.Name, Password: "watch"})
	t.Cleanup(sentinel.Close)
	client := target.Client(Identity{}, 0)
	t.Cleanup(func() { client.Close() })

	for _, change := range []struct {
		name   string
		happen func()
	}{
		{"in order", group.Failover}, {"after a crash", func() { group.KillMaster().Restart() }}, {"again", group.Failover},
	} {
		name, old := change.name, group.Master()
		as := target.Profile()
		eventually(t, name+": the data plane is at the master", func() bool { return target.Address() == old.Addr })
		idle, err := target.Dial(t.Context(), as)
		if err != nil {
			t.Fatal(err)
		}
		mux := NewMux(target, as)
		if err := mux.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		subscription := client.Subscribe(t.Context(), "news")
		if _, err := subscription.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}

		change.happen()
		want := group.Master().Addr
		eventually(t, name+": the Target is at the new master", func() bool { return target.Address() == want })
		if _, err := idle.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: the old connection goes on", name)
		}
		if _, err := subscription.Receive(t.Context()); err == nil {
			t.Errorf("%s: the old subscription goes on", name)
		}
		eventually(t, name+": the Mux is at the new master", func() bool {
			if err := mux.Connect(t.Context()); err != nil {
				return false
			}
			mux.mu.Lock()
			defer mux.mu.Unlock()
			return mux.conn != nil && mux.conn.RemoteAddr().String() == want
		})
		eventually(t, name+": the control plane writes", func() bool { return client.Incr(t.Context(), "n").Err() == nil })
		if role := client.Do(t.Context(), "ROLE").Val(); role.([]any)[0] != "master" {
			t.Errorf("%s: the control plane is at %v", name, role)
		}
		target.where.mu.Lock()
		for conn := range target.where.open {
			if conn.RemoteAddr().String() != want {
				t.Errorf("%s: a connection to %s is open", name, conn.RemoteAddr())
			}
		}
		target.where.mu.Unlock()
		idle.Close()
		mux.Close()
		subscription.Close()
	}
}
