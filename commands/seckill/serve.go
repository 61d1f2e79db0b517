package seckill

import (
	"context"
	"fmt"

	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
)

// serve answers purchases of one shard: those that have become certain meanwhile
// from memory, the others by one script call. Those that find too few units are
// tried again with units of other shards.
func (s *Store) serve(at lane, orders []*order) {
	c := &call{Store: s, lane: at, known: orders[len(orders)-1].known}
	open := make([]*order, 0, len(orders))
	for _, o := range orders {
		var certain bool
		if !o.since.IsZero() { // else Buy has just looked
			o.receipt, certain = s.Certain(o.Purchase)
		}
		switch {
		case certain:
		case o.known.ID != c.known.ID:
			o.receipt.Outcome = stale
		default:
			open = append(open, o)
		}
	}
	if len(open) == 0 {
		return
	}
	short, err := c.purchase(s.ctx, open, nil)
	if err == nil && len(short) > 0 {
		c.supply(s.ctx, short)
	}
}

// call is the way of some purchases of one shard.
type call struct {
	*Store
	lane
	known localcache.Sale
	again bool // its purchases were asked for before, and count as asked for once
}

// fail answers orders that nothing came of.
func fail(orders []*order, err error) {
	for _, o := range orders {
		o.receipt, o.err = Receipt{}, err
	}
}

// purchase runs the script for 1 to Options.BatchMax orders, after units have been
// taken in that other shards sent, answers the orders, and returns those that
// found too few units. After an error all are answered.
func (c *call) purchase(ctx context.Context, orders []*order, deliveries []delivery) (short []*order, err error) {
	tag := c.tag()
	prefix := tokenPrefix(c.sku, tag)
	keys := c.keys(c.sku, tag).all()
	args := make([]any, 0, 7+2*len(deliveries)+4*len(orders))
	args = append(args, c.known.ID, prefix, c.eventsChannel(), event(eventOrders, c.sku), flag(c.sync > 0), flag(c.again), len(deliveries))
	for _, d := range deliveries {
		args = append(args, d.from, d.total)
	}
	ids := make([]string, len(orders))
	for i, o := range orders {
		if o.RequestID == "" {
			ids[i] = newTokenID()
		} else {
			ids[i] = requestTokenID(c.known.Secret, o.User, o.RequestID)
		}
		args = append(args, o.User, o.Qty, o.RequestID, ids[i])
		if c.known.RateCount > 0 {
			keys = append(keys, c.rateKey(c.known.ID, tag, o.User))
		}
	}
	answer, replicas, err := c.runSynced(ctx, buyScript, c.sync, keys, args...)
	if len(orders) > 0 {
		c.Observer.Batch(len(orders))
	}
	r := read(answer, err)
	for i, o := range orders {
		o.receipt = c.receipt(r, prefix, ids[i])
		switch o.receipt.Outcome {
		case SoldOut:
			short = append(short, o)
		case Reserved, Replayed:
			if replicas < c.sync {
				o.receipt.Outcome = Uncertain
			}
		}
	}
	if r.end(); r.err != nil {
		fail(orders, r.err)
	}
	return short, r.err
}

// receipt takes the answer of buy.lua to one purchase.
func (c *call) receipt(r *reader, prefix, id string) Receipt {
	if left, ok := r.isNumber(); ok {
		made := Receipt{Outcome: Reserved, Token: prefix + id, Left: left}
		if c.known.PayTTL > 0 {
			made.At = r.number()
		}
		return made
	}
	other := Receipt{Outcome: Outcome(r.text()), Token: r.text(), Left: r.number(), At: r.number()}
	if other.Token != "" {
		other.Token = prefix + other.Token
	}
	return other
}

// supply answers orders that found too few units in their shard: it brings units
// from other shards, as long as there are enough, and proves it where there
// aren't.
func (c *call) supply(ctx context.Context, short []*order) {
	const rounds = 20 // others may take what was seen; each time somebody gets on
	c.again = true
	var before view
	for range rounds {
		mark := c.cache.Mark(c.sku)
		seen, err := c.look(ctx, c.sku, c.known, c.shard)
		if err == nil && seen.gone {
			for _, o := range short {
				o.receipt = Receipt{Outcome: NoSale}
			}
			return
		}
		switch {
		case err != nil:
		case seen.inTransit() != 0 && seen.same(before):
			// Whoever sent them, to whichever shard, seems to be gone.
			var moved bool
			if moved, err = c.finishTransfers(ctx, c.sku, c.known, c.sync); err == nil && !moved {
				short, err = c.supplyFrom(ctx, mark, seen, short)
			}
			err = beforehand(err)
		default:
			short, err = c.supplyFrom(ctx, mark, seen, short)
		}
		before = seen
		if len(short) == 0 {
			return
		}
		if err != nil {
			fail(short, err)
			return
		}
	}
	fail(short, fmt.Errorf("seckill buy: %w: units move between shards", script.ErrNotExecuted))
}

// supplyFrom does so for one look at the shards, and returns the orders that are
// still short.
func (c *call) supplyFrom(ctx context.Context, mark localcache.Mark, seen view, short []*order) ([]*order, error) {
	wanted, total := int64(0), seen.total()
	var servable []*order
	for _, o := range short {
		if wanted+o.Qty <= total {
			wanted += o.Qty
			servable = append(servable, o)
		}
	}
	if len(servable) == 0 {
		if seen.inTransit() != 0 {
			if moved, err := c.finishTransfers(ctx, c.sku, c.known, c.sync); moved || err != nil {
				return short, beforehand(err)
			}
		}
		if c.known.PayTTL > 0 {
			if expired, err := c.sweepAll(ctx, c.sku, c.known.Shards); expired > 0 || err != nil {
				return short, beforehand(err)
			}
		}
		if c.shards > 1 {
			// Once more, between the looks: since the home shard was asked, the same
			// request, or the same user, may have got units through another sidecar,
			// and is to be told so.
			var err error
			if short, err = c.purchase(ctx, short, nil); err != nil || len(short) == 0 {
				return short, err
			}
		}
		proven, err := c.prove(ctx, c.sku, c.known, mark, seen)
		if err != nil || !proven {
			return short, beforehand(err)
		}
		for _, o := range short {
			o.receipt = Receipt{Outcome: SoldOut, Left: total}
		}
		return nil, nil
	}
	deliveries, err := c.gather(ctx, c.sku, c.known, seen, wanted, c.sync)
	if err != nil {
		return short, beforehand(err)
	}
	// All of them, in their order: first come, first served.
	if short, err = c.purchase(ctx, short, deliveries); err != nil {
		return nil, nil // and all have been told so
	}
	return short, nil
}
