package seckill

import (
	"context"
	"sync"
	"time"

	"seckill-proxy/localcache"
)

// prove reports whether what was seen of a sale's shards was so at one moment:
// no units in transit, and nothing changed until a second look. This is the
// double collect (Afek, Attiya, Dolev, Gafni, Merritt, Shavit 1993, "Atomic
// snapshots of shared memory"). A sale that was empty at that moment is remembered
// as sold out, together with its buyers, who are read between the looks and so
// are those of that moment too: from then on others need not ask Redis.
func (s *Store) prove(ctx context.Context, sku string, known localcache.Sale, mark localcache.Mark, seen view) (bool, error) {
	var buyers *localcache.Buyers
	if seen.total() == 0 {
		// Who is refused from memory is told that it is sold out only while it is
		// certainly open.
		if _, err := s.readSale(ctx, sku); err != nil {
			return false, unlessAbsent(err)
		}
	}
	if seen.total() == 0 && s.loads.mayBegin(sku) {
		began := time.Now()
		var err error
		buyers, err = s.loadBuyers(ctx, sku, known)
		s.loads.ended(sku, time.Since(began))
		if err != nil {
			return false, err
		}
	}
	again, err := s.look(ctx, sku, known, seen.home)
	if err != nil || again.gone || !seen.same(again) {
		return false, err
	}
	if buyers != nil {
		s.cache.LearnSoldOut(mark, known.ID, buyers)
	}
	return true, nil
}

// loadBuyers reads who has ever reserved of a sale; nil when these are more than
// may be remembered.
func (s *Store) loadBuyers(ctx context.Context, sku string, known localcache.Sale) (*localcache.Buyers, error) {
	const perTrip = 1000
	buyers := s.cache.NewBuyers()
	for shard := range known.Shards {
		key := s.keys(sku, shardTag(sku, shard, known.Shards)).buyers
		var cursor uint64
		for {
			page, next, err := s.rdb.HScan(ctx, key, cursor, "", perTrip).Result()
			if err != nil {
				return nil, plainFailure("read the buyers", err)
			}
			for i := 0; i < len(page); i += 2 {
				if !buyers.Add(page[i]) {
					return nil, nil
				}
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
	}
	return buyers, nil
}

// loads keeps the reading of buyers within a tenth of the time: of a sale with
// very many, whose units come back one by one, it would be most of what Redis
// does.
type loads struct {
	mu    sync.Mutex
	after map[string]time.Time // not before, by SKU
}

// mayBegin reports whether to begin; who is told so calls ended. Until then
// nobody else is: all shards of a sale run dry at about the same time.
func (l *loads) mayBegin(sku string) bool {
	const longest = time.Hour
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.after[sku]) {
		return false
	}
	l.until(sku, now.Add(longest))
	return true
}

func (l *loads) ended(sku string, took time.Duration) {
	const share = 10
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for sku, after := range l.after {
		if after.Before(now) {
			delete(l.after, sku)
		}
	}
	l.until(sku, now.Add(share*took))
}

func (l *loads) until(sku string, after time.Time) {
	if l.after == nil {
		l.after = make(map[string]time.Time)
	}
	l.after[sku] = after
}
