package seckill

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
)

// keeper looks after the sales of a Store's database: reservations that expire,
// transfers and changes of the window that a sidecar left half-way, audits. Of all
// sidecars the one that has a sale's lease does it; another takes over when that
// one is gone. It sleeps until there is something to do.
type keeper struct {
	*Store
	id   string // of this keeper, for leases
	wake chan struct{}

	mu    sync.Mutex
	again map[string]bool // sales that changed

	// Of run alone.
	sales     map[string]*kept
	going     map[string]string // ids of the sales that were being dropped when last listed, by SKU
	listedAt  time.Time
	flagsSeen time.Time
}

// kept is a sale that is looked after.
type kept struct {
	sku     string
	known   localcache.Sale
	held    bool      // we have the lease
	due     time.Time // when to look at it next
	sweeps  []time.Time
	auditAt time.Time
	moving  bool // units were in transit when last looked at
}

const (
	leaseFor   = 3 * time.Second
	leaseEvery = time.Second           // how often it is renewed, and asked for
	listEvery  = 10 * time.Second      // sales of whose creation or end nobody told
	sweepEvery = 20 * time.Millisecond // least between two looks for what is due
	flagsEvery = time.Second           // how often what is sold out is looked at
)

func newKeeper(s *Store) *keeper {
	return &keeper{
		Store: s, id: randomHex(8), wake: make(chan struct{}, 1),
		again: make(map[string]bool), sales: make(map[string]*kept), going: make(map[string]string),
	}
}

// reconsider is called when a sale was created, dropped, opened or closed.
func (k *keeper) reconsider(sku string) {
	k.mu.Lock()
	if len(k.again) < ListMax {
		k.again[sku] = true
	}
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return // the leases lapse
		case <-k.wake:
		case <-timer.C:
		}
		timer.Reset(time.Until(k.round(time.Now())))
	}
}

