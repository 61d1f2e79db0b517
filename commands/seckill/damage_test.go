package seckill

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// damaged is a sale with every kind of record in it, for a test to damage.
type damaged struct {
	*Store
	t                             *testing.T
	rdb                           *redis.Client
	keys                          keys
	pending, confirmed, cancelled string // tokens, of users p, c and x
}

func newDamaged(t *testing.T, rdb *redis.Client) *damaged {
	d := &damaged{Store: newStore(t, rdb, Options{}), t: t, rdb: rdb}
	d.keys = d.Store.keys("sku", shardTag("sku", 0, 1))
	create(t, d.Store, Sale{SKU: "sku", Stock: 100, Limit: 5})
	d.pending = reserve(t, d.Store, Purchase{SKU: "sku", User: "p", Qty: 2, RequestID: "r"})
	d.confirmed = reserve(t, d.Store, Purchase{SKU: "sku", User: "c", Qty: 3})
	d.cancelled = reserve(t, d.Store, Purchase{SKU: "sku", User: "x", Qty: 1})
	must[Settlement](t)(d.Confirm(t.Context(), d.confirmed, "o"))
	must[Settlement](t)(d.Cancel(t.Context(), d.cancelled, ""))
	clean(t, d.Store, "sku")
	return d
}

func (d *damaged) do(args ...any) any {
	d.t.Helper()
	return must[any](d.t)(d.rdb.Do(d.t.Context(), args...).Result())
}

// record changes something in an order record.
func (d *damaged) record(token, old, new string) {
	d.t.Helper()
	id := token[len(token)-tokenIDDigits:]
	record := must[string](d.t)(d.rdb.HGet(d.t.Context(), d.keys.orders, id).Result())
	if !strings.Contains(record, old) {
		d.t.Fatalf("no %q in %q", old, record)
	}
	d.do("HSET", d.keys.orders, id, strings.Replace(record, old, new, 1))
}

func id(token string) string { return token[len(token)-tokenIDDigits:] }

