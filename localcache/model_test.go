package localcache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is Redis, as far as a cache can be wrong about it: what the script of a
// purchase would answer, and what it tells of a sale.
type world struct {
	now   float64 // Redis's clock, in milliseconds
	sales map[string]*worldSale
	lives int
}

type worldSale struct {
	Sale
	left    int
	tokens  map[string]string  // by request: "user" or "user/request id"
	holds   map[string]string  // by user: the token that LIMIT shows
	limited map[string]float64 // by user: when the rate window ends
}

func (w *world) clock() int64 { return int64(w.now) }

// outcome is the script's answer to a purchase of one unit, which isn't made.
// Window and rate can be left out.
func (w *world) outcome(sku, user, requestID string, all bool) (verdict Verdict, token string, at int64) {
	s := w.sales[sku]
	if s == nil {
		return NoSale, "", 0
	}
	if token := s.tokens[user+"/"+requestID]; requestID != "" && token != "" {
		return Remembered, token, 0
	}
	switch until := s.limited[user]; {
	case all && s.CloseAt > 0 && w.clock() >= s.CloseAt:
		return Closed, "", 0
	case all && w.clock() < s.OpenAt:
		return NotOpen, "", s.OpenAt
	case all && s.RateCount > 0 && w.now < until:
		return RateLimited, "", int64(until - w.now)
	case s.holds[user] != "":
		return Remembered, s.holds[user], 0
	case s.left == 0:
		return SoldOut, "", 0
	}
	return Unknown, "", 0
}

// simulation drives a cache and a world with random changes, each of which the
// cache is told at once, or, while its subscription is lost, never.
type simulation struct {
	*testing.T
	*rand.Rand
	world    world
	cache    *Cache[string]
	clock    *clock
	lost     bool     // the subscription
	answers  []func() // that are on their way
	verdicts map[Verdict]int
}

var (
	simSKUs     = []string{"a", "b", "c"}
	simUsers    = []string{"1", "2", "3", "4"}
	simRequests = []string{"", "x", "y"}
)

// seeds is the number of histories.
const seeds = 40

func pick[T any](s *simulation, from []T) T { return from[s.IntN(len(from))] }

