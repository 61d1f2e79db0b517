package seckill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/script"
)

// model is what several shoppers were told, who make random purchases of the sale
// "sku" and settle them.
type model struct {
	mu    sync.Mutex
	told  map[string]Status   // token → how it stands
	given map[string]bool     // tokens that somebody was told to have reserved
	won   map[string]bool     // tokens that somebody was told to have settled
	asked map[Purchase]string // purchase with request id → token

	stepped chan int        // who has done a step
	ended   <-chan struct{} // closed when no more are done
}

const shoppers = 6

func newModel() *model {
	return &model{
		told: map[string]Status{}, given: map[string]bool{}, won: map[string]bool{}, asked: map[Purchase]string{},
		stepped: make(chan int, shoppers),
	}
}

// shopper is one of them.
type shopper struct {
	*model
	store  *Store
	random *rand.Rand
	// lossy: what nobody was told to be done may be lost again.
	lossy bool
}

const (
	modelStock = 300
	modelLimit = 4
	scarce     = 60 // so few that shards run dry
)

// step does one random thing and checks the answer against what is known.
func (s *shopper) step(ctx context.Context) error {
	switch s.random.IntN(10) {
	case 0, 1, 2, 3, 4:
		return s.buy(ctx)
	case 5:
		deliveries, _, err := s.store.Pull(ctx, "sku", fmt.Sprint("w", s.random.IntN(3)), 1+s.random.Int64N(5), 0)
		if err != nil {
			return err
		}
		for _, d := range deliveries {
			if err := s.settle(ctx, d.Token); err != nil {
				return err
			}
		}
		return nil
	default:
		s.mu.Lock()
		var token string
		for token = range s.told { // any: Go's maps begin anywhere
			break
		}
		s.mu.Unlock()
		if token == "" {
			return nil
		}
		return s.settle(ctx, token)
	}
}

func (s *shopper) buy(ctx context.Context) error {
	p := Purchase{SKU: "sku", User: fmt.Sprint("user", s.random.IntN(60)), Qty: 1 + s.random.Int64N(5), Sync: -1}
	if s.random.IntN(2) == 0 {
		p.Qty, p.RequestID = 1, fmt.Sprint("r", s.random.IntN(4))
	}
	receipt, err := s.store.Buy(ctx, p)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch receipt.Outcome {
	case Reserved, Replayed:
		if p.RequestID != "" {
			if before := s.asked[p]; before != "" && before != receipt.Token {
				return fmt.Errorf("%+v had token %s, now %+v", p, before, receipt)
			}
			s.asked[p] = receipt.Token
		}
		if receipt.Outcome == Reserved && s.given[receipt.Token] {
			return fmt.Errorf("token %s was given twice", receipt.Token)
		}
		s.given[receipt.Token] = s.given[receipt.Token] || receipt.Outcome == Reserved
		if s.told[receipt.Token] == "" {
			s.told[receipt.Token] = Pending
		}
	case LimitReached, SoldOut:
	case Uncertain:
		if !s.lossy {
			return fmt.Errorf("%+v: %+v", p, receipt)
		}
	default:
		return fmt.Errorf("%+v: %+v", p, receipt)
	}
	return nil
}

func (s *shopper) settle(ctx context.Context, token string) error {
	want, settlement, err := Confirmed, Settlement{}, error(nil)
	if s.random.IntN(2) == 0 {
		settlement, err = s.store.Confirm(ctx, token, "order of "+token)
	} else {
		want = Cancelled
		settlement, err = s.store.Cancel(ctx, token, "")
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Others may have been told, and have noted it, before or after us.
	before := s.told[token]
	if before != "" && before != Pending && before != settlement.Status {
		return fmt.Errorf("%s of %s that stood %q: %+v", want, token, before, settlement)
	}
	switch {
	case settlement.Outcome == NoReservation && before == "" && s.lossy:
		return nil
	case settlement.Outcome == Settled && settlement.Status == want && !s.won[token]:
		s.won[token] = true
	case settlement.Outcome == Replayed && settlement.Status == want:
	case settlement.Outcome == Conflict && settlement.Status == other(want):
	default:
		return fmt.Errorf("%s of %s that stood %q (won: %v): %+v", want, token, before, s.won[token], settlement)
	}
	s.told[token] = settlement.Status
	return nil
}

func other(status Status) Status {
	if status == Confirmed {
		return Cancelled
	}
	return Confirmed
}

// run lets shoppers do random things at once, through stores of their own. It returns
// what ends that. A step may fail with an error that is expected.
func (m *model) run(t *testing.T, seed uint64, lossy bool, store func() *Store, expected func(error) bool) (stop func()) {
	ctx, end := context.WithCancel(t.Context())
	m.ended = ctx.Done()
	var running sync.WaitGroup
	for i := range shoppers {
		s := &shopper{model: m, store: store(), random: rand.New(rand.NewPCG(seed, uint64(i))), lossy: lossy}
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := s.step(context.WithoutCancel(ctx)); err != nil && !expected(err) {
					t.Errorf("step %d of shopper %d: %v", n, i, err)
					end()
				}
				select {
				case m.stepped <- i:
				case <-ctx.Done():
				}
			}
		})
	}
	t.Cleanup(func() { end(); running.Wait() })
	return func() { end(); running.Wait() }
}

