package commands

import (
	"context"
	"errors"
	"time"

	"seckill-proxy/commands/seckill"
)

// Limits of the SECKILL arguments. Units are bounded so that sums of them stay
// far below 2^53, above which Lua's numbers lose units.
const (
	maxStock       = 1_000_000_000
	maxQty         = 1_000_000
	maxRate        = 1_000_000
	maxReasonBytes = 256
	maxPullCount   = 1_000
	maxReplicas    = 100
	minTimeMS      = 1_000_000_000_000   // the year 2001; smaller is seconds
	maxTimeMS      = 100_000_000_000_000 // the year 5138; larger is not milliseconds
	dayMS          = 24 * 60 * 60 * 1000
	yearMS         = 365 * dayMS
)

// time takes a point in time, 0 for none. Seconds are refused: a sale would begin at
// once, or never.
func (p *parser) time(name string) int64 {
	if p.more() && string(p.args[0]) == "0" {
		p.next(name)
		return 0
	}
	return p.integer(name, "a time in Unix milliseconds, or 0 for none", minTimeMS, maxTimeMS)
}

// block takes how long a command may wait.
func (p *parser) block() time.Duration {
	return time.Duration(p.integer("BLOCK", "a positive integer of milliseconds", 1, dayMS)) * time.Millisecond
}

// SECKILL.CREATE sku stock [LIMIT n] [OPEN at] [CLOSE at] [PAYTTL ms] [SHARDS n] [RATE count window_ms]
func seckillCreate(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	sale := seckill.Sale{
		SKU:   p.id("sku"),
		Stock: p.integer("stock", "a number of units", 0, maxStock),
		Limit: 1,
	}
	p.options(
		option{"LIMIT", func() { sale.Limit = p.integer("LIMIT", "a number of units, 0 for no limit", 0, maxStock) }},
		option{"OPEN", func() { sale.OpenAt = p.time("OPEN") }},
		option{"CLOSE", func() { sale.CloseAt = p.time("CLOSE") }},
		option{"PAYTTL", func() { sale.PayTTL = p.integer("PAYTTL", "a positive integer of milliseconds", 1, yearMS) }},
		option{"SHARDS", func() { sale.Shards = int(p.integer("SHARDS", "a number of shards", 1, seckill.MaxShards)) }},
		option{"RATE", func() {
			sale.RateCount = p.integer("RATE", "a positive number of purchases", 1, maxRate)
			sale.RateWindow = p.integer("the window of RATE", "a positive integer of milliseconds", 1, dayMS)
		}},
	)
	if sale.CloseAt > 0 && sale.CloseAt <= sale.OpenAt {
		p.failf("ERR syntax error: CLOSE needs a time after OPEN")
	}
	if p.err != "" {
		return p.err
	}

	created, err := c.Sales.Create(ctx, sale)

	switch {
	case err != nil:
		return failure(err, Array{CodeUncertain, "UNCERTAIN", sale.SKU, 0}, Array{CodeNotTried, "BUSY", sale.SKU, 0})
	case created.Exists:
		return Array{CodeConflict, "EXISTS", sale.SKU, created.Shards}
	default:
		return Array{CodeDone, "CREATED", sale.SKU, created.Shards}
	}
}

// SECKILL.BUY sku user [QTY n] [ID request_id] [SYNC replicas]
func seckillBuy(ctx context.Context, c *Connection, args [][]byte) Reply {
	purchase, wrong := parsePurchase(args)
	if wrong != "" {
		return wrong
	}

	receipt, err := c.Sales.Buy(ctx, purchase)

	if err != nil {
		return failure(err, Array{CodeUncertain, "UNCERTAIN", "", 0, 0}, Array{CodeNotTried, "BUSY", "", 0, 0})
	}
	return purchaseReply(receipt)
}

// seckillBuyAtOnce answers a SECKILL.BUY that needs no Redis.
func seckillBuyAtOnce(c *Connection, args [][]byte) (Reply, bool) {
	purchase, wrong := parsePurchase(args)
	if wrong != "" {
		return wrong, true
	}

	receipt, certain := c.Sales.Certain(purchase)

	if !certain {
		return nil, false
	}
	return purchaseReply(receipt), true
}

