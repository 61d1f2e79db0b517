package lock

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

//go:embed hold.lua
var holdSource string

//go:embed acquire.lua
var acquireSource string

//go:embed macquire.lua
var macquireSource string

//go:embed handover.lua
var handoverSource string

//go:embed release.lua
var releaseSource string

//go:embed renew.lua
var renewSource string

//go:embed prolong.lua
var prolongSource string

//go:embed check.lua
var checkSource string

//go:embed info.lua
var infoSource string

//go:embed fence.lua
var fenceSource string

//go:embed leave.lua
var leaveSource string

var (
	acquireScript  = script.New("lock.acquire", holdSource+acquireSource)
	macquireScript = script.New("lock.macquire", holdSource+macquireSource)
	releaseScript  = script.New("lock.release", handoverSource+holdSource+releaseSource)
	renewScript    = script.New("lock.renew", holdSource+renewSource)
	prolongScript  = script.New("lock.prolong", prolongSource)
	checkScript    = script.New("lock.check", holdSource+checkSource)
	infoScript     = script.New("lock.info", holdSource+infoSource)
	fenceScript    = script.New("lock.fence", holdSource+fenceSource)
	leaveScript    = script.New("lock.leave", holdSource+leaveSource)
)

// answer is what a script returned: {outcome, fence, ttl_ms, depth} and numbers
// of its own.
type answer struct {
	Result
	more []int64
}

// servers are where locks are: one server, or several independent ones.
type servers interface {
	// run executes one of the scripts about holds. With an error the answer has
	// the token.
	run(ctx context.Context, s *script.Script, token string, keys []string, args ...any) (answer, error)
}

// single is one server, or one connection to it.
type single struct{ rdb redis.Scripter }

func (at single) run(ctx context.Context, s *script.Script, token string, keys []string, args ...any) (answer, error) {
	value, err := s.Run(ctx, at.rdb, keys, args...)
	if err != nil {
		return answer{Result: Result{Token: token}}, err
	}
	a, ok := decode(value)
	if !ok {
		return answer{Result: Result{Token: token}}, fmt.Errorf("%w: unexpected answer of a script: %v", script.ErrUncertain, value)
	}
	if a.Depth > 0 || a.Outcome == Released {
		a.Token = token
	}
	return a, nil
}

// decode reads what a script returned.
func decode(value any) (answer, bool) {
	fields, ok := value.([]any)
	if !ok || len(fields) < 4 {
		return answer{}, false
	}
	word, ok := fields[0].(string)
	if !ok {
		return answer{}, false
	}
	numbers := make([]int64, len(fields)-1)
	for i, field := range fields[1:] {
		if numbers[i], ok = number(field); !ok {
			return answer{}, false
		}
	}
	return answer{
		Result: Result{Outcome: Outcome(word), Fence: numbers[0], TTL: milliseconds(numbers[1]), Depth: numbers[2]},
		more:   numbers[3:],
	}, true
}

// number reads a number, which handover.lua returns as text.
func number(field any) (n int64, ok bool) {
	switch field := field.(type) {
	case int64:
		return field, true
	case string:
		n, err := strconv.ParseInt(field, 10, 64)
		return n, err == nil
	}
	return 0, false
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// flag is a truth as scripts read it.
func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