// round does what is due and returns when to come again.
func (k *keeper) round(now time.Time) time.Time {
	k.mu.Lock()
	changed := k.again
	k.again = make(map[string]bool)
	k.mu.Unlock()
	for sku := range changed {
		k.consider(sku, now)
	}
	if now.Sub(k.listedAt) >= listEvery {
		k.list(now)
	}
	next := k.listedAt.Add(listEvery)
	if now.Sub(k.flagsSeen) >= flagsEvery {
		k.flagsSeen = now
		k.verifyFlags()
	}
	next = earlier(next, k.flagsSeen.Add(flagsEvery))
	for _, sale := range k.sales {
		if k.ctx.Err() != nil {
			break
		}
		if !sale.due.After(now) {
			k.tend(sale, now)
		}
		next = earlier(next, sale.due)
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// verifyFlags looks at the sales that are remembered as sold out, of which each
// sidecar has its own memory. Who returns stock says so; who deletes a key by
// hand, or lacks the right to the channel, doesn't.
func (k *keeper) verifyFlags() {
	for _, flag := range k.cache.SoldOut() {
		known, ok := k.cache.Sale(flag.SKU)
		if !ok {
			continue
		}
		seen, err := k.look(k.ctx, flag.SKU, known, 0)
		if err != nil || seen.gone || seen.total() != 0 {
			k.cache.Event(flag.SKU)
			_, _ = k.readSale(k.ctx, flag.SKU) // what there is now, for those who come next
		}
	}
}

// list takes up sales that it hasn't heard of, lets go of those that are gone, and
// drops those that were being dropped the last time already.
func (k *keeper) list(now time.Time) {
	k.listedAt = now
	names, _, err := k.index(k.ctx)
	if err != nil {
		k.Log.Debug("can't list the sales to look after", zap.Error(err))
		return
	}
	listed := make(map[string]bool, len(names))
	going := make(map[string]string)
	const perTrip = 500
	for part := range slices.Chunk(names, perTrip) {
		states, err := k.states(part)
		if err != nil {
			k.Log.Debug("can't look at the sales to look after", zap.Error(err))
			return
		}
		for i, name := range part {
			listed[name.sku] = true
			switch id, state := states[i].id, states[i].state; {
			case ending(state):
				going[name.sku] = id
			case k.sales[name.sku] == nil && id == "", k.sales[name.sku] != nil && k.sales[name.sku].known.ID == id:
			default:
				k.consider(name.sku, now)
			}
		}
	}
	for sku := range k.sales {
		if listed[sku] {
			continue
		}
		k.consider(sku, now)
		if sale := k.sales[sku]; sale != nil && len(names) < ListMax {
			// A replica has taken over that hadn't heard of it.
			_ = k.enterIndex(k.ctx, sku, sale.known.Shards)
		}
	}
	for sku, id := range going {
		if k.going[sku] == id {
			k.finishDrop(sku)
		}
	}
	k.going = going
}

// saleState is which sale there is of a SKU, and in which state; empty for none.
type saleState struct{ id, state string }

func (k *keeper) states(names []named) ([]saleState, error) {
	pipe := k.rdb.Pipeline()
	reads := make([]*redis.SliceCmd, len(names))
	for i, name := range names {
		reads[i] = pipe.HMGet(k.ctx, k.keys(name.sku, firstTag(name.sku)).sale, "sale_id", "state")
	}
	if _, err := pipe.Exec(k.ctx); err != nil {
		var answered redis.Error
		if !errors.As(err, &answered) {
			return nil, err
		}
		// One that can't be read is as good as none.
	}
	states := make([]saleState, len(names))
	for i, read := range reads {
		if read.Err() == nil {
			states[i].id, _ = read.Val()[0].(string)
			states[i].state, _ = read.Val()[1].(string)
		}
	}
	return states, nil
}

// finishDrop does what a sidecar that died has left undone: nobody sees the sale
// any more, though some of its shards may not be dropped. Those stay, and so does
// the sale.
func (k *keeper) finishDrop(sku string) {
	held, err := k.lease(sku, leaseFor)
	if err == nil && held {
		_, err = k.Drop(k.ctx, sku, false)
	}
	if err != nil {
		k.Log.Debug("can't finish the drop of a sale", zap.String("sku", sku), zap.Error(err))
	}
}

// consider looks up a sale, and takes it up if there is something to do for it.
func (k *keeper) consider(sku string, now time.Time) {
	known, err := k.readSale(k.ctx, sku)
	before := k.sales[sku]
	switch {
	case errors.Is(err, errNoSale):
		delete(k.sales, sku)
		return
	case err != nil:
		return // it stays as it is until the next time
	case before != nil && before.known.ID == known.ID:
		before.known, before.due = known, now
		return
	}
	sale := &kept{sku: sku, known: known, due: now, sweeps: make([]time.Time, known.Shards)}
	if k.AuditEvery > 0 {
		sale.auditAt = now.Add(k.AuditEvery)
	}
	k.sales[sku] = sale
}

// busy reports whether a sale needs somebody all the time.
func (sale *kept) busy() bool { return sale.known.PayTTL > 0 || sale.known.Shards > 1 }

// pace is how often the lease of a sale is renewed, and asked for. When who has it
// dies, that is how late reservations may expire, three times over: of a long time to
// pay it is a small part. There may be thousands of sales that nobody buys from.
func (sale *kept) pace() time.Duration {
	if sale.known.PayTTL == 0 {
		return leaseEvery
	}
	const part = 20
	payTTL := time.Duration(sale.known.PayTTL) * time.Millisecond
	return min(max(payTTL/part, leaseEvery), listEvery)
}

// tend does what is due for a sale, if it has its lease.
func (k *keeper) tend(sale *kept, now time.Time) {
	audit := k.AuditEvery > 0 && !sale.auditAt.After(now)
	if !sale.busy() && !audit {
		sale.due = now.Add(listEvery)
		if k.AuditEvery > 0 {
			sale.due = sale.auditAt
		}
		return
	}
	pace := sale.pace()
	sale.due = now.Add(pace)
	until := leaseFor * pace / leaseEvery
	if !sale.busy() {
		until = max(until, k.AuditEvery) // one audit in that time, and not one by each sidecar
	}
	held, err := k.lease(sale.sku, until)
	if err != nil {
		k.Log.Debug("can't look after a sale", zap.String("sku", sale.sku), zap.Error(err))
		return
	}
	if held != sale.held {
		sale.held = held
		clear(sale.sweeps) // what was known of them is old
	}
	if audit {
		sale.auditAt = now.Add(k.AuditEvery)
	}
	if !held {
		return
	}
	if sale.known.PayTTL > 0 {
		err = k.sweep(sale, now)
	}
	if sale.known.Shards > 1 {
		err = errors.Join(err, k.mend(sale))
	}
	if audit {
		err = errors.Join(err, k.audit(sale))
	}
	if err != nil {
		k.Log.Debug("can't look after a sale", zap.String("sku", sale.sku), zap.Error(err))
	}
	if isLasting(err) {
		// Another one may have the rights that are missing here: the lease lapses,
		// and whoever asks for it has it before this one asks again.
		sale.held, sale.due = false, now.Add(2*until)
	}
}

// isLasting reports errors that don't pass by themselves: a missing right, damage.
func isLasting(err error) bool {
	var answered redis.Error
	return errors.As(err, &answered) && !errors.Is(err, script.ErrNotExecuted)
}

// lease takes or renews the lease of a sale.
func (k *keeper) lease(sku string, until time.Duration) (held bool, err error) {
	r := read(leaseScript.Run(k.ctx, k.rdb, []string{k.key("keeper", sku, firstTag(sku))}, k.id, until.Milliseconds()))
	return r.number() == 1, r.err
}

// sweep lets reservations expire that are due, in all shards.
func (k *keeper) sweep(sale *kept, now time.Time) (err error) {
	for shard := range sale.known.Shards {
		if !sale.sweeps[shard].After(now) {
			_, wait, wrong := k.sweepShard(k.ctx, sale.sku, sale.known.Shards, shard)
			if wrong != nil {
				wait, err = leaseEvery, errors.Join(err, wrong)
			}
			sale.sweeps[shard] = now.Add(max(wait, sweepEvery))
		}
		sale.due = earlier(sale.due, sale.sweeps[shard])
	}
	return err
}

// mend finishes what sidecars left half-way: units in transit for longer than
// from one look to the next, and a window that not all shards have.
func (k *keeper) mend(sale *kept) error {
	seen, err := k.look(k.ctx, sale.sku, sale.known, 0)
	if err != nil || seen.gone {
		return err
	}
	moving := seen.inTransit() != 0
	if moving && sale.moving {
		_, err = k.finishTransfers(k.ctx, sale.sku, sale.known, k.SyncReplicas)
	}
	sale.moving = moving
	for _, shard := range seen.shards {
		if shard.window != seen.shards[0].window && err == nil {
			return k.mendWindow(sale)
		}
	}
	return err
}

// mendWindow tells all shards what shard 0 has.
func (k *keeper) mendWindow(sale *kept) error {
	first, err := k.window(k.ctx, sale.sku, sale.known, 0, "SET", window{})
	for shard := 1; shard < sale.known.Shards && err == nil; shard++ {
		_, err = k.window(k.ctx, sale.sku, sale.known, shard, "SET", first)
	}
	return unlessAbsent(err)
}

// audit audits a sale, and tells what it has found.
func (k *keeper) audit(sale *kept) error {
	audit, found, err := k.Store.audit(k.ctx, sale.sku, false)
	if err != nil || !found {
		return err
	}
	k.Observer.Audited(audit.Differences)
	if audit.Differences > 0 {
		k.Log.Error("a sale is damaged: SECKILL.AUDIT names what differs",
			zap.String("sku", sale.sku), zap.Int64("differences", audit.Differences))
	}
	return nil
}
