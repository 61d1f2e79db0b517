package seckill

import (
	"context"
	"math/rand/v2"
	"time"
)

// Delivery is a pending order handed to a worker, who has to confirm or cancel
// it.
type Delivery struct {
	Token     string
	User      string
	Qty       int64
	CreatedAt int64 // when it was reserved, Unix milliseconds
	Number    int64 // which delivery this is, 1 for the first
}

// Pull hands up to count pending orders of a sale to a worker that calls itself
// consumer: those that another worker has had for longer than
// Options.TakeoverAfter, then new ones. When there is none it waits for as long as
// wait, or until ctx ends. found is false when there is no such sale. Orders whose
// answer got lost come again, like those of a worker that died.
func (s *Store) Pull(ctx context.Context, sku, consumer string, count int64, wait time.Duration) (deliveries []Delivery, found bool, err error) {
	s.Start()
	err = s.news.await(ctx, event(eventOrders, sku), wait, s.takeoverLook(), func() (bool, error) {
		deliveries, found, err = s.pull(context.WithoutCancel(ctx), sku, consumer, count, wait)
		return len(deliveries) > 0 || !found, err
	})
	return deliveries, found, err
}

// pull asks all shards once, beginning with any, so that none is always last.
func (s *Store) pull(ctx context.Context, sku, consumer string, count int64, wait time.Duration) (deliveries []Delivery, found bool, err error) {
	known, err := s.sale(ctx, sku)
	if err != nil {
		return nil, false, unlessAbsent(err)
	}
	first := rand.IntN(known.Shards)
	for i := 0; i < known.Shards && int64(len(deliveries)) < count; i++ {
		keys := s.keys(sku, shardTag(sku, (first+i)%known.Shards, known.Shards))
		r := read(pullScript.Run(ctx, s.rdb, []string{keys.sale, keys.orders, keys.queue},
			consumer, count-int64(len(deliveries)), s.TakeoverAfter.Milliseconds(), wait.Milliseconds(), known.ID))
		outcome := Outcome(r.text())
		for r.more() {
			deliveries = append(deliveries, Delivery{
				Token: r.text(), User: r.text(), Qty: r.number(), CreatedAt: r.number(), Number: r.number(),
			})
		}
		if r.err == nil && outcome == Found {
			continue
		}
		if len(deliveries) > 0 {
			break // what has been handed out is not lost for a shard that can't be asked
		}
		if r.err != nil {
			return nil, false, r.err
		}
		switch _, err := s.readSale(ctx, sku); {
		case err != nil:
			return nil, false, unlessAbsent(err)
		case outcome == stale:
			return s.pull(ctx, sku, consumer, count, wait)
		default: // this shard is lost, and AUDIT says so
			return nil, false, nil
		}
	}
	return deliveries, true, nil
}

// takeoverLook is how often a worker that waits looks whether another one has had
// an order for too long, which nobody tells.
func (s *Store) takeoverLook() time.Duration {
	const least, most = 100 * time.Millisecond, 5 * time.Second
	return min(max(s.TakeoverAfter/4, least), most)
}
