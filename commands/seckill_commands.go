package commands

import (
	"context"
	"slices"

	"seckill-proxy/commands/seckill"
)

// Limits of the SECKILL arguments. Units are bounded so that sums of them stay
// far below 2^53, above which Lua's numbers lose units.
const (
	maxStock       = 1_000_000_000
	maxQty         = 1_000_000
	maxReasonBytes = 256
	maxPullCount   = 1_000
)

// Arguments and outcomes that several commands of the family have.
var (
	skuArgument      = Argument{Name: "sku", Type: "string", Summary: "what is sold, 1 to 256 bytes"}
	tokenArgument    = Argument{Name: "token", Type: "string", Summary: "the reservation, as SECKILL.BUY returned it"}
	settleNoSale     = Outcome{404, "NO_SALE", `[404 NO_SALE token ""]`, "The sale is gone"}
	settleNoOrder    = Outcome{404, "NO_RESERVATION", `[404 NO_RESERVATION token ""]`, "The sale has no reservation with this token"}
	settleUncertain  = Outcome{202, "UNCERTAIN", `[202 UNCERTAIN token ""]`, "The reply of Redis was lost: ask again, which does no harm"}
	settleNotTried   = Outcome{503, "BUSY", `[503 BUSY token ""]`, "Not executed, try later"}
	settleReplayed   = Outcome{200, "REPLAYED", "[200 REPLAYED token order_id]", "It was so before, nothing changed"}
	settleConfirmed  = Outcome{409, "CONFIRMED", "[409 CONFIRMED token order_id]", "It is confirmed, under the order id in the reply, and stays so"}
	settleCancelled  = Outcome{409, "CANCELLED", `[409 CANCELLED token ""]`, "It is cancelled and stays so"}
	readNotTried     = "Redis can't be read now, try later"
	nothingThereSale = "There is no sale of this SKU, or its keys were lost"
)

