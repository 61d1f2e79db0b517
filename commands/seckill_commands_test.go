package commands

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"seckill-proxy/commands/seckill"
	"seckill-proxy/internal/redistest"
)

func seckillClient(t testing.TB, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// onEverySeckillBackend runs a test on a real redis-server and on the embedded
// store.
func onEverySeckillBackend(t *testing.T, test func(t *testing.T, b *Backend, rdb *redis.Client)) {
	for name, addr := range map[string]func() string{
		"redis":    func() string { return redistest.Start(t, redistest.Options{}).Addr },
		"embedded": func() string { return miniredis.RunT(t).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			rdb := seckillClient(t, addr())
			sales := seckill.New(rdb, seckill.Options{})
			t.Cleanup(sales.Close)
			test(t, &Backend{Sales: sales}, rdb)
		})
	}
}

// callSeckill calls a command as a client writes it; arguments may have any
// bytes, so they come one by one.
func callSeckill(t testing.TB, b *Backend, name string, args ...string) Reply {
	t.Helper()
	var raw [][]byte
	for _, arg := range args {
		raw = append(raw, []byte(arg))
	}
	for i := range seckillCommands {
		row := &seckillCommands[i]
		if row.Name == "SECKILL."+name {
			if err := row.ArityError(1 + len(args)); err != "" {
				return err
			}
			return row.Handle(t.Context(), &Connection{Backend: b}, raw)
		}
	}
	t.Fatalf("no command %q", name)
	return nil
}

// integers makes replies comparable: int and int64 are the same on the wire.
func integers(r Reply) Reply {
	switch r := r.(type) {
	case int:
		return int64(r)
	case Array:
		out := make(Array, len(r))
		for i := range r {
			out[i] = integers(r[i])
		}
		return out
	case Map:
		return Map(integers(Array(r)).(Array))
	default:
		return r
	}
}

func expectSeckill(t testing.TB, got Reply, want ...Reply) {
	t.Helper()
	if !reflect.DeepEqual(integers(got), integers(Array(want))) {
		t.Fatalf("got %#v\nwant %#v", got, want)
	}
}