func TestAuditNamesEachDamage(t *testing.T) {
	type want = Difference
	for _, c := range []struct {
		name  string
		plant func(d *damaged)
		want  func(d *damaged) []want
	}{
		{"counter available", func(d *damaged) { d.do("HINCRBY", d.keys.sale, "available", 1) }, func(*damaged) []want {
			return []want{{"counter 'available'", 95, 96}, {"available + pending + confirmed", 100, 101}}
		}},
		{"counter pending", func(d *damaged) { d.do("HSET", d.keys.sale, "pending", 1) }, func(*damaged) []want {
			return []want{{"counter 'pending'", 2, 1}, {"available + pending + confirmed", 100, 99}}
		}},
		{"counter confirmed", func(d *damaged) { d.do("HSET", d.keys.sale, "confirmed", 4) }, func(*damaged) []want {
			return []want{{"counter 'confirmed'", 3, 4}, {"available + pending + confirmed", 100, 101}}
		}},
		{"counter cancelled", func(d *damaged) { d.do("HSET", d.keys.sale, "cancelled", 0) }, func(*damaged) []want {
			return []want{{"counter 'cancelled'", 1, 0}}
		}},
		{"counter orders", func(d *damaged) { d.do("HSET", d.keys.sale, "orders", 4) }, func(*damaged) []want {
			return []want{{"counter 'orders'", 3, 4}}
		}},
		{"stock", func(d *damaged) { d.do("HSET", d.keys.sale, "stock", 90) }, func(*damaged) []want {
			return []want{{"counter 'available'", 85, 95}, {"available + pending + confirmed", 90, 100}}
		}},
		{"counter missing", func(d *damaged) { d.do("HDEL", d.keys.sale, "cancelled") }, func(*damaged) []want {
			return []want{{"readable field 'cancelled' of the sale", 1, 0}, {"counter 'cancelled'", 1, 0}}
		}},
		{"counter unreadable", func(d *damaged) { d.do("HSET", d.keys.sale, "version", "1e3") }, func(*damaged) []want {
			return []want{{"readable field 'version' of the sale", 1, 0}}
		}},
		{"secret missing", func(d *damaged) { d.do("HDEL", d.keys.sale, "secret") }, func(*damaged) []want {
			return []want{{"field 'secret' of the sale", 1, 0}}
		}},
		{"secret changed", func(d *damaged) { d.do("HSET", d.keys.sale, "secret", "x") }, func(d *damaged) []want {
			return []want{{"request id of order " + d.pending, 1, 0}}
		}},
		{"sale missing", func(d *damaged) { d.do("DEL", d.keys.sale) }, func(d *damaged) []want {
			return []want{{"key " + d.keys.sale, 1, 0}}
		}},
		{"buyers missing", func(d *damaged) { d.do("DEL", d.keys.buyers) }, func(d *damaged) []want {
			return []want{{"mark of user p", 1, 0}, {"mark of user c", 1, 0}, {"mark of user x", 1, 0}, {"key " + d.keys.buyers, 1, 0}}
		}},
		{"orders missing", func(d *damaged) { d.do("DEL", d.keys.orders) }, func(d *damaged) []want {
			entry := d.rdb.XRange(t.Context(), d.keys.queue, "-", "+").Val()[0].ID
			return []want{
				{"orders of user p", 1, 0}, {"orders of user c", 1, 0}, {"orders of user x", 1, 0},
				{"key " + d.keys.orders, 1, 0}, {"queue entry " + entry + " without its pending order", 0, 1},
				{"counter 'pending'", 0, 2}, {"counter 'confirmed'", 0, 3}, {"counter 'cancelled'", 0, 1},
				{"counter 'orders'", 0, 3}, {"counter 'available'", 100, 95},
			}
		}},
		{"queue missing", func(d *damaged) { d.do("DEL", d.keys.queue) }, func(d *damaged) []want {
			return []want{{"key " + d.keys.queue, 1, 0}, {"queue entry of pending order " + d.pending, 1, 0}}
		}},
		{"group missing", func(d *damaged) { d.do("XGROUP", "DESTROY", d.keys.queue, "workers") }, func(d *damaged) []want {
			return []want{{"consumer group 'workers' of " + d.keys.queue, 1, 0}}
		}},
		{"another type", func(d *damaged) { d.do("DEL", d.keys.queue); d.do("SET", d.keys.queue, "x") }, func(d *damaged) []want {
			return []want{{"key " + d.keys.queue + " is a string and not a stream", 0, 1}, {"key " + d.keys.queue, 1, 0}, {"queue entry of pending order " + d.pending, 1, 0}}
		}},
		{"order missing", func(d *damaged) { d.do("HDEL", d.keys.orders, id(d.confirmed)) }, func(d *damaged) []want {
			return []want{{"orders of user c", 1, 0}, {"counter 'confirmed'", 0, 3}, {"counter 'orders'", 2, 3}, {"counter 'available'", 98, 95}}
		}},
		{"order unreadable", func(d *damaged) { d.do("HSET", d.keys.orders, id(d.cancelled), "?") }, func(d *damaged) []want {
			return []want{{"readable record of order " + d.cancelled, 1, 0}, {"orders of user x", 1, 0}, {"counter 'cancelled'", 0, 1}}
		}},
		{"order cut off", func(d *damaged) { d.record(d.cancelled, ":x", ":") }, func(d *damaged) []want {
			return []want{{"readable record of order " + d.cancelled, 1, 0}, {"orders of user x", 1, 0}, {"counter 'cancelled'", 0, 1}}
		}},
		{"state changed", func(d *damaged) { d.record(d.confirmed, "C,3", "X,3") }, func(*damaged) []want {
			return []want{{"units held by user c", 0, 3}, {"counter 'confirmed'", 0, 3}, {"counter 'cancelled'", 4, 1}, {"counter 'available'", 98, 95}}
		}},
		{"quantity changed", func(d *damaged) { d.record(d.confirmed, "C,3", "C,6") }, func(*damaged) []want {
			return []want{{"units held by user c", 6, 3}, {"units above the limit held by user c", 5, 6}, {"counter 'confirmed'", 6, 3}, {"counter 'available'", 92, 95}}
		}},
		{"request id changed", func(d *damaged) { d.record(d.pending, ":pr", ":ps") }, func(d *damaged) []want {
			return []want{{"request id of order " + d.pending, 1, 0}}
		}},
		{"user changed", func(d *damaged) { d.record(d.confirmed, ":co", ":zo") }, func(*damaged) []want {
			return []want{{"orders of user c", 1, 0}, {"mark of user z", 1, 0}}
		}},
		{"mark missing", func(d *damaged) { d.do("HDEL", d.keys.buyers, "c") }, func(*damaged) []want {
			return []want{{"mark of user c", 1, 0}}
		}},
		{"mark changed", func(d *damaged) { d.do("HSET", d.keys.buyers, "c", "1:"+id(d.confirmed)) }, func(*damaged) []want {
			return []want{{"units held by user c", 3, 1}}
		}},
		{"mark unreadable", func(d *damaged) { d.do("HSET", d.keys.buyers, "c", "3") }, func(*damaged) []want {
			return []want{{"readable mark of user c", 1, 0}}
		}},
		{"mark of a stranger", func(d *damaged) { d.do("HSET", d.keys.buyers, "\xff", "1:"+id(d.confirmed)) }, func(*damaged) []want {
			return []want{{"orders of user \xff", 1, 0}}
		}},
		{"mark names another's order", func(d *damaged) { d.do("HSET", d.keys.buyers, "c", "3:"+id(d.pending)) }, func(*damaged) []want {
			return []want{{"orders, from the latest backwards, of user c", 1, 0}}
		}},
		{"queue entry missing", func(d *damaged) { d.do("XTRIM", d.keys.queue, "MAXLEN", 0) }, func(d *damaged) []want {
			return []want{{"queue entry of pending order " + d.pending, 1, 0}}
		}},
		{"queue entry too much", func(d *damaged) {
			d.do("XADD", d.keys.queue, "9999999999999-1", "token", d.confirmed, "user", "c", "qty", 3)
		}, func(*damaged) []want {
			return []want{{"queue entry 9999999999999-1 without its pending order", 0, 1}}
		}},
		{"queue entry twice", func(d *damaged) {
			d.do("XADD", d.keys.queue, "9999999999999-1", "token", d.pending, "user", "p", "qty", 2)
		}, func(*damaged) []want {
			return []want{{"queue entry 9999999999999-1 without its pending order", 0, 1}}
		}},
		{"queue entry of something else", func(d *damaged) {
			d.do("XADD", d.keys.queue, "9999999999999-1", "a", "b")
		}, func(*damaged) []want {
			return []want{{"queue entry 9999999999999-1 without its pending order", 0, 1}}
		}},
		{"index", func(d *damaged) { d.do("ZREM", d.indexKey(), "sku") }, func(*damaged) []want {
			return []want{{"entry in seckill:sales", 1, 0}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
				d := newDamaged(t, rdb)
				c.plant(d)
				audit, found, err := d.Audit(t.Context(), "sku")
				if err != nil || !found {
					t.Fatalf("found %v, %v", found, err)
				}
				// Redis doesn't promise an order of users and order ids.
				sorted := func(l []want) string {
					slices.SortFunc(l, func(a, b want) int { return strings.Compare(a.What, b.What) })
					return fmt.Sprintf("%+v", l)
				}
				equal(t, "named", sorted(audit.Named), sorted(c.want(d)))
				equal(t, "count", audit.Differences, int64(len(audit.Named)))
			})
		})
	}
}

