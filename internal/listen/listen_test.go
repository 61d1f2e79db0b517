package listen

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/upstream"
)

// client returns a client as the sidecar makes them, for the store at addr.
func client(t *testing.T, opts upstream.Options) *redis.Client {
	t.Helper()
	opts.Network = "tcp"
	opts.DialTimeout, opts.ScriptTimeout = 5*time.Second, 5*time.Second
	rdb := upstream.New(opts).Client(upstream.Identity{}, 0)
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	return rdb
}

// start starts a Listener that ends with the test, and checks the record then.
func start(t *testing.T, rdb Subscriber, r *record, opts Options) *Listener {
	t.Helper()
	l := Start(rdb, opts)
	t.Cleanup(func() {
		l.Close()
		r.check(t)
	})
	return l
}

func publish(t *testing.T, rdb *redis.Client, channel, payload string) {
	t.Helper()
	if err := rdb.Publish(t.Context(), channel, payload).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasPublishedBeforeAProofCameBeforeIt(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	r := newRecord()
	opts := r.options("a", "b")
	opts.PingEvery = time.Millisecond
	opts.SilenceMax = patience // a lost connection would lose messages
	start(t, client(t, upstream.Options{Address: server.Addr}), r, opts)
	publisher := server.Client(t)
	r.waitHeard(t)
	for i := range 200 {
		channel, payload := []string{"a", "b"}[i%2], fmt.Sprint("message ", i)
		publish(t, publisher, channel, payload)
		proof := r.waitHeard(t)
		message, came := r.wait(t, payload, isMessage(payload))
		if came > proof || message.channel != channel {
			t.Fatalf("message %d on %s came as callback %d on %s, after the proof %d", i, channel, came, message.channel, proof)
		}
	}
}

func TestAPausedRedisProvesNothing(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	r := newRecord()
	start(t, client(t, upstream.Options{Address: server.Addr}), r, r.options("a"))
	r.waitHeard(t)
	server.Pause()
	paused, after := time.Now(), r.len()
	_, lost := r.waitFrom(t, after, "loss", isLost)
	for _, c := range r.all()[:lost] {
		if c.kind == "heard" && c.until.After(paused) {
			t.Fatalf("heard until %s of a Redis that was paused at %s", c.until, paused)
		}
	}
	server.Resume()
	r.waitHeard(t)
}

func TestAKilledConnectionIsALoss(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	r := newRecord()
	l := start(t, client(t, upstream.Options{Address: server.Addr}), r, r.options("a"))
	admin := server.Client(t)
	r.waitHeard(t)
	for i := range 5 {
		before := r.len()
		if err := admin.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		_, lost := r.waitFrom(t, before, "loss", isLost)
		r.waitFrom(t, lost+1, "loss when it is subscribed again", isLost)
		r.waitHeard(t)
		payload := fmt.Sprint("after ", i)
		publish(t, admin, "a", payload)
		r.wait(t, payload, isMessage(payload))
	}
	waitConnections(t, admin, 1)
	l.Close()
	waitConnections(t, admin, 0)
}

// waitConnections waits until Redis has so many subscribing connections.
func waitConnections(t *testing.T, admin *redis.Client, want int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		list, err := admin.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Count(list, "\n")
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d subscribing connections, want %d", got, want)
		}
	}
}

func TestRestart(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	r := newRecord()
	l := start(t, client(t, upstream.Options{Address: server.Addr}), r, r.options("a"))
	r.waitHeard(t)
	server.Kill()
	_, lost := r.waitFrom(t, r.len()-1, "loss", isLost)
	server.Restart()
	r.waitFrom(t, lost+1, "loss when it is subscribed again", isLost)
	r.waitHeard(t)
	if err := l.Refused(); err != nil {
		t.Fatal(err)
	}
}

func TestANetworkThatLostTheWay(t *testing.T) {
	for name, ways := range map[string][]direction{
		"both":       {toRedis, fromRedis},
		"to Redis":   {toRedis},
		"from Redis": {fromRedis},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, redistest.Options{})
			relay := startRelay(t, server.Addr)
			r := newRecord()
			start(t, client(t, upstream.Options{Address: relay.addr}), r, r.options("a"))
			r.waitHeard(t)
			before := r.len()
			relay.swallow(ways...)
			// Messages that come are no proof while no PING is answered.
			ctx, enough := context.WithCancel(t.Context())
			publisher := server.Client(t)
			var publishing sync.WaitGroup
			publishing.Go(func() {
				for ctx.Err() == nil {
					publisher.Publish(ctx, "a", "noise")
					time.Sleep(time.Millisecond)
				}
			})
			r.waitFrom(t, before, "loss", isLost)
			enough()
			publishing.Wait()
			relay.swallow()
			r.waitHeard(t)
		})
	}
}

