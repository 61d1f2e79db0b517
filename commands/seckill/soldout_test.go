package seckill

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/localcache"
)

// flags returns how many sales a Store remembers as sold out.
func flags(s *Store) int { return len(s.cache.SoldOut()) }

// flagged reports whether a sale is one of them.
func flagged(s *Store, sku string) bool {
	return slices.ContainsFunc(s.cache.SoldOut(), func(f localcache.Flag) bool { return f.SKU == sku })
}

// stranger is a purchase of somebody who has bought nothing.
func stranger(sku string) Purchase { return Purchase{SKU: sku, User: newTokenID(), Qty: 1} }

// trusting is for tests that count: a machine that stalls for a second doesn't make
// a Store ask Redis.
var trusting = Options{Cache: localcache.Options{Trust: time.Minute}}

// caughtUp waits until a Store has heard all that was published before.
func caughtUp(t testing.TB, s *Store) {
	t.Helper()
	marker := event(eventOrders, newTokenID())
	bell := s.news.hang(marker)
	defer s.news.unhang(marker, bell)
	must[int64](t)(s.rdb.Publish(t.Context(), s.eventsChannel(), marker).Result())
	<-bell
}

// turnedAway lets a stranger learn that a sale is sold out.
func turnedAway(t testing.TB, s *Store, sku string) {
	t.Helper()
	equal(t, "a stranger", must[Receipt](t)(s.Buy(t.Context(), stranger(sku))), Receipt{Outcome: SoldOut})
}

func TestASoldOutSaleAsksRedisNothing(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		for _, shards := range []int{1, 3} {
			t.Run(fmt.Sprint(shards), func(t *testing.T) {
				ctx := t.Context()
				sku := fmt.Sprint("sku", shards)
				firstClient, otherClient := connect(t, rdb.Options().Addr), connect(t, rdb.Options().Addr)
				sent := newProbe(firstClient)
				sentByOther := newProbe(otherClient)
				s, other := newListeningStore(t, firstClient, trusting), newListeningStore(t, otherClient, trusting)
				sell(t, s, Sale{SKU: sku, Stock: 2, Limit: 1, Shards: shards})
				p := Purchase{SKU: sku, User: "buyer", Qty: 1, RequestID: "r"}
				token := reserve(t, s, p)
				reserve(t, s, Purchase{SKU: sku, User: "another", Qty: 1})

				for _, c := range []struct {
					store *Store
					sent  *probe
				}{{s, sent}, {other, sentByOther}} {
					caughtUp(t, c.store)
					before := c.sent.all()
					turnedAway(t, c.store, sku)
					if c.sent.all() == before {
						t.Fatal("nobody has asked")
					}
					equal(t, "flags", flags(c.store), 1)
					before = c.sent.all()
					for range 100 {
						turnedAway(t, c.store, sku)
						named := stranger(sku)
						named.RequestID = "r"
						equal(t, "with a request id", must[Receipt](t)(c.store.Buy(ctx, named)), Receipt{Outcome: SoldOut})
					}
					equal(t, "commands", c.sent.all()-before, 0)

					// The buyers hear what they have, asked for once.
					again := p
					again.RequestID = ""
					for _, want := range []struct {
						Purchase
						Receipt
					}{{p, Receipt{Outcome: Replayed, Token: token}}, {again, Receipt{Outcome: LimitReached, Token: token}}} {
						equal(t, "a buyer", must[Receipt](t)(c.store.Buy(ctx, want.Purchase)), want.Receipt)
						before = c.sent.all()
						for range 10 {
							equal(t, "a buyer again", must[Receipt](t)(c.store.Buy(ctx, want.Purchase)), want.Receipt)
						}
						equal(t, "commands", c.sent.all()-before, 0)
					}
				}
				clean(t, s, sku)
			})
		}
	})
}

// Who stands in line when a sale is sold out is answered without another call.
func TestThoseBehindTheEndOfTheStockAskRedisNothing(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		sent := newProbe(rdb)
		s := newListeningStore(t, rdb, trusting)
		create(t, s, Sale{SKU: "sku", Stock: 1, Limit: 1})
		token := reserve(t, s, Purchase{SKU: "sku", User: "buyer", Qty: 1})
		caughtUp(t, s)
		turnedAway(t, s, "sku")
		line := func(users ...string) (orders []*order) {
			for _, user := range users {
				orders = append(orders, &order{
					Purchase: Purchase{SKU: "sku", User: user, Qty: 1}, known: knownSale(t, s, "sku"), since: time.Now(),
				})
			}
			return orders
		}
		strangers, mixed := line("a", "b", "c"), line("a", "buyer", "c")
		before := sent.all()
		s.serve(lane{sku: "sku", shards: 1}, strangers)
		equal(t, "commands", sent.all()-before, 0)
		s.serve(lane{sku: "sku", shards: 1}, mixed)
		equal(t, "commands for the buyer", sent.all()-before, 1)
		for _, o := range append(strangers, mixed[0], mixed[2]) {
			equal(t, "a stranger", o.receipt, Receipt{Outcome: SoldOut})
		}
		equal(t, "the buyer", mixed[1].receipt, Receipt{Outcome: LimitReached, Token: token})
	})
}

