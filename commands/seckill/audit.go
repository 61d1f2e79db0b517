package seckill

import (
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

// Audit is the two sides of a sale's equation,
//
//	stock + restocked = available + in transit + pending + confirmed,
//
// as its counters say and as its records say, with everything in which they, or
// the records among each other, differ.
type Audit struct {
	Stock, Restocked                   int64 // units, only counted
	Available, Pending, Confirmed      int64 // units, by the counters
	InTransit                          int64 // units on their way between shards
	Cancelled, Expired, Orders         int64 // units, units and reservations ever, by the counters
	RecordedPending, RecordedConfirmed int64 // units, by the order records
	RecordedCancelled, RecordedExpired int64
	RecordedOrders                     int64
	RecordedBuyers, RecordedQueue      int64 // users with a mark, entries of the queue
	Partial                            bool  // the records of a shard were not compared
	Differences                        int64 // in all
	Named                              []Difference
}

// Difference is one thing that is not as it must be. Where something is missing
// or is too much, Expected and Found are 1 and 0 or 0 and 1.
type Difference struct {
	What            string
	Expected, Found int64
}

// AuditMax is how many differences Audit names at most; it counts all.
const AuditMax = 100

// differ adds a difference.
func (a *Audit) differ(what string, expected, found int64) {
	a.Differences++
	if len(a.Named) < AuditMax {
		a.Named = append(a.Named, Difference{what, expected, found})
	}
}

// Audit computes both sides, each shard's of one moment; found is false when nothing
// of such a sale is there. A shard with up to Options.AuditOrdersMax reservations is
// read in one step. One with more is read in parts, again and again if something
// happens to it meanwhile; if that doesn't end, the audit is Partial: the counters
// and what moves between shards were compared, the records of that shard weren't.
// The Store holds the records of one shard meanwhile.
func (s *Store) Audit(ctx context.Context, sku string) (audit Audit, found bool, err error) {
	return s.audit(ctx, sku, true)
}

// audit is Audit that leaves out what can't be read in one step unless it is to be
// read in parts.
func (s *Store) audit(ctx context.Context, sku string, parts bool) (audit Audit, found bool, err error) {
	const tries = 3
	for range tries {
		known, indexed, err := s.auditedSale(ctx, sku)
		if err != nil {
			return Audit{}, false, unlessAbsent(err)
		}
		audit, found, err := s.auditOnce(ctx, sku, known, indexed, parts)
		if err != nil || audit.Differences == 0 {
			return audit, found, err
		}
		// What differs may be what a DROP has removed meanwhile.
		if stands, err := s.stands(ctx, sku, known); err != nil || stands {
			return audit, found, err
		}
	}
	return Audit{}, false, fmt.Errorf("seckill audit: %w: the sale comes and goes", script.ErrNotExecuted)
}

// auditOnce audits all shards of a sale, and what they are to each other.
func (s *Store) auditOnce(ctx context.Context, sku string, known localcache.Sale, indexed bool, parts bool) (audit Audit, found bool, err error) {
	ids := make([]string, known.Shards)
	there := make([]bool, known.Shards)
	hashes := true // the sale's key of every shard can be read
	for shard := range known.Shards {
		tag := shardTag(sku, shard, known.Shards)
		shot, err := s.takeSnapshot(ctx, s.keys(sku, tag), s.AuditOrdersMax, parts)
		if err != nil {
			return Audit{}, false, err
		}
		hashes = hashes && (shot.has(0) || shot.kinds[0] == "none")
		if there[shard] = !shot.nothing(); there[shard] {
			ids[shard] = shot.sale["sale_id"]
			audit.auditShard(shot, s.keys(sku, tag), tokenPrefix(sku, tag))
		}
		found = found || there[shard]
	}
	if !found {
		return Audit{}, false, nil
	}
	for shard, id := range ids {
		switch {
		case !there[shard]:
			audit.differ(fmt.Sprintf("shard %d, key %s", shard, s.keys(sku, shardTag(sku, shard, known.Shards)).sale), 1, 0)
		case known.ID != "" && id != known.ID:
			audit.differ(fmt.Sprintf("sale_id of shard %d is that of shard 0", shard), 1, 0)
		}
	}
	if !indexed {
		audit.differ("entry in "+s.indexKey(), 1, 0)
	}
	if known.Shards > 1 && hashes {
		err = s.auditTransfers(ctx, sku, known, &audit)
	}
	return audit, err == nil, err
}

// auditedSale returns the id and the number of shards of what is to be audited: what
// the sale itself says or, if it is gone or unreadable, the index.
func (s *Store) auditedSale(ctx context.Context, sku string) (known localcache.Sale, indexed bool, err error) {
	shown, err := s.lookAt(ctx, sku)
	var answered redis.Error
	readable := err == nil
	switch {
	case readable && ending(shown.state):
		return localcache.Sale{}, false, errNoSale
	case readable && shown.state == creating:
		if err := s.finishCreation(ctx, shown.plan); err != nil {
			return localcache.Sale{}, false, err
		}
	case readable, errors.Is(err, errNoSale), errors.As(err, &answered) && !isRefusedRight(err):
	default:
		return localcache.Sale{}, false, err
	}
	// After the sale, whose name is there before it.
	score, err := s.rdb.ZScore(ctx, s.indexKey(), sku).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return localcache.Sale{}, false, plainFailure("index", err)
	}
	known = localcache.Sale{ID: shown.id, Shards: min(max(int(score), 1), MaxShards)}
	if readable {
		known.Shards = shown.Shards
	}
	return known, err == nil, nil
}

