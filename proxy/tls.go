package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"

	"go.uber.org/zap"

	"seckill-proxy/internal/rawio"
)

// ListenTLS returns a listener for Serve whose clients speak TLS. Accept says
// nothing to them: the handshake is the session's, so one that takes long holds up
// nobody else.
func ListenTLS(ln net.Listener, config *tls.Config) net.Listener { return tlsListener{ln, config} }

type tlsListener struct {
	net.Listener
	config *tls.Config
}

func (l tlsListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tls.Server(rawio.Wrap(conn), l.config), nil
}

// shakeHands makes a client's connection secure, where it is to be that. The client
// has limits.Handshake for it.
func (s *session) shakeHands() error {
	secured, ok := s.client.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.server.limits.Handshake)
	defer cancel()
	err := secured.HandshakeContext(ctx)
	if err != nil && !errors.Is(err, io.EOF) { // who says nothing is a health check
		s.server.metrics.HandshakeFailures.Inc()
		s.server.strangers.Warn("a client failed to shake hands for TLS", zap.Stringer("client", s.client.RemoteAddr()), zap.Error(err))
	}
	return err
}

// bidFarewell tells a client with TLS that it has got all. Without that the end of
// the stream may be somebody else's doing, and clients report it as an error.
func (s *session) bidFarewell() {
	if secured, ok := s.client.(*tls.Conn); ok {
		_ = secured.CloseWrite() // it may be gone
	}
}