func TestSeckillReplies(t *testing.T) {
	onEverySeckillBackend(t, func(t *testing.T, b *Backend, _ *redis.Client) {
		call := func(line string) Reply {
			t.Helper()
			words := strings.Fields(line)
			return callSeckill(t, b, words[0], words[1:]...)
		}
		expectSeckill(t, call("LIST"), 200, 0)
		expectSeckill(t, call("BUY sku u"), 404, "NO_SALE", "", 0, 0)
		expectSeckill(t, call("INFO sku"), 404, "NO_SALE", Map{})
		expectSeckill(t, call("AUDIT sku"), 404, "NO_SALE", Map{}, Array{})
		expectSeckill(t, call("PULL sku w"), 404, 0)
		expectSeckill(t, call("FIND sku u"), 404, 0)
		expectSeckill(t, call("ORDERS sku 0"), 404, 0, "0")
		expectSeckill(t, call("RESTOCK sku 5"), 404, "NO_SALE", 0)
		expectSeckill(t, call("OPEN sku"), 404, "NO_SALE", "sku")
		expectSeckill(t, call("CLOSE sku"), 404, "NO_SALE", "sku")
		expectSeckill(t, call("DROP sku"), 404, "NO_SALE", "sku", 0)
		expectSeckill(t, call("DROP sku FORCE"), 404, "NO_SALE", "sku", 0)

		expectSeckill(t, call("CREATE sku 5 LIMIT 2"), 200, "CREATED", "sku", 1)
		expectSeckill(t, call("CREATE sku 9"), 409, "EXISTS", "sku", 1)

		bought := call("BUY sku u ID r").(Array)
		first := bought[2].(string)
		expectSeckill(t, bought, 200, "RESERVED", first, 4, 0)
		expectSeckill(t, call("BUY sku u qty 2 id r"), 200, "REPLAYED", first, 4, 0)
		expectSeckill(t, call("BUY sku u QTY 2"), 4002, "LIMIT", first, 4, 0)
		expectSeckill(t, call("BUY sku nobody QTY 3"), 4002, "LIMIT", "", 4, 0)
		second := call("BUY sku v ID r QTY 2").(Array)[2].(string)
		third := call("BUY sku w").(Array)[2].(string)
		expectSeckill(t, call("BUY sku x QTY 2"), 4001, "SOLD_OUT", "", 1, 0)

		pulled := call("PULL sku worker COUNT 2").(Array)
		expectSeckill(t, pulled, 200, 2,
			Array{first, "u", 1, pulled[2].(Array)[3], 1}, Array{second, "v", 2, pulled[3].(Array)[3], 1})
		expectSeckill(t, call("PULL sku worker").(Array)[:2], 200, 1)
		expectSeckill(t, call("PULL sku worker"), 200, 0)

		expectSeckill(t, call("RESULT "+first), 200, "PENDING", first, "", "")
		expectSeckill(t, call("CONFIRM "+first+" o1"), 200, "CONFIRMED", first, "o1")
		expectSeckill(t, call("CONFIRM "+first+" o1"), 200, "REPLAYED", first, "o1")
		expectSeckill(t, call("CONFIRM "+first+" o2"), 409, "CONFIRMED", first, "o1")
		expectSeckill(t, call("CANCEL "+first), 409, "CONFIRMED", first, "o1")
		expectSeckill(t, call("CANCEL "+second+" late"), 200, "CANCELLED", second, "")
		expectSeckill(t, call("CANCEL "+second+" other"), 200, "REPLAYED", second, "")
		expectSeckill(t, call("CONFIRM "+second+" o"), 409, "CANCELLED", second, "")
		expectSeckill(t, call("RESULT "+first), 200, "CONFIRMED", first, "o1", "")
		expectSeckill(t, call("RESULT "+second), 200, "CANCELLED", second, "", "late")
		expectSeckill(t, callSeckill(t, b, "CANCEL", third, ""), 200, "CANCELLED", third, "")
		for _, unknown := range []string{first[:len(first)-1] + "x", first[:len(first)-24] + strings.Repeat("0", 24), "nonsense"} {
			expectSeckill(t, call("CONFIRM "+unknown+" o"), 404, "NO_RESERVATION", unknown, "")
			expectSeckill(t, call("CANCEL "+unknown), 404, "NO_RESERVATION", unknown, "")
			expectSeckill(t, call("RESULT "+unknown), 404, "NO_RESERVATION", unknown, "", "")
		}

		info := call("INFO sku").(Array)
		fields := info[2].(Map)
		expectSeckill(t, info, 200, "INFO", Map{
			"sku", "sku", "state", "OPEN", "stock", 5, "restocked", 0, "available", 4, "in_transit", 0, "pending", 0, "confirmed", 1,
			"cancelled", 3, "expired", 0, "limit", 2, "shards", 1, "open_at", 0, "close_at", 0, "pay_ttl_ms", 0,
			"rate_count", 0, "rate_window_ms", 0, "created_at", fields[35], "buyers", 3, "orders", 3, "queue_length", 0,
			"queues", fields[43], "results", "seckill:results",
		})
		expectSeckill(t, call("LIST"), 200, 1, Array{"sku", "OPEN", 4})
		audit := Map{
			"stock", 5, "restocked", 0, "available", 4, "in_transit", 0, "pending", 0, "confirmed", 1, "cancelled", 3, "expired", 0, "orders", 3,
			"recorded_pending", 0, "recorded_confirmed", 1, "recorded_cancelled", 3, "recorded_expired", 0, "recorded_orders", 3,
			"recorded_buyers", 3, "recorded_queue", 0, "differences", 0,
		}
		expectSeckill(t, call("AUDIT sku"), 200, "CLEAN", audit, Array{})
	})
}

