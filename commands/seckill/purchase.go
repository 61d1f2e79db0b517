package seckill

import (
	"context"
	"errors"
	"fmt"

	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
	"seckill-proxy/sharding"
)

// Outcome is the answer to an operation on a sale or a reservation.
type Outcome string

const (
	// Reserved: the units are the user's until the reservation is settled.
	Reserved Outcome = "RESERVED"
	// Replayed: the same request was carried out before, and wasn't again.
	Replayed Outcome = "REPLAYED"
	// Uncertain: carried out, but not known to be on as many replicas as asked
	// for.
	Uncertain Outcome = "UNCERTAIN"
	// SoldOut: fewer units are left than were asked for.
	SoldOut Outcome = "SOLD_OUT"
	// LimitReached: the user would hold more units than one user may.
	LimitReached Outcome = "LIMIT"
	// NotOpen: the sale doesn't sell yet.
	NotOpen Outcome = "NOT_OPEN"
	// Closed: the sale doesn't sell any more.
	Closed Outcome = "CLOSED"
	// RateLimited: the user asks too often.
	RateLimited Outcome = "RATE_LIMITED"
	// NoSale: there is no sale of this SKU, or keys of it were lost.
	NoSale Outcome = "NO_SALE"
	// NoReservation: the sale has no reservation with this token, or the token
	// isn't one.
	NoReservation Outcome = "NO_RESERVATION"
	// Settled: the reservation was pending and is now what was asked for.
	Settled Outcome = "SETTLED"
	// Conflict: the reservation was settled before, in another way.
	Conflict Outcome = "CONFLICT"
	// Lapsed: the reservation wasn't settled in time.
	Lapsed Outcome = "EXPIRED"
	// Found: the reservation exists, or the sale does.
	Found Outcome = "FOUND"

	// stale: the script found another sale than the one that is remembered.
	stale Outcome = "STALE"
)

// Purchase is a user's wish for units of one sale.
type Purchase struct {
	SKU       string
	User      string
	Qty       int64  // units, at least 1
	RequestID string // of the user: the same one never buys twice; "" for none
	Sync      int    // replicas that must have it, -1 for Options.SyncReplicas
}

// Receipt is the answer to a Purchase.
type Receipt struct {
	Outcome Outcome // Reserved to NoSale
	Token   string  // of the reservation; for LimitReached of the user's latest that holds units, "" for none
	Left    int64   // units left: for SoldOut in the sale, else as the user's shard knows
	At      int64   // Unix milliseconds: pay by, 0 for ever; NotOpen: opens. RateLimited: milliseconds to wait
}

// ErrBusy is wrapped, beside script.ErrNotExecuted, where too many purchases wait
// already.
var ErrBusy = errors.New("too many purchases wait")

// Buy reserves units. What is certain without Redis is answered so; else the
// purchase travels with others of its shard.
func (s *Store) Buy(ctx context.Context, p Purchase) (Receipt, error) {
	s.Start()
	p.Sync = s.replicasFor(p)
	if receipt, certain := s.Certain(p); certain {
		return receipt, nil
	}
	const tries = 3 // the sale that is remembered may have been dropped, and be sold anew
	for range tries {
		mark := s.cache.Mark(p.SKU)
		known, err := s.sale(ctx, p.SKU)
		if errors.Is(err, errNoSale) {
			return Receipt{Outcome: NoSale}, nil
		}
		if err != nil {
			return Receipt{}, err
		}
		receipt, err := s.lineups.buy(p, known)
		if err == nil && (receipt.Outcome == stale || receipt.Outcome == NoSale) {
			now, err := s.readSale(ctx, p.SKU)
			switch {
			case errors.Is(err, errNoSale):
				return Receipt{Outcome: NoSale}, nil
			case err != nil:
				return Receipt{}, err
			case receipt.Outcome == NoSale && now.ID == known.ID:
				return receipt, nil // a part of it is lost
			}
			continue
		}
		if err == nil {
			s.remember(ctx, mark, known, p, receipt)
		}
		return receipt, err
	}
	return Receipt{}, fmt.Errorf("seckill buy: %w: the sale comes and goes", script.ErrNotExecuted)
}

// Certain is Buy where the answer is certain without asking Redis, which it reports.
// It doesn't wait.
func (s *Store) Certain(p Purchase) (receipt Receipt, certain bool) {
	p.Sync = s.replicasFor(p)
	answer := s.cache.Refuse(p.SKU, p.User, p.RequestID, p.Qty)
	switch answer.Verdict {
	case localcache.NoSale:
		receipt.Outcome = NoSale
	case localcache.NotOpen:
		receipt = Receipt{Outcome: NotOpen, At: answer.At}
	case localcache.Closed:
		receipt.Outcome = Closed
	case localcache.SoldOut:
		receipt.Outcome = SoldOut
	case localcache.RateLimited:
		receipt = Receipt{Outcome: RateLimited, At: answer.At}
	case localcache.Remembered:
		if p.Sync > 0 {
			return Receipt{}, false // who wants replicas wants to hear whether they have it
		}
		receipt = answer.Receipt
	default:
		return Receipt{}, false
	}
	s.Observer.Local(string(receipt.Outcome))
	return receipt, true
}

// replicasFor is how many replicas must have a purchase.
func (s *Store) replicasFor(p Purchase) int {
	if p.Sync < 0 {
		return s.SyncReplicas
	}
	return p.Sync
}

// remember keeps what an answer says about the next one.
func (s *Store) remember(ctx context.Context, mark localcache.Mark, known localcache.Sale, p Purchase, receipt Receipt) {
	switch receipt.Outcome {
	case NotOpen, Closed:
		// Redis's clock was read too long ago to say so without it: it is
		// read once more, for those who come next.
		_, _, _ = s.lookups.Do(p.SKU, func() (any, error) { return s.readSale(s.ctx, p.SKU) })
	case RateLimited:
		s.cache.LearnRateLimited(mark, known.ID, p.User, receipt.At)
	case Replayed, LimitReached:
		s.cache.Remember(mark, known.ID, p.User, p.RequestID, p.Qty, receipt)
	}
}

// homeTag returns the hash tag of the shard that a user buys from.
func homeTag(sku, user string, known localcache.Sale) string {
	return shardTag(sku, sharding.HomeShard(user, known.Shards), known.Shards)
}
