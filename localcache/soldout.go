package localcache

import (
	"hash/maphash"
	"slices"
	"time"
)

// seed makes the hashes of users unpredictable: nobody can choose a user id that
// collides with a buyer's.
var seed = maphash.MakeSeed()

// Buyers is a set of users, built for LearnSoldOut: 64 bits of each user's hash.
// A user who was added is always found. Another is taken for one of n buyers with
// probability n/2^64, which costs a question to Redis. It is not safe for
// concurrent use.
type Buyers struct {
	max    int
	full   bool
	hashes []uint64
}

// NewBuyers returns an empty set. While it is built, it takes up to 16 bytes for
// each user added.
func (c *Cache[R]) NewBuyers() *Buyers { return &Buyers{max: c.opts.BuyersMax} }

// Add adds a user; one who is there already counts once. It returns false when the
// set has more than BuyersMax users and won't be remembered anyway.
func (b *Buyers) Add(user string) bool {
	if b.full {
		return false
	}
	b.hashes = append(b.hashes, maphash.String(seed, user))
	if len(b.hashes) > 2*b.max {
		b.sort() // users who were added twice go
		b.full = len(b.hashes) > b.max
	}
	return !b.full
}

// Len is how many users are in the set.
func (b *Buyers) Len() int {
	b.sort()
	return len(b.hashes)
}

// sort puts the hashes in the order in which has looks for them, each once.
func (b *Buyers) sort() {
	slices.Sort(b.hashes)
	b.hashes = slices.Compact(b.hashes)
}

// flag says that a sale is sold out. All of its buyers are known, and their
// number can't grow until stock comes back.
type flag struct {
	fact
	since  uint64    // number of the moment when it was learned, among marks and changes
	asked  time.Time // when somebody last wanted to buy
	buyers []uint64  // sorted
}

func (f *flag) has(user uint64) bool {
	_, found := slices.BinarySearch(f.buyers, user)
	return found
}

// LearnSoldOut remembers that nothing is left of a sale in any of its shards, nor
// on its way between them, and who bought. The set has to have every user
// with any order, also a cancelled or expired one: its request id stays bound to
// it. It returns false when it doesn't remember it, since something changed
// after the mark or the set is too large. Flags that were not asked for longest
// make room.
func (c *Cache[R]) LearnSoldOut(m Mark, saleID string, buyers *Buyers) bool {
	buyers.sort()
	f := &flag{fact: fact{saleID, m.number}, asked: c.opts.Now(), buyers: slices.Clone(buyers.hashes)}
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.sales.Get(m.sku)
	if !ok || !c.stands(f.fact, r) || buyers.full || len(f.buyers) > c.opts.BuyersMax {
		return false
	}
	c.flags.Remove(m.sku)
	for c.buyers+len(f.buyers) > c.opts.BuyersMax {
		c.flags.RemoveOldest()
	}
	c.sequence++
	f.since = c.sequence
	c.flags.Add(m.sku, f)
	c.buyers += len(f.buyers)
	return true
}

// flagOf returns the flag of a SKU, nil when none stands.
func (c *Cache[R]) flagOf(sku string, r *record) *flag {
	if f, ok := c.flags.Get(sku); ok && c.stands(f.fact, r) {
		return f
	}
	return nil
}

type receiptKey struct {
	sku, user, requestID string
	qty                  int64
}

// receipt is Redis's answer to a buyer of a sold-out sale.
type receipt[R any] struct {
	mark   uint64
	answer R
}

// Remember keeps Redis's answer to a purchase that a buyer of a sold-out sale
// asked for, REPLAYED or LIMIT, to be given again while the flag stands: what the
// buyers hold doesn't change without stock coming back. An answer that was asked
// for before the flag was learned isn't given, since it may have changed before.
func (c *Cache[R]) Remember(m Mark, saleID, user, requestID string, qty int64, answer R) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.sales.Peek(m.sku)
	if !ok || r.sale.ID != saleID {
		return
	}
	if f := c.flagOf(m.sku, r); f != nil && f.has(maphash.String(seed, user)) {
		c.receipts.Add(receiptKey{m.sku, user, requestID, qty}, receipt[R]{m.number, answer})
	}
}

// receiptOf returns the answer that is kept since the flag was learned, if any.
func (c *Cache[R]) receiptOf(f *flag, key receiptKey) (answer R, ok bool) {
	kept, ok := c.receipts.Get(key)
	if !ok || kept.mark < f.since {
		return answer, false
	}
	return kept.answer, true
}

// Flag describes a sale that is remembered as sold out.
type Flag struct {
	SKU    string
	SaleID string
	Buyers int
}

// SoldOut returns the flags that stand, and forgets those that nobody has asked for
// in FlagFor. Who wants to be safe from changes that tell nobody (a key deleted by
// hand) asks Redis about these from time to time, and reports what it finds by
// Event.
func (c *Cache[R]) SoldOut() []Flag {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	var standing []Flag
	for _, sku := range c.flags.Keys() {
		f, _ := c.flags.Peek(sku)
		switch r, ok := c.sales.Peek(sku); {
		case now.Sub(f.asked) >= c.opts.FlagFor:
			c.flags.Remove(sku)
		case ok && c.stands(f.fact, r):
			standing = append(standing, Flag{SKU: sku, SaleID: f.saleID, Buyers: len(f.buyers)})
		}
	}
	return standing
}