// What the life of a sale brings besides purchases.
func TestSeckillRepliesOfASalesLife(t *testing.T) {
	onEverySeckillBackend(t, func(t *testing.T, b *Backend, _ *redis.Client) {
		call := func(line string) Reply {
			t.Helper()
			words := strings.Fields(line)
			return callSeckill(t, b, words[0], words[1:]...)
		}
		expectSeckill(t, call("CREATE sku 10 LIMIT 0 SHARDS 3 PAYTTL 3600000 OPEN 99999999999999"), 200, "CREATED", "sku", 3)
		expectSeckill(t, call("BUY sku u"), 4003, "NOT_OPEN", "", 0, 99999999999999)
		expectSeckill(t, call("LIST"), 200, 1, Array{"sku", "NOT_OPEN", 10})
		expectSeckill(t, call("OPEN sku"), 200, "OPENED", "sku")

		bought := call("BUY sku u QTY 9 ID r").(Array)
		token, payBy := bought[2].(string), bought[4].(int64)
		if bought[0] != 200 || payBy == 0 {
			t.Errorf("units of three shards: %v", bought)
		}
		expectSeckill(t, call("BUY sku v QTY 2"), 4001, "SOLD_OUT", "", 1, 0)
		expectSeckill(t, call("FIND sku u"), 200, 1, token)
		expectSeckill(t, call("FIND sku v"), 200, 0)
		var listed []Reply
		for cursor := "0"; ; {
			page := call("ORDERS sku " + cursor + " COUNT 10").(Array)
			listed = append(listed, page[3:]...)
			if cursor = page[2].(string); cursor == "0" {
				break
			}
		}
		expectSeckill(t, Array(listed), Array{token, "u", 9, "PENDING", payBy - 3600000, payBy, "", ""})

		expectSeckill(t, call("RESULT "+token+" BLOCK 1"), 408, "PENDING", token, "", "")
		expectSeckill(t, call("PULL sku w BLOCK 1").(Array)[:2], 200, 1)
		expectSeckill(t, call("PULL sku w BLOCK 1"), 200, 0)

		expectSeckill(t, call("RESTOCK sku 5 ID first"), 200, "RESTOCKED", 6)
		expectSeckill(t, call("RESTOCK sku 5 ID first"), 200, "REPLAYED", 6)
		expectSeckill(t, call("RESTOCK sku 6 ID first"), 409, "CONFLICT", 6)
		expectSeckill(t, call("RESTOCK sku -7"), 409, "INSUFFICIENT", 6)
		expectSeckill(t, call("RESTOCK sku -6"), 200, "RESTOCKED", 0)
		expectSeckill(t, call("BUY sku v"), 4001, "SOLD_OUT", "", 0, 0)

		expectSeckill(t, call("DROP sku"), 409, "OPEN", "sku", 9)
		expectSeckill(t, call("CLOSE sku"), 200, "CLOSED", "sku")
		expectSeckill(t, call("BUY sku v"), 4003, "CLOSED", "", 0, 0)
		expectSeckill(t, call("BUY sku u ID r").(Array)[:3], 200, "REPLAYED", token)
		expectSeckill(t, call("DROP sku"), 409, "PENDING", "sku", 9)
		expectSeckill(t, call("CONFIRM "+token+" o"), 200, "CONFIRMED", token, "o")
		expectSeckill(t, call("AUDIT sku").(Array)[:2], 200, "CLEAN")
		expectSeckill(t, call("DROP sku"), 200, "DROPPED", "sku", 0)
		expectSeckill(t, call("RESULT "+token), 404, "NO_SALE", token, "", "")

		expectSeckill(t, call("CREATE fast 10 RATE 1 3600000"), 200, "CREATED", "fast", 1)
		call("BUY fast u")
		limited := call("BUY fast u").(Array)
		if wait, ok := limited[4].(int64); limited[0] != 429 || limited[1] != "RATE_LIMITED" || !ok || wait < 1 || wait > 3600000 {
			t.Errorf("too fast: %v", limited)
		}
	})
}