func TestAuditCountsAllAndNamesSome(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		d := newDamaged(t, rdb)
		for i := range AuditMax + 20 {
			d.do("HSET", d.keys.buyers, fmt.Sprint("stranger", i), "1:"+id(d.pending))
		}
		audit, _, err := d.Audit(t.Context(), "sku")
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "named", len(audit.Named), AuditMax)
		equal(t, "counted", audit.Differences, AuditMax+20)
	})
}

func TestS8_LostKeysAreNoSaleAndNeverSoldOut(t *testing.T) {
	for _, kind := range []string{"sale", "buyers", "orders", "queue", "all"} {
		t.Run(kind, func(t *testing.T) {
			onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
				ctx, d := t.Context(), newDamaged(t, rdb)
				if kind == "all" {
					d.do("DEL", d.keys.sale, d.keys.buyers, d.keys.orders, d.keys.queue)
				} else {
					d.do("DEL", fmt.Sprintf("seckill:{%s}:%s:sku", shardTag("sku", 0, 1), kind))
				}
				for _, requestID := range []string{"", "new"} {
					receipt := must[Receipt](t)(d.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: requestID}))
					equal(t, "buy", receipt, Receipt{Outcome: NoSale})
				}
				audit, found, err := d.Audit(ctx, "sku")
				if err != nil || found == (kind == "all") || found && audit.Differences == 0 {
					t.Fatalf("audit: %+v, found %v, %v", audit, found, err)
				}
				if kind == "sale" || kind == "all" {
					equal(t, "confirm", must[Settlement](t)(d.Confirm(ctx, d.pending, "o")), Settlement{Outcome: NoSale})
					equal(t, "result", must[Reservation](t)(d.Result(ctx, d.pending)), Reservation{Outcome: NoSale})
					equal(t, "list", len(must[[]Listed](t)(d.List(ctx))), 0)
				}
			})
		})
	}
}