func parsePurchase(args [][]byte) (seckill.Purchase, Error) {
	p := parse(args)
	purchase := seckill.Purchase{SKU: p.id("sku"), User: p.id("user"), Qty: 1, Sync: -1}
	if p.more() { // most purchases have no options
		p.options(
			option{"QTY", func() { purchase.Qty = p.integer("QTY", "a positive number of units", 1, maxQty) }},
			option{"ID", func() { purchase.RequestID = p.id("ID") }},
			option{"SYNC", func() { purchase.Sync = int(p.integer("SYNC", "a number of replicas", 0, maxReplicas)) }},
		)
	}
	return purchase, p.err
}

func purchaseReply(receipt seckill.Receipt) Reply {
	head := purchaseHeads[receipt.Outcome]
	return Array{head.code, head.word, receipt.Token, receipt.Left, receipt.At}
}

// purchaseHeads are what the replies to SECKILL.BUY begin with, for all that its
// operation can answer. They are made into Replies once, and not for each buyer.
var purchaseHeads = map[seckill.Outcome]struct{ code, word Reply }{
	seckill.Reserved:     {CodeDone, string(seckill.Reserved)},
	seckill.Replayed:     {CodeDone, string(seckill.Replayed)},
	seckill.Uncertain:    {CodeUncertain, string(seckill.Uncertain)},
	seckill.SoldOut:      {CodeSoldOut, string(seckill.SoldOut)},
	seckill.LimitReached: {CodeLimit, string(seckill.LimitReached)},
	seckill.NotOpen:      {CodeSaleClosed, string(seckill.NotOpen)},
	seckill.Closed:       {CodeSaleClosed, string(seckill.Closed)},
	seckill.RateLimited:  {CodeTooFast, string(seckill.RateLimited)},
	seckill.NoSale:       {CodeNotFound, string(seckill.NoSale)},
}

// SECKILL.CONFIRM token order_id
func seckillConfirm(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	token, orderID := p.text("token", 1, seckill.MaxTokenBytes), p.id("order_id")
	if p.err != "" {
		return p.err
	}

	settlement, err := c.Sales.Confirm(ctx, token, orderID)

	return settlementReply(token, settlement, err)
}

// SECKILL.CANCEL token [reason]
func seckillCancel(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	token, reason := p.text("token", 1, seckill.MaxTokenBytes), ""
	if p.more() {
		reason = p.text("reason", 0, maxReasonBytes)
	}
	if p.more() {
		p.failf("ERR wrong number of arguments for 'seckill.cancel' command")
	}
	if p.err != "" {
		return p.err
	}

	settlement, err := c.Sales.Cancel(ctx, token, reason)

	return settlementReply(token, settlement, err)
}

// settlementReply is the reply of CONFIRM and CANCEL: [code word token order_id].
func settlementReply(token string, settlement seckill.Settlement, err error) Reply {
	if err != nil {
		return failure(err, Array{CodeUncertain, "UNCERTAIN", token, ""}, Array{CodeNotTried, "BUSY", token, ""})
	}
	switch settlement.Outcome {
	case seckill.Settled:
		return Array{CodeDone, string(settlement.Status), token, settlement.OrderID}
	case seckill.Replayed:
		return Array{CodeDone, "REPLAYED", token, settlement.OrderID}
	case seckill.Conflict:
		return Array{CodeConflict, string(settlement.Status), token, settlement.OrderID}
	case seckill.Lapsed:
		return Array{CodeExpired, "EXPIRED", token, ""}
	default: // NoSale, NoReservation
		return Array{CodeNotFound, string(settlement.Outcome), token, ""}
	}
}

// SECKILL.RESULT token [BLOCK ms]
func seckillResult(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	token := p.text("token", 1, seckill.MaxTokenBytes)
	var wait time.Duration
	p.options(option{"BLOCK", func() { wait = p.block() }})
	if p.err != "" {
		return p.err
	}

	reservation, err := c.Sales.AwaitResult(ctx, token, wait)

	switch {
	case err != nil:
		return readFailure(err, Array{CodeNotTried, "BUSY", token, "", ""})
	case reservation.Outcome != seckill.Found:
		return Array{CodeNotFound, string(reservation.Outcome), token, "", ""}
	case reservation.Status == seckill.Pending && wait > 0:
		return Array{CodeTimeout, "PENDING", token, "", ""}
	default:
		return Array{CodeDone, string(reservation.Status), token, reservation.OrderID, reservation.Reason}
	}
}

