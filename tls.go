package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"go.uber.org/zap"

	"seckill-proxy/config"
	"seckill-proxy/internal/filewatch"
)

// redisTLS returns how to secure connections to an upstream, nil where they aren't.
func redisTLS(u config.Upstream, cfg config.Config, log *zap.Logger) (*tls.Config, error) {
	if !u.TLS {
		return nil, nil
	}
	files := cfg.Control.TLS
	secured := &tls.Config{
		MinVersion:                  tls.VersionTLS12,
		ServerName:                  files.ServerName,
		DynamicRecordSizingDisabled: true, // it is for browsers
	}
	if files.CAFile != "" {
		roots, err := authorities(files.CAFile)
		if err != nil {
			return nil, fmt.Errorf("upstream.tls_ca_file: %w", err)
		}
		secured.RootCAs = roots
	}
	if files.CertFile != "" {
		own, err := filewatch.New(func() (tls.Certificate, error) { return tls.LoadX509KeyPair(files.CertFile, files.KeyFile) },
			log, files.CertFile, files.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("upstream.tls_cert_file, upstream.tls_key_file: %w", err)
		}
		secured.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			present := own.Get()
			return &present, nil
		}
	}
	return secured, nil
}

// clientTLS returns how tls:// listeners secure connections of clients, nil where
// there is none. The files are read again when they change.
func clientTLS(cfg config.Config, log *zap.Logger) (*tls.Config, error) {
	files := cfg.Entry.TLS
	if files.CertFile == "" {
		return nil, nil
	}
	names := []string{files.CertFile, files.KeyFile}
	if files.ClientCAFile != "" {
		names = append(names, files.ClientCAFile)
	}
	present, err := filewatch.New(func() (*tls.Config, error) { return readClientTLS(files) }, log, names...)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return present.Get(), nil },
	}, nil
}

func readClientTLS(files config.ListenTLS) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("listen_tls.cert_file, listen_tls.key_file: %w", err)
	}
	secured := &tls.Config{
		MinVersion:                  tls.VersionTLS12,
		Certificates:                []tls.Certificate{own},
		DynamicRecordSizingDisabled: true,
	}
	if files.ClientCAFile != "" {
		if secured.ClientCAs, err = authorities(files.ClientCAFile); err != nil {
			return nil, fmt.Errorf("listen_tls.client_ca_file: %w", err)
		}
		secured.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return secured, nil
}

// authorities reads the certificates of authorities.
func authorities(file string) (*x509.CertPool, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return nil, errors.New(file + ": no certificate in it; want PEM")
	}
	return pool, nil
}
