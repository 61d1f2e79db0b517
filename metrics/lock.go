package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Locks counts what becomes of locks. It is a lock.Observer. Names of locks are no
// labels: there is no end of them; the log has them.
type Locks struct {
	waiting  prometheus.Gauge
	waits    *prometheus.HistogramVec
	handed   prometheus.Counter
	holds    prometheus.Histogram
	tooLong  prometheus.Counter
	kept     prometheus.Gauge
	lossesBy *prometheus.CounterVec
}

// buckets of durations of waits and holds, in seconds: 1 ms to 2 minutes.
var lockBuckets = prometheus.ExponentialBuckets(0.001, 3.2, 11)

func newLocks(registry prometheus.Registerer) *Locks {
	l := &Locks{
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "lock_waiters", Help: "Clients that wait for a lock now."}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "lock_wait_seconds", Help: "How long clients waited for a lock, by the word of the reply.",
			Buckets: lockBuckets}, []string{"outcome"}),
		handed: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "lock_handovers_total", Help: "Locks given to the next who waited here, in the call that released them."}),
		holds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "lock_hold_seconds", Help: "How long locks were held that were released here.", Buckets: lockBuckets}),
		tooLong: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "lock_long_holds_total", Help: "Locks that were held for longer than lock.long_hold_percent allows."}),
		kept: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "lock_kept", Help: "Locks with AUTO that are renewed for a connection now."}),
		lossesBy: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "lock_losses_total", Help: "Locks with AUTO that could not be kept, by reason."}, []string{"reason"}),
	}
	registry.MustRegister(l.waiting, l.waits, l.handed, l.holds, l.tooLong, l.kept, l.lossesBy)
	return l
}

// Waiting counts a client that begins to wait, 1, or ends, -1.
func (l *Locks) Waiting(change int) { l.waiting.Add(float64(change)) }

// Waited counts the end of a wait. outcome is a word of a reply.
func (l *Locks) Waited(outcome string, d time.Duration) {
	l.waits.WithLabelValues(outcome).Observe(d.Seconds())
}

// HandedOver counts a release that gave the lock to the next.
func (l *Locks) HandedOver() { l.handed.Inc() }

// Held counts the end of a hold; long: it was longer than it should be.
func (l *Locks) Held(d time.Duration, long bool) {
	l.holds.Observe(d.Seconds())
	if long {
		l.tooLong.Inc()
	}
}

// Kept counts a lock that begins to be kept for a connection, 1, or ends, -1.
func (l *Locks) Kept(change int) { l.kept.Add(float64(change)) }

// Lost counts a lock that could not be kept, for one of the few reasons there are.
func (l *Locks) Lost(reason string) { l.lossesBy.WithLabelValues(reason).Inc() }
