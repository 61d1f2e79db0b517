package seckill

import (
	_ "embed"
	"fmt"

	"seckill-proxy/internal/script"
)

var (
	//go:embed records.lua
	recordsLua string
	//go:embed create.lua
	createLua string
	//go:embed buy.lua
	buyLua string
	//go:embed settle.lua
	settleLua string
	//go:embed result.lua
	resultLua string
	//go:embed info.lua
	infoLua string
	//go:embed pull.lua
	pullLua string
	//go:embed audit.lua
	auditLua string
)

// Each script begins with what all of them know about records.
var (
	createScript = script.New("seckill create", recordsLua+createLua)
	buyScript    = script.New("seckill buy", recordsLua+buyLua)
	settleScript = script.New("seckill settle", recordsLua+settleLua)
	resultScript = script.New("seckill result", recordsLua+resultLua)
	infoScript   = script.New("seckill info", recordsLua+infoLua)
	pullScript   = script.New("seckill pull", recordsLua+pullLua)
	auditScript  = script.New("seckill audit", recordsLua+auditLua)
)

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