// seckillCommands are the rows of the SECKILL family.
var seckillCommands = []Command{
	{
		Name:       "SECKILL.CREATE",
		Arity:      -3,
		Group:      "seckill",
		Flags:      []string{"write", "denyoom"},
		Categories: []string{"@write", "@slow"},
		Since:      "1.0.0",
		Summary:    "Creates a sale and opens it, unless there is one of this SKU",
		Complexity: "O(log(N)) where N is the number of sales",
		Arguments: []Argument{
			skuArgument,
			{Name: "stock", Type: "integer", Summary: "units for sale, 0 to 1000000000"},
			{Name: "n", Type: "integer", Token: "LIMIT", Optional: true, Summary: "units that one user may hold, 1 by default, 0 for no limit"},
		},
		Replies: []Outcome{
			{200, "CREATED", "[200 CREATED sku shards]", "The sale is open; its stock lies in so many shards"},
			{409, "EXISTS", "[409 EXISTS sku shards]", "There is a sale of this SKU, which stays as it is"},
			{202, "UNCERTAIN", "[202 UNCERTAIN sku 0]", "The reply of Redis was lost: SECKILL.INFO tells whether the sale is there; creating again does no harm"},
			{503, "BUSY", "[503 BUSY sku 0]", "Not executed, try later"},
		},
		Handle: seckillCreate,
	},
	{
		Name:       "SECKILL.BUY",
		Arity:      -3,
		Group:      "seckill",
		Flags:      []string{"write", "denyoom", "fast"},
		Categories: []string{"@write", "@fast"},
		Since:      "1.0.0",
		Summary:    "Reserves units of a sale for a user and queues the order",
		Complexity: "O(1)",
		Arguments: []Argument{
			skuArgument,
			{Name: "user", Type: "string", Summary: "who buys, 1 to 256 bytes"},
			{Name: "n", Type: "integer", Token: "QTY", Optional: true, Summary: "units, 1 to 1000000, 1 by default"},
			{Name: "request_id", Type: "string", Token: "ID", Optional: true, Summary: "of the user's purchase, 1 to 256 bytes: asked again with it, the answer is the same reservation and nothing is bought twice"},
		},
		Replies: []Outcome{
			{200, "RESERVED", "[200 RESERVED token left at]", "The units are the user's; left are still on sale, as this shard knows; at is when the reservation ends unless it is settled, 0 for never"},
			{200, "REPLAYED", "[200 REPLAYED token left at]", "This user's request was reserved before, under this token, whatever QTY says now; it may be settled since, and SECKILL.RESULT says what became of it; who cancelled buys again with a new request id"},
			{202, "UNCERTAIN", `[202 UNCERTAIN "" 0 0]`, "The reply of Redis was lost: ask again with the same request id"},
			{4001, "SOLD_OUT", `[4001 SOLD_OUT "" left 0]`, "Fewer units are left than were asked for"},
			{4002, "LIMIT", "[4002 LIMIT token left 0]", `The user would hold more than one user may; token is that of the user's latest reservation that holds units, "" for none`},
			{404, "NO_SALE", `[404 NO_SALE "" 0 0]`, nothingThereSale},
			{503, "BUSY", `[503 BUSY "" 0 0]`, "Not executed, try later"},
		},
		Concurrent: true,
		Handle:     seckillBuy,
	},
	{
		Name:       "SECKILL.CONFIRM",
		Arity:      3,
		Group:      "seckill",
		Flags:      []string{"write", "fast"},
		Categories: []string{"@write", "@fast"},
		Since:      "1.0.0",
		Summary:    "Makes a reservation a sale and acknowledges its order",
		Complexity: "O(1)",
		Arguments: []Argument{
			tokenArgument,
			{Name: "order_id", Type: "string", Summary: "the shop's id of the order, 1 to 256 bytes"},
		},
		Replies: []Outcome{
			{200, "CONFIRMED", "[200 CONFIRMED token order_id]", "The units are sold"},
			settleReplayed, settleConfirmed, settleCancelled, settleNoOrder, settleNoSale, settleUncertain, settleNotTried,
		},
		Handle: seckillConfirm,
	},
	{
		Name:       "SECKILL.CANCEL",
		Arity:      -2,
		Group:      "seckill",
		Flags:      []string{"write", "fast"},
		Categories: []string{"@write", "@fast"},
		Since:      "1.0.0",
		Summary:    "Gives a reservation's units back to the sale and acknowledges its order",
		Complexity: "O(1)",
		Arguments: []Argument{
			tokenArgument,
			{Name: "reason", Type: "string", Optional: true, Summary: "up to 256 bytes that SECKILL.RESULT returns"},
		},
		Replies: []Outcome{
			{200, "CANCELLED", `[200 CANCELLED token ""]`, "The units are on sale again and the user may buy again"},
			{200, "REPLAYED", `[200 REPLAYED token ""]`, "It was cancelled before, nothing changed"},
			settleConfirmed, settleNoOrder, settleNoSale, settleUncertain, settleNotTried,
		},
		Handle: seckillCancel,
	},
	{
		Name:       "SECKILL.RESULT",
		Arity:      2,
		Group:      "seckill",
		Flags:      []string{"readonly", "fast"},
		Categories: []string{"@read", "@fast"},
		Since:      "1.0.0",
		Summary:    "Returns what became of a reservation",
		Complexity: "O(1)",
		Arguments:  []Argument{tokenArgument},
		Replies: []Outcome{
			{200, "PENDING", `[200 PENDING token "" ""]`, "Reserved, neither confirmed nor cancelled"},
			{200, "CONFIRMED", `[200 CONFIRMED token order_id ""]`, "Sold"},
			{200, "CANCELLED", `[200 CANCELLED token "" reason]`, "Given back"},
			{404, "NO_RESERVATION", `[404 NO_RESERVATION token "" ""]`, settleNoOrder.Meaning},
			{404, "NO_SALE", `[404 NO_SALE token "" ""]`, settleNoSale.Meaning},
			{503, "BUSY", `[503 BUSY token "" ""]`, readNotTried},
		},
		Handle: seckillResult,
	},
	{
		Name:       "SECKILL.PULL",
		Arity:      -3,
		Group:      "seckill",
		Flags:      []string{"write"},
		Categories: []string{"@write", "@slow"},
		Since:      "1.0.0",
		Summary:    "Hands pending orders to a worker, who settles each with SECKILL.CONFIRM or SECKILL.CANCEL",
		Complexity: "O(N) where N is the number of orders returned, plus O(1000) for those that other workers have",
		Arguments: []Argument{
			skuArgument,
			{Name: "consumer", Type: "string", Summary: "the worker's own name, 1 to 256 bytes"},
			{Name: "n", Type: "integer", Token: "COUNT", Optional: true, Summary: "most orders to return, 1 to 1000, 1 by default"},
		},
		Replies: []Outcome{
			{200, "", "[200 n [token user qty created_at delivery]…]", "n orders; created_at is when each was reserved, delivery is 1 the first time. An order that isn't settled within seckill.takeover_ms is handed out again, with a delivery one higher, to whichever worker asks first, be it the same; a worker that starts again under its old name waits as long for the orders that it had"},
			{404, "", "[404 0]", nothingThereSale},
			{202, "", "[202 0]", "The reply of Redis was lost: orders that were handed out are handed out again when their time is over"},
			{503, "", "[503 0]", "Not executed, try later"},
		},
		Handle: seckillPull,
	},
	{
		Name:       "SECKILL.INFO",
		Arity:      2,
		Group:      "seckill",
		Flags:      []string{"readonly", "fast"},
		Categories: []string{"@read", "@fast"},
		Since:      "1.0.0",
		Summary:    "Returns how a sale is configured and how it stands",
		Complexity: "O(1)",
		Arguments:  []Argument{skuArgument},
		Replies: []Outcome{
			{200, "INFO", "[200 INFO {field value…}]", "Fields: sku, state (OPEN, also when all is sold), stock, restocked, available, pending, confirmed, cancelled, limit, shards, created_at, buyers, orders, queue_length, queues (the keys of the order streams, which have the consumer group workers), results (the channel on which settled orders are published, seckill:results unless seckill.prefix is another)"},
			{404, "NO_SALE", "[404 NO_SALE {}]", nothingThereSale},
			{503, "BUSY", "[503 BUSY {}]", readNotTried},
		},
		Handle: seckillInfo,
	},
	{
		Name:       "SECKILL.LIST",
		Arity:      1,
		Group:      "seckill",
		Flags:      []string{"readonly"},
		Categories: []string{"@read", "@slow"},
		Since:      "1.0.0",
		Summary:    "Lists the sales in the order of their SKUs, the first 10000",
		Complexity: "O(N) where N is the number of sales",
		Replies: []Outcome{
			{200, "", "[200 n [sku state left]…]", "n sales; state is OPEN, also when left is 0, or DAMAGED where a counter can't be read"},
			{503, "", "[503 0]", readNotTried},
		},
		Handle: seckillList,
	},
	{
		Name:       "SECKILL.AUDIT",
		Arity:      2,
		Group:      "seckill",
		Flags:      []string{"readonly"},
		Categories: []string{"@read", "@slow"},
		Since:      "1.0.0",
		Summary:    "Recomputes a sale from its records and names each difference",
		Complexity: "O(N) where N is the number of reservations ever made; Redis does nothing else meanwhile",
		Arguments:  []Argument{skuArgument},
		Replies: []Outcome{
			{200, "CLEAN", "[200 CLEAN {field value…} []]", "stock + restocked = available + in_transit + pending + confirmed, and counters, order records, marks of buyers and queue agree; fields that begin with recorded_ are computed from the records"},
			{409, "DAMAGED", "[409 DAMAGED {field value…} [[what expected found]…]]", "Something differs; the field differences counts all, the first 100 are named; for a thing that is missing expected and found are 1 and 0, for one too much 0 and 1"},
			{404, "NO_SALE", "[404 NO_SALE {} []]", "There is nothing of such a sale"},
			{503, "BUSY", "[503 BUSY {} []]", readNotTried},
		},
		Handle: seckillAudit,
	},
}