func TestSeckillAuditOfADamagedSale(t *testing.T) {
	onEverySeckillBackend(t, func(t *testing.T, b *Backend, rdb *redis.Client) {
		callSeckill(t, b, "CREATE", "sku", "5")
		key := rdb.Keys(t.Context(), "seckill:{*}:sale:sku").Val()[0]
		rdb.HSet(t.Context(), key, "available", 6)
		got := callSeckill(t, b, "AUDIT", "sku").(Array)
		expectSeckill(t, got, 409, "DAMAGED", got[2], Array{
			Array{"counter 'available'", 5, 6}, Array{"available + pending + confirmed", 5, 6},
		})
		rdb.HDel(t.Context(), key, "available")
		expectSeckill(t, callSeckill(t, b, "LIST"), 200, 1, Array{"sku", "DAMAGED", 0})
		damaged := Error("ERR damaged sale: its field 'available' is missing or unreadable, SECKILL.AUDIT names all damage")
		if got := callSeckill(t, b, "BUY", "sku", "u"); got != damaged {
			t.Fatalf("BUY: %v", got)
		}
	})
}

func TestS11_BadArgumentsAreNamed(t *testing.T) {
	onEverySeckillBackend(t, func(t *testing.T, b *Backend, _ *redis.Client) {
		callSeckill(t, b, "CREATE", "sku", "10")
		long := strings.Repeat("x", 257)
		const (
			stock = "ERR syntax error: stock needs a number of units (0 to 1000000000)"
			limit = "ERR syntax error: LIMIT needs a number of units, 0 for no limit (0 to 1000000000)"
			qty   = "ERR syntax error: QTY needs a positive number of units (1 to 1000000)"
			block = "ERR syntax error: BLOCK needs a positive integer of milliseconds (1 to 86400000)"
			count = "ERR syntax error: COUNT needs a positive number of orders (1 to 1000)"
		)
		arity := func(name string) string { return "ERR wrong number of arguments for 'seckill." + name + "' command" }
		for _, c := range []struct {
			want string
			name string
			args []string
		}{
			{stock, "CREATE", []string{"new", "-1"}},
			{stock, "CREATE", []string{"new", "1.5"}},
			{stock, "CREATE", []string{"new", "1e3"}},
			{stock, "CREATE", []string{"new", ""}},
			{stock, "CREATE", []string{"new", "+1"}},
			{stock, "CREATE", []string{"new", "01"}},
			{stock, "CREATE", []string{"new", " 1"}},
			{stock, "CREATE", []string{"new", "-0"}},
			{stock, "CREATE", []string{"new", "1000000001"}},
			{stock, "CREATE", []string{"new", "99999999999999999999"}},
			{limit, "CREATE", []string{"new", "1", "LIMIT", "-1"}},
			{limit, "CREATE", []string{"new", "1", "LIMIT", "x"}},
			{"ERR syntax error: LIMIT needs a value", "CREATE", []string{"new", "1", "LIMIT"}},
			{"ERR syntax error: LIMIT is given twice", "CREATE", []string{"new", "1", "LIMIT", "1", "limit", "1"}},
			{`ERR syntax error: unknown option "SHARD", allowed are LIMIT, OPEN, CLOSE, PAYTTL, SHARDS, RATE`, "CREATE", []string{"new", "1", "SHARD", "4"}},
			{"ERR syntax error: SHARDS needs a number of shards (1 to 128)", "CREATE", []string{"new", "1", "SHARDS", "0"}},
			{"ERR syntax error: SHARDS needs a number of shards (1 to 128)", "CREATE", []string{"new", "1", "SHARDS", "129"}},
			{"ERR syntax error: PAYTTL needs a positive integer of milliseconds (1 to 31536000000)", "CREATE", []string{"new", "1", "PAYTTL", "0"}},
			{"ERR syntax error: OPEN needs a time in Unix milliseconds, or 0 for none (1000000000000 to 100000000000000)", "CREATE", []string{"new", "1", "OPEN", "tomorrow"}},
			{"ERR syntax error: CLOSE needs a time in Unix milliseconds, or 0 for none (1000000000000 to 100000000000000)", "CREATE", []string{"new", "1", "CLOSE", "1796086067"}},
			{"ERR syntax error: CLOSE needs a time after OPEN", "CREATE", []string{"new", "1", "OPEN", "1796086067000", "CLOSE", "1796086067000"}},
			{"ERR syntax error: RATE needs a positive number of purchases (1 to 1000000)", "CREATE", []string{"new", "1", "RATE", "0", "5"}},
			{"ERR syntax error: the window of RATE needs a value", "CREATE", []string{"new", "1", "RATE", "5"}},
			{"ERR syntax error: the window of RATE needs a positive integer of milliseconds (1 to 86400000)", "CREATE", []string{"new", "1", "RATE", "5", "0"}},
			{"ERR invalid sku: 0 bytes, allowed are 1 to 256", "CREATE", []string{"", "1"}},
			{"ERR invalid sku: 257 bytes, allowed are 1 to 256", "CREATE", []string{long, "1"}},
			{qty, "BUY", []string{"sku", "u", "QTY", "0"}},
			{qty, "BUY", []string{"sku", "u", "QTY", "-1"}},
			{qty, "BUY", []string{"sku", "u", "QTY", "1.5"}},
			{qty, "BUY", []string{"sku", "u", "QTY", "1000001"}},
			{qty, "BUY", []string{"sku", "u", "QTY", "99999999999999999999"}},
			{"ERR syntax error: QTY needs a value", "BUY", []string{"sku", "u", "QTY"}},
			{"ERR syntax error: QTY is given twice", "BUY", []string{"sku", "u", "QTY", "1", "QTY", "1"}},
			{"ERR invalid ID: 0 bytes, allowed are 1 to 256", "BUY", []string{"sku", "u", "ID", ""}},
			{"ERR invalid ID: 257 bytes, allowed are 1 to 256", "BUY", []string{"sku", "u", "ID", long}},
			{`ERR syntax error: unknown option "QUANTITY", allowed are QTY, ID, SYNC`, "BUY", []string{"sku", "u", "quantity", "1"}},
			{`ERR syntax error: unknown option "\r\n\x00", allowed are QTY, ID, SYNC`, "BUY", []string{"sku", "u", "\r\n\x00"}},
			{"ERR invalid sku: 0 bytes, allowed are 1 to 256", "BUY", []string{"", "u"}},
			{"ERR invalid user: 0 bytes, allowed are 1 to 256", "BUY", []string{"sku", ""}},
			{"ERR invalid user: 257 bytes, allowed are 1 to 256", "BUY", []string{"sku", long}},
			{"ERR invalid order_id: 0 bytes, allowed are 1 to 256", "CONFIRM", []string{"t", ""}},
			{"ERR invalid token: 0 bytes, allowed are 1 to 372", "CONFIRM", []string{"", "o"}},
			{"ERR invalid token: 373 bytes, allowed are 1 to 372", "RESULT", []string{strings.Repeat("t", 373)}},
			{"ERR invalid reason: 257 bytes, allowed are 0 to 256", "CANCEL", []string{"t", long}},
			{"ERR invalid token: 0 bytes, allowed are 1 to 372", "CANCEL", []string{""}},
			{count, "PULL", []string{"sku", "w", "COUNT", "0"}},
			{count, "PULL", []string{"sku", "w", "COUNT", "1001"}},
			{"ERR invalid consumer: 0 bytes, allowed are 1 to 256", "PULL", []string{"sku", ""}},
			{`ERR syntax error: unknown option "WAIT", allowed are COUNT, BLOCK`, "PULL", []string{"sku", "w", "WAIT", "5"}},
			{block, "PULL", []string{"sku", "w", "BLOCK", "0"}},
			{block, "RESULT", []string{"t", "BLOCK", "-1"}},
			{block, "RESULT", []string{"t", "BLOCK", "86400001"}},
			{"ERR syntax error: SYNC needs a number of replicas (0 to 100)", "BUY", []string{"sku", "u", "SYNC", "-1"}},
			{"ERR syntax error: delta needs a number of units (-1000000000 to 1000000000)", "RESTOCK", []string{"sku", "1.5"}},
			{`ERR syntax error: unknown option "NOW", allowed are FORCE`, "DROP", []string{"sku", "NOW"}},
			{"ERR invalid cursor: 0 begins, then what SECKILL.ORDERS returned", "ORDERS", []string{"sku", "-1"}},
			{"ERR invalid user: 0 bytes, allowed are 1 to 256", "FIND", []string{"sku", ""}},
			{"ERR invalid sku: 0 bytes, allowed are 1 to 256", "INFO", []string{""}},
			{"ERR invalid sku: 0 bytes, allowed are 1 to 256", "AUDIT", []string{""}},
			{arity("create"), "CREATE", []string{"new"}},
			{arity("buy"), "BUY", []string{"sku"}},
			{arity("confirm"), "CONFIRM", []string{"t", "o", "x"}},
			{arity("cancel"), "CANCEL", []string{"t", "r", "x"}},
			{arity("result"), "RESULT", nil},
			{arity("find"), "FIND", []string{"sku"}},
			{arity("orders"), "ORDERS", []string{"sku"}},
			{arity("restock"), "RESTOCK", []string{"sku"}},
			{arity("open"), "OPEN", nil},
			{arity("close"), "CLOSE", []string{"sku", "x"}},
			{arity("drop"), "DROP", nil},
			{arity("pull"), "PULL", []string{"sku"}},
			{arity("info"), "INFO", nil},
			{arity("list"), "LIST", []string{"x"}},
			{arity("audit"), "AUDIT", []string{"sku", "x"}},
		} {
			if got := callSeckill(t, b, c.name, c.args...); got != Error(c.want) {
				t.Errorf("%s %q: got %v, want %s", c.name, c.args, got, c.want)
			}
		}
		expectSeckill(t, callSeckill(t, b, "LIST"), 200, 1, Array{"sku", "OPEN", 10})
	})
}