// Stock that returns, by whatever way and through whatever sidecar, can be bought
// at once through the one by which it came, and through all others that hear of it.
func TestTheFlagFallsWhenStockReturns(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		addr := rdb.Options().Addr
		a, b := newListeningStore(t, connect(t, addr), trusting), newListeningStore(t, connect(t, addr), trusting)
		shop := newQuietStore(t, rdb, Options{})
		for name, giveBack := range map[string]func(t *testing.T, sku, token string){
			"cancel": func(t *testing.T, _, token string) {
				equal(t, "cancelled", must[Settlement](t)(a.Cancel(t.Context(), token, "")).Outcome, Settled)
			},
			"restock": func(t *testing.T, sku, _ string) {
				equal(t, "restocked", must[Restock](t)(a.Restock(t.Context(), sku, 1, "")), Restock{Restocked, 1})
			},
			"sweep": func(t *testing.T, sku, _ string) {
				sale := keptBy(t, a, sku)
				eventually(t, "expiry", func() bool {
					clear(sale.sweeps)
					return a.keeper.sweep(sale, time.Now()) == nil && clean(t, shop, sku).Expired == 1
				})
			},
			"too late": func(t *testing.T, _, token string) {
				eventually(t, "expiry", func() bool { return must[Reservation](t)(a.Result(t.Context(), token)).Status == Expired })
				equal(t, "confirmed", must[Settlement](t)(a.Confirm(t.Context(), token, "o")).Outcome, Lapsed)
			},
		} {
			for _, shards := range []int{1, 3} {
				sku := fmt.Sprint(name, shards)
				t.Run(sku, func(t *testing.T) {
					t.Parallel()
					sale := Sale{SKU: sku, Stock: 1, Limit: 1, Shards: shards}
					if name == "sweep" || name == "too late" {
						sale.PayTTL = 3000
					}
					sell(t, shop, sale)
					token := reserve(t, a, stranger(sku))
					for _, s := range []*Store{a, b} {
						caughtUp(t, s)
						turnedAway(t, s, sku)
						equal(t, "flag", flagged(s, sku), true)
					}
					giveBack(t, sku, token)
					token = reserve(t, a, stranger(sku))
					eventually(t, "word of it", func() bool { return !flagged(b, sku) })
					if sale.PayTTL == 0 {
						must[Settlement](t)(a.Cancel(t.Context(), token, ""))
						reserve(t, b, stranger(sku))
					}
					clean(t, shop, sku)
				})
			}
		}
	})
}

// Stock returns while a Store makes sure that there is none: whoever has asked once
// more since then isn't told so.
func TestSoldOutIsTrueAtOneMoment(t *testing.T) {
	t.Parallel()
	rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
	shop := newQuietStore(t, rdb, Options{})
	for _, shards := range []int{1, 3} {
		for trips, late := 1, false; !late; trips++ {
			client := connect(t, rdb.Options().Addr)
			sent := newProbe(client)
			s := newListeningStore(t, client, Options{})
			sku := fmt.Sprint("sku", shards, trips)
			sell(t, shop, Sale{SKU: sku, Stock: 1, Shards: shards})
			token := reserve(t, shop, stranger(sku))
			knownSale(t, s, sku)
			cancelled := false
			sent.interrupt(trips, func() {
				cancelled = true
				must[Settlement](t)(shop.Cancel(t.Context(), token, ""))
			})
			receipt := must[Receipt](t)(s.Buy(t.Context(), stranger(sku)))
			late = !cancelled || receipt.Outcome == SoldOut
			if late && cancelled && sent.since() > 0 {
				t.Fatalf("%d shards: %d trips after a unit had come back it was %+v", shards, sent.since(), receipt)
			}
			if late && trips < 4 {
				t.Fatalf("it was proven in %d trips: %+v", trips, receipt)
			}
			if late {
				caughtUp(t, s)
				reserve(t, s, stranger(sku))
			}
			clean(t, shop, sku)
		}
	}
}

