package config

import (
	"errors"
	"slices"
	"time"
)

// ListenTLS are the files, PEM, that tls:// listeners need.
type ListenTLS struct {
	CertFile, KeyFile string
	ClientCAFile      string        // "": clients need no certificate
	HandshakeTimeout  time.Duration // that a client has
}

// UpstreamTLS are the files, PEM, for TLS to Redis.
type UpstreamTLS struct {
	CAFile            string // "": the system's authorities
	CertFile, KeyFile string // "": no certificate of the sidecar's own
	ServerName        string // "": the host that is connected to
}

// checkTLS finds files that are missing, and files without a TLS that they are
// for: whoever names them takes a connection for secured that isn't.
func (c Config) checkTLS() []error {
	var problems []error
	refuse := func(refused bool, text string) {
		if refused {
			problems = append(problems, errors.New(text))
		}
	}
	listen, upstream := c.Entry.TLS, c.Control.TLS
	secured := slices.ContainsFunc(c.Listen, func(a Address) bool { return a.TLS })
	refuse(secured && (listen.CertFile == "" || listen.KeyFile == ""),
		"listen: tls:// needs listen_tls.cert_file and listen_tls.key_file")
	refuse(!secured && listen.CertFile+listen.KeyFile+listen.ClientCAFile != "",
		"listen_tls.*: want tls:// in listen, or none of these files")
	refuse((upstream.CertFile == "") != (upstream.KeyFile == ""),
		"upstream.tls_cert_file, upstream.tls_key_file: want both or neither")
	refuse(upstream != UpstreamTLS{} && !c.TLSUpstream(),
		"upstream.tls_*: want rediss:// in upstream.url or lock.nodes, or none of these keys")
	return problems
}

// TLSUpstream reports whether some Redis is reached by TLS.
func (c Config) TLSUpstream() bool {
	return c.Upstream.TLS || slices.ContainsFunc(c.Lock.Nodes, func(u Upstream) bool { return u.TLS })
}
