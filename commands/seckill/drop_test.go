package seckill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

func TestDropIsRefusedWhileOpenOrPending(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		drop := func(force bool) Dropped {
			t.Helper()
			return must[Dropped](t)(s.Drop(ctx, "sku", force))
		}
		equal(t, "no sale", drop(false), Dropped{Outcome: NoSale})
		equal(t, "no sale, with force", drop(true), Dropped{Outcome: NoSale})

		sell(t, s, Sale{SKU: "sku", Stock: 30, Shards: 3})
		var tokens []string
		for _, shard := range []int{1, 2, 2} {
			tokens = append(tokens, reserve(t, s, Purchase{SKU: "sku", User: userOf(shard, 3), Qty: 2}))
		}
		equal(t, "open", drop(false), Dropped{StillOpen, 6})
		must[bool](t)(s.Shut(ctx, "sku"))
		equal(t, "pending", drop(false), Dropped{StillPending, 6})
		must[Settlement](t)(s.Confirm(ctx, tokens[0], "o"))
		must[Settlement](t)(s.Cancel(ctx, tokens[1], ""))
		equal(t, "pending in the last shard", drop(false), Dropped{StillPending, 2})
		equal(t, "the sale stays", whole(t, s, "sku", 30).Pending, 2)
		equal(t, "closed", infoOf(t, s, "sku").State, Ended)
		must[bool](t)(s.Open(ctx, "sku"))
		for shard := range 3 {
			tokens = append(tokens, reserve(t, s, Purchase{SKU: "sku", User: userOf(shard, 3), Qty: 1}))
		}
		must[bool](t)(s.Shut(ctx, "sku"))
		for _, token := range tokens[2:] {
			must[Settlement](t)(s.Cancel(ctx, token, ""))
		}
		equal(t, "closed, nothing pending", drop(false), Dropped{Outcome: Removed})
		equal(t, "left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
		equal(t, "again", drop(false), Dropped{Outcome: NoSale})
		equal(t, "its reservations", must[Reservation](t)(s.Result(ctx, tokens[0])), Reservation{Outcome: NoSale})

		sell(t, s, Sale{SKU: "sku", Stock: 30, Shards: 3, OpenAt: 1 << 50})
		equal(t, "not open yet", drop(false), Dropped{Outcome: StillOpen})
		equal(t, "not open yet, with force", drop(true), Dropped{Outcome: Removed})
	})
}

func TestDropWithForceLeavesNothing(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 30, Shards: 3, PayTTL: 1_000_000, RateCount: 5, RateWindow: 1_000_000})
		for shard := range 3 {
			reserve(t, s, Purchase{SKU: "sku", User: userOf(shard, 3), Qty: 4, RequestID: "r"})
		}
		reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 11}) // of several shards
		must[Restock](t)(s.Restock(ctx, "sku", -1, "r"))
		if _, _, err := s.Pull(ctx, "sku", "w", 1, 0); err != nil {
			t.Fatal(err)
		}
		must[bool](t)(s.keeper.lease("sku", leaseFor))
		equal(t, "dropped", must[Dropped](t)(s.Drop(ctx, "sku", true)), Dropped{Removed, 23})
		for _, key := range must[[]string](t)(rdb.Keys(ctx, "*").Result()) {
			if !strings.Contains(key, "}:rate:") || rdb.PTTL(ctx, key).Val() <= 0 {
				t.Errorf("left: %s", key)
			}
		}
	})
}

