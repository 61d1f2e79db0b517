package proxy

import (
	"bytes"

	"seckill-proxy/internal/resp"
)

// This file is commands that have to be whole before it is known where they go.

// gatherWhole keeps the rest of a partial command until it is whole, and handles it
// then. Its bytes count against the limits of what is kept for slow clients.
func (s *session) gatherWhole(cmd *resp.Command) error {
	raw := bytes.Clone(cmd.Raw)
	s.out.hold(len(raw))
	s.rest = &rest{
		take: func(b []byte) {
			if s.out.isClosed() {
				return // for too much
			}
			s.out.hold(len(b))
			raw = append(raw, b...)
		},
		end: func() error {
			if s.out.isClosed() {
				return errEnded
			}
			defer s.out.unhold(len(raw))
			whole, err := s.server.limits.parse(raw)
			if err != nil {
				return err
			}
			return s.forward(&whole)
		},
		broken: func() { s.out.unhold(len(raw)) },
	}
	return nil
}

// parse reads a command that is whole.
func (l Limits) parse(raw []byte) (resp.Command, error) {
	limits := l.reader()
	limits.WholeBytes = len(raw) + 1
	reader := resp.NewCommandReader(limits)
	for len(raw) > 0 {
		n := copy(reader.Room(), raw)
		reader.Filled(n)
		raw = raw[n:]
	}
	cmd, _, err := reader.Next()
	return cmd, err
}