func TestCreateRefusesToMixASaleWithWhatIsLeftOfAnother(t *testing.T) {
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		d := newDamaged(t, rdb)
		d.do("DEL", d.keys.sale)
		created, err := d.Create(t.Context(), Sale{SKU: "sku", Stock: 1, Limit: 1})
		if err == nil || !strings.HasPrefix(err.Error(), "ERR damaged sale: ") {
			t.Fatalf("%+v, %v", created, err)
		}
		equal(t, "sale keys", d.do("EXISTS", d.keys.sale).(int64), 0)
	})
}

func TestUnreadableCountersAreAnErrorAndNotZero(t *testing.T) {
	for _, value := range []string{"", "-1", "1.5", "1e3", "nan", " 1", "x"} {
		t.Run(value, func(t *testing.T) {
			onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
				ctx, d := t.Context(), newDamaged(t, rdb)
				d.do("HSET", d.keys.sale, "available", value)
				const want = "ERR damaged sale: its field 'available' is missing or unreadable, SECKILL.AUDIT names all damage"
				_, err := d.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1})
				equal(t, "Buy", fmt.Sprint(err), want)
				_, err = d.Confirm(ctx, d.pending, "o")
				equal(t, "Confirm", fmt.Sprint(err), want)
				_, _, err = d.Info(ctx, "sku")
				equal(t, "Info", fmt.Sprint(err), want)
				equal(t, "List", fmt.Sprint(must[[]Listed](t)(d.List(ctx))), fmt.Sprint([]Listed{{"sku", Damaged, 0}}))
			})
		})
	}
}

// The first purchase of a sale finds no hashes, which is right, or something
// else in their place.
func TestKeysOfAnotherTypeStopTheFirstPurchase(t *testing.T) {
	for _, kind := range []string{"buyers", "orders", "queue"} {
		t.Run(kind, func(t *testing.T) {
			onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
				ctx, s := t.Context(), newStore(t, rdb, Options{})
				create(t, s, Sale{SKU: "sku", Stock: 1, Limit: 1})
				key := fmt.Sprintf("seckill:{%s}:%s:sku", shardTag("sku", 0, 1), kind)
				rdb.Del(ctx, key)
				rdb.Set(ctx, key, "x", 0)
				for _, requestID := range []string{"", "r"} {
					_, err := s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: requestID})
					if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
						t.Fatalf("a string at %s: %v", key, err)
					}
				}
				rdb.Del(ctx, key)
				if kind != "queue" {
					equal(t, "available", clean(t, s, "sku").Available, 1)
				}
			})
		})
	}
}