func TestSeckillLargestArguments(t *testing.T) {
	onEverySeckillBackend(t, func(t *testing.T, b *Backend, _ *redis.Client) {
		sku, user, id := strings.Repeat("s", 256), strings.Repeat("u", 256), strings.Repeat("i", 256)
		expectSeckill(t, callSeckill(t, b, "CREATE", sku, "1000000000", "LIMIT", "1000000000"), 200, "CREATED", sku, 1)
		bought := callSeckill(t, b, "BUY", sku, user, "ID", id, "QTY", "1000000").(Array)
		token := bought[2].(string)
		expectSeckill(t, bought, 200, "RESERVED", token, 999000000, 0)
		expectSeckill(t, callSeckill(t, b, "CANCEL", token, strings.Repeat("r", 256)), 200, "CANCELLED", token, "")
		expectSeckill(t, callSeckill(t, b, "RESULT", token), 200, "CANCELLED", token, "", strings.Repeat("r", 256))
		expectSeckill(t, callSeckill(t, b, "AUDIT", sku).(Array)[:2], 200, "CLEAN")
	})
}

// Each command has shapes of its own for "not executed" and "outcome unknown".
var seckillFailures = []struct {
	name                   string
	args                   []string
	uncertain, notExecuted Array
}{
	{"CREATE", []string{"sku", "1"}, Array{202, "UNCERTAIN", "sku", 0}, Array{503, "BUSY", "sku", 0}},
	{"BUY", []string{"sku", "u"}, Array{202, "UNCERTAIN", "", 0, 0}, Array{503, "BUSY", "", 0, 0}},
	{"CONFIRM", []string{someToken, "o"}, Array{202, "UNCERTAIN", someToken, ""}, Array{503, "BUSY", someToken, ""}},
	{"CANCEL", []string{someToken}, Array{202, "UNCERTAIN", someToken, ""}, Array{503, "BUSY", someToken, ""}},
	{"RESULT", []string{someToken}, Array{503, "BUSY", someToken, "", ""}, Array{503, "BUSY", someToken, "", ""}},
	{"PULL", []string{"sku", "w"}, Array{202, 0}, Array{503, 0}},
	{"INFO", []string{"sku"}, Array{503, "BUSY", Map{}}, Array{503, "BUSY", Map{}}},
	{"FIND", []string{"sku", "u"}, Array{503, 0}, Array{503, 0}},
	{"ORDERS", []string{"sku", "0"}, Array{503, 0, "0"}, Array{503, 0, "0"}},
	{"RESTOCK", []string{"sku", "1"}, Array{202, "UNCERTAIN", 0}, Array{503, "BUSY", 0}},
	{"OPEN", []string{"sku"}, Array{202, "UNCERTAIN", "sku"}, Array{503, "BUSY", "sku"}},
	{"CLOSE", []string{"sku"}, Array{202, "UNCERTAIN", "sku"}, Array{503, "BUSY", "sku"}},
	{"DROP", []string{"sku"}, Array{202, "UNCERTAIN", "sku", 0}, Array{503, "BUSY", "sku", 0}},
	{"LIST", nil, Array{503, 0}, Array{503, 0}},
	{"AUDIT", []string{"sku"}, Array{503, "BUSY", Map{}, Array{}}, Array{503, "BUSY", Map{}, Array{}}},
}

