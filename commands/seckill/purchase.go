package seckill

import (
	"context"

	"seckill-proxy/sharding"
)

// Outcome is the answer to an operation on a sale or a reservation.
type Outcome string

const (
	// Reserved: the units are the user's until the reservation is settled.
	Reserved Outcome = "RESERVED"
	// Replayed: the same request was carried out before, and wasn't again.
	Replayed Outcome = "REPLAYED"
	// SoldOut: fewer units are left than were asked for.
	SoldOut Outcome = "SOLD_OUT"
	// LimitReached: the user would hold more units than one user may.
	LimitReached Outcome = "LIMIT"
	// NoSale: there is no sale of this SKU, or keys of it were lost.
	NoSale Outcome = "NO_SALE"
	// NoReservation: the sale has no reservation with this token, or the token
	// isn't one.
	NoReservation Outcome = "NO_RESERVATION"
	// Settled: the reservation was pending and is now what was asked for.
	Settled Outcome = "SETTLED"
	// Conflict: the reservation was settled before, in another way.
	Conflict Outcome = "CONFLICT"
	// Found: the reservation exists, or the sale does.
	Found Outcome = "FOUND"
)

// Purchase is a user's wish for units of one sale.
type Purchase struct {
	SKU       string
	User      string
	Qty       int64  // units, at least 1
	RequestID string // of the user: the same one never buys twice; "" for none
}

// Receipt is the answer to a Purchase.
type Receipt struct {
	Outcome Outcome // Reserved, Replayed, SoldOut, LimitReached or NoSale
	Token   string  // of the reservation; for LimitReached of the user's latest that holds units, "" for none
	Left    int64   // units left, as the user's shard knows
	PayBy   int64   // Unix milliseconds until which the reservation stands, 0 for ever
}

// Buy reserves units.
func (s *Store) Buy(ctx context.Context, p Purchase) (Receipt, error) {
	shard := sharding.HomeShard(p.User, shardsPerSale)
	receipts, err := s.buy(ctx, p.SKU, shardTag(p.SKU, shard, shardsPerSale), []Purchase{p})
	if err != nil {
		return Receipt{}, err
	}
	return receipts[0], nil
}

// maxBatch is how many purchases one script call may carry: what Lua can unpack
// at once, and what other commands can be made to wait for.
const maxBatch = 500

// buy makes 1 to maxBatch purchases of one shard of a SKU, in their order, and
// returns a receipt for each.
func (s *Store) buy(ctx context.Context, sku, tag string, purchases []Purchase) ([]Receipt, error) {
	prefix := tokenPrefix(sku, tag)
	args := make([]any, 0, 1+4*len(purchases))
	args = append(args, prefix)
	for _, p := range purchases {
		var id string
		if p.RequestID == "" {
			id = newTokenID()
		}
		args = append(args, p.User, p.Qty, p.RequestID, id)
	}
	r := read(buyScript.Run(ctx, s.rdb, s.keys(sku, tag).all(), args...))
	receipts := make([]Receipt, len(purchases))
	for i := range receipts {
		receipts[i] = Receipt{Outcome: Outcome(r.text()), Token: r.text(), Left: r.number(), PayBy: r.number()}
		if receipts[i].Token != "" {
			receipts[i].Token = prefix + receipts[i].Token
		}
	}
	return receipts, r.err
}
