package localcache

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// clock is one that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// redisNow is what Redis's clock shows when the tests begin: another time than
// ours.
const redisNow = 1_000_000

// newCache returns a cache that trusts, and its clock.
func newCache(opts Options) (*Cache[string], *clock) {
	clock := &clock{now: time.Unix(5000, 0)}
	opts.Now = clock.Now
	c := New[string](opts)
	c.Heard(clock.Now())
	return c, clock
}

// soldOut makes the cache know a sale of this SKU as sold out to these users.
func soldOut(c *Cache[string], sku string, users ...string) bool {
	m := c.Mark(sku)
	c.LearnSale(m, Sale{ID: "id of " + sku, Shards: 1, Limit: 1}, redisNow)
	return c.LearnSoldOut(m, "id of "+sku, buyersOf(c, users...))
}

func buyersOf(c *Cache[string], users ...string) *Buyers {
	buyers := c.NewBuyers()
	for _, user := range users {
		buyers.Add(user)
	}
	return buyers
}

func wantVerdict(t *testing.T, c *Cache[string], sku, user, requestID string, want Verdict) {
	t.Helper()
	if got := c.Refuse(sku, user, requestID, 1); got.Verdict != want {
		t.Fatalf("Refuse(%s, %s, %q) = %s, want %s", sku, user, requestID, got.Verdict, want)
	}
}

func TestRules(t *testing.T) {
	const open, past, future = 0, redisNow - 5000, redisNow + 5000
	for name, test := range map[string]struct {
		sale    Sale
		soldOut bool // to "buyer"
		limited bool // "user" and "buyer" are too fast
		// what "user" and "buyer" are told, without and with a request id
		user, userID, buyer, buyerID Verdict
	}{
		"on sale":                    {Sale{}, false, false, Unknown, Unknown, Unknown, Unknown},
		"open since, closes later":   {Sale{OpenAt: past, CloseAt: future}, false, false, Unknown, Unknown, Unknown, Unknown},
		"sold out":                   {Sale{}, true, false, SoldOut, SoldOut, Unknown, Unknown},
		"not open":                   {Sale{OpenAt: future}, false, false, NotOpen, Unknown, NotOpen, Unknown},
		"never was open":             {Sale{OpenAt: future, Virgin: true}, false, false, NotOpen, NotOpen, NotOpen, NotOpen},
		"closed":                     {Sale{CloseAt: past}, false, false, Closed, Unknown, Closed, Unknown},
		"closed before it opens":     {Sale{OpenAt: future, CloseAt: past}, false, false, Closed, Unknown, Closed, Unknown},
		"closed, never had an order": {Sale{CloseAt: past, Virgin: true}, false, false, Closed, Unknown, Closed, Unknown},
		"too fast":                   {Sale{RateCount: 1}, false, true, RateLimited, Unknown, RateLimited, Unknown},
		"too fast, no rate any more": {Sale{}, false, true, Unknown, Unknown, Unknown, Unknown},
		"sold out and closed":        {Sale{CloseAt: past}, true, false, Closed, Unknown, Closed, Unknown},
		"sold out, opens again":      {Sale{OpenAt: future}, true, false, NotOpen, Unknown, NotOpen, Unknown},
		"sold out and too fast":      {Sale{RateCount: 1}, true, true, RateLimited, SoldOut, RateLimited, Unknown},
		"closed and too fast":        {Sale{CloseAt: past, RateCount: 1}, false, true, Closed, Unknown, Closed, Unknown},
		"opens when it closes":       {Sale{OpenAt: future, CloseAt: future}, false, false, NotOpen, Unknown, NotOpen, Unknown},
		"everything at once":         {Sale{OpenAt: open, CloseAt: past, RateCount: 1}, true, true, Closed, Unknown, Closed, Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			c, clock := newCache(Options{})
			test.sale.ID = "id"
			m := c.Mark("sku")
			c.LearnSale(m, test.sale, redisNow)
			if test.soldOut && !c.LearnSoldOut(m, "id", buyersOf(c, "buyer")) {
				t.Fatal("the flag was not remembered")
			}
			if test.limited {
				c.LearnRateLimited(m, "id", "user", 5000)
				c.LearnRateLimited(m, "id", "buyer", 5000)
			}
			wantVerdict(t, c, "sku", "user", "", test.user)
			wantVerdict(t, c, "sku", "user", "request", test.userID)
			wantVerdict(t, c, "sku", "buyer", "", test.buyer)
			wantVerdict(t, c, "sku", "buyer", "request", test.buyerID)

			if test.soldOut {
				// What a buyer has been told is told first, and nobody else.
				m := c.Mark("sku")
				c.Remember(m, "id", "buyer", "", 1, "limit")
				c.Remember(m, "id", "buyer", "request", 1, "replayed")
				c.Remember(m, "id", "user", "", 1, "not a buyer")
				if got := c.Refuse("sku", "buyer", "", 1); got.Verdict != Remembered || got.Receipt != "limit" {
					t.Fatalf("the buyer's answer is %+v", got)
				}
				if got := c.Refuse("sku", "buyer", "request", 1); got.Verdict != Remembered || got.Receipt != "replayed" {
					t.Fatalf("the buyer's answer to the request is %+v", got)
				}
				wantVerdict(t, c, "sku", "buyer", "another", test.buyerID)
				if got := c.Refuse("sku", "buyer", "request", 2); got.Verdict != Unknown {
					t.Fatalf("the buyer's answer to another quantity is %+v", got)
				}
				wantVerdict(t, c, "sku", "user", "", test.user)
			}

			// Without trust only a rate refusal is left.
			clock.advance(time.Second)
			want := Unknown
			if test.limited && test.sale.RateCount > 0 {
				want = RateLimited
			}
			wantVerdict(t, c, "sku", "user", "", want)
			wantVerdict(t, c, "sku", "buyer", "", want)
			wantVerdict(t, c, "sku", "user", "request", Unknown)
			wantVerdict(t, c, "sku", "buyer", "request", Unknown)
		})
	}
}