const someToken = "c2t1.7c5.b27cbf17237a2fe2ee3344cd"

func TestSeckillWhenRedisIsDown(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	b := newSeckillBackend(t, server.Addr)
	server.Kill()
	for _, c := range seckillFailures {
		expectSeckill(t, callSeckill(t, b, c.name, c.args...), c.notExecuted...)
	}
}

// A Redis that takes a script and dies before it answers.
func TestSeckillWhenTheReplyIsLost(t *testing.T) {
	b := newSeckillBackend(t, answering(t, plainly))
	for _, c := range seckillFailures {
		expectSeckill(t, callSeckill(t, b, c.name, c.args...), c.uncertain...)
	}
}

func TestSeckillWhenRedisRefuses(t *testing.T) {
	for _, refusal := range []string{
		"LOADING Redis is loading the dataset in memory", "BUSY Redis is busy running a script.", "READONLY You can't write against a read only replica.",
		"MASTERDOWN Link with MASTER is down", "OOM command not allowed when used memory > 'maxmemory'.", "MISCONF Redis is configured to save RDB snapshots",
		"CLUSTERDOWN The cluster is down", "TRYAGAIN Multiple keys request during rehashing of slot", "NOREPLICAS Not enough good replicas to write.",
	} {
		b := newSeckillBackend(t, answering(t, func([]string) string { return "-" + refusal + "\r\n" }))
		for _, c := range seckillFailures {
			expectSeckill(t, callSeckill(t, b, c.name, c.args...), c.notExecuted...)
		}
	}
}

