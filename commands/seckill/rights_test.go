package seckill

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
)

// Whatever right a user lacks, an operation is done as a whole or not at all.
func TestMissingRightsNeverLeaveAnythingHalfDone(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	admin := connect(t, server.Addr)
	s := newStore(t, admin, Options{})
	create(t, s, Sale{SKU: "sku", Stock: 1000, Limit: 0})

	operations := map[string]struct {
		needs []string
		run   func(limited *Store, n int) error
	}{
		"create": {strings.Fields("evalsha zadd exists xlen xgroup|create time hset"), func(limited *Store, n int) error {
			_, err := limited.Create(t.Context(), Sale{SKU: fmt.Sprint("new", n), Stock: 1})
			return err
		}},
		"buy": {strings.Fields("evalsha hmget hlen hset xadd"), func(limited *Store, _ int) error {
			_, err := limited.Buy(t.Context(), Purchase{SKU: "sku", User: "u", Qty: 1})
			return err
		}},
		"buy with request id": {strings.Fields("evalsha hmget hlen hset xadd"), func(limited *Store, n int) error {
			_, err := limited.Buy(t.Context(), Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: fmt.Sprint("r", n)})
			return err
		}},
		"confirm": {strings.Fields("evalsha hmget hget hset xdel xack"), func(limited *Store, _ int) error {
			_, err := limited.Confirm(t.Context(), reserve(t, s, Purchase{SKU: "sku", User: "v", Qty: 1}), "o")
			return err
		}},
		"cancel": {strings.Fields("evalsha hmget hget hset xdel xack"), func(limited *Store, _ int) error {
			_, err := limited.Cancel(t.Context(), reserve(t, s, Purchase{SKU: "sku", User: "v", Qty: 1}), "")
			return err
		}},
		"pull": {strings.Fields("evalsha exists hget xpending xautoclaim xreadgroup"), func(limited *Store, _ int) error {
			_, _, err := limited.Pull(t.Context(), "sku", "w", 1, 0)
			return err
		}},
	}
	n := 0
	for name, operation := range operations {
		for _, right := range operation.needs {
			n++
			user := fmt.Sprint("user", n)
			rules := []any{"ACL", "SETUSER", user, "on", ">pw", "~*", "resetchannels", "+@all", "-" + right}
			if right == "evalsha" {
				rules = append(rules, "-eval")
			}
			must[any](t)(admin.Do(t.Context(), rules...).Result())
			limited := newStore(t, connectAs(t, &redis.Options{Addr: server.Addr, Username: user, Password: "pw"}), Options{})
			before := clean(t, s, "sku")

			err := operation.run(limited, n)

			// "NOPERM …", or what Redis 7.0 says inside a script.
			var answered redis.Error
			refused := errors.As(err, &answered) && (strings.HasPrefix(err.Error(), "NOPERM ") ||
				strings.HasPrefix(err.Error(), "ERR The user executing the script can't run this command"))
			if !refused || errors.Is(err, script.ErrNotExecuted) {
				t.Errorf("%s without %s: %v", name, right, err)
			}
			after := clean(t, s, "sku")
			switch name {
			case "confirm", "cancel": // the reservation that was to be settled is one more
				after.Available, after.Pending, after.Orders = after.Available+1, after.Pending-1, after.Orders-1
				after.RecordedPending, after.RecordedOrders, after.RecordedQueue = after.RecordedPending-1, after.RecordedOrders-1, after.RecordedQueue-1
				after.RecordedBuyers = before.RecordedBuyers
			}
			equal(t, fmt.Sprintf("%s without %s changed the sale", name, right), fmt.Sprint(after), fmt.Sprint(before))
			if _, found, err := s.Info(t.Context(), fmt.Sprint("new", n)); found || err != nil {
				t.Errorf("%s without %s left a sale: %v", name, right, err)
			}
		}
	}
	// What a failed creation leaves doesn't keep anyone from creating the sale.
	for i := range n {
		if list := must[[]Listed](t)(s.List(t.Context())); len(list) != 1+i {
			t.Fatalf("%d sales are listed, want %d", len(list), 1+i)
		}
		create(t, s, Sale{SKU: fmt.Sprint("new", i+1), Stock: 1, Limit: 1})
	}
}