// A DROP that stopped anywhere is finished by the next one, and by a CREATE, if the
// sale may be dropped; else the sale comes back as it was.
func TestAHalfDropIsFinishedOrUndone(t *testing.T) {
	t.Parallel()
	const shards, units = 3, 30
	type stop struct {
		name             string
		dropping         []int // shards that have come so far
		decided          bool
		removed          []int
		unnamed, settled bool
	}
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		var stops []stop
		for _, settled := range []bool{true, false} {
			stops = append(stops,
				stop{name: "not begun", settled: settled},
				stop{name: "shard 0", dropping: []int{0}, settled: settled},
				stop{name: "shard 0 and 1", dropping: []int{0, 1}, settled: settled},
				stop{name: "half undone", dropping: []int{0}, settled: settled},
			)
		}
		stops = append(stops,
			stop{name: "all", dropping: []int{0, 1, 2}, settled: true},
			stop{name: "decided", dropping: []int{0, 1, 2}, decided: true, settled: true},
			stop{name: "last removed", dropping: []int{0, 1, 2}, decided: true, removed: []int{2}, settled: true},
			stop{name: "all but the first removed", dropping: []int{0, 1, 2}, decided: true, removed: []int{2, 1}, settled: true},
			stop{name: "name removed", dropping: []int{0, 1, 2}, decided: true, removed: []int{2, 1}, unnamed: true, settled: true},
		)
		for i, stop := range stops {
			for _, by := range []string{"drop", "create"} {
				sku := fmt.Sprint("sku", i, by)
				sell(t, s, Sale{SKU: sku, Stock: units, Shards: shards})
				token := reserve(t, s, Purchase{SKU: sku, User: userOf(2, shards), Qty: 1})
				if stop.settled {
					must[Settlement](t)(s.Confirm(ctx, token, "o"))
				}
				must[bool](t)(s.Shut(ctx, sku))
				p := plan{Sale: Sale{SKU: sku, Shards: shards}, id: knownSale(t, s, sku).ID}
				for _, shard := range stop.dropping {
					equal(t, "moved", must[Outcome](t)(move(ctx, s, p, shard, "", dropping)), "MOVED")
				}
				if stop.decided {
					equal(t, "decided", must[Outcome](t)(move(ctx, s, p, 0, dropping, removing)), "MOVED")
				}
				for _, shard := range stop.removed {
					must[int64](t)(s.removeShard(ctx, sku, p.id, shard, shards))
				}
				if stop.unnamed {
					rdb.ZRem(ctx, s.indexKey(), sku)
				}
				if len(stop.dropping) > 0 { // for all others there is no such sale any more
					other := newQuietStore(t, rdb, Options{})
					equal(t, "bought", must[Receipt](t)(other.Buy(ctx, Purchase{SKU: sku, User: "u", Qty: 1})), Receipt{Outcome: NoSale})
					for what, there := range map[string]func() (bool, error){
						"info":  func() (bool, error) { _, found, err := other.Info(ctx, sku); return found, err },
						"audit": func() (bool, error) { _, found, err := other.Audit(ctx, sku); return found, err },
						"open":  func() (bool, error) { return other.Open(ctx, sku) },
						"close": func() (bool, error) { return other.Shut(ctx, sku) },
					} {
						equal(t, what+" after "+stop.name, must[bool](t)(there()), false)
					}
				}

				if by == "create" {
					created, err := s.Create(ctx, Sale{SKU: sku, Stock: 5, Shards: 2})
					switch {
					case stop.settled && len(stop.dropping) > 0:
						equal(t, "created after "+stop.name, must[Created](t)(created, err), Created{Shards: 2})
						whole(t, s, sku, 5)
						continue
					case len(stop.dropping) == 0:
						equal(t, "created after "+stop.name, must[Created](t)(created, err), Created{Exists: true, Shards: shards})
					case !errors.Is(err, script.ErrNotExecuted):
						t.Fatalf("created after %s: %+v, %v", stop.name, created, err)
					}
				} else {
					want := Dropped{Outcome: Removed}
					if !stop.settled {
						want = Dropped{StillPending, 1}
					}
					equal(t, "dropped after "+stop.name, must[Dropped](t)(s.Drop(ctx, sku, false)), want)
					if stop.settled {
						equal(t, "left", fmt.Sprint(keysOf(t, rdb, sku)), "[]")
						continue
					}
				}
				// It stays, and sells again when it is opened.
				whole(t, s, sku, units)
				must[bool](t)(s.Open(ctx, sku))
				for shard := range shards {
					reserve(t, s, Purchase{SKU: sku, User: userOf(shard, shards), Qty: 1})
				}
			}
		}
	})
}

