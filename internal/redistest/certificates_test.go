package redistest

import (
	"crypto/tls"
	"testing"
)

func TestServerWithTLS(t *testing.T) {
	t.Parallel()
	certificates := NewCertificates(t)
	s := Start(t, Options{TLS: certificates, Args: []string{"--tls-auth-clients", "yes"}})
	if err := s.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}

	without := certificates.Client()
	without.Certificates = nil
	if err := ping(t, s, without); err == nil {
		t.Fatal("a client without a certificate was let in")
	}
	stranger := NewCertificates(t).Client()
	if _, err := tls.Dial("tcp", s.Addr, stranger); err == nil {
		t.Fatal("a client trusts a server of another authority")
	}
}

// ping sends PING; in TLS 1.3 a client learns only then that it isn't let in.
func ping(t *testing.T, s *Server, config *tls.Config) error {
	conn, err := tls.Dial("tcp", s.Addr, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

func TestClientCertificateIsOptional(t *testing.T) {
	t.Parallel()
	certificates := NewCertificates(t)
	s := Start(t, Options{TLS: certificates})
	without := certificates.Client()
	without.Certificates = nil
	without.ServerName = "localhost"
	if err := ping(t, s, without); err != nil {
		t.Fatal(err)
	}
}