// Of a user who may touch nothing but the sales, and no channel.
func TestRightsToTheKeysAreEnough(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	admin := connect(t, server.Addr)
	must[any](t)(admin.Do(t.Context(), "ACL", "SETUSER", "shop", "on", ">pw", "~seckill:*", "resetchannels", "+@all", "-@dangerous", "-publish").Result())
	s := newStore(t, connectAs(t, &redis.Options{Addr: server.Addr, Username: "shop", Password: "pw"}), Options{})
	create(t, s, Sale{SKU: "sku", Stock: 3, Limit: 0})
	a := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
	b := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
	equal(t, "pulled", len(pull(t, s, "w", 5)), 2)
	equal(t, "confirmed", must[Settlement](t)(s.Confirm(t.Context(), a, "o")).Outcome, Settled)
	equal(t, "cancelled", must[Settlement](t)(s.Cancel(t.Context(), b, "")).Outcome, Settled)
	clean(t, s, "sku")

	stranger := newStore(t, connectAs(t, &redis.Options{Addr: server.Addr, Username: "shop", Password: "pw"}), Options{Prefix: "other:"})
	_, err := stranger.Buy(t.Context(), Purchase{SKU: "sku", User: "u", Qty: 1})
	if err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
		t.Fatalf("keys of others: %v", err)
	}
}

func TestFullRedisSellsNothingAndSettlesAll(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	rdb := connect(t, server.Addr)
	ctx, s := t.Context(), newStore(t, rdb, Options{})
	create(t, s, Sale{SKU: "sku", Stock: 3, Limit: 0})
	p := Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "r"}
	a := reserve(t, s, p)
	b := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
	must[string](t)(rdb.ConfigSet(ctx, "maxmemory", "1").Result())

	_, err := s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1})
	if !errors.Is(err, script.ErrNotExecuted) {
		t.Fatalf("buy: %v", err)
	}
	_, err = s.Create(ctx, Sale{SKU: "new", Stock: 1, Limit: 0})
	if !errors.Is(err, script.ErrNotExecuted) {
		t.Fatalf("create: %v", err)
	}
	equal(t, "replay", must[Receipt](t)(s.Buy(ctx, p)), Receipt{Outcome: Replayed, Token: a, Left: 1})
	equal(t, "pulled", len(pull(t, s, "w", 5)), 2)
	equal(t, "confirmed", must[Settlement](t)(s.Confirm(ctx, a, "o")).Outcome, Settled)
	equal(t, "cancelled", must[Settlement](t)(s.Cancel(ctx, b, "")).Outcome, Settled)
	clean(t, s, "sku")
}

