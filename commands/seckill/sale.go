package seckill

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
)

// States of a sale's life, as its shards have them.
const (
	creating = "CREATING"
	selling  = "SELLING"
	dropping = "DROPPING"
	removing = "REMOVING"
)

// ending reports whether a sale in this state is as good as none.
func ending(state string) bool { return state == dropping || state == removing }

// errNoSale is returned inside of the package where there is no sale.
var errNoSale = errors.New("no such sale")

// Sale is what a sale is created with. Times are Unix milliseconds by Redis's
// clock.
type Sale struct {
	SKU    string
	Stock  int64 // units
	Limit  int64 // units that one user may hold, 0 for no limit
	OpenAt int64 // when it begins to sell, 0 for at once
	// CloseAt is when it stops, 0 for never.
	CloseAt int64
	PayTTL  int64 // milliseconds that a reservation stands unless it is settled, 0 for ever
	Shards  int   // 1 to MaxShards, 0 for Options.Shards
	// RateCount is how many purchases a user may ask for within RateWindow
	// milliseconds, 0 for any number.
	RateCount, RateWindow int64
}

// Created is the answer to Create.
type Created struct {
	Exists bool // the sale was there before and wasn't touched
	Shards int  // of the sale that there is now
}

// plan is a sale that is being created: what its shards are made of.
type plan struct {
	Sale
	id, secret string
}

// Create creates a sale, unless there is one of this SKU. A creation that was
// begun and not finished, be it by a sidecar that died, is finished with the
// numbers that it was begun with.
func (s *Store) Create(ctx context.Context, sale Sale) (Created, error) {
	s.Start()
	if sale.Shards == 0 {
		shards, err := s.defaultShards(ctx)
		if err != nil {
			return Created{}, err
		}
		sale.Shards = shards
	}
	const idBytes, secretBytes = 8, 16
	p := plan{Sale: sale, id: randomHex(idBytes), secret: randomHex(secretBytes)}
	state := selling
	if p.Shards > 1 {
		state = creating
	}
	// The index comes first: a crash in between leaves a name without a sale,
	// which List leaves out, and not a sale that nobody finds. The name of a sale
	// that is there stays as it is.
	if err := s.rdb.ZAddNX(ctx, s.indexKey(), redis.Z{Score: float64(p.Shards), Member: p.SKU}).Err(); err != nil {
		return Created{}, plainFailure("index", err)
	}
	_, id, there, err := s.createShard(ctx, p, 0, state, "")
	switch {
	case err != nil:
		return Created{}, err
	case id != p.id && ending(there):
		dropped, err := s.Drop(ctx, p.SKU, false)
		if err == nil && dropped.Outcome != Removed && dropped.Outcome != NoSale {
			err = fmt.Errorf("seckill create: %w: the sale before is being dropped", script.ErrNotExecuted)
		}
		if err != nil {
			return Created{}, err
		}
		return s.Create(ctx, sale)
	case id == p.id && p.Shards > 1:
		if err := s.finishCreation(ctx, p); err != nil {
			return Created{}, notDone(err)
		}
	case id == p.id:
		s.announce(ctx, p.SKU)
	}
	known, err := s.readSale(ctx, p.SKU)
	if err != nil {
		return Created{}, notDone(err)
	}
	// Once more: a DROP may have removed the name meanwhile.
	if err := s.enterIndex(ctx, p.SKU, known.Shards); err != nil {
		return Created{}, err
	}
	if id == p.id {
		err = s.syncShards(ctx, p)
	}
	return Created{Exists: id != p.id, Shards: known.Shards}, err
}

// defaultShards is how many shards a sale has that is created without a number.
func (s *Store) defaultShards(ctx context.Context) (int, error) {
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if s.Shards > 0 || !ok {
		return max(s.Shards, 1), nil
	}
	var masters atomic.Int32
	err := cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error {
		masters.Add(1)
		return nil
	})
	if err != nil {
		return 0, plainFailure("count the masters", err)
	}
	return min(max(int(masters.Load()), 1), MaxShards), nil
}