// Wherever a DROP dies that is refused, the sale is either there as a whole or not
// there, until somebody finishes or undoes it.
func TestARefusedDropThatDies(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		const shards, units = 3, 9
		for calls, crashed := 1, true; crashed; calls++ {
			sku := fmt.Sprint("sku", calls)
			sell(t, s, Sale{SKU: sku, Stock: units, Shards: shards})
			reserve(t, s, Purchase{SKU: sku, User: userOf(shards-1, shards), Qty: 1})
			must[bool](t)(s.Shut(ctx, sku))
			client := connect(t, rdb.Options().Addr)
			probe := newProbe(client)
			// As if it had been reserved since DROP looked.
			d := &drop{Store: newQuietStore(t, client, Options{}), sale: must[looked](t)(s.lookAt(ctx, sku)), ids: make([]string, shards)}
			probe.crashAfter(calls)
			refusal, err := d.begin(ctx)
			if crashed = probe.crashed(); !crashed && (err != nil || refusal != StillPending) {
				t.Fatalf("%s, %v", refusal, err)
			}
			told, _ := outcomes(t, newQuietStore(t, rdb, Options{}), sku, shards)
			if told != NoSale && told != Closed {
				t.Fatalf("after %d calls not all shards say the same", calls)
			}
			equal(t, "dropped again", must[Dropped](t)(s.Drop(ctx, sku, false)), Dropped{StillPending, 1})
			told, _ = outcomes(t, newQuietStore(t, rdb, Options{}), sku, shards)
			equal(t, "all shards", told, Closed)
			whole(t, s, sku, units)
		}
	})
}

// While a DROP is refused nobody is told that there is no sale.
func TestARefusedDropTouchesNothing(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		client := connect(t, rdb.Options().Addr)
		probe := newProbe(client)
		dropper := newQuietStore(t, client, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 9, Shards: 3})
		p := Purchase{SKU: "sku", User: userOf(2, 3), Qty: 1, RequestID: "r"}
		reserve(t, s, p)
		for _, want := range []Dropped{{StillOpen, 1}, {StillPending, 1}} {
			equal(t, "dropped", must[Dropped](t)(dropper.Drop(ctx, "sku", false)), want)
			equal(t, "shards moved", probe.count("script state"), 0)
			equal(t, "same request", must[Receipt](t)(s.Buy(ctx, p)).Outcome, Replayed)
			must[bool](t)(s.Shut(ctx, "sku"))
		}
	})
}

// What was decided is done without force, whatever is found.
func TestADecidedDropIsFinished(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 9, Shards: 3})
		reserve(t, s, Purchase{SKU: "sku", User: userOf(2, 3), Qty: 1})
		found := must[looked](t)(s.lookAt(ctx, "sku"))
		must[Outcome](t)(move(ctx, s, found.plan, 0, "", dropping))
		must[Outcome](t)(move(ctx, s, found.plan, 0, dropping, removing))
		must[int64](t)(s.removeShard(ctx, "sku", found.id, 1, 3))
		leaveShard(t, s, found.plan, 1, selling) // by a late finisher of its creation
		rdb.Del(ctx, shardKeys(s, "sku", 2, 3).sale)
		equal(t, "dropped", must[Dropped](t)(s.Drop(ctx, "sku", false)).Outcome, Removed)
		equal(t, "left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
	})
}

// The name of a new sale stays in the index, though somebody who comes late with the
// drop of the one before takes it out.
func TestALateDropSparesTheNewSale(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		sell(t, s, Sale{SKU: "sku", Stock: 3, Shards: 3})
		old := knownSale(t, s, "sku").ID
		must[Dropped](t)(s.Drop(ctx, "sku", true))
		sell(t, s, Sale{SKU: "sku", Stock: 30, Shards: 6})
		for shard := 2; shard >= 0; shard-- {
			equal(t, "removed", must[int64](t)(s.removeShard(ctx, "sku", old, shard, 3)), 0)
		}
		whole(t, s, "sku", 30)
		equal(t, "list", fmt.Sprint(must[[]Listed](t)(s.List(ctx))), fmt.Sprint([]Listed{{"sku", Opened, 30}}))
		equal(t, "dropped", must[Dropped](t)(s.Drop(ctx, "sku", true)), Dropped{Outcome: Removed})
		equal(t, "removed", must[int64](t)(s.removeShard(ctx, "sku", old, 0, 3)), 0)
		equal(t, "left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
	})
}