func TestReplicaChangesNothing(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	rdb := connect(t, server.Addr)
	ctx, s := t.Context(), newStore(t, rdb, Options{})
	create(t, s, Sale{SKU: "sku", Stock: 3, Limit: 0})
	token := reserve(t, s, Purchase{SKU: "sku", User: "u", Qty: 1})
	must[any](t)(rdb.Do(ctx, "REPLICAOF", "127.0.0.1", "1").Result())
	for name, try := range map[string]func() error{
		"create":  func() error { _, err := s.Create(ctx, Sale{SKU: "new", Stock: 1}); return err },
		"buy":     func() error { _, err := s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1}); return err },
		"confirm": func() error { _, err := s.Confirm(ctx, token, "o"); return err },
		"cancel":  func() error { _, err := s.Cancel(ctx, token, ""); return err },
		"pull":    func() error { _, _, err := s.Pull(ctx, "sku", "w", 1, 0); return err },
	} {
		if err := try(); !errors.Is(err, script.ErrNotExecuted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must[any](t)(rdb.Do(ctx, "REPLICAOF", "NO", "ONE").Result())
	equal(t, "pending", clean(t, s, "sku").Pending, 1)
}

// The same for what is done in several steps, in several shards: what a right is
// missing for isn't begun, or can be begun again by somebody who has it.
func TestMissingRightsInSeveralShards(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	admin := connect(t, server.Addr)
	s := newQuietStore(t, admin, Options{})
	const shards, units = 3, 30
	outcome := func(got, want Outcome, err error) error {
		if err == nil && got != want {
			t.Errorf("%s, want %s", got, want)
		}
		return err
	}
	operations := map[string]struct {
		needs   []string
		prepare func(sku string) // besides the sale
		run     func(s *Store, sku string) error
	}{
		"open": {strings.Fields("evalsha hmget time hdel hset"), nil, func(s *Store, sku string) error {
			_, err := s.Open(t.Context(), sku)
			return err
		}},
		"close": {strings.Fields("evalsha hmget time hdel hset"), nil, func(s *Store, sku string) error {
			_, err := s.Shut(t.Context(), sku)
			return err
		}},
		"restock": {strings.Fields("evalsha hmget hget hset"), nil, func(s *Store, sku string) error {
			restock, err := s.Restock(t.Context(), sku, 5, "r")
			return outcome(restock.Outcome, Restocked, err)
		}},
		"restock with units of others": {strings.Fields("evalsha hmget hget hset hgetall hlen time"), nil, func(s *Store, sku string) error {
			restock, err := s.Restock(t.Context(), sku, -25, "r")
			return outcome(restock.Outcome, Restocked, err)
		}},
		"buy with units of others": {strings.Fields("evalsha hmget hget hset hgetall hlen time xadd"), nil, func(s *Store, sku string) error {
			receipt, err := s.Buy(t.Context(), Purchase{SKU: sku, User: "u", Qty: 25})
			return outcome(receipt.Outcome, Reserved, err)
		}},
		"buy with a rate": {strings.Fields("set incr"), nil, func(s *Store, sku string) error {
			receipt, err := s.Buy(t.Context(), Purchase{SKU: sku, User: "u", Qty: 1})
			return outcome(receipt.Outcome, Reserved, err)
		}},
		"drop": {strings.Fields("evalsha hmget time type hdel hset unlink zrem"), func(sku string) {
			must[bool](t)(s.Shut(t.Context(), sku))
		}, func(s *Store, sku string) error {
			dropped, err := s.Drop(t.Context(), sku, false)
			return outcome(dropped.Outcome, Removed, err)
		}},
	}
	n := 0
	for name, operation := range operations {
		for _, right := range operation.needs {
			n++
			sku := fmt.Sprint("sku", n)
			sell(t, s, Sale{SKU: sku, Stock: units, Shards: shards, RateCount: 5, RateWindow: longWindow})
			if operation.prepare != nil {
				operation.prepare(sku)
			}
			before, states := whole(t, s, sku, units), statesOf(t, s, sku, shards)

			err := operation.run(lacking(t, admin, right), sku)

			if !isMissingRight(err) {
				t.Errorf("%s without %s: %v", name, right, err)
			}
			equal(t, name+" without "+right+" changed its state", statesOf(t, s, sku, shards), states)
			if _, err := s.finishTransfers(t.Context(), sku, knownSale(t, s, sku), 0); err != nil {
				t.Fatal(err)
			}
			after := whole(t, s, sku, units)
			equal(t, name+" without "+right+" changed the sale", fmt.Sprint(after), fmt.Sprint(before))
			if err := operation.run(s, sku); err != nil {
				t.Errorf("%s by somebody who has all rights: %v", name, err)
			}
		}
	}
}

// lacking returns a Store of a user who has all rights but one.
func lacking(t testing.TB, admin *redis.Client, right string) *Store {
	t.Helper()
	user := newTokenID()
	rules := []any{"ACL", "SETUSER", user, "on", ">pw", "~*", "resetchannels", "+@all", "-" + right}
	if right == "evalsha" {
		rules = append(rules, "-eval")
	}
	must[any](t)(admin.Do(t.Context(), rules...).Result())
	return newQuietStore(t, connectAs(t, &redis.Options{Addr: admin.Options().Addr, Username: user, Password: "pw"}), Options{})
}

// isMissingRight reports "NOPERM …", or what Redis 7.0 says inside a script.
func isMissingRight(err error) bool {
	var answered redis.Error
	return errors.As(err, &answered) && !errors.Is(err, script.ErrNotExecuted) && (strings.HasPrefix(err.Error(), "NOPERM ") ||
		strings.HasPrefix(err.Error(), "ERR The user executing the script can't run this command"))
}

func TestMissingRightsToCreateSeveralShards(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	admin := connect(t, server.Addr)
	s := newQuietStore(t, admin, Options{})
	for _, right := range strings.Fields("evalsha zadd exists hmget xlen xgroup|create time hset") {
		sku := "without " + right
		_, err := lacking(t, admin, right).Create(t.Context(), Sale{SKU: sku, Stock: 30, Shards: 3})
		if !isMissingRight(err) {
			t.Errorf("%s: %v", sku, err)
		}
		if _, found, err := s.Info(t.Context(), sku); found || err != nil {
			t.Errorf("%s: there is a sale, %v", sku, err)
		}
		sell(t, s, Sale{SKU: sku, Stock: 50, Shards: 4})
		whole(t, s, sku, 50)
	}
}

// A full Redis moves and adds no units. Sales can be opened, closed and dropped, which
// is how it gets room.
func TestFullRedisDropsSales(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	rdb := connect(t, server.Addr)
	ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
	sell(t, s, Sale{SKU: "sku", Stock: 30, Shards: 3})
	half := beginCreation(t, s, Sale{SKU: "half", Stock: 30, Shards: 3}, 2)
	must[string](t)(rdb.ConfigSet(ctx, "maxmemory", "1").Result())
	for name, try := range map[string]func() error{
		"create":         func() error { _, err := s.Create(ctx, Sale{SKU: "new", Stock: 1, Shards: 3}); return err },
		"half a create":  func() error { return s.finishCreation(ctx, half) },
		"restock":        func() error { _, err := s.Restock(ctx, "sku", 1, ""); return err },
		"take away":      func() error { _, err := s.Restock(ctx, "sku", -1, ""); return err },
		"take away many": func() error { _, err := s.Restock(ctx, "sku", -25, ""); return err },
		"buy many":       func() error { _, err := s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 25}); return err },
	} {
		if err := try(); !errors.Is(err, script.ErrNotExecuted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	equal(t, "available", whole(t, s, "sku", 30).Available, 30)
	must[bool](t)(s.Shut(ctx, "sku"))
	told, _ := outcomes(t, s, "sku", 3)
	equal(t, "closed", told, Closed)
	must[bool](t)(s.Open(ctx, "sku"))
	equal(t, "open", must[Dropped](t)(s.Drop(ctx, "sku", false)), Dropped{Outcome: StillOpen})
	must[bool](t)(s.Shut(ctx, "sku"))
	equal(t, "dropped", must[Dropped](t)(s.Drop(ctx, "sku", false)), Dropped{Outcome: Removed})
	equal(t, "left", fmt.Sprint(keysOf(t, rdb, "sku")), "[]")
	must[string](t)(rdb.ConfigSet(ctx, "maxmemory", "0").Result())
	whole(t, s, "half", 30)
}

func TestReplicaChangesNothingInSeveralShards(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	rdb := connect(t, server.Addr)
	ctx, s := t.Context(), newQuietStore(t, rdb, Options{})
	sell(t, s, Sale{SKU: "sku", Stock: 30, Shards: 3})
	must[any](t)(rdb.Do(ctx, "REPLICAOF", "127.0.0.1", "1").Result())
	for name, try := range map[string]func() error{
		"create":    func() error { _, err := s.Create(ctx, Sale{SKU: "new", Stock: 1, Shards: 3}); return err },
		"buy many":  func() error { _, err := s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 25}); return err },
		"open":      func() error { _, err := s.Open(ctx, "sku"); return err },
		"close":     func() error { _, err := s.Shut(ctx, "sku"); return err },
		"restock":   func() error { _, err := s.Restock(ctx, "sku", 1, ""); return err },
		"take away": func() error { _, err := s.Restock(ctx, "sku", -25, ""); return err },
		"drop":      func() error { _, err := s.Drop(ctx, "sku", true); return err },
	} {
		if err := try(); !errors.Is(err, script.ErrNotExecuted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must[any](t)(rdb.Do(ctx, "REPLICAOF", "NO", "ONE").Result())
	equal(t, "available", whole(t, s, "sku", 30).Available, 30)
	told, _ := outcomes(t, s, "sku", 3)
	equal(t, "as before", told, Reserved)
}
