package seckill

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/sharding"
)

func TestS3_AHundredUnitsForThousandsOfBuyers(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		const units, buyers, shards = 100, 2000, 10
		var stores []*Store
		for range 3 {
			stores = append(stores, newStore(t, rdb, Options{QueueWait: time.Minute}))
		}
		sell(t, stores[0], Sale{SKU: "sku", Stock: units, Limit: 1, Shards: shards})
		var next, soldOut atomic.Int64
		var tokens sync.Map
		parallel(30, func() {
			for {
				user := next.Add(1)
				if user > buyers {
					return
				}
				receipt, err := stores[user%3].Buy(t.Context(), Purchase{SKU: "sku", User: fmt.Sprint(user), Qty: 1})
				switch {
				case err != nil:
					t.Error(err)
				case receipt.Outcome == Reserved:
					if _, twice := tokens.LoadOrStore(receipt.Token, user); twice {
						t.Errorf("token %s was given twice", receipt.Token)
					}
				case receipt == Receipt{Outcome: SoldOut}:
					soldOut.Add(1)
				default:
					t.Errorf("user %d: %+v", user, receipt)
				}
			}
		})
		sold := 0
		tokens.Range(func(_, _ any) bool { sold++; return true })
		equal(t, "sold", sold, units)
		equal(t, "sold out", soldOut.Load(), buyers-units)
		equal(t, "pending", whole(t, stores[0], "sku", units).Pending, units)
	})
}

func TestS12_QuantityOfSeveralShards(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 7, Shards: 3}) // 3, 2 and 2
		receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: userOf(2, 3), Qty: 3}))
		equal(t, "more than the home shard has", receipt.Outcome, Reserved)
		equal(t, "more than there is", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 5})), Receipt{Outcome: SoldOut, Left: 4})
		equal(t, "all that there is", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: userOf(0, 3), Qty: 4})).Outcome, Reserved)
		equal(t, "pending", whole(t, s, "sku", 7).Pending, 7)

	})
}

func TestQuantityOfAllShardsThatASaleCanHave(t *testing.T) {
	t.Parallel()
	s := newQuietStore(t, connect(t, redistest.Start(t, redistest.Options{}).Addr), Options{})
	sell(t, s, Sale{SKU: "sku", Stock: 10 * MaxShards, Shards: MaxShards})
	reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 10*MaxShards - 5})
	equal(t, "left", whole(t, s, "sku", 10*MaxShards).Available, 5)
}

// Whoever wants the last unit gets it, wherever it is and wherever he is at home.
func TestTheLastUnitCanBeBoughtByAnyone(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		const shards = 5
		for home := range shards {
			sku := fmt.Sprint("sku", home)
			sell(t, s, Sale{SKU: sku, Stock: 1, Shards: shards}) // in shard 0
			reserve(t, s, Purchase{SKU: sku, User: userOf(home, shards), Qty: 1})
			for other := range shards {
				receipt := must[Receipt](t)(s.Buy(ctx, Purchase{SKU: sku, User: userOf(other, shards), Qty: 1}))
				equal(t, "the next", receipt, Receipt{Outcome: SoldOut})
			}
			// It comes back where it was bought, and somebody else wants it.
			tokens, _, err := s.Find(ctx, sku, userOf(home, shards))
			if err != nil || len(tokens) != 1 {
				t.Fatalf("%v, %v", tokens, err)
			}
			must[Settlement](t)(s.Cancel(ctx, tokens[0], ""))
			reserve(t, s, Purchase{SKU: sku, User: userOf((home+1)%shards, shards), Qty: 1})
			whole(t, s, sku, 1)
		}
	})
}

// When buyers of all shards fight for the last units through several sidecars, all
// units are sold, and nobody is told to come again.
func TestTheLastUnitsAreFoughtFor(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		const shards, units = 8, 3
		var stores []*Store
		for range 4 {
			stores = append(stores, newQuietStore(t, rdb, Options{QueueWait: time.Minute}))
		}
		for round := range 5 {
			sku := fmt.Sprint("sku", round)
			sell(t, stores[0], Sale{SKU: sku, Stock: units, Shards: shards})
			var caller, reserved atomic.Int64
			parallel(len(stores)*shards, func() {
				n := int(caller.Add(1))
				s, shard := stores[n%len(stores)], n/len(stores)%shards
				receipt, err := s.Buy(t.Context(), Purchase{SKU: sku, User: userOf(shard, shards), Qty: 1})
				switch {
				case err != nil:
					t.Error(err)
				case receipt.Outcome == Reserved:
					reserved.Add(1)
				case receipt != Receipt{Outcome: SoldOut}:
					t.Errorf("%+v", receipt)
				}
			})
			equal(t, "reserved", reserved.Load(), units)
			equal(t, "pending", whole(t, stores[0], sku, units).Pending, units)
		}
	})
}