// Replays of a settlement bring no stock.
func TestTheFlagStandsWhileNothingReturns(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newListeningStore(t, rdb, trusting)
		create(t, s, Sale{SKU: "sku", Stock: 2, Limit: 0})
		cancelled := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
		must[Settlement](t)(s.Cancel(ctx, cancelled, ""))
		confirmed := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 2})
		caughtUp(t, s)
		turnedAway(t, s, "sku")
		equal(t, "flags", flags(s), 1)
		equal(t, "cancelled", must[Settlement](t)(s.Cancel(ctx, cancelled, "")).Outcome, Replayed)
		equal(t, "confirmed", must[Settlement](t)(s.Confirm(ctx, cancelled, "o")).Outcome, Conflict)
		equal(t, "confirmed", must[Settlement](t)(s.Confirm(ctx, confirmed, "o")).Outcome, Settled)
		equal(t, "cancelled", must[Settlement](t)(s.Cancel(ctx, confirmed, "")).Outcome, Conflict)
		equal(t, "flags", flags(s), 1)
	})
}

// A sidecar that may have missed something trusts no flag.
func TestAFlagIsNotTrustedWhereNothingIsHeard(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	admin := connect(t, server.Addr)
	must[any](t)(admin.Do(t.Context(), "ACL", "SETUSER", "shop", "on", ">pw", "~seckill:*", "resetchannels", "+@all").Result())
	shop := newQuietStore(t, admin, Options{})
	ctx := t.Context()

	t.Run("killed", func(t *testing.T) {
		s := newListeningStore(t, connect(t, server.Addr), Options{})
		sell(t, shop, Sale{SKU: "killed", Stock: 0})
		eventually(t, "the flag", func() bool { turnedAway(t, s, "killed"); return flags(s) == 1 })
		must[any](t)(admin.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub").Result())
		eventually(t, "no flag", func() bool { return flags(s) == 0 })
		eventually(t, "the flag again", func() bool { turnedAway(t, s, "killed"); return flags(s) == 1 })
	})
	t.Run("deaf", func(t *testing.T) {
		rdb, deafness := connectDeaf(t, server.Addr)
		s := newListeningStore(t, rdb, Options{})
		sell(t, shop, Sale{SKU: "deaf", Stock: 0})
		eventually(t, "the flag", func() bool { turnedAway(t, s, "deaf"); return flags(s) == 1 })
		deafness.set(true)
		must[Restock](t)(shop.Restock(ctx, "deaf", 1, ""))
		eventually(t, "stock", func() bool { return must[Receipt](t)(s.Buy(ctx, stranger("deaf"))).Outcome == Reserved })
		// As long as nothing is heard, Redis is asked.
		sell(t, shop, Sale{SKU: "deaf2", Stock: 0})
		sent := newProbe(rdb)
		for range 3 {
			before := sent.count("script buy")
			turnedAway(t, s, "deaf2")
			equal(t, "calls", sent.count("script buy")-before, 1)
		}
	})
	t.Run("without the right to the channel", func(t *testing.T) {
		rdb := connectAs(t, &redis.Options{Addr: server.Addr, Username: "shop", Password: "pw"})
		sent := newProbe(rdb)
		s := newStore(t, rdb, Options{})
		sell(t, shop, Sale{SKU: "no right", Stock: 0})
		for range 3 {
			before := sent.count("script buy")
			turnedAway(t, s, "no right")
			equal(t, "calls", sent.count("script buy")-before, 1)
		}
		must[Restock](t)(shop.Restock(ctx, "no right", 1, ""))
		reserve(t, s, stranger("no right"))

		// Who returns stock without a word is found out by those who look.
		sell(t, shop, Sale{SKU: "silent", Stock: 0})
		listening := newStore(t, connect(t, server.Addr), Options{})
		eventually(t, "the flag", func() bool { turnedAway(t, listening, "silent"); return flags(listening) == 1 })
		must[Restock](t)(s.Restock(ctx, "silent", 1, ""))
		eventually(t, "stock", func() bool { return must[Receipt](t)(listening.Buy(ctx, stranger("silent"))).Outcome == Reserved })
	})
}

func TestASaleDeletedByHandIsNotSoldOutForEver(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 0, Shards: 2})
		eventually(t, "the flag", func() bool { turnedAway(t, s, "sku"); return flags(s) == 1 })
		for shard := range 2 {
			must[int64](t)(rdb.Del(t.Context(), s.keys("sku", shardTag("sku", shard, 2)).sale).Result())
		}
		eventually(t, "no sale", func() bool { return must[Receipt](t)(s.Buy(t.Context(), stranger("sku"))).Outcome == NoSale })
	})
}

