package commands

import (
	"errors"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

// failure turns the error of an operation into its reply; every handler ends
// with it. uncertain is the command's own 202, notExecuted its own 503, both in
// the command's shape; a command that only reads gives its 503 for both.
//
// What Redis itself answered (NOPERM, NOAUTH, WRONGTYPE, …) is repeated word
// for word. Anything else is a fault of ours: it is neither hidden nor dressed
// up as a business outcome.
func failure(err error, uncertain, notExecuted Reply) Reply {
	var answered redis.Error
	switch {
	case errors.Is(err, script.ErrUncertain):
		return uncertain
	case errors.Is(err, script.ErrNotExecuted):
		return notExecuted
	case errors.As(err, &answered):
		return Error(answered.Error())
	default:
		return Error("ERR internal error: " + err.Error())
	}
}

// readFailure is failure for a command that changes nothing, for which a lost
// reply is as good as none.
func readFailure(err error, notExecuted Reply) Reply {
	return failure(err, notExecuted, notExecuted)
}
