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
// them off and journals, buy.lua takes them in, once, by their number. In between
// they are in transit, in the journal of the sender; anyone can finish what a
// sidecar that died has left there.

// delivery is units on their way from a shard, under the sender's number.
type delivery struct {
	from          int
	number, units int64
}

// view is one look at all shards of a sale, one after the other and so not of one
// moment.
type view struct {
	shards []shardView
	home   int
	gone   bool // a shard is missing, or is of another sale

	// Of home: the number of the last delivery from each shard.
	received map[int]int64
}

// shardView is what one look says about a shard.
type shardView struct {
	available, sent, received, version int64
	window                             int64    // how often it was opened or closed
	last                               delivery // to home
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
// arrived. It can be wrong, and negative, while units move.
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
	// After the senders: a delivery that was seen to have left may then be seen
	// to have arrived, and isn't taken for one under way.
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
		if text, ok := read.Val()[len(viewFields)].(string); ok {
			v.shards[shard].last = f.delivery(text, shard)
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

// delivery reads "<number>:<units>".
func (f *fields) delivery(text string, from int) delivery {
	number, units, _ := strings.Cut(text, ":")
	return delivery{from: from, number: f.number("to", number), units: f.number("to", units)}
}

// gather makes other shards send units to one that wants more than it has, and
// returns what is on its way there, which isn't more than was seen.
func (s *Store) gather(ctx context.Context, sku string, known localcache.Sale, seen view, wanted int64) ([]delivery, error) {
	missing := wanted - seen.shards[seen.home].available
	var deliveries []delivery
	take := func(d delivery) {
		deliveries = append(deliveries, d)
		missing -= d.units
	}
	var senders []int // the fullest first, to ask few
	for shard, at := range seen.shards {
		switch {
		case at.last.number > seen.received[shard]:
			take(at.last) // left on its way by a sidecar that died, or is slow
		case shard != seen.home && at.available > 0:
			senders = append(senders, shard)
		}
	}
	slices.SortFunc(senders, func(a, b int) int { return cmp.Compare(seen.shards[b].available, seen.shards[a].available) })
	for _, shard := range senders {
		if missing <= 0 {
			break
		}
		d, err := s.send(ctx, sku, known, shard, seen.home, seen.received[shard], missing)
		if err != nil {
			return nil, err
		}
		if d.units > 0 {
			take(d)
		}
	}
	return deliveries, nil
}

// beforehand is the error of an operation for which units couldn't be brought:
// whatever has become of those, the operation wasn't executed.
func beforehand(err error) error {
	if errors.Is(err, script.ErrUncertain) {
		return fmt.Errorf("%w: %s", script.ErrNotExecuted, err)
	}
	return err
}

// send makes a shard send units, as many as wanted or half of what it has; none
// when it has none any more. acknowledged is the number of the last delivery that
// the receiver is known to have.
func (s *Store) send(ctx context.Context, sku string, known localcache.Sale, from, to int, acknowledged, wanted int64) (delivery, error) {
	r := read(sendScript.Run(ctx, s.rdb, []string{s.keys(sku, shardTag(sku, from, known.Shards)).sale},
		known.ID, to, acknowledged, wanted))
	outcome := Outcome(r.text())
	d := delivery{from: from, number: r.number(), units: r.number()}
	if r.err == nil && (outcome == NoSale || outcome == stale) {
		return delivery{}, nil // the purchase will be told so
	}
	if d.units > 0 {
		s.Observer.Transferred(d.units)
	}
	return d, r.err
}

// take brings deliveries into a shard. One that it has already changes nothing.
func (s *Store) take(ctx context.Context, sku string, known localcache.Sale, shard int, deliveries []delivery) error {
	c := &call{Store: s, lane: lane{sku: sku, shard: shard, shards: known.Shards}, known: known}
	_, err := c.purchase(ctx, nil, deliveries)
	return err
}

// finishTransfers brings all units that are in transit to where they were sent.
func (s *Store) finishTransfers(ctx context.Context, sku string, known localcache.Sale) error {
	journals, err := s.journals(ctx, sku, known)
	if err != nil {
		return err
	}
	for to := range journals {
		deliveries, err := underWay(journals, to)
		if err == nil && len(deliveries) > 0 {
			err = s.take(ctx, sku, known, to, deliveries)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// underWay returns the deliveries that a shard has been sent and hasn't taken in,
// as far as the journals of all shards say.
func underWay(journals []map[string]string, to int) (deliveries []delivery, err error) {
	for from, journal := range journals {
		sent, ok := journal["to:"+strconv.Itoa(to)]
		if !ok {
			continue
		}
		f := fields{shard: from}
		d := f.delivery(sent, from)
		received := int64(0)
		if text, ok := journals[to]["from:"+strconv.Itoa(from)]; ok {
			f.shard = to
			received = f.number("from", text)
		}
		if f.err != nil {
			return nil, f.err
		}
		if d.number > received {
			deliveries = append(deliveries, d)
		}
	}
	return deliveries, nil
}
