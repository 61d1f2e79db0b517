package localcache

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// soldOutCache has a sale that is sold out to so many buyers, with a rate and a
// window, so that a purchase by someone else meets every check.
func soldOutCache(buyers int) *Cache[string] {
	c := New[string](Options{Trust: time.Hour, ClockFor: time.Hour})
	c.Heard(time.Now())
	m := c.Mark("sku")
	c.LearnSale(m, Sale{ID: "id", CloseAt: 1 << 60, RateCount: 1}, redisNow)
	set := c.NewBuyers()
	for i := range buyers {
		set.Add(strconv.Itoa(i))
	}
	if !c.LearnSoldOut(m, "id", set) {
		panic("the flag was not remembered")
	}
	return c
}

func TestRefusalsDontAllocate(t *testing.T) {
	c := soldOutCache(1000)
	c.LearnAbsent(c.Mark("absent"))
	c.Remember(c.Mark("sku"), "id", "7", "request", 1, "answer")
	for _, test := range []struct {
		sku, user, requestID string
		want                 Verdict
	}{
		{"sku", "not a buyer", "", SoldOut},
		{"sku", "not a buyer", "request", SoldOut},
		{"sku", "7", "request", Remembered},
		{"sku", "8", "request", Unknown},
		{"absent", "user", "", NoSale},
		{"never asked for", "user", "", Unknown},
	} {
		allocs := testing.AllocsPerRun(100, func() {
			if got := c.Refuse(test.sku, test.user, test.requestID, 1).Verdict; got != test.want {
				t.Fatalf("%+v: %s", test, got)
			}
		})
		if allocs != 0 {
			t.Errorf("%+v: %v allocations", test, allocs)
		}
	}
}

// heap returns the bytes that are in use.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestBytesPerBuyer(t *testing.T) {
	const buyers = 200_000
	before := heap()
	c := soldOutCache(buyers)
	perBuyer := float64(heap()-before) / buyers
	runtime.KeepAlive(c)
	t.Logf("%.2f bytes per buyer", perBuyer)
	if perBuyer > 8.2 {
		t.Fatalf("%.2f bytes per buyer, want 8", perBuyer)
	}
}

func BenchmarkRefuse(b *testing.B) {
	for _, buyers := range []int{100, 100_000, 1_000_000} {
		b.Run(fmt.Sprint("SoldOut/buyers=", buyers), func(b *testing.B) {
			c := soldOutCache(buyers)
			users := make([]string, 1<<10)
			for i := range users {
				users[i] = fmt.Sprint("user ", i)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if c.Refuse("sku", users[i%len(users)], "", 1).Verdict != SoldOut {
						b.Error("not refused")
					}
				}
			})
		})
	}
}

// BenchmarkRate tells what one user who is too fast takes.
func BenchmarkRate(b *testing.B) {
	const users = 100_000
	c := soldOutCache(0)
	m := c.Mark("sku")
	before := heap()
	for i := range users {
		c.LearnRateLimited(m, "id", fmt.Sprintf("%08d", i), 1000)
	}
	perUser := float64(heap()-before) / users
	for b.Loop() {
		c.LearnRateLimited(m, "id", "user", 1000)
	}
	b.ReportMetric(perUser, "B/user")
}
