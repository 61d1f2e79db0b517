package seckill

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// snapshot is what there is of one shard, as it is.
type snapshot struct {
	kinds        [4]string // types of the keys, in the order of keys.all
	group        bool      // the queue has its consumer group
	reservations int64
	sale         map[string]string
	whole        bool // what follows was read too, and all is of one moment
	buyers       map[string]string
	orders       map[string]string
	queue        []queueEntry
}

// queueEntry is an entry of an order stream: its id, then fields and values.
type queueEntry struct {
	id     string
	values []string
}

// keyKinds are the types that the keys of a shard have.
var keyKinds = [4]string{"hash", "hash", "hash", "stream"}

func (s *snapshot) has(key int) bool { return s.kinds[key] == keyKinds[key] }

// takeSnapshot reads a shard: with up to oneStep reservations in one step, with more
// in many, which it does again if something changed meanwhile; when things keep
// changing, the snapshot isn't whole. Without parts it doesn't do so at all.
func (s *Store) takeSnapshot(ctx context.Context, k keys, oneStep int64, parts bool) (*snapshot, error) {
	const tries = 3
	for range tries {
		shot, err := s.readShard(ctx, k, oneStep)
		if err != nil || shot.whole || !parts {
			return shot, err
		}
		all, err := s.readParts(ctx, k, shot)
		if err != nil {
			return nil, err
		}
		const nothing = -1
		after, err := s.readShard(ctx, k, nothing)
		if err != nil {
			return nil, err
		}
		if all && shot.sameMoment(after) {
			shot.whole = true
			return shot, nil
		}
	}
	return s.readShard(ctx, k, oneStep)
}

// readShard runs audit.lua.
func (s *Store) readShard(ctx context.Context, k keys, oneStep int64) (*snapshot, error) {
	r := read(auditScript.Run(ctx, s.rdb, k.all(), oneStep))
	shot := &snapshot{}
	for i := range shot.kinds {
		shot.kinds[i] = r.text()
	}
	shot.group, shot.reservations = r.number() == 1, r.number()
	shot.sale = r.pairs()
	if r.more() {
		shot.whole = true
		shot.buyers, shot.orders = r.pairs(), r.pairs()
		for _, entry := range r.list() {
			parts := read(entry, nil)
			e := queueEntry{id: parts.text()}
			for _, value := range parts.list() {
				text, _ := value.(string)
				e.values = append(e.values, text)
			}
			shot.queue = append(shot.queue, e)
		}
	}
	return shot, r.err
}

// list takes an array.
func (r *reader) list() []any { return take[[]any](r) }

// pairs takes an array of fields and values in turn.
func (r *reader) pairs() map[string]string {
	list := r.list()
	pairs := make(map[string]string, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		field, _ := list[i].(string)
		pairs[field], _ = list[i+1].(string)
	}
	return pairs
}

// partSize is how many records one command reads.
const partSize = 1000

// readParts reads the records of a shard, unless it misses some: then all is false.
func (s *Store) readParts(ctx context.Context, k keys, shot *snapshot) (all bool, err error) {
	if shot.buyers, all, err = s.readHash(ctx, k.buyers, shot.has(1)); err != nil || !all {
		return false, err
	}
	if shot.orders, all, err = s.readHash(ctx, k.orders, shot.has(2)); err != nil || !all {
		return false, err
	}
	shot.queue = nil
	for from := "-"; shot.has(3); {
		entries, err := s.rdb.XRangeN(ctx, k.queue, from, "+", partSize).Result()
		if err != nil {
			return false, plainFailure("audit", err)
		}
		if len(entries) == 0 {
			break
		}
		for _, entry := range entries {
			// A map: of an entry that isn't ours, it may leave out something.
			e := queueEntry{id: entry.ID}
			for _, field := range []string{"token", "user", "qty"} {
				if text, ok := entry.Values[field].(string); ok {
					e.values = append(e.values, field, text)
				}
			}
			if len(entry.Values) > len(e.values)/2 {
				e.values = append(e.values, "more")
			}
			shot.queue = append(shot.queue, e)
		}
		from = "(" + entries[len(entries)-1].ID
	}
	return true, nil
}

// readHash reads a hash, if there is one. It reads all, unless the hash changes
// meanwhile, or moves to another server, to which the cursor means nothing.
func (s *Store) readHash(ctx context.Context, key string, there bool) (hash map[string]string, all bool, err error) {
	hash = map[string]string{}
	var cursor uint64
	for there {
		page, next, err := s.rdb.HScan(ctx, key, cursor, "", partSize).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, false, plainFailure("audit", err)
		}
		for i := 0; i+1 < len(page); i += 2 {
			hash[page[i]] = page[i+1]
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	if !there {
		return hash, true, nil
	}
	n, err := s.rdb.HLen(ctx, key).Result()
	if err != nil {
		return nil, false, plainFailure("audit", err)
	}
	return hash, int64(len(hash)) == n, nil
}

// movements are fields of which one at least grows with whatever happens to a
// sale's records.
var movements = []string{"sale_id", "version", "orders", "confirmed", "cancelled", "expired"}

// sameMoment reports whether nothing happened to a shard between two looks.
func (s *snapshot) sameMoment(later *snapshot) bool {
	for _, field := range movements {
		if s.sale[field] != later.sale[field] {
			return false
		}
	}
	return s.kinds == later.kinds && s.reservations == later.reservations
}
