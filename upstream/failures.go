package upstream

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"seckill-proxy/internal/script"
)

// failuresEvery is how often the same failure of the control plane is logged at
// most.
const failuresEvery = 10 * time.Second

// failures is a go-redis hook that logs why a custom command had to be answered
// with 503 or 202: the reply has no room for Redis's own words.
type failures struct {
	log      *zap.Logger
	readOnly func() // is called when it was a replica that answered
}

// DialHook implements redis.Hook.
func (failures) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements redis.Hook.
func (f failures) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		f.note(err)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (f failures) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		f.note(err)
		return err
	}
}

// note logs a failure that the client isn't told in words.
func (f failures) note(err error) {
	var answered redis.Error
	if err == nil || errors.As(err, &answered) && !script.Refused(err) {
		return
	}
	if redis.HasErrorPrefix(err, "READONLY ") {
		f.readOnly()
	}
	f.log.Warn("a SECKILL or LOCK command failed", zap.Error(err))
}
