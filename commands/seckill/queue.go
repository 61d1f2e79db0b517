package seckill

import "context"

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
// Options.TakeoverAfter, then new ones. It doesn't wait. found is false when
// there is no such sale. Orders whose answer got lost come again, like those of
// a worker that died.
func (s *Store) Pull(ctx context.Context, sku, consumer string, count int64) (deliveries []Delivery, found bool, err error) {
	keys := s.keys(sku, shardTag(sku, 0, shardsPerSale))
	r := read(pullScript.Run(ctx, s.rdb, []string{keys.sale, keys.orders, keys.queue},
		consumer, count, s.takeoverAfter.Milliseconds()))
	if Outcome(r.text()) == NoSale {
		return nil, false, r.err
	}
	for r.more() {
		deliveries = append(deliveries, Delivery{
			Token: r.text(), User: r.text(), Qty: r.number(), CreatedAt: r.number(), Number: r.number(),
		})
	}
	return deliveries, true, r.err
}