// TestNothingIsRefusedThatRedisWouldSell runs random histories, with bounds so
// small that everything is evicted now and then.
func TestNothingIsRefusedThatRedisWouldSell(t *testing.T) {
	verdicts := map[Verdict]int{}
	for seed := range uint64(seeds) {
		bound := 1 + int(seed%8)
		c, clock := newCache(Options{SalesMax: bound, AbsentMax: bound, RatesMax: bound, BuyersMax: 2 * bound, ReceiptsMax: bound})
		s := &simulation{
			T: t, Rand: rand.New(rand.NewPCG(seed, 0)), cache: c, clock: clock, verdicts: verdicts,
			world: world{now: redisNow, sales: map[string]*worldSale{}},
		}
		for range 500 {
			s.step()
			if s.check(); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
	for v := NoSale; v <= Remembered; v++ {
		if verdicts[v] == 0 {
			t.Errorf("%s was never said", v)
		}
	}
	t.Logf("verdicts: %v", verdicts)
}

func (s *simulation) step() {
	sku := pick(s, simSKUs)
	switch n := s.IntN(100); {
	case n < 35:
		s.ask(sku)
	case n < 60:
		s.learn()
	case n < 80:
		s.pass()
	case n < 82:
		s.toggleSubscription()
	default:
		s.change(sku)
	}
}

// pass lets time pass, on Redis's clock at another pace.
func (s *simulation) pass() {
	d := time.Duration(s.IntN(200)) * time.Millisecond
	s.clock.advance(d)
	s.world.now += float64(d.Milliseconds()) * (0.85 + 0.3*s.Float64())
	if !s.lost {
		s.cache.Heard(s.clock.Now())
	}
}

func (s *simulation) toggleSubscription() {
	s.lost = !s.lost
	s.cache.Reset()
	if !s.lost {
		s.cache.Heard(s.clock.Now())
	}
}

// change does something to a sale, and tells the cache if it has to be told.
func (s *simulation) change(sku string) {
	sale, told := s.world.sales[sku], true
	switch n := s.IntN(6); {
	case sale == nil:
		s.create(sku)
	case n == 0:
		delete(s.world.sales, sku)
	case n == 1: // stock comes back, also of a buyer who cancels
		told = sale.left == 0
		sale.left++
		for user := range sale.holds {
			delete(sale.holds, user)
			break
		}
	case n == 2:
		sale.OpenAt, sale.CloseAt = s.window()
	default:
		told = false
		s.buy(sku, sale)
	}
	if told && !s.lost {
		s.cache.Event(sku)
	}
}

func (s *simulation) create(sku string) {
	s.world.lives++
	sale := Sale{ID: fmt.Sprint("life ", s.world.lives), Limit: 1, RateCount: int64(s.IntN(2)), Virgin: true}
	sale.OpenAt, sale.CloseAt = s.window()
	s.world.sales[sku] = &worldSale{
		Sale: sale, left: s.IntN(3),
		tokens: map[string]string{}, holds: map[string]string{}, limited: map[string]float64{},
	}
}

// window returns opening hours near the present, or none.
func (s *simulation) window() (opens, closes int64) {
	near := func() int64 { return s.world.clock() + s.Int64N(1600) - 800 }
	return pick(s, []int64{0, 0, near()}), pick(s, []int64{0, 0, near()})
}

// buy lets some user buy, or find out that this is too fast.
func (s *simulation) buy(sku string, sale *worldSale) {
	user, requestID := pick(s, simUsers), pick(s, simRequests)
	verdict, _, _ := s.world.outcome(sku, user, requestID, true)
	switch {
	case verdict == Unknown:
		s.world.lives++
		token := fmt.Sprint("token ", s.world.lives)
		sale.left--
		sale.Virgin = false
		sale.holds[user] = token
		sale.tokens[user+"/"+requestID] = token
	case s.world.now >= sale.limited[user] && s.IntN(3) == 0:
		sale.limited[user] = s.world.now + float64(s.IntN(1000))
	}
}

// ask asks Redis something about a SKU. The answer is as of now, and is learned
// later.
func (s *simulation) ask(sku string) {
	c, m := s.cache, s.cache.Mark(sku)
	sale := s.world.sales[sku]
	if sale == nil {
		s.later(func() { c.LearnAbsent(m) })
		return
	}
	described, now := sale.Sale, s.world.clock()
	learn := func() { c.LearnSale(m, described, now) }
	switch n := s.IntN(4); {
	case n == 0 && sale.left == 0:
		buyers := c.NewBuyers()
		for request := range sale.tokens {
			user, _, _ := strings.Cut(request, "/")
			buyers.Add(user)
		}
		learn = func() {
			c.LearnSale(m, described, now)
			c.LearnSoldOut(m, described.ID, buyers)
		}
	case n == 1:
		learn = func() {}
	}
	s.later(learn)
	for _, user := range simUsers {
		requestID := pick(s, simRequests)
		switch verdict, token, wait := s.world.outcome(sku, user, requestID, true); verdict {
		case RateLimited:
			s.later(func() { c.LearnRateLimited(m, described.ID, user, wait) })
		case Remembered:
			s.later(func() { c.Remember(m, described.ID, user, requestID, 1, token) })
		}
	}
}

// later puts off what is learned from an answer.
func (s *simulation) later(learn func()) { s.answers = append(s.answers, learn) }

// learn learns some of the answers, in any order.
func (s *simulation) learn() {
	for range s.IntN(len(s.answers) + 1) {
		i := s.IntN(len(s.answers))
		s.answers[i]()
		s.answers = slices.Delete(s.answers, i, i+1)
	}
}

// check compares what the cache says of every purchase with what Redis would.
func (s *simulation) check() {
	for _, sku := range simSKUs {
		for _, user := range simUsers {
			for _, requestID := range simRequests {
				got := s.cache.Refuse(sku, user, requestID, 1)
				s.verdicts[got.Verdict]++
				if !s.right(got, sku, user, requestID) {
					want, token, at := s.world.outcome(sku, user, requestID, true)
					s.Errorf("%s by %s, request %q: %s %q %d, Redis says %s %q %d",
						sku, user, requestID, got.Verdict, got.Receipt, got.At, want, token, at)
				}
			}
		}
	}
}

func (s *simulation) right(got Answer[string], sku, user, requestID string) bool {
	full, _, at := s.world.outcome(sku, user, requestID, true)
	stock, token, _ := s.world.outcome(sku, user, requestID, false)
	switch got.Verdict {
	case Unknown:
		return true
	case RateLimited:
		if sale := s.world.sales[sku]; s.lost && (sale == nil || sale.ID != s.known(sku)) {
			return true // a new sale, of which it couldn't hear
		}
		const pace = 200 // at most so many milliseconds of 1000 is Redis's clock ahead
		return full == RateLimited && got.At <= at+pace || full == NotOpen || full == Closed
	case NotOpen:
		return full == NotOpen && got.At == at
	case Remembered:
		return stock == Remembered && got.Receipt == token
	case SoldOut:
		return stock == SoldOut
	default:
		return got.Verdict == full
	}
}

// known returns the id of the sale that the cache knows.
func (s *simulation) known(sku string) string {
	sale, _ := s.cache.Sale(sku)
	return sale.ID
}
