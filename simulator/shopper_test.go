package simulator

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"
)

// step does one random thing: any client does anything, about any token that
// anybody was told.
func (c *client) step() {
	s := c.world.shops[c.random.IntN(len(c.world.shops))]
	switch n := c.random.IntN(100); {
	case n < 40:
		c.buy(s)
	case n < 45:
		c.rush(s)
	case n < 58:
		if token := c.anyToken(s); token != "" {
			c.settle(token)
		}
	case n < 68:
		c.work(s)
	case n < 74:
		if token := c.anyToken(s); token != "" {
			c.look(token)
		}
	case n < 78:
		user := c.anyUser()
		c.model.found(c.call("SECKILL.FIND", s.sku, user), s, user)
	case n < 84:
		c.restock(s)
	case n < 91:
		c.manage(s)
	case n < 94:
		c.model.described(c.call("SECKILL.INFO", s.sku), s)
	case n < 97:
		c.model.audited(c.call("SECKILL.AUDIT", s.sku), s)
	case n < 98:
		c.model.listed(c.call("SECKILL.LIST"))
	case n < 99:
		c.forge(s)
	default:
		c.orders(s)
	}
}

func (c *client) anyUser() string { return c.world.users[c.random.IntN(len(c.world.users))] }

// anyToken returns one of the SKU's latest tokens, or any, "" for none.
func (c *client) anyToken(s *shop) string {
	c.model.mu.Lock()
	defer c.model.mu.Unlock()
	var tokens []string
	for _, r := range c.model.tokens {
		if r.shop == s && (r.final == "" || c.random.IntN(50) == 0) {
			tokens = append(tokens, r.token)
		}
	}
	if len(tokens) == 0 {
		return ""
	}
	slices.Sort(tokens)
	return tokens[c.random.IntN(len(tokens))]
}

// purchase makes up a purchase: mostly with a request id, often one that others
// use too.
func (c *client) purchase(s *shop) (purchase, []string) {
	p := purchase{shop: s, request: request{user: c.anyUser()}, qty: 1 + int64(c.random.IntN(5)/3)}
	args := []string{"SECKILL.BUY", s.sku, p.user}
	switch c.random.IntN(4) {
	case 0:
		p.id = fmt.Sprint("r", c.random.IntN(4))
	case 1, 2:
		p.id = fmt.Sprintf("%s-%d", c.name, c.random.Uint32())
	}
	if p.id != "" {
		p.qty = 1 + int64(hash(p.user+p.id)%8)/3 // the same each time
		args = append(args, "ID", p.id)
	}
	if p.qty > 1 || c.random.IntN(2) == 0 {
		args = append(args, "QTY", strconv.FormatInt(p.qty, 10))
	}
	return p, args
}

// buy buys as a shop does: with a request id it asks again, through any sidecar,
// until it knows. Some lose their patience, some ask again though they know.
func (c *client) buy(s *shop) {
	first, args := c.purchase(s)
	for range 8 {
		p := first
		c.model.buying(&p)
		a := c.call(args...)
		c.model.bought(&p, a)
		again := a.unknown() && c.random.IntN(8) > 0 || c.random.IntN(30) == 0
		if p.id == "" || !again {
			return
		}
		c.pause(50)
	}
}

// rush makes many purchases in one pipeline.
func (c *client) rush(s *shop) {
	n := 2 + c.random.IntN(20)
	purchases, commands := make([]purchase, n), make([][]string, n)
	for i := range n {
		purchases[i], commands[i] = c.purchase(s)
		c.model.buying(&purchases[i])
	}
	for i, a := range c.pipeline(commands...) {
		c.model.bought(&purchases[i], a)
	}
}

func hash(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}

// pause waits up to so many milliseconds.
func (c *client) pause(most int) {
	time.Sleep(time.Duration(c.random.IntN(most)) * time.Millisecond)
}

