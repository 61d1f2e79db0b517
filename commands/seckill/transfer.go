package seckill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
	"seckill-proxy/localcache"
)

// Transfers bring units from one shard to another in two steps: send.lua takes
// them off and adds them, in the journal of the sender, to all that it has sent
// there; buy.lua takes in what goes beyond all that has come from that sender. In
// between they are in transit; anyone can finish what a sidecar that died has left
// there. Both totals only grow, so what comes twice or late counts once.
//
// When a replica takes over that doesn't have the last writes of its master, a
// total falls back. That of a receiver does no harm: what its shard has lost is in
// transit again. That of a sender doubles units, which are there again and arrived
// as well, until they are taken off once more (send.lua); if they were sold before,
// too many were sold, and Audit says so. So whoever waits for replicas lets
// nothing arrive that the sender's replicas don't have.

// delivery is units on their way from a shard.
type delivery struct {
	from  int
	total int64 // units that it has ever sent there
	units int64 // on their way, as far as was seen
}

// view is one look at all shards of a sale, one after the other and so not of one
// moment.
type view struct {
	shards []shardView
	home   int
	gone   bool // a shard is missing, or is of another sale

	// Of home: units that have ever come from each shard.
	received map[int]int64
}

// shardView is what one look says about a shard.
type shardView struct {
	available, sent, received, version int64
	window                             int64 // how often it was opened or closed
	toHome                             int64 // units ever sent to home
}

// viewFields are what look asks of each shard.
var viewFields = []string{"sale_id", "available", "sent", "received", "version", "window"}

// total is the units that were seen on sale, or on their way.
func (v view) total() int64 {
	total := v.inTransit()
	for _, shard := range v.shards {
		total += shard.available
	}
	return max(total, 0)
}

// inTransit is the units that were seen to have left a shard and not to have
// arrived. It can be wrong, and negative, while units move, and is negative when a
// sender has lost what it sent.
func (v view) inTransit() (units int64) {
	for _, shard := range v.shards {
		units += shard.sent - shard.received
	}
	return units
}

// same reports whether no units were put on sale or taken off between two looks,
// each of which had all its reads before, or after, all those of the other: then
// what was seen was so at every moment between them.
func (v view) same(other view) bool {
	return slices.EqualFunc(v.shards, other.shards, func(a, b shardView) bool { return a.version == b.version })
}

// look reads the counters of all shards, and what moves between them and home.
func (s *Store) look(ctx context.Context, sku string, known localcache.Sale, home int) (view, error) {
	v := view{shards: make([]shardView, known.Shards), home: home, received: map[int]int64{}}
	pipe := s.rdb.Pipeline()
	reads := make([]*redis.SliceCmd, known.Shards)
	for shard := range reads {
		key := s.keys(sku, shardTag(sku, shard, known.Shards)).sale
		reads[shard] = pipe.HMGet(ctx, key, append(slices.Clone(viewFields), "to:"+strconv.Itoa(home))...)
	}
	// After the senders, on one server: a delivery that was seen to have left may
	// then be seen to have arrived, and isn't taken for one under way.
	all := pipe.HGetAll(ctx, s.keys(sku, shardTag(sku, home, known.Shards)).sale)
	if _, err := pipe.Exec(ctx); err != nil {
		return view{}, plainFailure("look", err)
	}
	for shard, read := range reads {
		id, _ := read.Val()[0].(string)
		if id != known.ID {
			return view{gone: true}, nil
		}
		f := fields{shard: shard}
		v.shards[shard] = shardView{
			available: f.number("available", read.Val()[1]), sent: f.number("sent", read.Val()[2]),
			received: f.number("received", read.Val()[3]), version: f.number("version", read.Val()[4]),
			window: f.number("window", read.Val()[5]),
		}
		if sent := read.Val()[len(viewFields)]; sent != nil {
			v.shards[shard].toHome = f.number("to", sent)
		}
		if f.err != nil {
			return view{}, f.err
		}
	}
	f := fields{shard: home}
	for name, value := range all.Val() {
		if sender, ok := strings.CutPrefix(name, "from:"); ok {
			v.received[int(f.number(name, sender))] = f.number(name, value)
		}
	}
	return v, f.err
}

// fields reads fields of a shard's sale; the first that can't be read is
// remembered in err.
type fields struct {
	shard int
	err   error
}

func (f *fields) number(name string, value any) int64 {
	text, _ := value.(string)
	n, err := strconv.ParseInt(text, 10, 64)
	if (err != nil || n < 0) && f.err == nil {
		f.err = redisError(fmt.Sprintf("ERR damaged sale: field '%s' of its shard %d is missing or unreadable, SECKILL.AUDIT names all damage",
			name, f.shard))
	}
	return n
}

// gather makes other shards send units to one that wants more than it has, and
// returns what is on its way there, which isn't more than was seen. Of what sync
// replicas of a sender don't have it returns nothing.
func (s *Store) gather(ctx context.Context, sku string, known localcache.Sale, seen view, wanted int64, sync int) ([]delivery, error) {
	missing := wanted - seen.shards[seen.home].available
	var deliveries []delivery
	var senders []int
	for shard, at := range seen.shards {
		switch moving := at.toHome - seen.received[shard]; {
		case shard == seen.home:
		case moving > 0 && s.synced(sync) == 0: // left on its way by a sidecar that died, or is slow
			deliveries = append(deliveries, delivery{shard, at.toHome, moving})
			missing -= moving
		case moving != 0 || at.available > 0:
			senders = append(senders, shard)
		}
	}
	// Those first that have units under way, and then the fullest, to ask few.
	slices.SortFunc(senders, func(a, b int) int {
		return cmp.Or(cmp.Compare(seen.underWay(b), seen.underWay(a)), cmp.Compare(seen.shards[b].available, seen.shards[a].available))
	})
	for _, shard := range senders {
		if missing <= 0 {
			break
		}
		d, err := s.send(ctx, sku, known, shard, seen.home, seen.received[shard], missing, sync)
		if err != nil {
			return nil, err
		}
		if d.units > 0 {
			deliveries = append(deliveries, d)
			missing -= d.units
		}
	}
	return deliveries, nil
}