func TestAbsentSale(t *testing.T) {
	c, clock := newCache(Options{AbsentFor: 10 * time.Second})
	wantVerdict(t, c, "sku", "user", "", Unknown)
	c.LearnAbsent(c.Mark("sku"))
	wantVerdict(t, c, "sku", "user", "", NoSale)
	wantVerdict(t, c, "sku", "user", "request", NoSale)
	if _, ok := c.Sale("sku"); ok {
		t.Fatal("an absent sale is known")
	}
	clock.advance(time.Second)
	wantVerdict(t, c, "sku", "user", "", Unknown)
	c.Heard(clock.Now())
	wantVerdict(t, c, "sku", "user", "", NoSale)
	clock.advance(9 * time.Second)
	c.Heard(clock.Now())
	wantVerdict(t, c, "sku", "user", "", Unknown) // asked for again by now
	c.LearnAbsent(c.Mark("sku"))
	c.Event("sku") // created
	wantVerdict(t, c, "sku", "user", "", Unknown)
}

func TestWhoAskedLaterKnowsBetter(t *testing.T) {
	c, _ := newCache(Options{})
	first, second, third := c.Mark("sku"), c.Mark("sku"), c.Mark("sku")
	c.LearnSale(second, Sale{ID: "second"}, redisNow)
	c.LearnSale(first, Sale{ID: "first"}, redisNow)
	c.LearnAbsent(first)
	if sale, ok := c.Sale("sku"); !ok || sale.ID != "second" {
		t.Fatalf("the sale is %+v, %t", sale, ok)
	}
	c.LearnAbsent(third)
	c.LearnSale(second, Sale{ID: "second"}, redisNow)
	wantVerdict(t, c, "sku", "user", "", NoSale)
	// A sale is found even if something changed meanwhile: its id is checked.
	c.Event("sku")
	fourth := c.Mark("sku")
	c.Event("sku")
	c.LearnSale(fourth, Sale{ID: "fourth", OpenAt: redisNow * 2}, redisNow)
	if sale, ok := c.Sale("sku"); !ok || sale.ID != "fourth" {
		t.Fatalf("the sale is %+v, %t", sale, ok)
	}
	wantVerdict(t, c, "sku", "user", "", Unknown)
}