// A key of another type at one of our names: nothing may be done half-way.
func TestKeysOfAnotherTypeStopPurchasesBeforeTheyBegin(t *testing.T) {
	for _, kind := range []string{"sale", "buyers", "orders", "queue"} {
		t.Run(kind, func(t *testing.T) {
			onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
				ctx, d := t.Context(), newDamaged(t, rdb)
				key := fmt.Sprintf("seckill:{%s}:%s:sku", shardTag("sku", 0, 1), kind)
				d.do("RENAME", key, key+":kept")
				d.do("SET", key, "x")
				for _, try := range []func() error{
					func() error {
						_, err := d.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1})
						return err
					},
					func() error {
						_, err := d.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "new"})
						return err
					},
					func() error { _, err := d.Confirm(ctx, d.pending, "o"); return err },
					func() error { _, err := d.Cancel(ctx, d.pending, ""); return err },
				} {
					var answered redis.Error
					if err := try(); !errors.As(err, &answered) || !strings.Contains(err.Error(), "WRONGTYPE") {
						t.Errorf("a string at %s: %v", key, err)
					}
				}
				d.do("DEL", key)
				d.do("RENAME", key+":kept", key)
				clean(t, d.Store, "sku")
			})
		})
	}
}

// newDamagedShards is a sale of three shards, for a test to damage: a delivery from
// shard 0 to shard 1 has arrived, one from shard 0 to shard 2 is under way, and there
// are a pending and a confirmed reservation.
func newDamagedShards(t *testing.T, rdb *redis.Client, sku string) *damaged {
	d := &damaged{Store: newQuietStore(t, rdb, Options{}), t: t, rdb: rdb}
	d.keys = shardKeys(d.Store, sku, 1, 3)
	sell(t, d.Store, Sale{SKU: sku, Stock: 90, Limit: 50, Shards: 3, PayTTL: 1_000_000})
	d.pending = reserve(t, d.Store, Purchase{SKU: sku, User: userOf(1, 3), Qty: 40})
	d.confirmed = reserve(t, d.Store, Purchase{SKU: sku, User: userOf(2, 3), Qty: 3})
	must[Settlement](t)(d.Confirm(t.Context(), d.confirmed, "o"))
	send(t, d.Store, sku, knownSale(t, d.Store, sku), 0, 2, 0, 4)
	equal(t, "in transit", clean(t, d.Store, sku).InTransit, 8)
	return d
}

