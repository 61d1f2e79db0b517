package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
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

// downError says that no connection could be had to the server at an address.
type downError struct {
	address string
	cause   error
}

// downAt returns a downError. Where err is that already, it stays as it is.
func downAt(address string, err error) error {
	var down downError
	if errors.As(err, &down) && down.address == address {
		return err
	}
	return downError{address, err}
}

func (e downError) Error() string { return fmt.Sprintf("%v at %s: %v", ErrDown, e.address, e.cause) }

// Unwrap makes it an ErrDown.
func (e downError) Unwrap() []error { return []error{ErrDown, e.cause} }

// bare returns a downError without its beginning, for those who begin so
// themselves.
func bare(err error) error {
	var down downError
	if errors.As(err, &down) {
		return locatedAt(down.address, down.cause)
	}
	return err
}

// locatedAt says where an error is from, unless it does so itself.
func locatedAt(address string, err error) error {
	if strings.Contains(err.Error(), address) {
		return err
	}
	return fmt.Errorf("%s: %w", address, err)
}

// severalError is several errors in one line.
type severalError struct{ errs []error }

// several makes an error of the first few of many.
func several(errs []error) error { return &severalError{errs[:min(len(errs), 3)]} }

func (s *severalError) Error() string {
	var texts []string
	for _, err := range s.errs {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns them.
func (s *severalError) Unwrap() []error { return s.errs }
