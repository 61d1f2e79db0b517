package seckill

import (
	"fmt"
	"strconv"
	"strings"
)

// auditor compares what there is of one shard: its counters with its records, and
// the records among each other.
type auditor struct {
	*Audit
	*snapshot
	keys   keys
	prefix string // of the shard's tokens

	number  map[string]int64 // the sale's fields; one that can't be read is 0, and named
	units   map[string]int64 // of the records, by state
	records map[string]record
	held    map[string]int64 // units, by user
	made    map[string]int64 // reservations, by user
}

// numbers are the fields of a sale that are decimal integers and not negative;
// COUNTERS in records.lua.
var numbers = []string{"stock", "received", "sent", "available", "pending", "confirmed", "cancelled", "expired",
	"orders", "limit", "open_at", "close_at", "pay_ttl", "rate_count", "rate_window", "version"}

// auditShard adds what a shard has to the sale's audit, and what differs.
func (a *Audit) auditShard(shot *snapshot, k keys, prefix string) {
	x := &auditor{
		Audit: a, snapshot: shot, keys: k, prefix: prefix,
		number: map[string]int64{}, units: map[string]int64{}, held: map[string]int64{}, made: map[string]int64{},
		records: make(map[string]record, len(shot.orders)),
	}
	x.keyTypes()
	x.counters()
	if shot.whole {
		x.orderRecords()
		x.buyerMarks()
		x.queueEntries()
		x.totals()
	} else if shot.reservations > 0 || shot.has(0) {
		a.Partial = true
	}
	x.equation()
	x.add()
}

// nothing reports whether there is nothing of a sale. An empty queue alone is what
// a CREATE without the right to go on leaves.
func (s *snapshot) nothing() bool {
	for key, kind := range s.kinds {
		if kind != "none" && !(key == 3 && s.has(3) && s.whole && len(s.queue) == 0) {
			return false
		}
	}
	return true
}

func (x *auditor) keyTypes() {
	for i, key := range x.keys.all() {
		switch {
		case x.kinds[i] != "none" && !x.has(i):
			x.differ(fmt.Sprintf("key %s is a %s and not a %s", key, x.kinds[i], keyKinds[i]), 0, 1)
		case i == 3 && x.has(3) && !x.group:
			x.differ("consumer group '"+workersGroup+"' of "+key, 1, 0)
		}
	}
	if !x.has(0) {
		x.differ("key "+x.keys.sale, 1, 0)
	}
	if !x.has(3) {
		x.differ("key "+x.keys.queue, 1, 0)
	}
}

// counters reads the sale's fields.
func (x *auditor) counters() {
	if !x.has(0) {
		return
	}
	for _, name := range []string{"state", "sale_id", "secret"} {
		if x.sale[name] == "" {
			x.differ("field '"+name+"' of the sale", 1, 0)
		}
	}
	for _, name := range append([]string{"restocked"}, numbers...) {
		text, sign := x.sale[name], int64(1)
		if digits, negative := strings.CutPrefix(text, "-"); negative && name == "restocked" {
			text, sign = digits, -1
		}
		n, ok := parseDigits(text)
		if !ok {
			x.differ("readable field '"+name+"' of the sale", 1, 0)
		}
		x.number[name] = sign * n
	}
}

// orderRecords looks at each reservation by itself.
func (x *auditor) orderRecords() {
	for id, text := range x.orders {
		r, ok := parseRecord(text)
		if !ok {
			x.differ("readable record of order "+x.prefix+id, 1, 0)
			continue
		}
		x.records[id] = r
		x.units[r.state] += r.qty
		x.made[r.user]++
		if r.state == "P" || r.state == "C" {
			x.held[r.user] += r.qty
		}
		if x.has(0) && r.deadline != x.deadline(r.entry) {
			x.differ("deadline of order "+x.prefix+id, 1, 0)
		}
		if secret := x.sale["secret"]; r.request != "" && secret != "" && requestTokenID(secret, r.user, r.request) != id {
			x.differ("request id of order "+x.prefix+id, 1, 0)
		}
	}
	if !x.has(2) && (x.number["orders"] > 0 || len(x.buyers) > 0 || len(x.queue) > 0) {
		x.differ("key "+x.keys.orders, 1, 0)
	}
}