// syncShards waits until as many replicas have all shards as have to have purchases.
func (s *Store) syncShards(ctx context.Context, p plan) error {
	for shard := 0; shard < p.Shards && s.SyncReplicas > 0; shard++ {
		answer, replicas, err := s.runSynced(ctx, touchScript, s.SyncReplicas, []string{s.keys(p.SKU, shardTag(p.SKU, shard, p.Shards)).sale}, p.id)
		r := read([]any{answer}, err)
		if r.number() == 0 {
			replicas = 0 // it was lost, or dropped
		}
		if r.err != nil {
			return r.err
		}
		if err := s.unlessSynced(replicas); err != nil {
			return err
		}
	}
	return nil
}

// enterIndex enters a sale that is there into the index.
func (s *Store) enterIndex(ctx context.Context, sku string, shards int) error {
	if err := s.rdb.ZAdd(ctx, s.indexKey(), redis.Z{Score: float64(shards), Member: sku}).Err(); err != nil {
		return plainFailure("index", err)
	}
	return nil
}

// createShard creates a shard, also in place of one of the sale with the id gone.
// made is false when it was there; id is whose it is now, and there its state.
func (s *Store) createShard(ctx context.Context, p plan, shard int, state, gone string) (made bool, id, there string, err error) {
	part := p.Stock / int64(p.Shards)
	if int64(shard) < p.Stock%int64(p.Shards) {
		part++
	}
	r := read(createScript.Run(ctx, s.rdb, s.keys(p.SKU, shardTag(p.SKU, shard, p.Shards)).all(),
		state, p.id, p.secret, shard, p.Shards, part, p.Stock, p.Limit, p.OpenAt, p.CloseAt, p.PayTTL, p.RateCount, p.RateWindow, gone))
	return r.text() == "CREATED", r.text(), r.text(), r.err
}

// finishCreation creates the shards that are missing, and opens the sale. Several
// may do it at a time, also one that comes so late that the sale was dropped
// meanwhile: that is errNoSale, and nothing of it stays.
func (s *Store) finishCreation(ctx context.Context, p plan) error {
	made, err := s.completeShards(ctx, p)
	if err == nil {
		var stands Outcome
		stands, _, err = s.move(ctx, p.SKU, p.id, 0, p.Shards, creating, selling, false)
		if err == nil && (stands == NoSale || stands == stale || stands == removing) {
			err = errNoSale
		}
	}
	if !errors.Is(err, errNoSale) {
		return err
	}
	// Whoever dropped it may have been here before us.
	for _, shard := range made {
		if _, err := s.removeShard(ctx, p.SKU, p.id, shard, p.Shards); err != nil {
			return err
		}
	}
	return errNoSale
}

// completeShards creates the shards that are missing, and returns which.
func (s *Store) completeShards(ctx context.Context, p plan) (made []int, err error) {
	for shard := 1; shard < p.Shards; shard++ {
		missing, id, _, err := s.createShard(ctx, p, shard, selling, "")
		if err == nil && id != p.id {
			missing, err = s.replaceShard(ctx, p, shard, id)
		}
		if err != nil {
			return made, err
		}
		if missing {
			made = append(made, shard)
		}
	}
	return made, nil
}

// replaceShard creates a shard in place of one with the id of another sale. As long
// as this sale is there nobody begins to create another one, so that one is of a
// sale before it, or else this sale is gone.
func (s *Store) replaceShard(ctx context.Context, p plan, shard int, other string) (made bool, err error) {
	first, err := s.saleID(ctx, p.SKU, 0, p.Shards)
	if err == nil && first != p.id {
		err = errNoSale
	}
	if err != nil {
		return false, err
	}
	made, id, _, err := s.createShard(ctx, p, shard, selling, other)
	if err == nil && id != p.id {
		err = redisError(fmt.Sprintf("ERR damaged sale: its shard %d has orders of another one; SECKILL.DROP with FORCE removes them", shard))
	}
	return made, err
}

// redisError is an error that reaches the client as if Redis had answered it.
type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

