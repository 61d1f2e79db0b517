package seckill

import (
	"embed"
	"fmt"

	"seckill-proxy/internal/script"
)

//go:embed *.lua
var sources embed.FS

var (
	createScript   = load("create")
	stateScript    = load("state")
	removeScript   = load("remove")
	windowScript   = load("window")
	buyScript      = load("buy")
	sendScript     = load("send")
	settleScript   = load("settle")
	sweepScript    = load("sweep")
	restockScript  = load("restock")
	resultScript   = load("result")
	findScript     = load("find")
	ordersScript   = load("orders")
	infoScript     = load("info")
	pullScript     = load("pull")
	auditScript    = load("audit")
	leaseScript    = load("lease")
	lookScript     = load("look")
	indexScript    = load("index")
	announceScript = load("announce")
	touchScript    = load("touch")
)

// load makes a script of a file. Each begins with what all of them know about
// records.
func load(name string) *script.Script {
	return script.New("seckill "+name, source("records")+source(name))
}

func source(name string) string {
	text, err := sources.ReadFile(name + ".lua")
	if err != nil {
		panic(err) // the file isn't there: no build of this package works
	}
	return string(text)
}

// reader takes the values of a script's flat answer from left to right. The
// first that isn't what its contract says is remembered in err, and everything
// taken after it is zero.
type reader struct {
	values []any
	err    error
}

// read makes a reader of a script's answer; err is that of the call.
func read(answer any, err error) *reader {
	if err != nil {
		return &reader{err: err}
	}
	values, ok := answer.([]any)
	if !ok {
		return &reader{err: fmt.Errorf("script answered %T, want an array", answer)}
	}
	return &reader{values: values}
}

// more reports whether values are left and nothing was wrong so far.
func (r *reader) more() bool { return r.err == nil && len(r.values) > 0 }

func (r *reader) text() string { return take[string](r) }

func (r *reader) number() int64 { return take[int64](r) }

// end says that no values should be left.
func (r *reader) end() {
	if r.more() {
		r.err = fmt.Errorf("script's answer has %d values too many", len(r.values))
	}
}

// isNumber takes the next value if it is a number.
func (r *reader) isNumber() (n int64, ok bool) {
	if r.more() {
		n, ok = r.values[0].(int64)
	}
	if ok {
		r.values = r.values[1:]
	}
	return n, ok
}

func take[T any](r *reader) (value T) {
	if r.err != nil {
		return value
	}
	if len(r.values) == 0 {
		r.err = fmt.Errorf("script's answer ends too early")
		return value
	}
	value, ok := r.values[0].(T)
	if !ok {
		r.err = fmt.Errorf("script answered %T, want %T", r.values[0], value)
	}
	r.values = r.values[1:]
	return value
}