func TestSeckillRepeatsRedissOwnErrors(t *testing.T) {
	for _, text := range []string{"NOPERM this user has no permissions", "NOAUTH Authentication required.", "WRONGTYPE Operation against a key holding the wrong kind of value"} {
		b := newSeckillBackend(t, answering(t, func([]string) string { return "-" + text + "\r\n" }))
		for _, c := range seckillFailures {
			if got := callSeckill(t, b, c.name, c.args...); got != Error(text) {
				t.Errorf("%s: got %v, want %s", c.name, got, text)
			}
		}
	}
}

func TestSeckillFaultsOfOurOwnAreNoOutcome(t *testing.T) {
	b := newSeckillBackend(t, answering(t, func(words []string) string {
		if words[0] == "evalsha" {
			return "*2\r\n:1\r\n:2\r\n" // no script answers this
		}
		return plainly(words)
	}))
	for _, c := range seckillFailures {
		got, isError := callSeckill(t, b, c.name, c.args...).(Error)
		if !isError || !strings.HasPrefix(string(got), "ERR internal error: ") {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// newSeckillBackend returns a backend with sales, closed at the end of the test.
func newSeckillBackend(t *testing.T, addr string) *Backend {
	sales := seckill.New(seckillClient(t, addr), seckill.Options{})
	t.Cleanup(sales.Close)
	return &Backend{Sales: sales}
}

// plainly answers as a Redis that has a sale of one shard, where no script is
// needed or only one that looks up the sale, and nothing to other scripts.
func plainly(words []string) string {
	switch words[0] {
	case "zadd", "zrem", "unlink":
		return ":1\r\n"
	case "zscore":
		return "$1\r\n1\r\n"
	case "evalsha": // script, number of keys, key, and then the fields, as sale.go asks
		if len(words) < 5 || words[4] != "state" {
			return ""
		}
		fields := strings.Fields("SELLING id 1 0 0 1 0 0 0 0 secret 10 1700000000000")
		reply := fmt.Sprintf("*2\r\n:1700000000000\r\n*%d\r\n", len(fields))
		for _, field := range fields {
			reply += fmt.Sprintf("$%d\r\n%s\r\n", len(field), field)
		}
		return reply
	}
	return ""
}

// answering is a server that greets as Redis does, and to any other command
// answers what it is told to; with "" it closes the connection instead.
func answering(t *testing.T, answer func(words []string) string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn, answer)
		}
	}()
	return listener.Addr().String()
}