// Whatever is learned from an answer that a change may have overtaken is not
// believed, nor what a change came after.
func TestChangeWhileAskingAndAfter(t *testing.T) {
	sale := func(sale Sale) func(*Cache[string], Mark) {
		return func(c *Cache[string], m Mark) { c.LearnSale(m, sale, redisNow) }
	}
	nothing := func(*Cache[string], Mark) {}
	facts := map[string]struct {
		given, learn func(c *Cache[string], m Mark) // learn needs what is given
	}{
		"absent":   {nothing, func(c *Cache[string], m Mark) { c.LearnAbsent(m) }},
		"not open": {nothing, sale(Sale{ID: "id", OpenAt: 2 * redisNow})},
		"closed":   {nothing, sale(Sale{ID: "id", CloseAt: 1})},
		"too fast": {
			sale(Sale{ID: "id", RateCount: 1}),
			func(c *Cache[string], m Mark) { c.LearnRateLimited(m, "id", "user", 5000) },
		},
		"sold out": {
			sale(Sale{ID: "id"}),
			func(c *Cache[string], m Mark) { c.LearnSoldOut(m, "id", buyersOf(c)) },
		},
		"remembered": {
			func(c *Cache[string], _ Mark) { soldOut(c, "sku", "user") },
			func(c *Cache[string], m Mark) { c.Remember(m, "id of sku", "user", "", 1, "answer") },
		},
	}
	changes := map[string]struct {
		change func(c *Cache[string])
		harms  bool
	}{
		"nothing":              {func(*Cache[string]) {}, false},
		"event of another SKU": {func(c *Cache[string]) { c.Event("other") }, false},
		"event":                {func(c *Cache[string]) { c.Event("sku") }, true},
		"reset":                {func(c *Cache[string]) { c.Reset() }, true},
		"event that had to be forgotten": {func(c *Cache[string]) {
			c.Event("sku")
			for i := range 10 {
				c.LearnSale(c.Mark(fmt.Sprint(i)), Sale{ID: "id"}, redisNow)
			}
		}, true},
	}
	for what, fact := range facts {
		for how, change := range changes {
			t.Run(what+"/"+how, func(t *testing.T) {
				run := func(t *testing.T, learnFirst bool) {
					c, clock := newCache(Options{SalesMax: 2})
					fact.given(c, c.Mark("sku"))
					m := c.Mark("sku")
					if learnFirst {
						fact.learn(c, m)
					}
					change.change(c)
					if change.harms {
						fact.given(c, c.Mark("sku"))
					}
					if !learnFirst {
						fact.learn(c, m)
					}
					c.Heard(clock.Now())
					got := c.Refuse("sku", "user", "", 1).Verdict
					if change.harms && got != Unknown || !change.harms && got == Unknown {
						t.Fatalf("%s", got)
					}
				}
				t.Run("while asking", func(t *testing.T) { run(t, false) })
				t.Run("after", func(t *testing.T) { run(t, true) })
			})
		}
	}
}

func TestAnotherLifeOfTheSKU(t *testing.T) {
	c, _ := newCache(Options{})
	m := c.Mark("sku")
	c.LearnSale(m, Sale{ID: "old", RateCount: 1}, redisNow)
	c.LearnRateLimited(m, "old", "fast", 5000)
	c.LearnSoldOut(m, "old", buyersOf(c, "buyer"))
	c.Remember(c.Mark("sku"), "old", "buyer", "", 1, "answer of the old sale")
	c.LearnSale(c.Mark("sku"), Sale{ID: "new", RateCount: 1}, redisNow)
	for _, user := range []string{"fast", "buyer", "user"} {
		wantVerdict(t, c, "sku", user, "", Unknown)
	}
	c.LearnSoldOut(c.Mark("sku"), "new", buyersOf(c, "buyer"))
	c.Remember(c.Mark("sku"), "old", "buyer", "", 1, "answer of the old sale")
	wantVerdict(t, c, "sku", "buyer", "", Unknown)
	c.Event("sku")
	if c.LearnSoldOut(c.Mark("sku"), "old", buyersOf(c)) {
		t.Fatal("remembered that a sale is sold out which isn't there any more")
	}
	if flags := c.SoldOut(); len(flags) != 0 {
		t.Fatalf("flags %+v", flags)
	}
}