// move brings a shard from one state of its life, "" for any, to another. The
// outcome is that of state.lua.
func (s *Store) move(ctx context.Context, sku, id string, shard, shards int, from, to string, force bool) (outcome Outcome, pending int64, err error) {
	r := read(stateScript.Run(ctx, s.rdb, []string{s.keys(sku, shardTag(sku, shard, shards)).sale},
		id, from, to, flag(force), s.eventsChannel(), event(eventSale, sku)))
	return Outcome(r.text()), r.number(), r.err
}

// flag is how scripts take yes and no.
func flag(yes bool) string {
	if yes {
		return "1"
	}
	return "0"
}

// announce tells other sidecars that what they know of a sale is no longer so.
// Who lacks the right to the channel can't; then they know in a second.
func (s *Store) announce(ctx context.Context, sku string) {
	_, _ = announceScript.Run(ctx, s.rdb, []string{s.keys(sku, firstTag(sku)).sale}, s.eventsChannel(), event(eventSale, sku))
	s.cache.Event(sku)
}

// sale returns what is remembered of a sale or, asking Redis, what there is;
// errNoSale when there is none.
func (s *Store) sale(ctx context.Context, sku string) (localcache.Sale, error) {
	if known, ok := s.cache.Sale(sku); ok {
		return known, nil
	}
	// Of many that ask at once, one asks Redis, and not on behalf of its client
	// alone.
	known, err, _ := s.lookups.Do(sku, func() (any, error) { return s.readSale(s.ctx, sku) })
	if err != nil {
		return localcache.Sale{}, err
	}
	return known.(localcache.Sale), nil
}

// saleFields are what lookAt asks for.
var saleFields = []any{"state", "sale_id", "shards", "open_at", "close_at", "limit", "pay_ttl", "rate_count",
	"rate_window", "orders", "secret", "total", "created_at"}

// looked is what shard 0 says of a sale.
type looked struct {
	plan
	state     string
	orders    int64 // of shard 0
	createdAt int64 // Unix milliseconds
	redisNow  int64 // Unix milliseconds
}

// lookAt reads from Redis what a sale is; errNoSale when there is none.
func (s *Store) lookAt(ctx context.Context, sku string) (looked, error) {
	s.Start()
	r := read(lookScript.Run(ctx, s.rdb, []string{s.keys(sku, firstTag(sku)).sale}, saleFields...))
	now, fields := r.number(), r.list()
	if r.err != nil {
		return looked{}, beforehand(r.err)
	}
	values := map[string]string{}
	for i, value := range fields {
		if text, ok := value.(string); ok {
			values[saleFields[i].(string)] = text
		}
	}
	if len(values) == 0 {
		return looked{}, errNoSale
	}
	found, err := decode(sku, values)
	found.redisNow = now
	return found, err
}

// readSale reads from Redis what a sale is and remembers it. A sale whose creation
// was left half-way is finished; errNoSale when there is none, or it is being
// dropped.
func (s *Store) readSale(ctx context.Context, sku string) (localcache.Sale, error) {
	const tries = 3 // a creation to be finished, and one more to be safe
	for range tries {
		mark := s.cache.Mark(sku)
		found, err := s.lookAt(ctx, sku)
		switch {
		case errors.Is(err, errNoSale), err == nil && ending(found.state):
			s.cache.LearnAbsent(mark)
			return localcache.Sale{}, errNoSale
		case err != nil:
			return localcache.Sale{}, err
		case found.state == creating:
			if err := s.finishCreation(ctx, found.plan); err != nil && !errors.Is(err, errNoSale) {
				return localcache.Sale{}, err
			}
		default:
			known := found.known()
			s.cache.LearnSale(mark, known, found.redisNow)
			return known, nil
		}
	}
	return localcache.Sale{}, fmt.Errorf("seckill look up: %w: the sale comes and goes", script.ErrNotExecuted)
}

// known is what is remembered of it.
func (l looked) known() localcache.Sale {
	return localcache.Sale{
		ID: l.id, Secret: l.secret, Shards: l.Shards, OpenAt: l.OpenAt, CloseAt: l.CloseAt, Limit: l.Limit, PayTTL: l.PayTTL,
		RateCount: l.RateCount, RateWindow: l.RateWindow,
		Virgin: l.orders == 0 && l.Shards == 1, // of other shards' orders nothing is known
	}
}

