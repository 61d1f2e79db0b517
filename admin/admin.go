// Package admin serves metrics and health over HTTP.
package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Server serves /metrics, /healthz (200 while the process lives) and /readyz
// (200 while Redis answers, else 503 with the reason).
type Server struct {
	http     http.Server
	listener net.Listener
}

// Listen opens the address. ready says why the sidecar isn't ready, nil when it
// is. Serving begins with Serve.
func Listen(address string, registry *prometheus.Registry, ready func(context.Context) error) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("admin.listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return &Server{
		http:     http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second},
		listener: listener,
	}, nil
}

// Addr is the address that was opened.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve serves until Shutdown.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

// Shutdown lets running requests finish until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// CheckHealth asks a running sidecar's /healthz; nil means that it is healthy.
func CheckHealth(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("admin.listen: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	client := http.Client{Timeout: 2 * time.Second}
	answer, err := client.Get("http://" + net.JoinHostPort(host, port) + "/healthz")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", address, answer.Status)
	}
	return nil
}