// An answer to a buyer that was asked for before the flag may be from a time when
// things still changed.
func TestOnlyAnswersSinceTheFlagAreRemembered(t *testing.T) {
	c, _ := newCache(Options{})
	early := c.Mark("sku")
	soldOut(c, "sku", "buyer")
	c.Remember(early, "id of sku", "buyer", "", 1, "early")
	wantVerdict(t, c, "sku", "buyer", "", Unknown)
	c.Remember(c.Mark("sku"), "id of sku", "buyer", "", 1, "late")
	wantVerdict(t, c, "sku", "buyer", "", Remembered)
	soldOut(c, "sku", "buyer")
	wantVerdict(t, c, "sku", "buyer", "", Unknown)
}

func TestWindowIsOnlySaidWhereCertain(t *testing.T) {
	const asking = 100 * time.Millisecond
	read := func(opens, closes int64) (*Cache[string], *clock) {
		c, clock := newCache(Options{Trust: time.Hour})
		m := c.Mark("sku")
		clock.advance(asking)
		c.LearnSale(m, Sale{ID: "id", OpenAt: opens, CloseAt: closes}, redisNow)
		return c, clock
	}
	for name, test := range map[string]struct {
		opens, closes int64
		after         time.Duration // since the answer
		want          Verdict
	}{
		// Redis's clock was read at any moment of the 100 ms: it may show
		// 100 ms more now, 120 where it runs faster than ours.
		"may have opened while asking": {opens: redisNow + 121, want: Unknown},
		"can't have":                   {opens: redisNow + 123, want: NotOpen},
		"may have opened since":        {opens: redisNow + 721, after: 500 * time.Millisecond, want: Unknown},
		"can't have opened since":      {opens: redisNow + 723, after: 500 * time.Millisecond, want: NotOpen},
		"read too long ago to know":    {opens: redisNow + 60_000, after: 901 * time.Millisecond, want: Unknown},
		"just not too long ago":        {opens: redisNow + 60_000, after: 900 * time.Millisecond, want: NotOpen},

		// And it may just have been read, and run slower than ours since.
		"closed when it was read":     {closes: redisNow, want: Closed},
		"may not have closed":         {closes: redisNow + 1, want: Unknown},
		"must have closed since":      {closes: redisNow + 400, after: 500 * time.Millisecond, want: Closed},
		"may not have closed since":   {closes: redisNow + 401, after: 500 * time.Millisecond, want: Unknown},
		"may be closed or not open":   {opens: redisNow + 60_000, closes: redisNow + 50, want: Unknown},
		"closed when read, long ago":  {closes: 1, after: time.Minute, want: Closed},
		"closed since, long ago":      {closes: redisNow + 400, after: 901 * time.Millisecond, want: Unknown},
		"open, as far as one can say": {opens: redisNow, closes: redisNow + 60_000, want: Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			c, clock := read(test.opens, test.closes)
			clock.advance(test.after)
			got := c.Refuse("sku", "user", "", 1)
			if got.Verdict != test.want {
				t.Fatalf("%s, want %s", got.Verdict, test.want)
			}
			if got.Verdict == NotOpen && got.At != test.opens {
				t.Fatalf("opens at %d, want %d", got.At, test.opens)
			}
		})
	}
}

func TestRateLimitEndsByTime(t *testing.T) {
	c, clock := newCache(Options{})
	c.LearnSale(c.Mark("sku"), Sale{ID: "id", RateCount: 1}, redisNow)
	m := c.Mark("sku")
	clock.advance(100 * time.Millisecond) // the answer takes its time
	c.LearnRateLimited(m, "id", "user", 600)
	for _, step := range []struct {
		after time.Duration
		left  int64 // 0 for Unknown
	}{
		{0, 500},
		{300 * time.Millisecond, 200},
		{99 * time.Millisecond, 101},
		{time.Millisecond, 0}, // 500 ms of ours may be 600 of Redis's
		{time.Hour, 0},
	} {
		clock.advance(step.after)
		got := c.Refuse("sku", "user", "", 1)
		if got.At != step.left || (got.Verdict == RateLimited) != (step.left > 0) {
			t.Fatalf("after another %s: %+v, want %d left", step.after, got, step.left)
		}
	}
	wantVerdict(t, c, "sku", "another", "", Unknown)
}

