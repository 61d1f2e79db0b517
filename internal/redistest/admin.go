package redistest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// settleTimeout is how long a topology may take to become what was asked
	// for. It only bounds how long a broken one hangs.
	settleTimeout = 60 * time.Second
	// commandTimeout is how long a server may take for one of our commands.
	commandTimeout = 20 * time.Second
	pollInterval   = 5 * time.Millisecond
)

// await returns when check finds nothing wrong, and ends the test when it still
// does after settleTimeout.
func await(t testing.TB, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(settleTimeout); ; time.Sleep(pollInterval) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %s: %v", what, settleTimeout, err)
		}
	}
}

// admin is this package's own client of the server. It knows the password that
// Options.Args set.
func (s *Server) admin() *redis.Client {
	if s.client == nil {
		s.client = redis.NewClient(&redis.Options{
			Addr:                     s.Addr,
			Password:                 s.options.password(),
			TLSConfig:                s.options.TLS.Client(),
			MaxRetries:               -1,
			DialerRetries:            1,
			ReadTimeout:              commandTimeout,
			DisableIdentity:          true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
	}
	return s.client
}

// closeAdmin drops the connections of admin: the server's next process won't
// know them.
func (s *Server) closeAdmin() {
	if s.client != nil {
		_ = s.client.Close() // nothing of it is used again
		s.client = nil
	}
}

// try sends a command to the server.
func (s *Server) try(args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return s.admin().Do(ctx, args...).Result()
}

// do sends a command that has to succeed.
func (s *Server) do(args ...any) any {
	s.t.Helper()
	reply, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("%s: %v: %v", s.Addr, args, err)
	}
	return reply
}

// doAll sends commands that have to succeed, in one pipeline, or all in one
// transaction.
func (s *Server) doAll(commands [][]any, transaction bool) []any {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	pipeline := s.admin().Pipeline()
	if transaction {
		pipeline = s.admin().TxPipeline()
	}
	var replies []*redis.Cmd
	for _, command := range commands {
		replies = append(replies, pipeline.Do(ctx, command...))
	}
	if _, err := pipeline.Exec(ctx); err != nil {
		s.t.Fatalf("%s: %v", s.Addr, err)
	}
	values := make([]any, len(replies))
	for i, reply := range replies {
		values[i] = reply.Val()
	}
	return values
}

// info returns the fields of a section of INFO, or of another reply of lines
// with "name:value".
func (s *Server) info(command ...any) (map[string]string, error) {
	reply, err := s.try(command...)
	if err != nil {
		return nil, err
	}
	text, isText := reply.(string)
	if !isText {
		return nil, errors.New("the reply isn't a text")
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields, nil
}