// SECKILL.FIND sku user
func seckillFind(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	sku, user := p.id("sku"), p.id("user")
	if p.err != "" {
		return p.err
	}

	tokens, found, err := c.Sales.Find(ctx, sku, user)

	switch {
	case err != nil:
		return readFailure(err, Array{CodeNotTried, 0})
	case !found:
		return Array{CodeNotFound, 0}
	}
	reply := Array{CodeDone, len(tokens)}
	for _, token := range tokens {
		reply = append(reply, token)
	}
	return reply
}

// SECKILL.PULL sku consumer [COUNT n] [BLOCK ms]
func seckillPull(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	sku, consumer, count := p.id("sku"), p.id("consumer"), int64(1)
	var wait time.Duration
	p.options(
		option{"COUNT", func() { count = p.integer("COUNT", "a positive number of orders", 1, maxPullCount) }},
		option{"BLOCK", func() { wait = p.block() }},
	)
	if p.err != "" {
		return p.err
	}

	deliveries, found, err := c.Sales.Pull(ctx, sku, consumer, count, wait)

	switch {
	case err != nil:
		return failure(err, Array{CodeUncertain, 0}, Array{CodeNotTried, 0})
	case !found:
		return Array{CodeNotFound, 0}
	}
	reply := Array{CodeDone, len(deliveries)}
	for _, d := range deliveries {
		reply = append(reply, Array{d.Token, d.User, d.Qty, d.CreatedAt, d.Number})
	}
	return reply
}

// SECKILL.ORDERS sku cursor [COUNT n]
func seckillOrders(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	sku, cursor, count := p.id("sku"), p.id("cursor"), int64(100)
	p.options(
		option{"COUNT", func() { count = p.integer("COUNT", "a positive number of reservations", 1, maxPullCount) }},
	)
	if p.err != "" {
		return p.err
	}

	orders, next, found, err := c.Sales.Orders(ctx, sku, cursor, count)

	switch {
	case errors.Is(err, seckill.ErrBadCursor):
		return Error("ERR invalid cursor: 0 begins, then what SECKILL.ORDERS returned")
	case err != nil:
		return readFailure(err, Array{CodeNotTried, 0, "0"})
	case !found:
		return Array{CodeNotFound, 0, "0"}
	}
	reply := Array{CodeDone, len(orders), next}
	for _, o := range orders {
		reply = append(reply, Array{o.Token, o.User, o.Qty, string(o.Status), o.CreatedAt, o.PayBy, o.OrderID, o.Reason})
	}
	return reply
}

// SECKILL.RESTOCK sku delta [ID request_id]
func seckillRestock(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	sku, units, requestID := p.id("sku"), p.integer("delta", "a number of units", -maxStock, maxStock), ""
	p.options(option{"ID", func() { requestID = p.id("ID") }})
	if p.err != "" {
		return p.err
	}

	restock, err := c.Sales.Restock(ctx, sku, units, requestID)

	if err != nil {
		return failure(err, Array{CodeUncertain, "UNCERTAIN", 0}, Array{CodeNotTried, "BUSY", 0})
	}
	return Array{restockCodes[restock.Outcome], string(restock.Outcome), restock.Left}
}

// restockCodes are the codes of all that SECKILL.RESTOCK's operation can answer.
var restockCodes = map[seckill.Outcome]int{
	seckill.Restocked:    CodeDone,
	seckill.Replayed:     CodeDone,
	seckill.Insufficient: CodeConflict,
	seckill.Conflict:     CodeConflict,
	seckill.TooMany:      CodeConflict,
	seckill.NoSale:       CodeNotFound,
}

// SECKILL.OPEN sku
func seckillOpen(ctx context.Context, c *Connection, args [][]byte) Reply {
	return setWindow(ctx, args, "OPENED", c.Sales.Open)
}

// SECKILL.CLOSE sku
func seckillClose(ctx context.Context, c *Connection, args [][]byte) Reply {
	return setWindow(ctx, args, "CLOSED", c.Sales.Shut)
}

// setWindow is what SECKILL.OPEN and SECKILL.CLOSE have in common.
func setWindow(ctx context.Context, args [][]byte, done string, set func(context.Context, string) (bool, error)) Reply {
	p := parse(args)
	sku := p.id("sku")
	if p.err != "" {
		return p.err
	}

	found, err := set(ctx, sku)

	switch {
	case err != nil:
		return failure(err, Array{CodeUncertain, "UNCERTAIN", sku}, Array{CodeNotTried, "BUSY", sku})
	case !found:
		return Array{CodeNotFound, "NO_SALE", sku}
	default:
		return Array{CodeDone, done, sku}
	}
}