// steps waits until so many steps were done.
func (m *model) steps(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-m.stepped:
		case <-m.ended:
			t.FailNow() // why is told already
		}
	}
}

// check compares what there is with what was told, when the shoppers have ended.
func (m *model) check(t *testing.T, observer *Store, exactly bool) {
	t.Helper()
	audit := clean(t, observer, "sku")
	for token, status := range m.told {
		reservation := must[Reservation](t)(observer.Result(t.Context(), token))
		// A settlement whose answer was lost may have happened.
		if reservation.Outcome != Found || reservation.Status != status && (exactly || status != Pending) {
			t.Errorf("%s was told %s, is %+v", token, status, reservation)
		}
	}
	if exactly {
		equal(t, "reservations", audit.Orders, int64(len(m.told)))
	}
	t.Logf("%+v", audit)
}

// isLost reports errors of operations that weren't executed, or may have been.
func isLost(err error) bool {
	return errors.Is(err, script.ErrUncertain) || errors.Is(err, script.ErrNotExecuted)
}

// TestRandomOperations audits all along. With crashes, Redis is killed and restarted
// with its append only file meanwhile.
func TestRandomOperations(t *testing.T) {
	for _, crashes := range []int{0, 3} {
		t.Run(fmt.Sprint(crashes, " crashes"), func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			server := redistest.Start(t, redistest.Options{AppendOnly: crashes > 0})
			observer := newStore(t, connect(t, server.Addr), Options{})
			create(t, observer, Sale{SKU: "sku", Stock: modelStock, Limit: modelLimit})
			m := newModel()
			stop := m.run(t, seed, false, func() *Store {
				return newStore(t, connect(t, server.Addr), Options{TakeoverAfter: time.Millisecond})
			}, func(err error) bool { return crashes > 0 && isLost(err) })
			const rounds, stepsPerRound = 20, 100
			for round := range rounds {
				m.steps(t, stepsPerRound)
				if crashes > 0 && round%(rounds/crashes) == 1 {
					server.Restart()
				}
				clean(t, observer, "sku")
			}
			stop()
			m.check(t, observer, crashes == 0)
		})
	}
}

// Memory of Redis per reservation, with all that belongs to it.
func TestMemoryPerReservation(t *testing.T) {
	const reservations, most = 10_000, 400
	for name, requestID := range map[string]string{"without request id": "", "with an UUID for request id": "0b5e6a0c-5a1f-4d2c-9c53-1f0e5a7d%04d"} {
		t.Run(name, func(t *testing.T) {
			rdb := connect(t, redistest.Start(t, redistest.Options{}).Addr)
			s := newStore(t, rdb, Options{})
			create(t, s, Sale{SKU: "iphone-17-pro", Stock: reservations, Limit: 1})
			reserve(t, s, Purchase{SKU: "iphone-17-pro", User: "warm-up", Qty: 1}) // the script's own memory
			used := func() int64 {
				t.Helper()
				info := must[map[string]map[string]string](t)(rdb.InfoMap(t.Context(), "memory").Result())
				var n int64
				if _, err := fmt.Sscan(info["Memory"]["used_memory"], &n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			before := used()
			for i := range reservations - 1 {
				p := Purchase{SKU: "iphone-17-pro", User: fmt.Sprintf("%08d", i), Qty: 1}
				if requestID != "" {
					p.RequestID = fmt.Sprintf(requestID, i)
				}
				reserve(t, s, p)
			}
			each := (used() - before) / (reservations - 1)
			t.Logf("%d bytes per reservation", each)
			if each > most {
				t.Errorf("%d bytes per reservation, want at most %d", each, most)
			}
			clean(t, s, "iphone-17-pro")
		})
	}
}