// deadline is when a reservation that was queued under this id is to be paid.
func (x *auditor) deadline(entry string) int64 {
	if x.number["pay_ttl"] == 0 {
		return 0
	}
	return entryTime(entry) + x.number["pay_ttl"]
}

// buyerMarks compares each user's mark with the user's reservations, which form a
// chain from the latest one backwards.
func (x *auditor) buyerMarks() {
	for user, mark := range x.buyers {
		held, latest, ok := parseMark(mark)
		switch {
		case !ok:
			x.differ("readable mark of user "+user, 1, 0)
			continue
		case x.made[user] == 0:
			x.differ("orders of user "+user, 1, 0)
			continue
		}
		x.compare("units held by user "+user, x.held[user], held)
		if limit := x.number["limit"]; limit > 0 && x.held[user] > limit {
			x.differ("units above the limit held by user "+user, limit, x.held[user])
		}
		length, id := int64(0), latest
		for length <= x.made[user] && x.records[id].user == user {
			length, id = length+1, x.records[id].prev
		}
		x.compare("orders, from the latest backwards, of user "+user, x.made[user], length)
	}
	for user := range x.made {
		if _, marked := x.buyers[user]; !marked {
			x.differ("mark of user "+user, 1, 0)
		}
	}
	if len(x.orders) > 0 && !x.has(1) {
		x.differ("key "+x.keys.buyers, 1, 0)
	}
}

// queueEntries wants one entry for each pending reservation, and none else.
func (x *auditor) queueEntries() {
	waiting := make(map[string]string) // token ids, by entry
	for id, r := range x.records {
		if r.state != "P" {
			continue
		}
		if other, taken := waiting[r.entry]; taken {
			x.differ("queue entry of pending order "+x.prefix+other, 1, 0)
		}
		waiting[r.entry] = id
	}
	for _, entry := range x.queue {
		id, waits := waiting[entry.id]
		r := x.records[id]
		if waits && len(entry.values) == 6 && entry.values[0] == "token" && entry.values[1] == x.prefix+id &&
			entry.values[2] == "user" && entry.values[3] == r.user && entry.values[4] == "qty" && entry.values[5] == strconv.FormatInt(r.qty, 10) {
			delete(waiting, entry.id)
			continue
		}
		x.differ("queue entry "+entry.id+" without its pending order", 0, 1)
	}
	for _, id := range waiting {
		x.differ("queue entry of pending order "+x.prefix+id, 1, 0)
	}
}

// stocked is the units that the shard has to account for.
func (x *auditor) stocked() int64 {
	return x.number["stock"] + x.number["restocked"] + x.number["received"] - x.number["sent"]
}

// totals compares the counters with the sums of the records.
func (x *auditor) totals() {
	x.RecordedPending += x.units["P"]
	x.RecordedConfirmed += x.units["C"]
	x.RecordedCancelled += x.units["X"]
	x.RecordedExpired += x.units["E"]
	x.RecordedOrders += int64(len(x.orders))
	x.RecordedBuyers += int64(len(x.buyers))
	x.RecordedQueue += int64(len(x.queue))
	if !x.has(0) {
		return
	}
	for name, sum := range map[string]int64{
		"pending": x.units["P"], "confirmed": x.units["C"], "cancelled": x.units["X"], "expired": x.units["E"],
		"orders": int64(len(x.orders)), "available": x.stocked() - x.units["P"] - x.units["C"],
	} {
		x.compare("counter '"+name+"'", sum, x.number[name])
	}
}

// equation compares the counters with each other.
func (x *auditor) equation() {
	if x.has(0) {
		x.compare("available + pending + confirmed", x.stocked(), x.number["available"]+x.number["pending"]+x.number["confirmed"])
	}
}

func (x *auditor) compare(what string, expected, found int64) {
	if expected != found {
		x.differ(what, expected, found)
	}
}

// add adds the shard's counters to the sale's.
func (x *auditor) add() {
	for name, total := range map[string]*int64{
		"stock": &x.Stock, "restocked": &x.Restocked, "available": &x.Available, "pending": &x.Pending, "confirmed": &x.Confirmed,
		"cancelled": &x.Cancelled, "expired": &x.Expired, "orders": &x.Orders,
	} {
		*total += x.number[name]
	}
	x.InTransit += x.number["sent"] - x.number["received"]
}
