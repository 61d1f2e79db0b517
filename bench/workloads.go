package main

import (
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
)

// workload is a question about speed: what redis-benchmark sends, and in what
// manner.
type workload struct {
	key      string // for -only
	title    string
	clients  int
	pipeline int
	share    float64 // of the operations that -n asks for
	sale     bool    // only sidecars and the direct way take part

	// prepare gets Redis ready for one measurement of a contender.
	prepare func(f *field, c contender) (task, error)
}

// task is what one measurement sends, and how to see that it was done: replies
// that say no are as fast as any.
type task struct {
	command []string
	done    func(n int) error // after n operations; nil if an error reply would tell
}

// The keys of the workloads, by which the bars find them.
const (
	get50    = "get50"
	get500   = "get500"
	get50p16 = "get50p16"
	set50    = "set50"
	lonebuy  = "lonebuy"
	buy500   = "buy500"
	soldout  = "soldout"

	buy500p16  = "buy500p16"
	soldoutp16 = "soldoutp16"
)

var workloads = []workload{
	{key: get50, title: "GET, 50 clients, no pipelining", clients: 50, pipeline: 1, share: 1, prepare: getKey},
	{key: get500, title: "GET, 500 clients, no pipelining", clients: 500, pipeline: 1, share: 1, prepare: getKey},
	{key: get50p16, title: "GET, 50 clients, pipeline of 16", clients: 50, pipeline: 16, share: 5, prepare: getKey},
	{key: set50, title: "SET, 50 clients, no pipelining", clients: 50, pipeline: 1, share: 1, prepare: setKey},
	{key: lonebuy, title: "A purchase at a time", clients: 1, pipeline: 1, share: 0.1, sale: true, prepare: purchases},
	{key: buy500, title: "Purchases that succeed, 500 clients", clients: 500, pipeline: 1, share: 0.2, sale: true, prepare: purchases},
	{key: buy500p16, title: "Purchases that succeed, 500 clients, pipeline of 16", clients: 500, pipeline: 16, share: 1, sale: true, prepare: purchases},
	{key: soldout, title: "Purchases from a sold-out sale, 50 clients", clients: 50, pipeline: 1, share: 0.5, sale: true, prepare: refusals},
	{key: soldoutp16, title: "Purchases from a sold-out sale, 50 clients, pipeline of 16", clients: 50, pipeline: 16, share: 2, sale: true, prepare: refusals},
}

func (w workload) takes(c contender) bool { return !w.sale || c.ours || c.name == direct }

// operations returns how many operations a measurement has, a whole number of
// pipelines.
func (w workload) operations(n int) int {
	perPipeline := max(1, int(w.share*float64(n))/w.pipeline)
	return perPipeline * w.pipeline
}

const (
	benchKey   = "bench:key"
	benchValue = "xxx" // as long as redis-benchmark's own
)

func getKey(f *field, _ contender) (task, error) {
	_, err := ask(f.addr, "SET", benchKey, benchValue)
	return task{command: []string{"GET", benchKey}}, err
}

func setKey(*field, contender) (task, error) {
	return task{command: []string{"SET", benchKey, benchValue}}, nil
}

// random is what redis-benchmark replaces by twelve random digits.
const random = "__rand_int__"

// Every purchase is that of a new user.
const (
	user    = "user-" + random + random
	request = "request-" + random
)

// stock is more than is ever bought.
const stock = 1_000_000_000

func purchases(f *field, c contender) (task, error) {
	command, sku, err := openSale(f, c, stock)
	return task{command: command, done: func(n int) error { return wantPending(f.anySidecar().addr, sku, n+openingPurchases) }}, err
}

func refusals(f *field, c contender) (task, error) {
	command, sku, err := openSale(f, c, openingPurchases)
	return task{command: command, done: func(int) error { return wantPending(f.anySidecar().addr, sku, openingPurchases) }}, err
}

// sales numbers the sales: each has a name of its own, since sidecars may
// remember things of a sale that Redis has forgotten.
var sales atomic.Int64

// openingPurchases is how many units createSale buys.
const openingPurchases = 2

// openSale empties Redis, creates a sale and returns its SKU and the purchase
// that redis-benchmark shall repeat: SECKILL.BUY for a sidecar, for the direct
// way a call of single.lua, which makes the same records.
func openSale(f *field, c contender, stock int) (command []string, sku string, err error) {
	if sku, err = createSale([]string{f.addr}, f.anySidecar().addr, stock); err != nil {
		return nil, "", err
	}
	if c.name == direct {
		command, err = f.singleCall(sku)
		return command, sku, err
	}
	return purchaseOf(sku), sku, nil
}

// purchaseOf is the purchase that redis-benchmark repeats.
func purchaseOf(sku string) []string { return []string{"SECKILL.BUY", sku, user, "ID", request} }

// createSale empties the servers of Redis, creates a sale with these further
// arguments and buys openingPurchases units of it.
func createSale(redis []string, sidecar string, stock int, args ...string) (sku string, err error) {
	for _, addr := range redis {
		if _, err := ask(addr, "FLUSHALL"); err != nil {
			return "", err
		}
	}
	sku = fmt.Sprint("sku-", sales.Add(1))
	for _, command := range [][]string{
		append([]string{"SECKILL.CREATE", sku, strconv.Itoa(stock)}, args...),
		{"SECKILL.BUY", sku, "first"},
		{"SECKILL.BUY", sku, "second"},
	} {
		if _, err := ask(sidecar, command...); err != nil {
			return "", err
		}
	}
	return sku, nil
}

//go:embed single.lua
var singleLua string

// singleCall returns the call of single.lua that makes a purchase.
func (f *field) singleCall(sku string) ([]string, error) {
	sha, err := ask(f.addr, "SCRIPT", "LOAD", singleLua)
	if err != nil {
		return nil, err
	}
	found, err := ask(f.addr, "KEYS", "*:sale:"+sku)
	if err != nil {
		return nil, err
	}
	keys, _ := found.([]any)
	if len(keys) != 1 {
		return nil, fmt.Errorf("the sale has the keys %v, want one", found)
	}
	before, _, _ := strings.Cut(fmt.Sprint(keys[0]), "sale:")
	call := []string{"EVALSHA", fmt.Sprint(sha), "4"}
	for _, kind := range []string{"sale", "buyers", "orders", "queue"} {
		call = append(call, before+kind+":"+sku)
	}
	return append(call, "c2t1.7c5.", user, "1", request), nil
}

// ask executes a command on a connection of its own.
func ask(addr string, command ...string) (any, error) {
	c, err := dial(addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.do(command...)
}

// wantPending wants so many units of a sale to be reserved, or nearly: random
// users meet now and then, and the second of them is refused.
func wantPending(sidecar, sku string, want int) error {
	reply, err := ask(sidecar, "SECKILL.INFO", sku)
	if err != nil {
		return err
	}
	got, err := pendingOf(reply)
	if err != nil {
		return err
	}
	if got > want || got < want-want/1000 {
		return fmt.Errorf("%d units of the sale are reserved, want %d: not all purchases did what is measured", got, want)
	}
	return nil
}

// pendingOf finds the number behind "pending" in the reply of SECKILL.INFO.
func pendingOf(reply any) (int, error) {
	values, _ := reply.([]any)
	for i, value := range values {
		if nested, ok := value.([]any); ok {
			return pendingOf(nested)
		}
		if value == "pending" && i+1 < len(values) {
			text, _ := values[i+1].(string)
			return strconv.Atoi(text)
		}
	}
	return 0, errors.New("SECKILL.INFO tells no pending units")
}
