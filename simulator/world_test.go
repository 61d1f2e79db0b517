package simulator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// plan is what an episode's seed decides about it as a whole.
type plan struct {
	seed        uint64
	length      time.Duration
	sidecars    int
	clients     int
	think       time.Duration // of a client between two operations, on average
	fault       time.Duration // between two faults, on average; 0 for none
	skus, users int
	dropPercent int  // of a merchant's visits
	killAtEnd   bool // all sidecars start anew before the last checks
}

func (p plan) String() string {
	return fmt.Sprintf("%s, %d sidecars, %d clients that think %s, a fault each %s, %d SKUs, %d users, %d%% drops, new sidecars at the end: %v",
		p.length, p.sidecars, p.clients, p.think, p.fault, p.skus, p.users, p.dropPercent, p.killAtEnd)
}

func planEpisode(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := plan{
		seed:        seed,
		length:      time.Duration(4+r.IntN(8)) * time.Second,
		sidecars:    2 + r.IntN(2),
		clients:     10 + r.IntN(30),
		think:       time.Duration([]int{2, 10, 25, 50}[r.IntN(4)]) * time.Millisecond,
		skus:        1 + r.IntN(4),
		users:       3 + r.IntN(15),
		dropPercent: []int{0, 5, 20}[r.IntN(3)],
		killAtEnd:   r.IntN(2) == 0,
	}
	if r.IntN(8) > 0 {
		p.fault = time.Duration(100+r.IntN(1000)) * time.Millisecond
	}
	return p
}

// oddNames are SKUs and users first; more are numbered.
var oddNames = []string{
	"iphone", "9007199254740993", "a}b{c", "限量 📱", "x\r\n\x00\xff", "9007199254740992", " ", "{}", "*?[a]",
}

func names(n int) []string {
	var list []string
	for i := range n {
		if i < len(oddNames) {
			list = append(list, oddNames[i])
		} else {
			list = append(list, fmt.Sprint("n", i))
		}
	}
	return list
}

// world is the processes of an episode, and what is there to sell.
type world struct {
	plan     plan
	redis    *redistest.Server
	direct   *redis.Client
	sidecars []*sidecar
	users    []string
	shops    []*shop
	history  *history
	dir      string // of the logs
}

// startWorld starts Redis, relays and sidecars.
func startWorld(t *testing.T, p plan, m *model, random *rand.Rand) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "seckill-simulator")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{plan: p, history: &history{}, dir: dir, users: names(p.users)}
	for _, sku := range names(p.skus) {
		w.shops = append(w.shops, m.shops[sku])
	}
	t.Cleanup(func() { w.removeLogs(t) })
	w.redis = redistest.Start(t, redistest.Options{AppendOnly: true})
	w.direct = w.redis.Client(t)
	for i := range p.sidecars {
		s := &sidecar{
			name: fmt.Sprint("sidecar-", i), addr: sidecartest.FreeAddress(t), relay: startRelay(t, w.redis.Addr), dir: dir,
			fail: func(format string, args ...any) { m.fail(nil, format, args...) },
		}
		t.Cleanup(func() {
			s.kill()
			s.wait()
		})
		w.sidecars = append(w.sidecars, s)
		s.start(randomSkew(random))
	}
	for _, s := range w.sidecars {
		s.awaitReady(t)
	}
	return w
}

// randomSkew is by how much a sidecar's clock is wrong: up to ten minutes.
func randomSkew(random *rand.Rand) time.Duration {
	return time.Duration(random.IntN(1201)-600) * time.Second
}

// removeLogs removes the logs of an episode that went well.
func (w *world) removeLogs(t *testing.T) {
	if !t.Failed() {
		os.RemoveAll(w.dir)
		return
	}
	path := filepath.Join(w.dir, "history.txt")
	if err := w.history.write(path); err != nil {
		t.Error(err)
	}
	t.Logf("the whole history is in %s, logs of the sidecars are beside it", path)
}

// runEpisode runs an episode and checks what it has left.
func runEpisode(t *testing.T, p plan, total *tally) {
	t.Log(p)
	m := newModel(names(p.skus))
	random := rand.New(rand.NewPCG(p.seed, 2))
	w := startWorld(t, p, m, random)

	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for i := range p.clients {
		c := newClient(fmt.Sprint("client-", i), w, m, rand.New(rand.NewPCG(p.seed, 100+uint64(i))))
		clients.Go(func() {
			defer c.close()
			c.run(ctx)
		})
	}
	n := &nemesis{t: t, world: w, model: m, random: random, tally: total}
	n.rage(time.Now().Add(p.length))
	n.relent()
	stop()
	clients.Wait()
	if !m.ok(t, w) {
		return
	}
	n.settleDown()
	check := newClient("inspector", w, m, random)
	defer check.close()
	check.inspect(t)
	m.ok(t, w)
	total.operations += w.history.operations()
	total.count(w.history)
}

// run does one thing after the other until ctx ends.
func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		c.step()
		wait := time.Duration(c.random.ExpFloat64() * float64(c.world.plan.think))
		select {
		case <-ctx.Done():
		case <-c.model.failed:
			return
		case <-time.After(wait):
		}
	}
}

// ok reports whether nothing is wrong so far; else it fails the test with all
// that helps to understand it.
func (m *model) ok(t *testing.T, w *world) bool {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault == "" {
		return true
	}
	if m.faultOf == nil {
		t.Errorf("-seed %d: %s\n%s", w.plan.seed, m.fault, w.history.around(20))
		return false
	}
	const most = 40
	t.Errorf("-seed %d: %s\nsaid of\n%s\nthe last about it:\n%s", w.plan.seed, m.fault, m.faultOf,
		w.history.around(most, m.about(m.faultOf)))
	return false
}

// about returns the SKU that a command was about.
func (m *model) about(a *answer) string {
	for sku := range m.shops {
		if len(a.args) > 1 && (a.args[1] == sku || strings.HasPrefix(a.args[1], tokenPrefix(sku))) {
			return sku
		}
	}
	return ""
}
