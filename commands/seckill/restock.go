package seckill

import (
	"context"
	"fmt"

	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
)

// Outcomes of Restock.
const (
	Restocked    Outcome = "RESTOCKED"
	Insufficient Outcome = "INSUFFICIENT" // fewer units are on sale than should be taken away
	TooMany      Outcome = "TOO_MANY"     // a sale can't have so many units
)

// Restock is the answer to Store.Restock.
type Restock struct {
	Outcome Outcome // Restocked, Replayed, Insufficient, Conflict, TooMany or NoSale
	Left    int64   // units on sale in all shards
}

// Restock adds units to a sale, or takes away some that are on sale. The same
// request id changes nothing a second time.
//
// The units of a sale come and go in shard 0, so that this is one step; where
// fewer are there than should go, others send theirs first.
func (s *Store) Restock(ctx context.Context, sku string, units int64, requestID string) (Restock, error) {
	known, err := s.readSale(ctx, sku)
	if err != nil {
		return Restock{Outcome: NoSale}, unlessAbsent(err)
	}
	short, left := false, int64(0) // it was proven that the sale has fewer units
	const rounds = 20              // others may take what was seen
	for range rounds {
		restock, err := s.restock(ctx, sku, known, units, requestID)
		if err != nil {
			return Restock{}, err
		}
		switch restock.Outcome {
		case stale:
			if known, err = s.readSale(ctx, sku); err != nil {
				return Restock{Outcome: NoSale}, unlessAbsent(err)
			}
			short = false
			continue
		case Insufficient:
			if short {
				return Restock{Outcome: Insufficient, Left: left}, nil
			}
			// Then once more, also if it is short: the same request may have been
			// carried out meanwhile.
			short, left, err = s.bring(ctx, sku, known, -units)
			if err != nil {
				return Restock{Outcome: NoSale}, beforehand(unlessAbsent(err))
			}
			continue
		}
		s.cache.Event(sku)
		if known.Shards > 1 && restock.Outcome != NoSale {
			// Done is done; what it comes to is told as far as it can be read.
			if seen, err := s.look(ctx, sku, known, 0); err == nil && !seen.gone {
				restock.Left = seen.total()
			}
		}
		return restock, nil
	}
	return Restock{}, fmt.Errorf("seckill restock: %w: units move between shards", script.ErrNotExecuted)
}

func (s *Store) restock(ctx context.Context, sku string, known localcache.Sale, units int64, requestID string) (Restock, error) {
	tag := firstTag(sku)
	answer, replicas, err := s.runSynced(ctx, restockScript, s.SyncReplicas, []string{s.keys(sku, tag).sale, s.key("restocks", sku, tag)},
		known.ID, units, requestID, s.eventsChannel(), event(eventStock, sku), flag(s.SyncReplicas > 0))
	r := read(answer, err)
	restock := Restock{Outcome: Outcome(r.text()), Left: r.number()}
	if r.err == nil && (restock.Outcome == Restocked || restock.Outcome == Replayed) {
		r.err = s.unlessSynced(replicas)
	}
	return restock, r.err
}

// bring brings units to shard 0, until so many are there. short is true when it is
// proven that the sale has fewer, and left is how many; errNoSale when the sale, or a
// part of it, isn't there any more.
func (s *Store) bring(ctx context.Context, sku string, known localcache.Sale, wanted int64) (short bool, left int64, err error) {
	mark := s.cache.Mark(sku)
	seen, err := s.look(ctx, sku, known, 0)
	if err == nil && seen.gone {
		err = errNoSale
	}
	if err != nil {
		return false, 0, err
	}
	if total := seen.total(); total < wanted {
		if seen.inTransit() != 0 {
			if moved, err := s.finishTransfers(ctx, sku, known, s.SyncReplicas); moved || err != nil {
				return false, 0, err
			}
		}
		proven, err := s.prove(ctx, sku, known, mark, seen)
		return proven, total, err
	}
	deliveries, err := s.gather(ctx, sku, known, seen, wanted, s.SyncReplicas)
	if err != nil {
		return false, 0, err
	}
	if len(deliveries) == 0 { // what was seen is on its way to other shards
		_, err := s.finishTransfers(ctx, sku, known, s.SyncReplicas)
		return false, 0, err
	}
	return false, 0, s.take(ctx, sku, known, 0, deliveries)
}