func TestResetEndsTrustUntilHeardAgain(t *testing.T) {
	c, clock := newCache(Options{})
	c.Reset()
	soldOut(c, "sku", "buyer")
	wantVerdict(t, c, "sku", "user", "", Unknown)
	c.Heard(clock.Now())
	wantVerdict(t, c, "sku", "user", "", SoldOut)
	c.Heard(clock.Now().Add(-time.Minute)) // an older proof takes nothing back
	wantVerdict(t, c, "sku", "user", "", SoldOut)
}

func TestBuyersAreBounded(t *testing.T) {
	c, _ := newCache(Options{BuyersMax: 5})
	if !soldOut(c, "a", "1", "2", "3") || !soldOut(c, "b", "1", "2") {
		t.Fatal("flags that fit were not remembered")
	}
	wantVerdict(t, c, "b", "user", "", SoldOut)
	wantVerdict(t, c, "a", "user", "", SoldOut) // b is now the one not asked for longest
	if !soldOut(c, "c", "1", "1", "2") {
		t.Fatal("a flag that fits was not remembered")
	}
	wantVerdict(t, c, "a", "user", "", SoldOut)
	wantVerdict(t, c, "b", "user", "", Unknown)
	wantVerdict(t, c, "c", "user", "", SoldOut)
	if soldOut(c, "a", "1", "2", "3", "4", "5", "6") {
		t.Fatal("a flag with too many buyers was remembered")
	}
	want := []Flag{{"a", "id of a", 3}, {"c", "id of c", 2}}
	if got := c.SoldOut(); !slices.Equal(got, want) {
		t.Fatalf("flags %+v, want %+v", got, want)
	}
	c.Event("a")
	if c.buyers != 2 {
		t.Fatalf("%d buyers are counted, 2 are there", c.buyers)
	}
	c.Reset()
	if flags := c.SoldOut(); c.buyers != 0 || len(flags) != 0 {
		t.Fatalf("after Reset %d buyers are counted, and flags %+v", c.buyers, flags)
	}
}

func TestBuyersStopWhenThereAreTooMany(t *testing.T) {
	c, _ := newCache(Options{BuyersMax: 100})
	buyers := c.NewBuyers()
	for i := range 1000 {
		if !buyers.Add(fmt.Sprint(i % 100)) {
			t.Fatal("100 users, added several times, are too many")
		}
	}
	added := 0
	for buyers.Add(fmt.Sprint("user ", added)) {
		added++
	}
	if added > 200 || cap(buyers.hashes) > 512 {
		t.Fatalf("took %d users more than allowed, with room for %d", added, cap(buyers.hashes))
	}
	m := c.Mark("sku")
	c.LearnSale(m, Sale{ID: "id"}, redisNow)
	if c.LearnSoldOut(m, "id", buyers) {
		t.Fatal("remembered a flag without all of its buyers")
	}
}

func TestEverythingIsBounded(t *testing.T) {
	c, _ := newCache(Options{SalesMax: 7, AbsentMax: 7, RatesMax: 7, BuyersMax: 20, ReceiptsMax: 7})
	for i := range 100 {
		sku := fmt.Sprint("sku ", i)
		c.LearnAbsent(c.Mark("absent " + sku))
		soldOut(c, sku, "a", "b")
		m := c.Mark(sku)
		c.LearnRateLimited(m, "id of "+sku, "user", 1000)
		c.Remember(m, "id of "+sku, "a", "", 1, "answer")
		c.Event("event " + sku)
	}
	for name, n := range map[string]int{
		"sales": c.sales.Len(), "absent": c.absent.Len(), "rates": c.rates.Len(), "receipts": c.receipts.Len(), "flags": c.flags.Len(),
	} {
		if n > 7 {
			t.Errorf("%d %s", n, name)
		}
	}
	if c.buyers > 20 || c.buyers != 2*c.flags.Len() {
		t.Errorf("%d buyers in %d flags", c.buyers, c.flags.Len())
	}
}

