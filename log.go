package main

import (
	"context"
	"fmt"
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"seckill-proxy/config"
)

// newLogger returns the log: structured, to w, in the configured form. It never
// holds keys' values, tokens or passwords.
func newLogger(cfg config.Log, w io.Writer) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(cfg.Level)
	if err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.ISO8601TimeEncoder
	encoding.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewConsoleEncoder(encoding)
	if cfg.Format == "json" {
		encoder = zapcore.NewJSONEncoder(encoding)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level)), nil
}

// redisLog takes what go-redis has to say, which concerns those who look into it:
// what matters to others comes as errors.
type redisLog struct{ log *zap.Logger }

// Printf implements go-redis's logging interface.
func (l redisLog) Printf(_ context.Context, format string, args ...any) {
	l.log.Debug("go-redis", zap.String("message", fmt.Sprintf(format, args...)))
}