// settle confirms or cancels, and sometimes asks again, perhaps for something
// else.
func (c *client) settle(token string) {
	status, detail := "CONFIRMED", fmt.Sprintf("order %d", c.random.IntN(3))
	args := []string{"SECKILL.CONFIRM", token, detail}
	if c.random.IntN(3) > 0 {
		status, detail = "CANCELLED", ""
		args = []string{"SECKILL.CANCEL", token}
		if c.random.IntN(2) == 0 {
			detail = fmt.Sprintf("reason\r\n%d", c.random.IntN(3))
			args = append(args, detail)
		}
	}
	for range 4 {
		c.model.settling(token, status, detail)
		a := c.call(args...)
		c.model.settled(a, token, status, detail)
		if !a.unknown() && c.random.IntN(20) > 0 {
			return
		}
		c.pause(50)
	}
}

// work pulls orders like a worker and settles them, or dies before.
func (c *client) work(s *shop) {
	count := 1 + c.random.IntN(5)
	args := []string{"SECKILL.PULL", s.sku, fmt.Sprint("worker\x00", c.random.IntN(4))}
	if count > 1 {
		args = append(args, "COUNT", strconv.Itoa(count))
	}
	if c.random.IntN(2) == 0 {
		args = append(args, "BLOCK", strconv.Itoa(1+c.random.IntN(500)))
	}
	for _, token := range c.model.pulled(c.call(args...), s, int64(count)) {
		if c.random.IntN(3) > 0 {
			c.settle(token)
		}
	}
}

// look asks how a reservation stands, and may wait until it is settled.
func (c *client) look(token string) {
	args, blocked := []string{"SECKILL.RESULT", token}, c.random.IntN(2) == 0
	if blocked {
		args = append(args, "BLOCK", strconv.Itoa(1+c.random.IntN(500)))
	}
	c.model.looked(c.call(args...), token, blocked)
}

// restock adds units or takes some away, with a request id until it is known.
func (c *client) restock(s *shop) {
	r := &restock{shop: s, delta: int64(c.random.IntN(9)) - 4}
	if c.random.IntN(3) > 0 {
		r.id = fmt.Sprint("delivery ", c.random.IntN(1000))
		r.delta = int64(hash(r.id)%9) - 4 // the same each time
	}
	if r.delta == 0 {
		return
	}
	args := []string{"SECKILL.RESTOCK", s.sku, strconv.FormatInt(r.delta, 10)}
	if r.id != "" {
		args = append(args, "ID", r.id)
	}
	for range 6 {
		again := *r
		c.model.restocking(&again)
		a := c.call(args...)
		c.model.restocked(&again, a)
		if r.id == "" || !a.unknown() && c.random.IntN(10) > 0 {
			return
		}
		c.pause(50)
	}
}

// forge asks for tokens that nobody was given.
func (c *client) forge(s *shop) {
	forged := tokenPrefix(s.sku) + fmt.Sprintf("aaa.%024x", c.random.Uint64())
	if token := c.anyToken(s); token != "" && c.random.IntN(2) == 0 {
		digit := byte('0')
		if token[len(token)-1] == digit {
			digit = '1'
		}
		forged = token[:len(token)-1] + string(digit)
	}
	if a := c.call("SECKILL.CANCEL", forged); !a.unknown() && !a.refused() && a.code() != 404 {
		c.model.fail(a, "nobody was given this token")
	}
}

// orders walks through all orders, in small parts, while they change.
func (c *client) orders(s *shop) {
	start, cursor, listed := time.Now(), "0", map[string]bool{}
	for {
		a := c.call("SECKILL.ORDERS", s.sku, cursor, "COUNT", strconv.Itoa(1+c.random.IntN(50)))
		if a.unknown() || a.refused() || a.code() == 404 {
			return
		}
		if a.code() != 200 || len(a.array()) < 3 {
			c.model.fail(a, "ORDERS has no such answer")
			return
		}
		for _, o := range ordersIn(a) {
			listed[o.token] = true
		}
		if cursor = cursorOf(a); cursor == "0" {
			c.model.walked(a, s, start, listed)
			return
		}
	}
}

// walked judges a complete walk through the orders: what was there throughout is
// in it.
func (m *model) walked(a *answer, s *shop, start time.Time, listed map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	there := s.certain(start, a.end)
	for token, r := range m.tokens {
		if there != nil && r.sale == there && r.since.Before(start) && !listed[token] {
			m.failLocked(a, "%s is missing", token)
		}
	}
}