func TestAFlagGoesWithItsSale(t *testing.T) {
	c, _ := newCache(Options{SalesMax: 2})
	soldOut(c, "a", "1", "2")
	c.LearnSale(c.Mark("b"), Sale{ID: "b"}, redisNow)
	c.LearnSale(c.Mark("c"), Sale{ID: "c"}, redisNow)
	if c.flags.Len() != 0 || c.buyers != 0 {
		t.Fatalf("%d flags with %d buyers of a sale that was forgotten", c.flags.Len(), c.buyers)
	}
	wantVerdict(t, c, "a", "user", "", Unknown)
}

// A seller sells out and restocks, others look on without a break. Whoever asks
// while there is stock must not hear SoldOut.
func TestConcurrentUse(t *testing.T) {
	c := New[string](Options{Trust: time.Hour})
	c.Heard(time.Now())
	c.LearnSale(c.Mark("sku"), Sale{ID: "id", RateCount: 1}, redisNow)

	var stock, phase atomic.Int64 // phase is odd while there is certainly stock, and that was heard
	var refused, wrong atomic.Int64
	done := make(chan struct{})
	var others sync.WaitGroup
	for worker := range 4 {
		user := fmt.Sprint("user ", worker)
		others.Go(func() {
			for i := 0; ; i++ {
				runtime.Gosched()
				select {
				case <-done:
					return
				default:
				}
				before := phase.Load()
				verdict := c.Refuse("sku", user, "", 1).Verdict
				if verdict == SoldOut {
					refused.Add(1)
					if before%2 == 1 && phase.Load() == before {
						wrong.Add(1)
					}
					continue
				}
				m := c.Mark("sku")
				if stock.Load() == 0 {
					runtime.Gosched() // the answer is on its way
					c.LearnSoldOut(m, "id", buyersOf(c, "buyer"))
					c.Remember(c.Mark("sku"), "id", "buyer", "", 1, user)
				}
				c.Sale("sku")
				c.SoldOut()
				c.LearnAbsent(c.Mark(fmt.Sprint("bot ", i%10)))
				c.LearnRateLimited(m, "another", user, 1000)
			}
		})
	}
	for refusedBefore := int64(0); refusedBefore < 1000; refusedBefore = refused.Load() {
		stock.Store(1)
		if refusedBefore%7 == 0 {
			c.Reset()
			c.Heard(time.Now())
		} else {
			c.Event("sku")
		}
		phase.Add(1)
		for range rand.IntN(20) {
			runtime.Gosched()
		}
		phase.Add(1)
		stock.Store(0)
		for refused.Load() == refusedBefore { // until someone has found out
			runtime.Gosched()
		}
	}
	close(done)
	others.Wait()
	if wrong.Load() > 0 {
		t.Fatalf("%d of %d were told SoldOut while there was stock", wrong.Load(), refused.Load())
	}
}

// A sale that was sold out and that nobody asks for any more isn't looked at for
// ever.
func TestAFlagThatNobodyAsksForIsForgotten(t *testing.T) {
	c, clock := newCache(Options{})
	c.LearnSale(c.Mark("sku"), Sale{ID: "id", Shards: 1}, redisNow)
	if !c.LearnSoldOut(c.Mark("sku"), "id", c.NewBuyers()) {
		t.Fatal("the flag isn't remembered")
	}
	for range 3 { // longer in all than it is kept, but asked for
		clock.advance(40 * time.Second)
		c.Heard(clock.Now())
		wantVerdict(t, c, "sku", "user", "", SoldOut)
		if flags := c.SoldOut(); len(flags) != 1 {
			t.Fatalf("the flags are %v, want one", flags)
		}
	}
	clock.advance(time.Minute)
	c.Heard(clock.Now())
	if flags := c.SoldOut(); len(flags) != 0 {
		t.Fatalf("the flags are %v, want none", flags)
	}
	wantVerdict(t, c, "sku", "user", "", Unknown)
}