// stands reports whether shard 0 is still of the sale that was audited.
func (s *Store) stands(ctx context.Context, sku string, audited localcache.Sale) (bool, error) {
	found, err := s.lookAt(ctx, sku)
	var answered redis.Error
	if err != nil && !errors.Is(err, errNoSale) && !errors.As(err, &answered) {
		return false, err
	}
	return found.id == audited.ID && !ending(found.state), nil
}

// isRefusedRight reports errors of a user who may not read the sale.
func isRefusedRight(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "NOAUTH")
}

// auditTransfers compares what shards have sent with what others have received.
// Of deliveries that are seen to be wrong only those count that were so at one
// moment, with nothing moving: as long as units move there is nothing to compare.
func (s *Store) auditTransfers(ctx context.Context, sku string, known localcache.Sale, audit *Audit) error {
	const tries = 5
	for range tries {
		first, err := s.journals(ctx, sku, known)
		if err != nil {
			return err
		}
		second, err := s.journals(ctx, sku, known)
		if err != nil {
			return err
		}
		if sameVersions(first, second) {
			auditJournals(second, audit)
			auditFields(second, audit)
			return nil
		}
	}
	return nil
}

// journals reads the sale hashes of all shards.
func (s *Store) journals(ctx context.Context, sku string, known localcache.Sale) ([]map[string]string, error) {
	pipe := s.rdb.Pipeline()
	reads := make([]*redis.MapStringStringCmd, known.Shards)
	for shard := range reads {
		reads[shard] = pipe.HGetAll(ctx, s.keys(sku, shardTag(sku, shard, known.Shards)).sale)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, plainFailure("audit", err)
	}
	journals := make([]map[string]string, known.Shards)
	for shard, read := range reads {
		journals[shard] = read.Val()
	}
	return journals, nil
}

func sameVersions(a, b []map[string]string) bool {
	for shard := range a {
		if a[shard]["version"] != b[shard]["version"] {
			return false
		}
	}
	return true
}

// auditJournals compares the journals of all shards of one moment: no more units
// have arrived than were sent, and the counters are the sums of the journals.
func auditJournals(shards []map[string]string, audit *Audit) {
	for shard, journal := range shards {
		var sent, received int64
		for field, value := range journal {
			name, isTo := strings.CutPrefix(field, "to:")
			sender, isFrom := strings.CutPrefix(field, "from:")
			switch {
			case isTo && !isShard(name, len(shards)):
				audit.differ(fmt.Sprintf("receiver of the units %s of shard %d", field, shard), 1, 0)
			case isFrom && !isShard(sender, len(shards)):
				audit.differ(fmt.Sprintf("sender of the units %s of shard %d", field, shard), 1, 0)
			case isTo:
				sent += number(value)
			case isFrom:
				received += number(value)
			}
		}
		for from := range shards {
			arrived, left := number(journal["from:"+strconv.Itoa(from)]), number(shards[from]["to:"+strconv.Itoa(shard)])
			if arrived > left {
				audit.differ(fmt.Sprintf("units sent by shard %d that have arrived in shard %d", from, shard), left, arrived)
			}
		}
		for name, sum := range map[string]int64{"sent": sent, "received": received} {
			if n := number(journal[name]); n != sum {
				audit.differ(fmt.Sprintf("counter '%s' of shard %d", name, shard), sum, n)
			}
		}
	}
}

// isShard reports whether text is the number of one of so many shards.
func isShard(text string, shards int) bool {
	n, err := strconv.Atoi(text)
	return err == nil && 0 <= n && n < shards && strconv.Itoa(n) == text
}

// sameFields are those that all shards of a sale have alike.
var sameFields = []string{"secret", "shards", "total", "limit", "pay_ttl", "rate_count", "rate_window"}

// auditFields compares what shards of one sale must have alike. The window is
// changed in one shard after the other, but each change has a number.
func auditFields(shards []map[string]string, audit *Audit) {
	first, stock := shards[0], int64(0)
	for _, fields := range shards {
		if fields["sale_id"] == "" || fields["sale_id"] != first["sale_id"] {
			return // which is named already
		}
	}
	for shard, fields := range shards {
		stock += number(fields["stock"])
		names := sameFields
		if fields["window"] == first["window"] {
			names = append(slices.Clone(names), "open_at", "close_at")
		}
		for _, name := range names {
			if fields[name] != first[name] {
				audit.differ(fmt.Sprintf("field '%s' of shard %d is that of shard 0", name, shard), 1, 0)
			}
		}
		if fields["shard"] != strconv.Itoa(shard) {
			audit.differ(fmt.Sprintf("field 'shard' of shard %d", shard), int64(shard), number(fields["shard"]))
		}
	}
	if total := number(first["total"]); total != stock {
		audit.differ("stock of all shards", total, stock)
	}
}

// number reads a counter; one that can't be read is named elsewhere.
func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}
