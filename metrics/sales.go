package metrics

import "github.com/prometheus/client_golang/prometheus"

// Sales counts what the sales of all users and databases do. It is a
// seckill.Observer.
type Sales struct {
	queued      prometheus.Gauge
	batches     prometheus.Histogram
	local       *prometheus.CounterVec
	shed        prometheus.Counter
	expired     prometheus.Counter
	transferred prometheus.Counter
	audits      *prometheus.CounterVec
	differences prometheus.Counter
}

func newSales() *Sales {
	const subsystem = "sales"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
	}
	vector := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, []string{label})
	}
	return &Sales{
		queued: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "queued_purchases",
			Help: "Purchases that wait for the script call of their shard."}),
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: "batch_purchases",
			Help: "Purchases that one script call carried.", Buckets: prometheus.ExponentialBuckets(1, 2, 9)}),
		local:       vector("local_answers_total", "Purchases answered without asking Redis, by outcome.", "outcome"),
		shed:        counter("shed_purchases_total", "Purchases refused because too many wait, or one has waited too long."),
		expired:     counter("expired_reservations_total", "Reservations that were not settled in time, swept by this sidecar."),
		transferred: counter("transferred_units_total", "Units that this sidecar brought from one shard to another."),
		audits:      vector("audits_total", "Periodic audits of sales by this sidecar, by result.", "result"),
		differences: counter("audit_differences_total", "Differences that periodic audits of this sidecar found."),
	}
}

func (s *Sales) all() []prometheus.Collector {
	return []prometheus.Collector{s.queued, s.batches, s.local, s.shed, s.expired, s.transferred, s.audits, s.differences}
}

// Queued counts purchases that wait for their script call.
func (s *Sales) Queued(purchases int) { s.queued.Add(float64(purchases)) }

// Batch counts a script call.
func (s *Sales) Batch(purchases int) { s.batches.Observe(float64(purchases)) }

// Local counts a purchase that Redis wasn't asked about.
func (s *Sales) Local(outcome string) { s.local.WithLabelValues(outcome).Inc() }

// Shed counts a purchase that was refused because of the load.
func (s *Sales) Shed() { s.shed.Inc() }

// Expired counts reservations that were swept.
func (s *Sales) Expired(reservations int64) { s.expired.Add(float64(reservations)) }

// Transferred counts units that moved between shards.
func (s *Sales) Transferred(units int64) { s.transferred.Add(float64(units)) }

// Audited counts an audit.
func (s *Sales) Audited(differences int64) {
	result := "clean"
	if differences > 0 {
		result = "damaged"
	}
	s.audits.WithLabelValues(result).Inc()
	s.differences.Add(float64(differences))
}
