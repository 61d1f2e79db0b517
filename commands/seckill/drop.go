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
	d := &drop{Store: s, sale: found, force: force || found.state == removing, ids: make([]string, found.Shards)}
	refusal, err := d.refusal(ctx)
	if err == nil && refusal == "" {
		refusal, err = d.begin(ctx)
	}
	if err != nil {
		return Dropped{}, err
	}
	if refusal != "" {
		s.cache.Event(sku)
		pending, err := d.counted(ctx)
		return Dropped{Outcome: refusal, Pending: pending}, notDone(err)
	}
	if err := d.finish(ctx); err != nil {
		return Dropped{}, err
	}
	s.announce(ctx, sku)
	return Dropped{Outcome: Removed, Pending: d.pending}, nil
}

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

// drop is the dropping of a sale.
type drop struct {
	*Store
	sale    looked
	force   bool
	ids     []string // by shard: the sale_id of what is to be removed there
	pending int64    // units, seen on the way
}

// errDropsMeet is returned when another DROP decided otherwise meanwhile.
var errDropsMeet = fmt.Errorf("seckill drop: %w: another one is under way", script.ErrNotExecuted)

// refusal tells why a sale won't be dropped before anything is touched: while shards
// are in DROPPING, whoever asks is told that there is no sale.
func (d *drop) refusal(ctx context.Context) (Outcome, error) {
	if d.force || d.sale.state != selling {
		return "", nil
	}
	if stateAt(d.sale.redisNow, d.sale.OpenAt, d.sale.CloseAt) != Ended {
		return StillOpen, nil
	}
	pending, err := d.counted(ctx)
	if pending > 0 {
		return StillPending, nil
	}
	return "", unlessAbsent(err) // a shard that is lost is a matter of begin
}

// begin brings all shards to DROPPING. When one refuses, by refusal or by an error,
// those before it are brought back.
func (d *drop) begin(ctx context.Context) (refusal Outcome, err error) {
	for shard := range d.sale.Shards {
		outcome, units, err := d.moveShard(ctx, shard, "", dropping)
		d.pending += units
		d.ids[shard] = d.sale.id
		if err == nil && (outcome == NoSale || outcome == stale) {
			err = d.lost(ctx, shard)
		}
		refused := outcome == StillOpen || outcome == StillPending
		if err == nil && !refused {
			continue
		}
		if errors.Is(err, script.ErrUncertain) {
			return "", err // the shard may have moved: a keeper looks after it
		}
		if wrong := d.undo(ctx, shard); err == nil {
			err = wrong
		}
		return outcome, err
	}
	return "", nil
}

// moveShard brings a shard from one state, "" for any, to another.
func (d *drop) moveShard(ctx context.Context, shard int, from, to string) (outcome Outcome, pending int64, err error) {
	return d.move(ctx, d.sale.SKU, d.sale.id, shard, d.sale.Shards, from, to, d.force)
}

// lost is called for a shard that is missing, or of another sale. Another drop may
// have removed it; else the sale is damaged, and force removes what is there, which
// is of no sale as long as shard 0 is of this one.
func (d *drop) lost(ctx context.Context, shard int) error {
	id, err := d.saleID(ctx, d.sale.SKU, shard, d.sale.Shards)
	if err != nil {
		return err
	}
	first, err := d.lookAt(ctx, d.sale.SKU)
	switch {
	case errors.Is(err, errNoSale), err == nil && first.id != d.sale.id:
		return nil
	case err == nil && !d.force && first.state != removing:
		err = redisError(fmt.Sprintf("ERR damaged sale: its shard %d is lost; SECKILL.DROP with FORCE removes the others", shard))
	}
	d.ids[shard] = id
	return err
}

// undo lets the shards before one sell again. Shard 0 comes last: until then the
// drop is under way, for others to finish or to undo.
func (d *drop) undo(ctx context.Context, before int) error {
	for shard := before - 1; shard >= 0; shard-- {
		outcome, _, err := d.moveShard(ctx, shard, dropping, selling)
		if err != nil {
			return err
		}
		if outcome == removing {
			return errDropsMeet
		}
	}
	return nil
}

// counted returns how many units are pending in all shards; errNoSale when one is
// lost.
func (d *drop) counted(ctx context.Context) (pending int64, err error) {
	for shard := range d.sale.Shards {
		at, err := d.shardInfo(ctx, d.sale.SKU, d.sale.known(), shard)
		if err != nil {
			return 0, err
		}
		pending += at.pending
	}
	return pending, nil
}

// finish decides that the sale is dropped, and removes it.
func (d *drop) finish(ctx context.Context) error {
	outcome, _, err := d.moveShard(ctx, 0, dropping, removing)
	if err != nil {
		return err
	}
	if outcome == selling {
		return errDropsMeet
	}
	for shard := d.sale.Shards - 1; shard >= 0; shard-- {
		if _, err := d.removeShard(ctx, d.sale.SKU, d.ids[shard], shard, d.sale.Shards); err != nil {
			return err
		}
	}
	return nil
}

// saleID reads of which sale a shard is, "" for none.
func (s *Store) saleID(ctx context.Context, sku string, shard, shards int) (string, error) {
	id, err := s.rdb.HGet(ctx, s.keys(sku, shardTag(sku, shard, shards)).sale, "sale_id").Result()
	if err != nil && !errors.Is(err, redis.Nil) && !isWrongType(err) {
		return "", plainFailure("look up", err)
	}
	return id, nil
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
	shards, err := s.defaultShards(ctx)
	if err != nil {
		return Dropped{}, err
	}
	score, err := s.rdb.ZScore(ctx, s.indexKey(), sku).Result()
	switch {
	case err == nil && score >= 1 && score <= MaxShards:
		shards = int(score)
	case err != nil && !errors.Is(err, redis.Nil):
		return Dropped{}, plainFailure("index", err)
	}
	var removed int64
	for shard := shards - 1; shard >= 0; shard-- {
		id, err := s.saleID(ctx, sku, shard, shards)
		if err != nil {
			return Dropped{}, err
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