// decode reads a sale's fields. What can't be read is an error that says so.
func decode(sku string, values map[string]string) (found looked, err error) {
	number := func(name string) int64 {
		n, wrong := strconv.ParseInt(values[name], 10, 64)
		if (wrong != nil || n < 0) && err == nil {
			err = damagedField(name)
		}
		return n
	}
	found = looked{
		plan: plan{
			Sale: Sale{
				SKU: sku, Stock: number("total"), Limit: number("limit"), OpenAt: number("open_at"), CloseAt: number("close_at"),
				PayTTL: number("pay_ttl"), Shards: int(number("shards")), RateCount: number("rate_count"), RateWindow: number("rate_window"),
			},
			id: values["sale_id"], secret: values["secret"],
		},
		state: values["state"], orders: number("orders"), createdAt: number("created_at"),
	}
	for _, name := range []string{"state", "sale_id", "secret"} {
		if values[name] == "" && err == nil {
			err = damagedField(name)
		}
	}
	if err == nil && (found.Shards < 1 || found.Shards > MaxShards) {
		err = damagedField("shards")
	}
	return found, err
}

// damagedField is the error of an operation that needs a field of shard 0 that can't be
// read.
func damagedField(field string) error {
	return redisError("ERR damaged sale: its field '" + field + "' is missing or unreadable, SECKILL.AUDIT names all damage")
}

// notDone is the error of an operation that needs a sale and found none any more.
func notDone(err error) error {
	if errors.Is(err, errNoSale) {
		return fmt.Errorf("seckill: %w: the sale is being dropped", script.ErrNotExecuted)
	}
	return err
}

// Open lets a sale sell from now on; found is false when there is none.
func (s *Store) Open(ctx context.Context, sku string) (found bool, err error) {
	return s.setWindow(ctx, sku, "OPEN")
}

// Shut lets a sale sell no more; found is false when there is none.
func (s *Store) Shut(ctx context.Context, sku string) (found bool, err error) {
	return s.setWindow(ctx, sku, "CLOSE")
}

// setWindow decides in shard 0 and tells the others. What a sidecar that dies in
// between leaves undone, the keeper does.
func (s *Store) setWindow(ctx context.Context, sku, decision string) (found bool, err error) {
	known, err := s.readSale(ctx, sku)
	if err != nil {
		return false, unlessAbsent(err)
	}
	decided, err := s.window(ctx, sku, known, 0, decision, window{})
	for shard := 1; shard < known.Shards && err == nil; shard++ {
		_, err = s.window(ctx, sku, known, shard, "SET", decided)
	}
	s.cache.Event(sku)
	if err != nil {
		return false, unlessAbsent(err)
	}
	return true, decided.unsynced
}

// window is when a sale sells, and how often that was decided.
type window struct {
	number, openAt, closeAt int64
	unsynced                error // of a decision that replicas may not have yet
}

// window runs window.lua on one shard; errNoSale when it isn't there any more.
func (s *Store) window(ctx context.Context, sku string, known localcache.Sale, shard int, decision string, w window) (window, error) {
	sync := s.SyncReplicas
	if shard != 0 {
		sync = 0 // what shard 0 has a keeper brings to the others
	}
	answer, replicas, err := s.runSynced(ctx, windowScript, sync, []string{s.keys(sku, shardTag(sku, shard, known.Shards)).sale},
		known.ID, decision, w.number, w.openAt, w.closeAt, s.eventsChannel(), event(eventSale, sku))
	r := read(answer, err)
	outcome := r.text()
	w = window{number: r.number(), openAt: r.number(), closeAt: r.number()}
	switch {
	case r.err != nil:
		return w, r.err
	case outcome != "OK":
		return w, errNoSale
	case sync > 0:
		w.unsynced = s.unlessSynced(replicas)
	}
	return w, nil
}

// unlessAbsent is nil for errNoSale, which an operation answers in its result.
func unlessAbsent(err error) error {
	if errors.Is(err, errNoSale) {
		return nil
	}
	return err
}