// Of two that drop a sale, and differ, one gives way.
func TestDropsThatMeet(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		prepare := func(sku string) (*drop, plan) {
			sell(t, s, Sale{SKU: sku, Stock: 3, Shards: 3})
			p := plan{Sale: Sale{SKU: sku, Shards: 3}, id: knownSale(t, s, sku).ID}
			for shard := range 3 {
				must[Outcome](t)(move(ctx, s, p, shard, "", dropping))
			}
			return &drop{Store: s, sale: must[looked](t)(s.lookAt(ctx, sku)), ids: make([]string, 3)}, p
		}
		// The one that would let it live comes too late.
		d, p := prepare("decided")
		must[Outcome](t)(move(ctx, s, p, 0, dropping, removing))
		if err := d.undo(ctx, 3); !errors.Is(err, script.ErrNotExecuted) {
			t.Fatalf("undone: %v", err)
		}
		equal(t, "dropped", must[Dropped](t)(s.Drop(ctx, "decided", true)).Outcome, Removed)

		// The one that would drop it does.
		d, _ = prepare("undone")
		if err := d.undo(ctx, 3); err != nil {
			t.Fatal(err)
		}
		if err := d.finish(ctx); !errors.Is(err, script.ErrNotExecuted) {
			t.Fatalf("dropped: %v", err)
		}
		whole(t, s, "undone", 3)
	})
}

// Whatever is lost or unreadable, FORCE removes all that is left, and nothing less
// than FORCE removes anything.
func TestDropOfADamagedSale(t *testing.T) {
	t.Parallel()
	damages := map[string]func(rdb *redis.Client, first, last keys) error{
		"sale of shard 0": func(rdb *redis.Client, first, _ keys) error { return rdb.Del(context.Background(), first.sale).Err() },
		"sale of shard 2": func(rdb *redis.Client, _, last keys) error { return rdb.Del(context.Background(), last.sale).Err() },
		"shard 0": func(rdb *redis.Client, first, _ keys) error {
			return rdb.Del(context.Background(), first.all()...).Err()
		},
		"shard 2":           func(rdb *redis.Client, _, last keys) error { return rdb.Del(context.Background(), last.all()...).Err() },
		"orders of shard 0": func(rdb *redis.Client, first, _ keys) error { return rdb.Del(context.Background(), first.orders).Err() },
		"queue of another": func(rdb *redis.Client, first, _ keys) error {
			return rdb.Set(context.Background(), first.queue, "x", 0).Err()
		},
		"sale_id of shard 2": func(rdb *redis.Client, _, last keys) error {
			return rdb.HSet(context.Background(), last.sale, "sale_id", "x").Err()
		},
		"pending of shard 2": func(rdb *redis.Client, _, last keys) error {
			return rdb.HSet(context.Background(), last.sale, "pending", "x").Err()
		},
	}
	for _, field := range []string{"state", "sale_id", "secret", "shards", "total", "limit", "open_at", "close_at", "orders", "created_at"} {
		damages["field "+field] = func(rdb *redis.Client, first, _ keys) error {
			return rdb.HDel(context.Background(), first.sale, field).Err()
		}
	}
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		for name, damage := range damages {
			s := newQuietStore(t, rdb, Options{})
			sell(t, s, Sale{SKU: "sku", Stock: 30, Shards: 3})
			for shard := range 3 {
				reserve(t, s, Purchase{SKU: "sku", User: userOf(shard, 3), Qty: 1})
			}
			if err := damage(rdb, shardKeys(s, "sku", 0, 3), shardKeys(s, "sku", 2, 3)); err != nil {
				t.Fatal(err)
			}
			before, states := len(keysOf(t, rdb, "sku")), statesOf(t, s, "sku", 3)
			for range 2 {
				if dropped, err := s.Drop(ctx, "sku", false); dropped.Outcome == Removed {
					t.Fatalf("%s: dropped without force: %+v, %v", name, dropped, err)
				}
				equal(t, name+": keys", len(keysOf(t, rdb, "sku")), before)
				equal(t, name+": states", statesOf(t, s, "sku", 3), states)
				// The same when no shard says that it is open, or has something pending.
				for shard := range 3 {
					if key := shardKeys(s, "sku", shard, 3).sale; rdb.Exists(ctx, key).Val() == 1 {
						rdb.HSet(ctx, key, "close_at", 1, "pending", 0)
					}
				}
				if name == "queue of another" || name == "orders of shard 0" || name == "pending of shard 2" || name == "field close_at" {
					break // what a drop doesn't look at, or is right again now
				}
			}
			if dropped := must[Dropped](t)(s.Drop(ctx, "sku", true)); dropped.Outcome != Removed {
				t.Fatalf("%s: %+v", name, dropped)
			}
			equal(t, name+": left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
		}
	})
}