func TestAuditNamesDamageBetweenShards(t *testing.T) {
	t.Parallel()
	type names = []string // what is expected, and found
	cases := []struct {
		name  string
		plant func(d *damaged, sale [3]string)
		want  func(d *damaged, sale [3]string) names
	}{
		{"received more", func(d *damaged, sale [3]string) { d.do("HINCRBY", sale[1], "received", 2) }, func(*damaged, [3]string) names {
			return names{"available + pending + confirmed: 47, 45", "counter 'available': 7, 5", "counter 'received' of shard 1: 15, 17"}
		}},
		{"sent less", func(d *damaged, sale [3]string) { d.do("HINCRBY", sale[0], "sent", -1) }, func(*damaged, [3]string) names {
			return names{"available + pending + confirmed: 8, 7", "counter 'available': 8, 7", "counter 'sent' of shard 0: 23, 22"}
		}},
		{"sent to nobody", func(d *damaged, sale [3]string) {
			d.do("HINCRBY", sale[0], "sent", 3)
			d.do("HINCRBY", sale[0], "available", -3)
		}, func(*damaged, [3]string) names { return names{"counter 'sent' of shard 0: 23, 26"} }},
		{"received from nobody", func(d *damaged, sale [3]string) {
			d.do("HINCRBY", sale[2], "received", 8)
			d.do("HINCRBY", sale[2], "available", 8)
		}, func(*damaged, [3]string) names { return names{"counter 'received' of shard 2: 0, 8"} }},
		{"taken in and not counted", func(d *damaged, sale [3]string) { d.do("HSET", sale[2], "from:0", 8) }, func(*damaged, [3]string) names {
			return names{"counter 'received' of shard 2: 8, 0"}
		}},
		{"units of a delivery", func(d *damaged, sale [3]string) { d.do("HSET", sale[0], "to:2", 9) }, func(*damaged, [3]string) names {
			return names{"counter 'sent' of shard 0: 24, 23"}
		}},
		{"delivery under way lost", func(d *damaged, sale [3]string) { d.do("HDEL", sale[0], "to:2") }, func(*damaged, [3]string) names {
			return names{"counter 'sent' of shard 0: 15, 23"}
		}},
		{"delivery that arrived lost", func(d *damaged, sale [3]string) { d.do("HDEL", sale[0], "to:1") }, func(*damaged, [3]string) names {
			return names{"counter 'sent' of shard 0: 8, 23", "units sent by shard 0 that have arrived in shard 1: 0, 15"}
		}},
		{"sent too many", func(d *damaged, sale [3]string) { d.do("HSET", sale[0], "to:1", 18) }, func(*damaged, [3]string) names {
			return names{"counter 'sent' of shard 0: 26, 23"}
		}},
		{"sent too few", func(d *damaged, sale [3]string) { d.do("HSET", sale[0], "to:1", 10) }, func(*damaged, [3]string) names {
			return names{"counter 'sent' of shard 0: 18, 23", "units sent by shard 0 that have arrived in shard 1: 10, 15"}
		}},
		{"receiver forgets", func(d *damaged, sale [3]string) { d.do("HDEL", sale[1], "from:0") }, func(*damaged, [3]string) names {
			return names{"counter 'received' of shard 1: 0, 15"}
		}},
		{"receiver unknown", func(d *damaged, sale [3]string) { d.do("HSET", sale[1], "to:7", 5) }, func(*damaged, [3]string) names {
			return names{"receiver of the units to:7 of shard 1: 1, 0"}
		}},
		{"sender unknown", func(d *damaged, sale [3]string) { d.do("HSET", sale[1], "from:x", "1") }, func(*damaged, [3]string) names {
			return names{"sender of the units from:x of shard 1: 1, 0"}
		}},
		{"received unreadable", func(d *damaged, sale [3]string) { d.do("HSET", sale[0], "received", "-1") }, func(*damaged, [3]string) names {
			return names{"counter 'received' of shard 0: 0, -1", "readable field 'received' of the sale: 1, 0"}
		}},
		{"sent missing", func(d *damaged, sale [3]string) { d.do("HDEL", sale[0], "sent") }, func(*damaged, [3]string) names {
			return names{"available + pending + confirmed: 30, 7", "counter 'available': 30, 7",
				"counter 'sent' of shard 0: 23, 0", "readable field 'sent' of the sale: 1, 0"}
		}},
		{"expired", func(d *damaged, sale [3]string) { d.do("HINCRBY", sale[1], "expired", 1) }, func(*damaged, [3]string) names {
			return names{"counter 'expired': 0, 1"}
		}},
		{"stock moved by hand", func(d *damaged, sale [3]string) {
			d.do("HINCRBY", sale[1], "stock", 1)
			d.do("HINCRBY", sale[1], "available", 1)
		}, func(*damaged, [3]string) names { return names{"stock of all shards: 90, 91"} }},
		{"deadline of an order", func(d *damaged, _ [3]string) { d.record(d.pending, ",0,1,0,0,0:", "0,0,1,0,0,0:") }, func(d *damaged, _ [3]string) names {
			return names{"deadline of order " + d.pending + ": 1, 0"}
		}},
		{"sale_id", func(d *damaged, sale [3]string) { d.do("HSET", sale[1], "sale_id", "x") }, func(*damaged, [3]string) names {
			return names{"sale_id of shard 1 is that of shard 0: 1, 0"}
		}},
		{"limit", func(d *damaged, sale [3]string) { d.do("HSET", sale[2], "limit", 49) }, func(*damaged, [3]string) names {
			return names{"field 'limit' of shard 2 is that of shard 0: 1, 0"}
		}},
		{"total", func(d *damaged, sale [3]string) { d.do("HSET", sale[2], "total", 91) }, func(*damaged, [3]string) names {
			return names{"field 'total' of shard 2 is that of shard 0: 1, 0"}
		}},
		{"rate", func(d *damaged, sale [3]string) { d.do("HSET", sale[1], "rate_count", 1) }, func(*damaged, [3]string) names {
			return names{"field 'rate_count' of shard 1 is that of shard 0: 1, 0"}
		}},
		{"time to pay", func(d *damaged, sale [3]string) { d.do("HSET", sale[1], "pay_ttl", 1_000_001) }, func(d *damaged, _ [3]string) names {
			return names{"deadline of order " + d.pending + ": 1, 0", "field 'pay_ttl' of shard 1 is that of shard 0: 1, 0"}
		}},
		{"number of a shard", func(d *damaged, sale [3]string) { d.do("HSET", sale[1], "shard", 2) }, func(*damaged, [3]string) names {
			return names{"field 'shard' of shard 1: 1, 2"}
		}},
		{"window", func(d *damaged, sale [3]string) { d.do("HSET", sale[1], "close_at", 5) }, func(*damaged, [3]string) names {
			return names{"field 'close_at' of shard 1 is that of shard 0: 1, 0"}
		}},
		{"window half decided, which is no damage", func(d *damaged, sale [3]string) {
			d.do("HSET", sale[0], "close_at", 5, "window", 1)
		}, func(*damaged, [3]string) names { return nil }},
		{"shard 1", func(d *damaged, _ [3]string) { d.do("DEL", d.keys.sale, d.keys.buyers, d.keys.orders, d.keys.queue) }, func(_ *damaged, sale [3]string) names {
			return names{"shard 1, key " + sale[1] + ": 1, 0"}
		}},
		{"sale of shard 1", func(d *damaged, sale [3]string) { d.do("DEL", sale[1]) }, func(_ *damaged, sale [3]string) names {
			return names{"key " + sale[1] + ": 1, 0", "sale_id of shard 1 is that of shard 0: 1, 0"}
		}},
		{"sale of shard 0", func(d *damaged, sale [3]string) { d.do("DEL", sale[0]) }, func(_ *damaged, sale [3]string) names {
			return names{"shard 0, key " + sale[0] + ": 1, 0", "units sent by shard 0 that have arrived in shard 1: 0, 15"}
		}},
		{"index", func(d *damaged, _ [3]string) { d.do("DEL", d.indexKey()) }, func(*damaged, [3]string) names {
			return names{"entry in seckill:sales: 1, 0"}
		}},
	}
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		for i, c := range cases {
			sku := fmt.Sprint("sku", i)
			d := newDamagedShards(t, rdb, sku)
			var sale [3]string
			for shard := range sale {
				sale[shard] = shardKeys(d.Store, sku, shard, 3).sale
			}
			c.plant(d, sale)
			audit, found, err := d.Audit(t.Context(), sku)
			if err != nil || !found {
				t.Fatalf("%s: found %v, %v", c.name, found, err)
			}
			var got names
			for _, difference := range audit.Named {
				got = append(got, fmt.Sprintf("%s: %d, %d", difference.What, difference.Expected, difference.Found))
			}
			slices.Sort(got)
			if want := c.want(d, sale); !slices.Equal(got, want) || audit.Differences != int64(len(want)) {
				t.Errorf("%s: %d differences\n got %q\nwant %q", c.name, audit.Differences, got, want)
			}
		}
	})
}

// A sale that is dropped while it is audited is gone, and not damaged.
func TestAuditDuringDrops(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
		client := connect(t, rdb.Options().Addr)
		probe := newProbe(client)
		auditor := newQuietStore(t, client, Options{})
		for _, again := range []bool{false, true} {
			for trips, reached := 1, true; reached; trips++ {
				sku := fmt.Sprint("sku", again, trips)
				sell(t, s, Sale{SKU: sku, Stock: 90, Shards: 3})
				reached = false
				probe.interrupt(trips, func() {
					reached = true
					must[Dropped](t)(s.Drop(ctx, sku, true))
					if again {
						sell(t, s, Sale{SKU: sku, Stock: 50, Shards: 4})
					}
				})
				audit, _, err := auditor.Audit(ctx, sku)
				if err != nil || audit.Differences != 0 {
					t.Fatalf("dropped after %d calls: %+v, %v", trips, audit, err)
				}
			}
		}
	})
}
