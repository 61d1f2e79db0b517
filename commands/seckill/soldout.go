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
		var err error
		if buyers, err = s.buyersOnce(ctx, sku, known); err != nil {
			return false, unlessAbsent(err)
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

// buyersOnce is loadBuyers of a sale that certainly is open: only then may who is
// refused from memory be told that it is sold out. When somebody else is at it, it
// waits for that one, and has none: those who come next are answered from memory,
// while asking Redis again and again would hold that up.
func (s *Store) buyersOnce(ctx context.Context, sku string, known localcache.Sale) (buyers *localcache.Buyers, err error) {
	mine, others := s.loads.begin(sku)
	if !mine {
		if others != nil {
			wait(ctx, others)
		}
		return nil, nil
	}
	began := time.Now()
	defer func() { s.loads.ended(sku, time.Since(began)) }()
	if _, err := s.readSale(ctx, sku); err != nil {
		return nil, err
	}
	return s.loadBuyers(ctx, sku, known)
}

// wait waits for an end, but not for long: of a sale with very many buyers it may be
// far off.
func wait(ctx context.Context, end <-chan struct{}) {
	const most = 50 * time.Millisecond
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-end:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// loadBuyers reads who has ever reserved of a sale; nil when these are more than
// may be remembered, or not all were found: a cursor means nothing to a server to
// which the key has moved meanwhile.
func (s *Store) loadBuyers(ctx context.Context, sku string, known localcache.Sale) (*localcache.Buyers, error) {
	const perTrip = 1000
	buyers, all := s.cache.NewBuyers(), int64(0)
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
		n, err := s.rdb.HLen(ctx, key).Result()
		if err != nil {
			return nil, plainFailure("read the buyers", err)
		}
		all += n
	}
	if int64(buyers.Len()) != all {
		return nil, nil
	}
	return buyers, nil
}

// loads keeps the reading of buyers within a tenth of the time: of a sale with
// very many, whose units come back one by one, it would be most of what Redis
// does.
type loads struct {
	mu      sync.Mutex
	after   map[string]time.Time     // not before, by SKU
	running map[string]chan struct{} // closed at the end, by SKU
}

// begin reports whether to begin; who is told so calls ended. Until then nobody else
// is, and gets a channel that is closed at the end: all shards of a sale run dry at
// about the same time.
func (l *loads) begin(sku string) (mine bool, others <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if running, is := l.running[sku]; is {
		return false, running
	}
	if time.Now().Before(l.after[sku]) {
		return false, nil
	}
	if l.running == nil {
		l.running, l.after = make(map[string]chan struct{}), make(map[string]time.Time)
	}
	l.running[sku] = make(chan struct{})
	return true, nil
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
	l.after[sku] = now.Add(share * took)
	close(l.running[sku])
	delete(l.running, sku)
}
