package seckill

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
	"seckill-proxy/sharding"
)

// serverCall is a call that has begun: it stands in for Store.serve, and waits
// until the test lets it end.
type serverCall struct {
	lane
	users []string
	end   chan func([]*order)
}

// answer lets the call end, with a receipt for each order.
func (c *serverCall) answer() {
	c.end <- func(orders []*order) {
		for _, o := range orders {
			o.receipt = Receipt{Outcome: Reserved, Token: "of " + o.User}
		}
	}
}

func (c *crowd) begin(at lane, orders []*order) {
	call := &serverCall{lane: at, end: make(chan func([]*order))}
	for _, o := range orders {
		call.users = append(call.users, o.User)
	}
	c.calls <- call
	(<-call.end)(orders)
}

// queued is an Observer that knows how many purchases wait.
type queued struct {
	nobody
	mu   sync.Mutex
	n    int
	shed int
}

func (q *queued) Queued(purchases int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.n += purchases
}

func (q *queued) Shed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shed++
}

func (q *queued) is() (waiting, shed int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n, q.shed
}

// crowd is buyers in front of lineups.
type crowd struct {
	*lineups
	*queued
	calls   chan *serverCall // as they begin
	t       *testing.T
	running sync.WaitGroup // what the lineups run
	buyers  sync.WaitGroup

	mu      sync.Mutex
	answers map[string]error // by user
	tokens  map[string]string
}

func newCrowd(t *testing.T, options Options) *crowd {
	c := &crowd{
		calls: make(chan *serverCall), queued: &queued{}, t: t,
		answers: map[string]error{}, tokens: map[string]string{},
	}
	options.Observer = c.queued
	c.lineups = newLineups(c.begin, options.withDefaults(), &c.running)
	return c
}

// buy lets a user buy, in the background.
func (c *crowd) buy(p Purchase) {
	c.buyers.Go(func() {
		receipt, err := c.lineups.buy(p, localcache.Sale{ID: "id", Shards: 1})
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answers[p.User], c.tokens[p.User] = err, receipt.Token
	})
}

// buyQueued lets a user buy and waits until he stands in line.
func (c *crowd) buyQueued(p Purchase) {
	c.t.Helper()
	before, _ := c.is()
	c.buy(p)
	eventually(c.t, "a place in the line", func() bool { now, _ := c.is(); return now == before+1 })
}

// ended waits for all, and checks that nothing is left of them.
func (c *crowd) ended() {
	c.t.Helper()
	c.buyers.Wait()
	c.running.Wait()
	waiting, _ := c.is()
	c.lineups.mu.Lock()
	defer c.lineups.mu.Unlock()
	if waiting != 0 || len(c.lanes) != 0 || len(c.waiting) != 0 || c.total != 0 {
		c.t.Fatalf("left behind: %d waiting, %v, %v, %d", waiting, c.lanes, c.waiting, c.total)
	}
	for user, err := range c.answers {
		if err == nil && c.tokens[user] != "of "+user {
			c.t.Fatalf("%s was answered %q", user, c.tokens[user])
		}
	}
}

func names(from, to int) (users []string) {
	for i := from; i < to; i++ {
		users = append(users, fmt.Sprint(i))
	}
	return users
}

func TestALonePurchaseWaitsForNobody(t *testing.T) {
	c := newCrowd(t, Options{})
	c.buy(Purchase{SKU: "a", User: "0"})
	first := <-c.calls
	// Others, of another sale and for replicas, aren't held up by it.
	c.buy(Purchase{SKU: "b", User: "1"})
	second := <-c.calls
	c.buy(Purchase{SKU: "a", User: "2", Sync: 1})
	third := <-c.calls
	for i, call := range []*serverCall{first, second, third} {
		equal(t, "in a call", fmt.Sprint(call.users), fmt.Sprint(names(i, i+1)))
		call.answer()
	}
	waiting, _ := c.is()
	equal(t, "waiting", waiting, 0)
	c.ended()
}

func TestWhatGathersTravelsTogetherAndInOrder(t *testing.T) {
	c := newCrowd(t, Options{BatchMax: 4})
	c.buy(Purchase{SKU: "a", User: "0"})
	first := <-c.calls
	for _, user := range names(1, 11) {
		c.buyQueued(Purchase{SKU: "a", User: user})
	}
	first.answer()
	for _, want := range [][]string{names(1, 5), names(5, 9)} {
		call := <-c.calls
		equal(t, "in a call", fmt.Sprint(call.users), fmt.Sprint(want))
		if want[0] == "5" { // who comes during a call stands behind
			c.buyQueued(Purchase{SKU: "a", User: "11"})
		}
		call.answer()
	}
	call := <-c.calls
	equal(t, "in the last call", fmt.Sprint(call.users), fmt.Sprint(names(9, 12)))
	call.answer()
	c.ended()
}

