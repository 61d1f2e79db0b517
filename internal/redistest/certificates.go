package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// Certificates are a certificate authority and what it has signed, as PEM files
// that are removed after the test.
type Certificates struct {
	CAFile                        string // certificate of the authority
	CertFile, KeyFile             string // of a server on 127.0.0.1 and localhost
	ClientCertFile, ClientKeyFile string // of a client, common name "client"

	client *tls.Config
}

// NewCertificates makes an authority of its own and certificates that are valid
// for the time of a test.
func NewCertificates(t testing.TB) *Certificates {
	t.Helper()
	dir := t.TempDir()
	c := &Certificates{
		CAFile:         filepath.Join(dir, "ca.crt"),
		CertFile:       filepath.Join(dir, "server.crt"),
		KeyFile:        filepath.Join(dir, "server.key"),
		ClientCertFile: filepath.Join(dir, "client.crt"),
		ClientKeyFile:  filepath.Join(dir, "client.key"),
	}
	authority := newAuthority(t)
	writePEM(t, c.CAFile, "CERTIFICATE", authority.certificate.Raw)
	// A redis-server also dials with its certificate: masters, and the other
	// nodes of a cluster.
	authority.issue(t, c.CertFile, c.KeyFile, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "server"},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	authority.issue(t, c.ClientCertFile, c.ClientKeyFile, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "client"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	c.client = c.clientConfig(t, authority)
	return c
}

// Client returns the configuration of a client that trusts the authority and
// shows the client certificate. nil for nil.
func (c *Certificates) Client() *tls.Config {
	if c == nil {
		return nil
	}
	return c.client.Clone()
}

func (c *Certificates) clientConfig(t testing.TB, authority *authority) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(c.ClientCertFile, c.ClientKeyFile)
	if err != nil {
		t.Fatalf("reading the client certificate: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.certificate)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

// serverArgs let a redis-server speak nothing but TLS, on the port, to its
// master and on the cluster bus.
func (c *Certificates) serverArgs(port int) []string {
	return []string{
		"--port", "0",
		"--tls-port", strconv.Itoa(port),
		"--tls-ca-cert-file", c.CAFile,
		"--tls-cert-file", c.CertFile,
		"--tls-key-file", c.KeyFile,
		"--tls-auth-clients", "optional",
		"--tls-replication", "yes",
		"--tls-cluster", "yes",
	}
}

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "authority of a test"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	a.certificate = a.sign(t, template, template, a.key)
	return a
}

// issue writes a certificate and its key to files.
func (a *authority) issue(t testing.TB, certFile, keyFile string, template *x509.Certificate) {
	t.Helper()
	key := newKey(t)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	writePEM(t, certFile, "CERTIFICATE", a.sign(t, template, a.certificate, key).Raw)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatalf("encoding a key: %v", err)
	}
	writePEM(t, keyFile, "PRIVATE KEY", der)
}

func (a *authority) sign(t testing.TB, template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatalf("choosing a serial number: %v", err)
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(24 * time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		t.Fatalf("signing a certificate: %v", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("reading back a certificate: %v", err)
	}
	return certificate
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("generating a key: %v", err)
	}
	return key
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