// option is a keyword that a command takes, and what takes its value.
type option struct {
	keyword string
	take    func()
}

// options takes all arguments that are left: the allowed options, in any order,
// each at most once.
func (p *parser) options(allowed ...option) {
	given := make(map[string]bool, len(allowed))
	for p.more() {
		keyword := p.option()
		i := slices.IndexFunc(allowed, func(o option) bool { return o.keyword == keyword })
		switch {
		case i < 0:
			var keywords []string
			for _, o := range allowed {
				keywords = append(keywords, o.keyword)
			}
			p.unknownOption(keyword, keywords...)
		case given[keyword]:
			p.failf("ERR syntax error: %s is given twice", keyword)
		default:
			given[keyword] = true
			allowed[i].take()
		}
	}
}

// SECKILL.CREATE sku stock [LIMIT n]
func seckillCreate(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	sale := seckill.Sale{
		SKU:   p.id("sku"),
		Stock: p.integer("stock", "a number of units", 0, maxStock),
		Limit: 1,
	}
	p.options(
		option{"LIMIT", func() { sale.Limit = p.integer("LIMIT", "a number of units, 0 for no limit", 0, maxStock) }},
	)
	if p.err != "" {
		return p.err
	}

	created, err := b.Sales.Create(ctx, sale)

	switch {
	case err != nil:
		return failure(err, Array{CodeUncertain, "UNCERTAIN", sale.SKU, 0}, Array{CodeNotTried, "BUSY", sale.SKU, 0})
	case created.Exists:
		return Array{CodeConflict, "EXISTS", sale.SKU, created.Shards}
	default:
		return Array{CodeDone, "CREATED", sale.SKU, created.Shards}
	}
}

