package metrics

import (
	"testing"
	"time"
)

// What a Locker tells arrives under the names that are documented.
func TestLocks(t *testing.T) {
	m := New()
	m.Locks.Waiting(1)
	m.Locks.Waited("ACQUIRED", time.Second)
	m.Locks.HandedOver()
	m.Locks.Held(2*time.Second, false)
	m.Locks.Held(3*time.Second, true)
	m.Locks.Kept(2)
	m.Locks.Kept(-1)
	m.Locks.Lost("taken")
	want := map[string]float64{
		"seckill_proxy_lock_waiters": 1, "seckill_proxy_lock_wait_seconds": 1, "seckill_proxy_lock_handovers_total": 1,
		"seckill_proxy_lock_hold_seconds": 5, "seckill_proxy_lock_long_holds_total": 1, "seckill_proxy_lock_kept": 1,
		"seckill_proxy_lock_losses_total": 1,
	}
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		value, ok := want[family.GetName()]
		if !ok {
			continue
		}
		delete(want, family.GetName())
		metric := family.GetMetric()[0]
		got := metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + metric.GetHistogram().GetSampleSum()
		if got != value {
			t.Errorf("%s is %v, want %v", family.GetName(), got, value)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}