func TestLinesAreBounded(t *testing.T) {
	for _, c := range []struct {
		name        string
		options     Options
		first, last Purchase
	}{
		{"of a sale", Options{QueueMax: 3}, Purchase{SKU: "a"}, Purchase{SKU: "a", User: "last", Sync: 1}},
		{"of all sales", Options{QueuesMax: 3}, Purchase{SKU: "a"}, Purchase{SKU: "b", User: "last"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			crowd := newCrowd(t, c.options)
			begun := map[string]*serverCall{}
			for _, p := range []Purchase{{SKU: "a", User: "0"}, {SKU: c.last.SKU, User: "1", Sync: c.last.Sync}} {
				crowd.buy(p)
				begun[p.User] = <-crowd.calls
			}
			for _, user := range names(2, 5) {
				crowd.buyQueued(Purchase{SKU: "a", User: user})
			}
			_, err := crowd.lineups.buy(c.last, localcache.Sale{ID: "id", Shards: 1})
			if !errors.Is(err, ErrBusy) || !errors.Is(err, script.ErrNotExecuted) {
				t.Fatalf("one too many: %v", err)
			}
			// A sale of which no call is under way needs no place.
			crowd.buy(Purchase{SKU: "c", User: "5"})
			(<-crowd.calls).answer()
			begun["0"].answer()
			(<-crowd.calls).answer()
			// There is room again.
			crowd.buyQueued(c.last)
			begun["1"].answer()
			(<-crowd.calls).answer()
			crowd.ended()
			_, shed := crowd.is()
			equal(t, "refused", shed, 1)
		})
	}
}

func TestWhoWaitsForTooLongIsRefused(t *testing.T) {
	c := newCrowd(t, Options{QueueWait: time.Nanosecond})
	c.buy(Purchase{SKU: "a", User: "0"})
	first := <-c.calls
	c.buyQueued(Purchase{SKU: "a", User: "1"})
	c.buyQueued(Purchase{SKU: "a", User: "2"})
	first.answer()
	c.ended() // without another call
	for user, want := range map[string]error{"0": nil, "1": ErrBusy, "2": ErrBusy} {
		if !errors.Is(c.answers[user], want) {
			t.Errorf("user %s: %v, want %v", user, c.answers[user], want)
		}
	}
}

// A call that panics costs its own purchases an error, and nobody else anything:
// neither those behind it nor those that come later.
func TestACallThatPanicsHoldsUpNobody(t *testing.T) {
	c := newCrowd(t, Options{})
	c.buy(Purchase{SKU: "a", User: "0"})
	first := <-c.calls
	c.buyQueued(Purchase{SKU: "a", User: "1"})
	first.end <- func([]*order) { panic("of the first call") }
	second := <-c.calls
	c.buyQueued(Purchase{SKU: "a", User: "2"})
	second.end <- func([]*order) { panic("of a call for those who waited") }
	(<-c.calls).answer()
	c.ended()
	for user, want := range map[string]error{"0": script.ErrUncertain, "1": script.ErrUncertain, "2": nil} {
		if !errors.Is(c.answers[user], want) {
			t.Errorf("user %s: %v, want %v", user, c.answers[user], want)
		}
	}
}

func TestShardsOfASaleHaveTheirOwnLines(t *testing.T) {
	c := newCrowd(t, Options{})
	const shards = 8
	var calls []*serverCall
	for shard := range shards {
		user := 0
		for sharding.HomeShard(fmt.Sprint(user), shards) != shard {
			user++
		}
		c.buyers.Go(func() {
			_, _ = c.lineups.buy(Purchase{SKU: "a", User: fmt.Sprint(user)}, localcache.Sale{ID: "id", Shards: shards})
		})
		call := <-c.calls
		equal(t, "shard", call.lane, lane{sku: "a", shard: shard, shards: shards})
		calls = append(calls, call)
	}
	for _, call := range calls {
		call.answer()
	}
	c.ended()
}

// Many at a time, of several sales, some of them for replicas: all are answered,
// once, each line in turn.
func TestACrowdLeavesNothingBehind(t *testing.T) {
	observer := &queued{}
	var running, buyers sync.WaitGroup
	var mu sync.Mutex
	under := map[lane]bool{}
	served := 0
	l := newLineups(func(at lane, orders []*order) {
		mu.Lock()
		if under[at] || len(orders) > 7 {
			t.Errorf("%d orders in a call of %+v; one is under way: %v", len(orders), at, under[at])
		}
		under[at] = true
		served += len(orders)
		mu.Unlock()
		for _, o := range orders {
			o.receipt.Token = o.User
		}
		mu.Lock()
		delete(under, at)
		mu.Unlock()
	}, Options{BatchMax: 7, Observer: observer}.withDefaults(), &running)
	const purchases = 2000
	for i := range purchases {
		buyers.Go(func() {
			p := Purchase{SKU: fmt.Sprint(i % 3), User: fmt.Sprint(i), Sync: i % 2}
			receipt, err := l.buy(p, localcache.Sale{Shards: 2})
			if err != nil || receipt.Token != p.User {
				t.Errorf("%+v: %+v, %v", p, receipt, err)
			}
		})
	}
	buyers.Wait()
	running.Wait()
	equal(t, "served", served, purchases)
	waiting, _ := observer.is()
	if waiting != 0 || len(l.lanes) != 0 || len(l.waiting) != 0 || l.total != 0 {
		t.Fatalf("left behind: %d waiting, %v, %v, %d", waiting, l.lanes, l.waiting, l.total)
	}
}