// A user who loses the right to a channel is cut off. What is published until
// the right is back is lost, and said to be.
func TestNoRightToTheChannel(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	admin := server.Client(t)
	setUser := func(rules ...any) {
		t.Helper()
		if err := admin.Do(t.Context(), append([]any{"ACL", "SETUSER", "sidecar"}, rules...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	setUser("on", ">pw", "+@all", "resetchannels")
	r := newRecord()
	l := start(t, client(t, upstream.Options{Address: server.Addr, User: "sidecar", Password: "pw"}), r, r.options("a"))
	waitRefused(t, l, "NOPERM")
	setUser("&a")
	r.waitHeard(t)
	if err := l.Refused(); err != nil {
		t.Fatalf("subscribed, and refused: %v", err)
	}

	before := r.len()
	setUser("resetchannels")
	_, lost := r.waitFrom(t, before, "loss", isLost)
	waitRefused(t, l, "NOPERM")
	publish(t, admin, "a", "missed")
	setUser("&a")
	r.waitFrom(t, lost+1, "loss when it is subscribed again", isLost)
	r.waitHeard(t)
	for _, c := range r.all() {
		if c.kind == "message" {
			t.Fatalf("message %q, which nobody was there for", c.payload)
		}
	}
}

// waitRefused waits until the Listener says that it is refused so, "" for not
// refused.
func waitRefused(t *testing.T, l *Listener, prefix string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err := l.Refused()
		if prefix == "" && err == nil || prefix != "" && err != nil && strings.HasPrefix(err.Error(), prefix) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("Refused: %v, want %s", err, prefix)
		}
	}
}

func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		args   []string
		target upstream.Options
		want   string
	}{
		"no password":    {[]string{"--requirepass", "pw"}, upstream.Options{}, "NOAUTH"},
		"wrong password": {[]string{"--requirepass", "pw"}, upstream.Options{Password: "other"}, "WRONGPASS"},
		"no such command": {
			[]string{"--rename-command", "SUBSCRIBE", ""}, upstream.Options{}, "ERR unknown command",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, redistest.Options{Args: test.args})
			test.target.Address = server.Addr
			r := newRecord()
			l := start(t, client(t, test.target), r, r.options("a"))
			waitRefused(t, l, test.want)
			server.Kill()
			waitRefused(t, l, "") // no longer: now nobody is there
			if n := r.len(); n != 0 {
				t.Fatalf("%d callbacks without a subscription", n)
			}
		})
	}
}

// spy shows the subscription that a Listener uses.
type spy struct {
	*redis.Client
	made chan *redis.PubSub
}

func (s spy) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	pubsub := s.Client.Subscribe(ctx, channels...)
	select {
	case s.made <- pubsub:
	default:
	}
	return pubsub
}

// go-redis replaces a connection on which a write failed. Here it does so while
// the Listener is busy, so that no error reaches it: only the confirmation on the
// new connection tells.
func TestAConnectionReplacedBehindItsBackIsALoss(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	plain := redis.NewClient(&redis.Options{
		Addr:       server.Addr,
		MaxRetries: -1,
		// It has to succeed with the deadline in the past, too.
		Dialer: func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", server.Addr) },
	})
	defer plain.Close()
	spy := spy{plain, make(chan *redis.PubSub, 1)}
	r := newRecord()
	busy, goOn := make(chan struct{}), make(chan struct{})
	opts := r.options("a")
	opts.PingEvery = patience // one PING for each connection, so none fails by itself
	opts.SilenceMax = 2 * patience
	record := opts.OnMessage
	opts.OnMessage = func(channel, payload string) {
		if payload == "stay" {
			busy <- struct{}{}
			<-goOn
		}
		record(channel, payload)
	}
	start(t, spy, r, opts)
	pubsub := <-spy.made
	_, heard := r.wait(t, "proof", func(c call) bool { return c.kind == "heard" })
	publish(t, server.Client(t), "a", "stay")
	<-busy
	past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := pubsub.Ping(past, "of the test"); err == nil {
		t.Fatal("a PING with a deadline in the past was sent")
	}
	close(goOn)
	_, lost := r.waitFrom(t, heard+1, "loss", isLost)
	_, again := r.waitFrom(t, lost+1, "loss when it is subscribed again", isLost)
	r.waitFrom(t, again+1, "proof", func(c call) bool { return c.kind == "heard" })
	for _, c := range r.all()[heard+1 : again] {
		if c.kind == "heard" {
			t.Fatal("heard on a connection that had a gap")
		}
	}
}

func TestCloseWhileNothingAnswers(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	relay := startRelay(t, server.Addr)
	relay.swallow(toRedis, fromRedis)
	r := newRecord()
	opts := r.options("a")
	opts.ConnectTimeout = 50 * time.Millisecond
	made := make(chan *redis.PubSub, 1)
	l := start(t, spy{client(t, upstream.Options{Address: relay.addr}), made}, r, opts)
	<-made
	l.Close()
	if n := r.len(); n != 0 {
		t.Fatalf("%d callbacks without a subscription", n)
	}
}

func TestCloseEndsWithALoss(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	r := newRecord()
	l := start(t, client(t, upstream.Options{Address: server.Addr}), r, r.options("a"))
	r.waitHeard(t)
	l.Close()
	if last := r.all()[r.len()-1]; last.kind != "lost" {
		t.Fatalf("the last callback is %q", last.kind)
	}
}

func TestEmbeddedStore(t *testing.T) {
	store, err := upstream.StartEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	rdb := client(t, upstream.Options{Dialer: store.Dial})
	r := newRecord()
	start(t, rdb, r, r.options("a"))
	r.waitHeard(t)
	for i := range 50 {
		payload := fmt.Sprint("message ", i)
		publish(t, rdb, "a", payload)
		r.wait(t, payload, isMessage(payload))
		r.waitHeard(t)
	}
	// Also what a script publishes.
	if err := rdb.Eval(t.Context(), "return redis.call('PUBLISH', 'a', 'from a script')", nil).Err(); err != nil {
		t.Fatal(err)
	}
	r.wait(t, "message of the script", isMessage("from a script"))
}
