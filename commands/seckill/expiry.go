package seckill

import (
	"context"
	"time"
)

// sweepMax is how many reservations one script call looks at.
const sweepMax = 1000

// sweepShard lets the reservations of a shard expire that are due, and returns how
// many, and after how long to come again.
func (s *Store) sweepShard(ctx context.Context, sku string, shards, shard int) (expired int64, wait time.Duration, err error) {
	tag := shardTag(sku, shard, shards)
	for from := "-"; ; {
		r := read(sweepScript.Run(ctx, s.rdb, s.keys(sku, tag).all(), tokenPrefix(sku, tag), sweepMax,
			s.ResultsChannel(), s.eventsChannel(), event(eventStock, sku), from))
		n, milliseconds := r.number(), r.number()
		from = r.text()
		if expired += n; n > 0 {
			s.Observer.Expired(n)
			s.cache.Event(sku)
		}
		switch {
		case r.err != nil:
			return expired, 0, r.err
		case milliseconds < 0:
			return expired, listEvery, nil
		case milliseconds > 0: // Redis's clock may be set forward meanwhile
			return expired, min(time.Duration(milliseconds)*time.Millisecond, listEvery), nil
		}
	}
}

// sweepAll does so in all shards of a sale, for who would be told that it is sold
// out: what is due is on sale, also when no keeper has come by yet.
func (s *Store) sweepAll(ctx context.Context, sku string, shards int) (expired int64, err error) {
	for shard := range shards {
		n, _, err := s.sweepShard(ctx, sku, shards, shard)
		if expired += n; err != nil {
			return expired, err
		}
	}
	return expired, nil
}