func serve(conn net.Conn, answer func(words []string) string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		var words []string
		var n int
		if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
			return
		}
		for range n {
			var length int
			if _, err := fmt.Fscanf(in, "$%d\r\n", &length); err != nil {
				return
			}
			word := make([]byte, length+2)
			if _, err := io.ReadFull(in, word); err != nil {
				return
			}
			words = append(words, string(word[:length]))
		}
		reply := "-ERR unknown command\r\n"
		words[0] = strings.ToLower(words[0])
		switch words[0] {
		case "hello", "client":
		default:
			if reply = answer(words); reply == "" {
				return
			}
		}
		if _, err := conn.Write([]byte(reply)); err != nil {
			return
		}
	}
}

// FuzzSeckillArguments throws any arguments at any command of the family: it
// must not panic, and must answer an array that begins with a code, or an error.
func FuzzSeckillArguments(f *testing.F) {
	rdb := seckillClient(f, miniredis.RunT(f).Addr())
	sales := seckill.New(rdb, seckill.Options{})
	f.Cleanup(sales.Close)
	b := &Backend{Sales: sales}
	f.Add(uint8(0), "sku\x001\x00LIMIT\x002")
	f.Add(uint8(1), "sku\x00user\x00QTY\x001\x00ID\x00r")
	f.Add(uint8(2), someToken+"\x00order")
	f.Add(uint8(3), someToken+"\x00reason")
	f.Add(uint8(4), someToken)
	f.Add(uint8(5), "sku\x00worker\x00COUNT\x003")
	f.Add(uint8(6), "sku")
	f.Add(uint8(7), "")
	f.Add(uint8(8), "sku")
	f.Fuzz(func(t *testing.T, command uint8, joined string) {
		row := &seckillCommands[int(command)%len(seckillCommands)]
		var args [][]byte
		if joined != "" {
			args = bytes.Split([]byte(joined), []byte{0})
		}
		if row.ArityError(1+len(args)) != "" {
			return
		}
		ctx, cancel := context.WithCancel(t.Context())
		if row.Blocks() {
			cancel() // as if the client were gone: it doesn't wait
		}
		defer cancel()
		switch reply := row.Handle(ctx, &Connection{Backend: b}, args).(type) {
		case Error:
			if !strings.HasPrefix(string(reply), "ERR ") || strings.HasPrefix(string(reply), "ERR internal") {
				t.Errorf("%s %q: %s", row.Name, args, reply)
			}
		case Array:
			if !isDocumented(row, reply) {
				t.Errorf("%s %q: %v is in no row", row.Name, args, reply)
			}
		default:
			t.Errorf("%s %q: %T", row.Name, args, reply)
		}
	})
}

// isDocumented reports whether a row lists a reply's code, and its word where
// it has one.
func isDocumented(row *Command, reply Array) bool {
	code, _ := reply[0].(int)
	word, _ := reply[1].(string)
	return slices.ContainsFunc(row.Replies, func(o Outcome) bool { return o.Code == code && o.Word == word })
}

// What a row documents, usage line included, is what its handler does.
func TestSeckillRows(t *testing.T) {
	source, err := os.ReadFile("seckill_commands.go")
	if err != nil {
		t.Fatal(err)
	}
	for i := range seckillCommands {
		row := &seckillCommands[i]
		if !strings.Contains(string(source), "\n// "+row.Usage()+"\nfunc ") {
			t.Errorf("no handler has the usage line %q", row.Usage())
		}
	}
	for _, c := range seckillFailures {
		row := &seckillCommands[slices.IndexFunc(seckillCommands, func(r Command) bool { return r.Name == "SECKILL."+c.name })]
		if !isDocumented(row, c.notExecuted) || !isDocumented(row, c.uncertain) {
			t.Errorf("%s doesn't document %v and %v", row.Name, c.notExecuted, c.uncertain)
		}
	}
}