// underWay is the units that were seen on their way from a shard to home.
func (v view) underWay(from int) int64 { return max(v.shards[from].toHome-v.received[from], 0) }

// beforehand is the error of an operation for which units couldn't be brought:
// whatever has become of those, the operation wasn't executed.
func beforehand(err error) error {
	if errors.Is(err, script.ErrUncertain) {
		return fmt.Errorf("%w: %s", script.ErrNotExecuted, err)
	}
	return err
}

// synced is how many replicas must have what a shard sends before it may arrive.
func (s *Store) synced(sync int) int { return max(sync, s.SyncReplicas) }

// errUnsynced is wrapped where units may not arrive yet.
var errUnsynced = errors.New("replicas don't have yet what another shard sent")

// send makes a shard send units, as many as wanted or half of what it has, unless
// units are on their way already; none when it has none any more. received is what
// has ever arrived. It waits until sync replicas of the sender have that, or those
// of Options.SyncReplicas where those are more.
func (s *Store) send(ctx context.Context, sku string, known localcache.Sale, from, to int, received, wanted int64, sync int) (delivery, error) {
	sync = s.synced(sync)
	answer, replicas, err := s.runSynced(ctx, sendScript, sync, []string{s.keys(sku, shardTag(sku, from, known.Shards)).sale},
		known.ID, to, received, wanted, flag(sync > 0))
	r := read(answer, err)
	outcome := Outcome(r.text())
	d := delivery{from: from, total: r.number(), units: r.number()}
	switch {
	case r.err != nil:
		return delivery{}, r.err
	case outcome == NoSale || outcome == stale:
		return delivery{}, nil // the purchase will be told so
	case d.units > 0 && replicas < sync:
		return delivery{}, fmt.Errorf("seckill send: %w: %w", script.ErrNotExecuted, errUnsynced)
	}
	if outcome == sent {
		s.Observer.Transferred(d.units)
	}
	return d, nil
}

// sent: units were taken off a shard.
const sent Outcome = "SENT"

// take brings deliveries into a shard. One that it has already changes nothing.
func (s *Store) take(ctx context.Context, sku string, known localcache.Sale, shard int, deliveries []delivery) error {
	c := &call{Store: s, lane: lane{sku: sku, shard: shard, shards: known.Shards}, known: known}
	_, err := c.purchase(ctx, nil, deliveries)
	return err
}

// finishTransfers brings all units that are in transit to where they were sent, and
// takes off those that have arrived without having left. moved reports whether
// there were any.
func (s *Store) finishTransfers(ctx context.Context, sku string, known localcache.Sale, sync int) (moved bool, err error) {
	journals, err := s.journals(ctx, sku, known)
	if err != nil {
		return false, err
	}
	for to := range journals {
		var deliveries []delivery
		for from := range journals {
			total, received, err := between(journals, from, to)
			if err != nil {
				return false, err
			}
			d := delivery{from, total, total - received}
			switch {
			case d.units < 0:
				var good bool
				good, err = s.makeGood(ctx, sku, known, from, to, received, sync)
				moved = moved || good
			case d.units > 0 && s.synced(sync) > 0:
				d, err = s.send(ctx, sku, known, from, to, received, 0, sync)
			}
			if err != nil {
				return false, err
			}
			if d.units > 0 {
				deliveries = append(deliveries, d)
			}
		}
		if len(deliveries) > 0 {
			if err := s.take(ctx, sku, known, to, deliveries); err != nil {
				return false, err
			}
			moved = true
		}
	}
	return moved, nil
}

// makeGood takes units off a shard that have arrived in another one without having
// left, other shards' where it has too few. It reports whether it found any.
func (s *Store) makeGood(ctx context.Context, sku string, known localcache.Sale, from, to int, received int64, sync int) (found bool, err error) {
	d, err := s.send(ctx, sku, known, from, to, received, 0, sync)
	if err != nil || d.total >= received {
		return true, err
	}
	seen, err := s.look(ctx, sku, known, from)
	if err != nil || seen.gone {
		return false, err
	}
	deliveries, err := s.gather(ctx, sku, known, seen, received-d.total, sync)
	if err != nil || len(deliveries) == 0 {
		return false, err
	}
	if err := s.take(ctx, sku, known, from, deliveries); err != nil {
		return false, err
	}
	_, err = s.send(ctx, sku, known, from, to, received, 0, sync)
	return true, err
}

// between returns how many units one shard has ever sent to another, and how many
// have arrived there, as the journals of all shards say.
func between(journals []map[string]string, from, to int) (total, received int64, err error) {
	read := func(shard int, name string, other int) (n int64) {
		if text, ok := journals[shard][name+strconv.Itoa(other)]; ok {
			f := fields{shard: shard}
			n = f.number(strings.TrimSuffix(name, ":"), text)
			err = errors.Join(err, f.err)
		}
		return n
	}
	total, received = read(from, "to:", to), read(to, "from:", from)
	return total, received, err
}