func TestTooFewUnitsIsNotSoldOut(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newListeningStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 5, Limit: 0, Shards: 3})
		for range 3 {
			wish := stranger("sku")
			wish.Qty = 6
			equal(t, "too many", must[Receipt](t)(s.Buy(t.Context(), wish)), Receipt{Outcome: SoldOut, Left: 5})
			equal(t, "flags", flags(s), 0)
		}
		wish := stranger("sku")
		wish.Qty = 5
		equal(t, "all", must[Receipt](t)(s.Buy(t.Context(), wish)).Outcome, Reserved)
		clean(t, s, "sku")
	})
}

// Of a sale with more buyers than can be remembered, Redis is asked.
func TestMoreBuyersThanAreRemembered(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		sent := newProbe(rdb)
		s := newListeningStore(t, rdb, Options{Cache: localcache.Options{BuyersMax: 2}})
		create(t, s, Sale{SKU: "sku", Stock: 3, Limit: 1})
		p := Purchase{SKU: "sku", User: "buyer", Qty: 1, RequestID: "r"}
		token := reserve(t, s, p)
		reserve(t, s, stranger("sku"))
		reserve(t, s, stranger("sku"))
		for range 5 {
			before := sent.count("script buy")
			turnedAway(t, s, "sku")
			equal(t, "a buyer", must[Receipt](t)(s.Buy(t.Context(), p)), Receipt{Outcome: Replayed, Token: token})
			equal(t, "calls", sent.count("script buy")-before, 2)
			equal(t, "flags", flags(s), 0)
		}
	})
}

// Reading the buyers of a sale that runs dry again and again is kept rare, and one
// does it for all shards.
func TestReadingTheBuyersIsRationed(t *testing.T) {
	var l loads
	begin := func(sku string) bool { mine, _ := l.begin(sku); return mine }
	if !begin("a") || begin("a") || !begin("b") {
		t.Fatal("one reads the buyers of a sale, and nobody else meanwhile")
	}
	_, others := l.begin("a")
	l.ended("a", time.Hour)
	wait(t.Context(), others)
	select {
	case <-others:
	default:
		t.Fatal("who waits for the end isn't told of it")
	}
	l.ended("b", 0)
	if begin("a") || !begin("b") {
		t.Fatal("who took long waits long, and nobody else does")
	}
	l.ended("b", 0)
	begin("c")
	l.ended("c", 0)
	if len(l.after) > 2 || len(l.running) > 0 {
		t.Fatalf("what is over is kept: %v, %v", l.after, l.running)
	}
}

// scriptCalls is how many scripts Redis has run.
func scriptCalls(t testing.TB, rdb *redis.Client) (calls int) {
	t.Helper()
	for line := range strings.Lines(must[string](t)(rdb.Info(t.Context(), "commandstats").Result())) {
		name, fields, _ := strings.Cut(strings.TrimSpace(line), ":calls=")
		if name == "cmdstat_evalsha" || name == "cmdstat_eval" {
			n, _, _ := strings.Cut(fields, ",")
			calls += must[int](t)(strconv.Atoi(n))
		}
	}
	return calls
}

// Thousands of buyers for a hundred units, at once, through two sidecars.
func TestManyBuyersCostAHandfulOfCalls(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 10} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
			stores := []*Store{
				newListeningStore(t, connect(t, rdb.Options().Addr), Options{QueueWait: time.Minute}),
				newListeningStore(t, connect(t, rdb.Options().Addr), Options{QueueWait: time.Minute}),
			}
			const buyers, units = 5000, 100
			sell(t, stores[0], Sale{SKU: "sku", Stock: units, Limit: 1, Shards: shards})
			before := scriptCalls(t, rdb)
			var next, reserved, soldOut atomic.Int64
			parallel(buyers, func() {
				n := next.Add(1)
				receipt, err := stores[n%2].Buy(t.Context(), Purchase{SKU: "sku", User: fmt.Sprint(n), Qty: 1, RequestID: "r"})
				switch {
				case err != nil:
					t.Error(err)
				case receipt.Outcome == Reserved:
					reserved.Add(1)
				case receipt.Outcome == SoldOut:
					soldOut.Add(1)
				default:
					t.Errorf("%+v", receipt)
				}
			})
			equal(t, "reserved", reserved.Load(), units)
			equal(t, "sold out", soldOut.Load(), buyers-units)
			if calls := scriptCalls(t, rdb) - before; calls >= 200 {
				t.Errorf("%d script calls", calls)
			} else {
				t.Logf("%d script calls", calls)
			}
			equal(t, "pending", clean(t, stores[0], "sku").Pending, units)
		})
	}
}