// Units that are taken and given back all the time, in all shards, never get lost
// or doubled, and audits meanwhile find nothing.
func TestUnitsMoveAndAuditsAreClean(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		const shards, units = 4, 12
		ctx, auditor := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, auditor, Sale{SKU: "sku", Stock: units, Shards: shards})
		var running sync.WaitGroup
		var bought atomic.Int64
		var done atomic.Bool
		for i := range 4 {
			s := newQuietStore(t, rdb, Options{QueueWait: time.Minute})
			running.Go(func() {
				for n := 0; !done.Load(); n++ {
					receipt, err := s.Buy(ctx, Purchase{SKU: "sku", User: fmt.Sprint(i, n), Qty: int64(1 + n%5)})
					if err != nil {
						t.Error(err)
						return
					}
					if receipt.Outcome != Reserved {
						continue
					}
					bought.Add(1)
					if settlement, err := s.Cancel(ctx, receipt.Token, ""); err != nil || settlement.Outcome != Settled {
						t.Errorf("cancelled: %+v, %v", settlement, err)
					}
				}
			})
		}
		for audits := 0; audits < 10 || bought.Load() < 40; audits++ {
			clean(t, auditor, "sku")
			if t.Failed() {
				break
			}
		}
		done.Store(true)
		running.Wait()
		if _, err := auditor.finishTransfers(ctx, "sku", knownSale(t, auditor, "sku"), 0); err != nil {
			t.Fatal(err)
		}
		equal(t, "available", whole(t, auditor, "sku", units).Available, units)
	})
}

// A user has one home, so limit and request ids are exact, however often and through
// whichever sidecar he asks, and however many shards his units come from.
func TestLimitAndRequestIDsOverShards(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, a, b := t.Context(), newQuietStore(t, rdb, Options{}), newQuietStore(t, rdb, Options{})
		const shards = 6
		sell(t, a, Sale{SKU: "sku", Stock: 60, Limit: 15, Shards: shards})
		for i := range 3 {
			user := fmt.Sprint("user", i)
			p := Purchase{SKU: "sku", User: user, Qty: 12, RequestID: "r"}
			token := reserve(t, a, p)
			home := sharding.HomeShard(user, shards)
			if parsed, ok := parseToken(token); !ok || parsed.tag != shardTag("sku", home, shards) {
				t.Fatalf("token %s isn't of shard %d", token, home)
			}
			equal(t, "again", must[Receipt](t)(b.Buy(ctx, p)).Token, token)
			receipt := must[Receipt](t)(b.Buy(ctx, Purchase{SKU: "sku", User: user, Qty: 4}))
			equal(t, "more", receipt, Receipt{Outcome: LimitReached, Token: token, Left: receipt.Left})
		}
		equal(t, "pending", whole(t, a, "sku", 60).Pending, 36)
	})
}

// A request that was carried out through another sidecar while this one looked for
// units gets its answer, and not that there are none, wherever it is overtaken. The
// same for a user who may have no more.
func TestWhoGetsTheLastUnitIsToldSoBySeveral(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		client := connect(t, rdb.Options().Addr)
		probe := newProbe(client)
		slow, fast := newQuietStore(t, client, Options{}), newQuietStore(t, rdb, Options{})
		const shards = 3
		for _, request := range []string{"r", ""} {
			for trips, overtaken := 1, true; overtaken; trips++ {
				sku := fmt.Sprint("sku", request, trips)
				sell(t, fast, Sale{SKU: sku, Stock: 1, Limit: 1, Shards: shards}) // in shard 0
				knownSale(t, slow, sku)
				p := Purchase{SKU: sku, User: userOf(1, shards), Qty: 1, RequestID: request}
				var token string
				overtaken = false
				probe.interrupt(trips, func() {
					overtaken = true
					receipt := must[Receipt](t)(fast.Buy(t.Context(), p))
					token = receipt.Token
				})
				receipt := must[Receipt](t)(slow.Buy(t.Context(), p))
				want := Receipt{Outcome: Reserved, Token: receipt.Token}
				if overtaken && receipt.Outcome != Reserved {
					want = Receipt{Outcome: LimitReached, Token: token}
					if request != "" {
						want.Outcome = Replayed
					}
				}
				equal(t, fmt.Sprint("overtaken after ", trips, " calls"), receipt, want)
				equal(t, "pending", whole(t, fast, sku, 1).Pending, 1)
			}
		}
	})
}

// A part of a sale that is lost is lost to all: nobody is told that it is sold out,
// or to come again for ever.
func TestS8_ALostShardIsNoSale(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 9, Shards: 3})
		token := reserve(t, s, Purchase{SKU: "sku", User: userOf(1, 3), Qty: 1})
		rdb.Del(ctx, shardKeys(s, "sku", 1, 3).sale)
		for _, s := range []*Store{s, newQuietStore(t, rdb, Options{})} {
			equal(t, "in it", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: userOf(1, 3), Qty: 1})), Receipt{Outcome: NoSale})
			equal(t, "beside it", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: userOf(2, 3), Qty: 1})).Outcome, Reserved)
			equal(t, "with units of it", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: userOf(2, 3), Qty: 8})), Receipt{Outcome: NoSale})
			equal(t, "restock", must[Restock](t)(s.Restock(ctx, "sku", -9, "")), Restock{Outcome: NoSale})
			equal(t, "settle", must[Settlement](t)(s.Confirm(ctx, token, "o")), Settlement{Outcome: NoSale})
			if _, found, err := s.Info(ctx, "sku"); found || err != nil {
				t.Fatalf("info: found %v, %v", found, err)
			}
			list := must[[]Listed](t)(s.List(ctx))
			equal(t, "list", fmt.Sprint(list), fmt.Sprint([]Listed{{"sku", Damaged, 0}}))
		}
	})
}