// SECKILL.BUY sku user [QTY n] [ID request_id]
func seckillBuy(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	purchase := seckill.Purchase{SKU: p.id("sku"), User: p.id("user"), Qty: 1}
	p.options(
		option{"QTY", func() { purchase.Qty = p.integer("QTY", "a positive number of units", 1, maxQty) }},
		option{"ID", func() { purchase.RequestID = p.id("ID") }},
	)
	if p.err != "" {
		return p.err
	}

	receipt, err := b.Sales.Buy(ctx, purchase)

	if err != nil {
		return failure(err, Array{CodeUncertain, "UNCERTAIN", "", 0, 0}, Array{CodeNotTried, "BUSY", "", 0, 0})
	}
	return Array{purchaseCodes[receipt.Outcome], string(receipt.Outcome), receipt.Token, receipt.Left, receipt.PayBy}
}

// purchaseCodes are the codes of all that SECKILL.BUY's operation can answer.
var purchaseCodes = map[seckill.Outcome]int{
	seckill.Reserved:     CodeDone,
	seckill.Replayed:     CodeDone,
	seckill.SoldOut:      CodeSoldOut,
	seckill.LimitReached: CodeLimit,
	seckill.NoSale:       CodeNotFound,
}

// SECKILL.CONFIRM token order_id
func seckillConfirm(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	token, orderID := p.text("token", 1, seckill.MaxTokenBytes), p.id("order_id")
	if p.err != "" {
		return p.err
	}

	settlement, err := b.Sales.Confirm(ctx, token, orderID)

	return settlementReply(token, settlement, err)
}

// SECKILL.CANCEL token [reason]
func seckillCancel(ctx context.Context, b *Backend, args [][]byte) Reply {
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

	settlement, err := b.Sales.Cancel(ctx, token, reason)

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
	default: // NoSale, NoReservation
		return Array{CodeNotFound, string(settlement.Outcome), token, ""}
	}
}

// SECKILL.RESULT token
func seckillResult(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	token := p.text("token", 1, seckill.MaxTokenBytes)
	if p.err != "" {
		return p.err
	}

	reservation, err := b.Sales.Result(ctx, token)

	switch {
	case err != nil:
		return readFailure(err, Array{CodeNotTried, "BUSY", token, "", ""})
	case reservation.Outcome != seckill.Found:
		return Array{CodeNotFound, string(reservation.Outcome), token, "", ""}
	default:
		return Array{CodeDone, string(reservation.Status), token, reservation.OrderID, reservation.Reason}
	}
}

// SECKILL.PULL sku consumer [COUNT n]
func seckillPull(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	sku, consumer, count := p.id("sku"), p.id("consumer"), int64(1)
	p.options(
		option{"COUNT", func() { count = p.integer("COUNT", "a positive number of orders", 1, maxPullCount) }},
	)
	if p.err != "" {
		return p.err
	}

	deliveries, found, err := b.Sales.Pull(ctx, sku, consumer, count)

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

// SECKILL.INFO sku
func seckillInfo(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	sku := p.id("sku")
	if p.err != "" {
		return p.err
	}

	info, found, err := b.Sales.Info(ctx, sku)

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
		"pending", info.Pending,
		"confirmed", info.Confirmed,
		"cancelled", info.Cancelled,
		"limit", info.Limit,
		"shards", info.Shards,
		"created_at", info.CreatedAt,
		"buyers", info.Buyers,
		"orders", info.Orders,
		"queue_length", info.QueueLength,
		"queues", queues,
		"results", b.Sales.ResultsChannel(),
	}}
}

// SECKILL.LIST
func seckillList(ctx context.Context, b *Backend, _ [][]byte) Reply {
	sales, err := b.Sales.List(ctx)

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
func seckillAudit(ctx context.Context, b *Backend, args [][]byte) Reply {
	p := parse(args)
	sku := p.id("sku")
	if p.err != "" {
		return p.err
	}

	audit, found, err := b.Sales.Audit(ctx, sku)

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
		"orders", audit.Orders,
		"recorded_pending", audit.RecordedPending,
		"recorded_confirmed", audit.RecordedConfirmed,
		"recorded_cancelled", audit.RecordedCancelled,
		"recorded_orders", audit.RecordedOrders,
		"recorded_buyers", audit.RecordedBuyers,
		"recorded_queue", audit.RecordedQueue,
		"differences", audit.Differences,
	}
	if audit.Differences == 0 {
		return Array{CodeDone, "CLEAN", sides, Array{}}
	}
	named := make(Array, len(audit.Named))
	for i, d := range audit.Named {
		named[i] = Array{d.What, d.Expected, d.Found}
	}
	return Array{CodeConflict, "DAMAGED", sides, named}
}