// SECKILL.DROP sku [FORCE]
func seckillDrop(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	sku, force := p.id("sku"), false
	p.options(option{"FORCE", func() { force = true }})
	if p.err != "" {
		return p.err
	}

	dropped, err := c.Sales.Drop(ctx, sku, force)

	switch {
	case err != nil:
		return failure(err, Array{CodeUncertain, "UNCERTAIN", sku, 0}, Array{CodeNotTried, "BUSY", sku, 0})
	case dropped.Outcome == seckill.NoSale:
		return Array{CodeNotFound, "NO_SALE", sku, 0}
	case dropped.Outcome == seckill.Removed:
		return Array{CodeDone, "DROPPED", sku, dropped.Pending}
	default:
		return Array{CodeConflict, string(dropped.Outcome), sku, dropped.Pending}
	}
}

// SECKILL.INFO sku
func seckillInfo(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	sku := p.id("sku")
	if p.err != "" {
		return p.err
	}

	info, found, err := c.Sales.Info(ctx, sku)

	switch {
	case err != nil:
		return readFailure(err, Array{CodeNotTried, "BUSY", Map{}})
	case !found:
		return Array{CodeNotFound, "NO_SALE", Map{}}
	}
	queues := make(Array, len(info.Queues))
	for i, queue := range info.Queues {
		queues[i] = queue
	}
	return Array{CodeDone, "INFO", Map{
		"sku", sku,
		"state", string(info.State),
		"stock", info.Stock,
		"restocked", info.Restocked,
		"available", info.Available,
		"in_transit", info.InTransit,
		"pending", info.Pending,
		"confirmed", info.Confirmed,
		"cancelled", info.Cancelled,
		"expired", info.Expired,
		"limit", info.Limit,
		"shards", info.Shards,
		"open_at", info.OpenAt,
		"close_at", info.CloseAt,
		"pay_ttl_ms", info.PayTTL,
		"rate_count", info.RateCount,
		"rate_window_ms", info.RateWindow,
		"created_at", info.CreatedAt,
		"buyers", info.Buyers,
		"orders", info.Orders,
		"queue_length", info.QueueLength,
		"queues", queues,
		"results", c.Sales.ResultsChannel(),
	}}
}

// SECKILL.LIST
func seckillList(ctx context.Context, c *Connection, _ [][]byte) Reply {
	sales, err := c.Sales.List(ctx)

	if err != nil {
		return readFailure(err, Array{CodeNotTried, 0})
	}
	reply := Array{CodeDone, len(sales)}
	for _, sale := range sales {
		reply = append(reply, Array{sale.SKU, string(sale.State), sale.Left})
	}
	return reply
}

// SECKILL.AUDIT sku
func seckillAudit(ctx context.Context, c *Connection, args [][]byte) Reply {
	p := parse(args)
	sku := p.id("sku")
	if p.err != "" {
		return p.err
	}

	audit, found, err := c.Sales.Audit(ctx, sku)

	switch {
	case err != nil:
		return readFailure(err, Array{CodeNotTried, "BUSY", Map{}, Array{}})
	case !found:
		return Array{CodeNotFound, "NO_SALE", Map{}, Array{}}
	}
	sides := Map{
		"stock", audit.Stock,
		"restocked", audit.Restocked,
		"available", audit.Available,
		"in_transit", audit.InTransit,
		"pending", audit.Pending,
		"confirmed", audit.Confirmed,
		"cancelled", audit.Cancelled,
		"expired", audit.Expired,
		"orders", audit.Orders,
		"recorded_pending", audit.RecordedPending,
		"recorded_confirmed", audit.RecordedConfirmed,
		"recorded_cancelled", audit.RecordedCancelled,
		"recorded_expired", audit.RecordedExpired,
		"recorded_orders", audit.RecordedOrders,
		"recorded_buyers", audit.RecordedBuyers,
		"recorded_queue", audit.RecordedQueue,
		"differences", audit.Differences,
	}
	switch {
	case audit.Differences == 0 && audit.Partial:
		return Array{CodeUncertain, "MOVING", sides, Array{}}
	case audit.Differences == 0:
		return Array{CodeDone, "CLEAN", sides, Array{}}
	}
	named := make(Array, len(audit.Named))
	for i, d := range audit.Named {
		named[i] = Array{d.What, d.Expected, d.Found}
	}
	return Array{CodeConflict, "DAMAGED", sides, named}
}
