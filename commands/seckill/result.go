package seckill

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Reservation is the answer to Result.
type Reservation struct {
	Outcome Outcome // Found, NoSale or NoReservation
	Status  Status
	OrderID string // of a confirmed one
	Reason  string // of a cancelled one
}

// Result reads how a reservation stands.
func (s *Store) Result(ctx context.Context, text string) (Reservation, error) {
	s.Start()
	t, ok := parseToken(text)
	if !ok {
		return Reservation{Outcome: NoReservation}, nil
	}
	keys := s.keys(t.sku, t.tag)
	r := read(resultScript.Run(ctx, s.rdb, []string{keys.sale, keys.orders}, t.id))
	return Reservation{Outcome: Outcome(r.text()), Status: statuses[r.text()], OrderID: r.text(), Reason: r.text()}, r.err
}

// AwaitResult is Result that waits until a reservation isn't pending any more, for
// as long as wait, or until ctx ends.
func (s *Store) AwaitResult(ctx context.Context, text string, wait time.Duration) (reservation Reservation, err error) {
	s.Start()
	err = s.news.await(ctx, text, wait, 0, func() (bool, error) {
		reservation, err = s.Result(context.WithoutCancel(ctx), text)
		return reservation.Status != Pending, err
	})
	return reservation, err
}

// FindMax is how many of a user's reservations Find looks at, the latest first.
const FindMax = 1000

// Find returns the tokens of a user's reservations that hold units, the latest
// first; found is false when there is no such sale.
func (s *Store) Find(ctx context.Context, sku, user string) (tokens []string, found bool, err error) {
	known, err := s.readSale(ctx, sku)
	if err != nil {
		return nil, false, unlessAbsent(err)
	}
	tag := homeTag(sku, user, known)
	keys, prefix := s.keys(sku, tag), tokenPrefix(sku, tag)
	r := read(findScript.Run(ctx, s.rdb, []string{keys.sale, keys.buyers, keys.orders}, user, FindMax))
	if Outcome(r.text()) == NoSale {
		return nil, false, r.err
	}
	for r.more() {
		tokens = append(tokens, prefix+r.text())
	}
	return tokens, r.err == nil, r.err
}

// Order is a reservation as Orders lists it.
type Order struct {
	Token     string
	User      string
	Qty       int64
	Status    Status
	CreatedAt int64 // Unix milliseconds
	PayBy     int64 // Unix milliseconds, 0 for ever
	OrderID   string
	Reason    string
}

// FirstCursor begins a listing of orders, and is what it ends with.
const FirstCursor = "0"

// ErrBadCursor is returned for a cursor that Orders didn't return.
var ErrBadCursor = errors.New("invalid cursor")

// Orders lists reservations in no order, about count of them, from cursor on, and
// returns where to go on. Like SCAN, it returns every reservation that is there
// throughout at least once.
func (s *Store) Orders(ctx context.Context, sku, cursor string, count int64) (orders []Order, next string, found bool, err error) {
	shard, at, err := parseCursor(cursor)
	if err != nil {
		return nil, "", false, err
	}
	known, err := s.readSale(ctx, sku)
	if err != nil {
		return nil, "", false, unlessAbsent(err)
	}
	if shard >= known.Shards {
		return nil, FirstCursor, true, nil // of a sale before this one, with more shards
	}
	tag := shardTag(sku, shard, known.Shards)
	keys, prefix := s.keys(sku, tag), tokenPrefix(sku, tag)
	r := read(ordersScript.Run(ctx, s.rdb, []string{keys.sale, keys.orders}, at, count))
	if Outcome(r.text()) == NoSale {
		return nil, "", false, r.err
	}
	at = r.text()
	for r.more() {
		orders = append(orders, Order{
			Token: prefix + r.text(), User: r.text(), Qty: r.number(), Status: statuses[r.text()],
			CreatedAt: r.number(), PayBy: r.number(), OrderID: r.text(), Reason: r.text(),
		})
	}
	if at == "0" {
		shard++
	}
	next = strconv.Itoa(shard) + "-" + at
	if shard == known.Shards {
		next = FirstCursor
	}
	return orders, next, r.err == nil, r.err
}

// parseCursor reads "<shard>-<cursor of HSCAN>".
func parseCursor(cursor string) (shard int, at string, err error) {
	if cursor == FirstCursor {
		return 0, "0", nil
	}
	first, at, _ := strings.Cut(cursor, "-")
	n, err := strconv.ParseUint(first, 10, 64)
	if _, wrong := strconv.ParseUint(at, 10, 64); err != nil || wrong != nil || n >= MaxShards {
		return 0, "", ErrBadCursor
	}
	return int(n), at, nil
}
