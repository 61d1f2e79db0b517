package seckill

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/localcache"
)

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	const hopeless = 30 * time.Second
	for end := time.Now().Add(hopeless); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// sell creates a sale of any number of shards.
func sell(t testing.TB, s *Store, sale Sale) {
	t.Helper()
	if created := must[Created](t)(s.Create(t.Context(), sale)); created.Exists || created.Shards != max(sale.Shards, 1) {
		t.Fatalf("Create(%+v) = %+v", sale, created)
	}
}

// newQuietStore returns a Store that does nothing by itself: it hears of nobody,
// and its keeper makes its rounds when the test calls them.
func newQuietStore(t testing.TB, rdb redis.UniversalClient, opts Options) *Store {
	s := newStore(t, rdb, opts)
	s.started.Do(func() {})
	return s
}

// newListeningStore returns a Store without a keeper, so that all its commands are
// those of the test, once it hears what others do.
func newListeningStore(t testing.TB, rdb redis.UniversalClient, opts Options) *Store {
	s := newStore(t, rdb, opts)
	s.started.Do(s.news.start)
	eventually(t, "a subscription", s.news.alive)
	return s
}

// knownSale returns what a Store knows of a sale.
func knownSale(t testing.TB, s *Store, sku string) localcache.Sale {
	t.Helper()
	return must[localcache.Sale](t)(s.readSale(context.WithoutCancel(t.Context()), sku))
}

// past waits until Redis's clock has reached a time, in Unix milliseconds.
func past(t testing.TB, rdb redis.UniversalClient, at int64) {
	t.Helper()
	eventually(t, "the time to pay by", func() bool {
		return must[time.Time](t)(rdb.Time(t.Context()).Result()).UnixMilli() >= at
	})
}

// errCrashed is what a client gets that a probe has cut off.
var errCrashed = errors.New("crashed")

// probe counts what a client sends, and can cut it off from Redis.
type probe struct {
	mu    sync.Mutex
	sent  map[string]int // by name in lower case, scripts as "script <name>"
	total int
	most  int // commands and pipelines that are let through, 0 for all
	trips int
	until int    // when so many trips have been made,
	then  func() // this happens
}

// newProbe watches a client from now on.
func newProbe(rdb *redis.Client) *probe {
	p := &probe{sent: map[string]int{}}
	rdb.AddHook(p)
	return p
}

// scriptNames tells scripts by their SHA-1.
var scriptNames = func() map[string]string {
	names := map[string]string{}
	for _, name := range strings.Fields("create state remove window buy send settle sweep restock result find orders info pull audit lease") {
		sum := sha1.Sum([]byte(source("records") + source(name)))
		names[hex.EncodeToString(sum[:])] = "script " + name
	}
	return names
}()

func (p *probe) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *probe) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if ofConnection(cmd) {
			return next(ctx, cmd)
		}
		if err := p.begin(cmd); err != nil {
			return err
		}
		err := next(ctx, cmd)
		p.note(cmd)
		return err
	}
}

func (p *probe) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if ofConnection(cmds[0]) {
			return next(ctx, cmds)
		}
		if err := p.begin(cmds...); err != nil {
			return err
		}
		err := next(ctx, cmds)
		p.note(cmds...)
		return err
	}
}

// ofConnection reports commands with which a client sets up a connection.
func ofConnection(cmd redis.Cmder) bool { return cmd.Name() == "hello" || cmd.Name() == "client" }

// begin begins a trip to Redis, if the client isn't cut off.
func (p *probe) begin(cmds ...redis.Cmder) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trips++
	if p.most == 0 || p.trips <= p.most {
		return nil
	}
	for _, cmd := range cmds {
		cmd.SetErr(errCrashed)
	}
	return errCrashed
}

// note counts what has been answered.
func (p *probe) note(cmds ...redis.Cmder) {
	p.mu.Lock()
	then := p.then
	if p.trips != p.until {
		then = nil
	}
	defer func() {
		p.mu.Unlock()
		if then != nil {
			then()
		}
	}()
	for _, cmd := range cmds {
		name := cmd.Name()
		if name == "evalsha" {
			name = scriptNames[cmd.Args()[1].(string)]
		}
		p.sent[name]++
		p.total++
	}
}

// crashAfter cuts the client off after so many more trips, at least 1, and crashed
// reports whether it came to that.
func (p *probe) crashAfter(trips int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = p.trips + trips
}

func (p *probe) crashed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most > 0 && p.trips > p.most
}

// interrupt lets something happen after so many more trips, and since tells how many
// there were after that.
func (p *probe) interrupt(trips int, then func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until, p.then = p.trips+trips, then
}

func (p *probe) since() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trips - p.until
}

// count returns how often a command was sent, and all how many commands were.
func (p *probe) count(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent[name]
}

func (p *probe) all() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// seen is what was sent, for messages.
func (p *probe) seen() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.sent)
}

// deafness is the fate of a client's subscriptions: what Redis sends there can be
// made to disappear, while the connection stays open and the others work.
type deafness struct {
	mu   sync.Mutex
	deaf bool
}

func (d *deafness) set(deaf bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deaf = deaf
}

func (d *deafness) is() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.deaf
}

// connectDeaf returns a client whose subscriptions can become deaf.
func connectDeaf(t testing.TB, addr string) (*redis.Client, *deafness) {
	d := &deafness{}
	var dialer net.Dialer
	return connectAs(t, &redis.Options{Addr: addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &deafConn{Conn: conn, fate: d}, nil
	}}), d
}

type deafConn struct {
	net.Conn
	fate       *deafness
	subscribes bool // written before anything that may disappear is read
}

func (c *deafConn) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "\r\nsubscribe\r\n") {
		c.subscribes = true
	}
	return c.Conn.Write(b)
}

func (c *deafConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.subscribes || !c.fate.is() {
			return n, err
		}
	}
}
