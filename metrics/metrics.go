// Package metrics holds what the sidecar counts, in Prometheus's form. Labels
// take their values from the command table only, so their number is bounded.
package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

const namespace = "seckill_proxy"

// Metrics are the sidecar's counters, and the registry that serves them.
type Metrics struct {
	Registry *prometheus.Registry

	Clients           prometheus.Gauge   // connected now
	ClientsTotal      prometheus.Counter // connected ever
	Forwarded         prometheus.Counter // commands sent to Redis as they came
	ProtocolErrors    prometheus.Counter // clients closed for a malformed command
	DialFailures      prometheus.Counter // connections to Redis that could not be had
	Unavailable       prometheus.Counter // commands answered without Redis, because it was down
	SlowClients       prometheus.Counter // clients closed because they didn't read
	WrongPasswords    prometheus.Counter // given by clients where the sidecar demands one
	HandshakeFailures prometheus.Counter // clients closed because of their TLS handshake
	outcomes          *prometheus.CounterVec

	Sales *Sales // what the sales do
	Locks *Locks // what becomes of locks
}

// New returns metrics in a registry of their own, with those of the Go runtime
// and of the process.
func New() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		Clients: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "clients", Help: "Client connections open now."}),
		ClientsTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "clients_total", Help: "Client connections accepted."}),
		Forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "forwarded_commands_total", Help: "Commands sent to Redis as they came."}),
		ProtocolErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "protocol_errors_total", Help: "Clients closed for a malformed command."}),
		DialFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "upstream_dial_failures_total", Help: "Connections to Redis that could not be had."}),
		Unavailable: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "unavailable_total", Help: "Commands refused because no connection to Redis could be had."}),
		SlowClients: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "slow_clients_total", Help: "Clients closed because they did not read their replies."}),
		WrongPasswords: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "wrong_passwords_total", Help: "Wrong passwords that clients gave, where listen_password is set."}),
		HandshakeFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "tls_handshake_failures_total", Help: "Clients closed because they failed the TLS handshake."}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "custom_commands_total", Help: "Custom commands by name and code of the outcome."},
			[]string{"command", "code"}),
		Sales: newSales(),
	}
	m.Registry.MustRegister(m.Sales.all()...)
	m.Locks = newLocks(m.Registry)
	m.Registry.MustRegister(m.Clients, m.ClientsTotal, m.Forwarded, m.ProtocolErrors, m.DialFailures, m.Unavailable, m.SlowClients, m.WrongPasswords, m.HandshakeFailures, m.outcomes,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Outcome counts a custom command. code is 0 for a RESP error.
func (m *Metrics) Outcome(command string, code int) {
	label := "error"
	if code != 0 {
		label = strconv.Itoa(code)
	}
	m.outcomes.WithLabelValues(command, label).Inc()
}
