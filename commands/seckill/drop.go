package seckill

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

// Outcomes of Drop.
const (
	Removed      Outcome = "DROPPED"
	StillOpen    Outcome = "OPEN"
	StillPending Outcome = "PENDING"
)

// Dropped is the answer to Drop.
type Dropped struct {
	// Outcome is Removed, StillOpen or StillPending, when the sale stays, or
	// NoSale.
	Outcome Outcome
	Pending int64 // units of reservations that are, or were, neither confirmed nor given back
}

// Drop removes a sale and all that belongs to it, if it is closed and nothing is
// pending; with force in any case, also what is left of a damaged one. A drop
// that was begun and not finished is finished.
//
// First all shards are brought to DROPPING, in which they sell no more, or, if
// one may not be dropped, back. When shard 0 has come to REMOVING, it is decided.
// Then they are removed, shard 0 last, since by it the sale is found.
func (s *Store) Drop(ctx context.Context, sku string, force bool) (Dropped, error) {
	s.Start()
	found, err := s.lookAt(ctx, sku)
	if err == nil && found.state == creating {
		err = s.finishCreation(ctx, found.plan)
	}
	var answered redis.Error
	switch {
	case force && (errors.Is(err, errNoSale) || errors.As(err, &answered)):
		return s.dropRemains(ctx, sku)
	case errors.Is(err, errNoSale):
		return Dropped{Outcome: NoSale}, nil
	case err != nil:
		return Dropped{}, err
	}
	if err := s.mayRemove(ctx, sku); err != nil {
		return Dropped{}, err
	}
	var pending int64
	for shard := range found.Shards {
		outcome, units, err := s.move(ctx, sku, found.id, shard, found.Shards, "", dropping, force)
		if err != nil {
			return Dropped{}, err
		}
		pending += units
		if outcome == StillOpen || outcome == StillPending {
			return s.undrop(ctx, found, shard, outcome)
		}
	}
	outcome, _, err := s.move(ctx, sku, found.id, 0, found.Shards, dropping, removing, false)
	if err != nil {
		return Dropped{}, err
	}
	if outcome == selling {
		return Dropped{}, errDropsMeet
	}
	for shard := found.Shards - 1; shard >= 0; shard-- {
		if _, err := s.removeShard(ctx, sku, found.id, shard, found.Shards); err != nil {
			return Dropped{}, err
		}
	}
	s.announce(ctx, sku)
	return Dropped{Outcome: Removed, Pending: pending}, nil
}

// errDropsMeet is returned when another DROP decided otherwise meanwhile.
var errDropsMeet = fmt.Errorf("seckill drop: %w: another one is under way", script.ErrNotExecuted)

// mayRemove does nothing, by the commands that removing takes: who lacks the right
// to them learns it before anything has changed.
func (s *Store) mayRemove(ctx context.Context, sku string) error {
	pipe := s.rdb.Pipeline()
	pipe.ZRem(ctx, s.indexKey(), "") // no SKU is empty
	pipe.Unlink(ctx, s.key("none", sku, firstTag(sku)))
	if _, err := pipe.Exec(ctx); err != nil {
		return plainFailure("drop", err)
	}
	return nil
}

// undrop lets the shards sell again that were brought to DROPPING before one
// refused. Shard 0 comes last: until then the drop is under way, for others to
// finish or to undo.
func (s *Store) undrop(ctx context.Context, sale looked, refused int, why Outcome) (Dropped, error) {
	for shard := refused - 1; shard >= 0; shard-- {
		outcome, _, err := s.move(ctx, sale.SKU, sale.id, shard, sale.Shards, dropping, selling, false)
		if err != nil {
			return Dropped{}, err
		}
		if outcome == removing {
			return Dropped{}, errDropsMeet
		}
	}
	s.cache.Event(sale.SKU)
	dropped := Dropped{Outcome: why}
	for shard := range sale.Shards {
		at, err := s.shardInfo(ctx, sale.SKU, sale.known(), shard)
		if err != nil {
			return Dropped{}, notDone(err)
		}
		dropped.Pending += at.pending
	}
	return dropped, nil
}

// removeShard removes a shard's keys if it is of the sale with this id; with id ""
// if it is of none. With shard 0 goes the name in the index, before it: a CREATE
// that comes in between enters it again.
func (s *Store) removeShard(ctx context.Context, sku, id string, shard, shards int) (keys int64, err error) {
	tag := shardTag(sku, shard, shards)
	all := s.keys(sku, tag).all()
	if shard == 0 {
		all = append(all, s.key("restocks", sku, tag), s.key("keeper", sku, tag))
		if err := s.rdb.ZRem(ctx, s.indexKey(), sku).Err(); err != nil {
			return 0, plainFailure("index", err)
		}
	}
	r := read(removeScript.Run(ctx, s.rdb, all, id))
	keys = r.number()
	if r.err == nil && keys == 0 && shard == 0 {
		return 0, s.nameAgain(ctx, sku)
	}
	return keys, r.err
}

// nameAgain puts a name back into the index that was taken out for a sale that
// others had removed already, if there is another sale by now.
func (s *Store) nameAgain(ctx context.Context, sku string) error {
	found, err := s.lookAt(ctx, sku)
	if err != nil || ending(found.state) {
		return unlessAbsent(err)
	}
	return s.enterIndex(ctx, sku, found.Shards)
}

// dropRemains removes what is left of a sale whose shard 0 is gone or can't be
// read, from as many shards as the index says, or a new sale would have.
func (s *Store) dropRemains(ctx context.Context, sku string) (Dropped, error) {
	shards := s.Shards
	score, err := s.rdb.ZScore(ctx, s.indexKey(), sku).Result()
	switch {
	case err == nil && score >= 1 && score <= MaxShards:
		shards = int(score)
	case err != nil && !errors.Is(err, redis.Nil):
		return Dropped{}, plainFailure("index", err)
	}
	var removed int64
	for shard := shards - 1; shard >= 0; shard-- {
		id, err := s.rdb.HGet(ctx, s.keys(sku, shardTag(sku, shard, shards)).sale, "sale_id").Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return Dropped{}, plainFailure("drop", err)
		}
		keys, err := s.removeShard(ctx, sku, id, shard, shards)
		if err != nil {
			return Dropped{}, err
		}
		removed += keys
	}
	s.announce(ctx, sku)
	if removed == 0 {
		return Dropped{Outcome: NoSale}, nil
	}
	return Dropped{Outcome: Removed}, nil
}