// statesOf returns the states of a sale's shards.
func statesOf(t testing.TB, s *Store, sku string, shards int) string {
	t.Helper()
	var states []any
	for shard := range shards {
		states = append(states, must[[]any](t)(s.rdb.HMGet(t.Context(), shardKeys(s, sku, shard, shards).sale, "state").Result())...)
	}
	return fmt.Sprint(states...)
}

// Who buys while a sale is dropped with force is told that he has bought, or that
// there is no such sale.
func TestDropDuringPurchases(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		dropper, buyer := newQuietStore(t, rdb, Options{}), newStore(t, rdb, Options{})
		for round := range 2 {
			sku := fmt.Sprint("sku", round)
			sell(t, dropper, Sale{SKU: sku, Stock: 100_000, Shards: 4})
			var reserved, gone atomic.Int64
			done := make(chan struct{})
			go func() {
				defer close(done)
				parallel(8, func() {
					for gone.Load() == 0 {
						receipt, err := buyer.Buy(ctx, Purchase{SKU: sku, User: newTokenID(), Qty: 1})
						switch {
						case err != nil:
							t.Error(err)
							gone.Add(1)
						case receipt.Outcome == NoSale:
							gone.Add(1)
						case receipt.Outcome == Reserved:
							reserved.Add(1)
						default:
							t.Errorf("bought: %+v", receipt)
							gone.Add(1)
						}
					}
				})
			}()
			eventually(t, "purchases", func() bool { return reserved.Load() > 50 })
			dropped := must[Dropped](t)(dropper.Drop(ctx, sku, true))
			equal(t, "dropped", dropped.Outcome, Removed)
			<-done
			eventually(t, "nothing is left", func() bool { return len(keysOf(t, rdb, sku)) == 0 })
		}
	})
}

// Without force nothing that was reserved is dropped, whoever opens and closes
// meanwhile.
func TestDropAgainstOpenAndBuy(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		var stores []*Store
		for range 4 {
			stores = append(stores, newQuietStore(t, rdb, Options{}))
		}
		removed, kept := 0, 0
		for round := range 8 {
			sku := fmt.Sprint("sku", round)
			sell(t, stores[0], Sale{SKU: sku, Stock: 30, Shards: 3})
			must[bool](t)(stores[0].Shut(ctx, sku))
			var tokens, drops atomic.Int64
			var caller atomic.Int64
			parallel(len(stores), func() {
				i := caller.Add(1) - 1
				s := stores[i]
				switch i {
				case 0, 1:
					dropped, err := s.Drop(ctx, sku, false)
					if err != nil && !errors.Is(err, script.ErrNotExecuted) {
						t.Error(err)
					}
					if dropped.Outcome == Removed {
						drops.Add(1)
					}
				case 2:
					if _, err := s.Open(ctx, sku); err != nil {
						t.Error(err)
					}
				case 3:
					for end := time.Now().Add(5 * time.Millisecond); time.Now().Before(end); {
						receipt, err := s.Buy(ctx, Purchase{SKU: sku, User: newTokenID(), Qty: 1})
						if err != nil {
							t.Error(err)
						}
						if receipt.Outcome == Reserved {
							tokens.Add(1)
						}
					}
				}
			})
			if drops.Load() > 0 {
				removed++
				equal(t, "reserved in a sale that was dropped", tokens.Load(), 0)
				equal(t, "left", fmt.Sprint(keysOf(t, rdb, sku)), "[]")
				continue
			}
			kept++
			equal(t, "pending", whole(t, stores[0], sku, 30).Pending, tokens.Load())
		}
		t.Logf("%d dropped, %d kept", removed, kept)
	})
}
