package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// connections is what many clients of one sidecar cost.
type connections struct {
	sidecar string // its name
	clients int

	// Without clients, and with all of them connected and idle, after their
	// ordinary work.
	before, after footprint

	ordinary, rush work
}

// work is what came of all clients' working once.
type work struct {
	together int   // clients that worked at the same time, at most
	upstream int64 // connections to Redis right after it
	failed   int   // clients that got an error
	failure  error // the first of them, nil if there is none
}

// footprint is the memory of a sidecar, in bytes.
type footprint struct {
	rss, heap int64 // heap: Go's heap in use
}

func (c *connections) rssPerClient() float64 {
	return float64(c.after.rss-c.before.rss) / float64(c.clients)
}

func (c *connections) heapPerClient() float64 {
	return float64(c.after.heap-c.before.heap) / float64(c.clients)
}

// measureConnections connects clients to a sidecar of their own, lets each of
// them work, and looks at what is there while they are idle.
func measureConnections(ctx context.Context, l *lab, n int, progress io.Writer) (*connections, error) {
	redis, asker, err := l.startRedisWithUser(ctx)
	if err != nil {
		return nil, err
	}
	defer asker.Close()
	const variant = 0 // the program's own choice of everything
	sidecar, err := l.startSidecar(ctx, sidecarVariants[variant].name, sidecarVariants[variant].env, redis)
	if err != nil {
		return nil, err
	}
	result := &connections{sidecar: sidecar.name, clients: n}

	// What the first clients bring about once is not what a client costs.
	const first = 20
	if err := sidecar.comeAndGo(ctx, first); err != nil {
		return nil, err
	}
	if result.before, err = sidecar.settle(ctx); err != nil {
		return nil, err
	}

	fmt.Fprintf(progress, "%s: %d clients\n", connectionsKey, n)
	clients, err := connect(sidecar.addr, n)
	defer closeAll(clients)
	if err != nil {
		return nil, err
	}
	if result.ordinary, err = workAll(clients, min(n, ordinaryTogether), asker); err != nil {
		return nil, err
	}
	if err := sidecar.awaitClients(ctx, n); err != nil {
		return nil, err
	}
	if result.after, err = sidecar.settle(ctx); err != nil {
		return nil, err
	}
	result.rush, err = workAll(clients, n, asker)
	return result, err
}

// ordinaryTogether is how many of the clients are at work at a time when there is
// no rush: those of a busy shop's PHP workers whose request is just using Redis.
const ordinaryTogether = 100

// comeAndGo has clients connect, work and leave.
func (c contender) comeAndGo(ctx context.Context, n int) error {
	clients, err := connect(c.addr, n)
	defer closeAll(clients)
	for i, client := range clients {
		err = errors.Join(err, client.work(i))
	}
	if err != nil {
		return err
	}
	closeAll(clients)
	return c.awaitClients(ctx, 0)
}

// The user that some clients authenticate as.
const (
	shopUser     = "shop"
	shopPassword = "secret"
)

// startRedisWithUser starts a Redis that knows shopUser, and returns a
// connection to it too.
func (l *lab) startRedisWithUser(ctx context.Context) (addr string, asker *client, err error) {
	if _, addr, err = l.startRedis(ctx); err != nil {
		return "", nil, err
	}
	if asker, err = dial(addr); err != nil {
		return "", nil, err
	}
	_, err = asker.do("ACL", "SETUSER", shopUser, "on", ">"+shopPassword, "~*", "&*", "+@all")
	return addr, asker, err
}

// connect opens connections; those that were opened are returned in any case.
func connect(addr string, n int) ([]*client, error) {
	var clients []*client
	for range n {
		c, err := dial(addr)
		if err != nil {
			return clients, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

func closeAll(clients []*client) {
	for _, c := range clients {
		c.Close()
	}
}

// workAll has all clients work, so many at a time, and looks at what came of it.
func workAll(clients []*client, together int, asker *client) (work, error) {
	failures := make([]error, len(clients))
	slots := make(chan struct{}, together)
	var running sync.WaitGroup
	for i, c := range clients {
		slots <- struct{}{}
		running.Go(func() {
			failures[i] = c.work(i)
			<-slots
		})
	}
	running.Wait()

	result := work{together: together}
	for _, err := range failures {
		if err != nil {
			result.failed++
			result.failure = cmp.Or(result.failure, err)
		}
	}
	connected, err := asker.info("clients", "connected_clients")
	result.upstream = connected - 1 // the asker's own
	return result, err
}

// work is the ordinary use of a connection: it is set up in one of the ways in
// which clients do that, writes a value and reads it.
func (c *client) work(i int) error {
	var setup []string
	switch i % 10 {
	case 0:
		setup = []string{"HELLO", "3"}
	case 1:
		setup = []string{"AUTH", shopUser, shopPassword}
	case 2:
		setup = []string{"SELECT", "1"}
	}
	if setup != nil {
		if _, err := c.do(setup...); err != nil {
			return err
		}
	}
	key, value := fmt.Sprint("key-", i), fmt.Sprint("value-", i)
	if _, err := c.do("SET", key, value); err != nil {
		return err
	}
	got, err := c.do("GET", key)
	if err == nil && got != value {
		err = fmt.Errorf("GET %s returned %v, want %s", key, got, value)
	}
	return err
}

// settleTimeout bounds how long a sidecar is waited for to come to rest.
const settleTimeout = 2 * time.Minute

// awaitClients waits until the sidecar has so many clients.
func (c contender) awaitClients(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for {
		got, err := c.metric(ctx, "seckill_proxy_clients")
		if err != nil {
			return fmt.Errorf("waiting for %d clients: %w", n, err)
		}
		if got == float64(n) {
			return nil
		}
	}
}

// settle waits until garbage is collected and given back to the system, and
// returns what remains.
func (c contender) settle(ctx context.Context) (footprint, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := c.awaitCollections(ctx); err != nil {
		return footprint{}, err
	}
	rss, err := c.awaitStableRSS(ctx)
	if err != nil {
		return footprint{}, err
	}
	heap, err := c.metric(ctx, "go_memstats_heap_inuse_bytes")
	return footprint{rss: rss, heap: int64(heap)}, err
}

// awaitCollections waits for two garbage collections: what dies during one is
// collected by the next. Asking for the metrics makes the garbage that brings
// them about.
func (c contender) awaitCollections(ctx context.Context) error {
	const collections, metric = 2, "go_gc_duration_seconds_count"
	start, err := c.metric(ctx, metric)
	for now := start; err == nil && now < start+collections; {
		now, err = c.metric(ctx, metric)
	}
	return err
}

// awaitStableRSS waits until the memory in RAM has changed by less than a
// hundredth over some time, in which Go gives back what it doesn't need.
func (c contender) awaitStableRSS(ctx context.Context) (int64, error) {
	const every, readings = 100 * time.Millisecond, 20
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	reference, err := c.process.rss()
	for stable := 0; err == nil && stable < readings; {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("memory of %s doesn't settle: %w", c.name, ctx.Err())
		case <-ticks.C:
		}
		var now int64
		now, err = c.process.rss()
		if stable++; max(now-reference, reference-now) > reference/100 {
			stable, reference = 0, now
		}
	}
	return reference, err
}

// metric returns a value of /metrics.
func (c contender) metric(ctx context.Context, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	_, after, found := strings.Cut(string(text), "\n"+name+" ")
	if !found {
		return 0, fmt.Errorf("/metrics has no %s", name)
	}
	value, _, _ := strings.Cut(after, "\n")
	return strconv.ParseFloat(value, 64)
}
