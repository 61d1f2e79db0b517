package seckill

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"seckill-proxy/internal/listen"
)

// news is what a Store hears of others: that what it remembers is no longer so,
// that a reservation is settled, that orders wait for workers.
type news struct {
	*Store
	listener *listen.Nodes

	began time.Time
	heard atomic.Int64 // nanoseconds after began up to which all is heard

	mu    sync.Mutex
	bells map[string]map[chan struct{}]struct{} // by what is waited for
}

func newNews(s *Store) *news {
	return &news{Store: s, began: time.Now(), bells: make(map[string]map[chan struct{}]struct{})}
}

func (n *news) start() {
	n.listener = listen.StartNodes(n.rdb, listen.Options{
		Channels:  []string{n.eventsChannel(), n.ResultsChannel()},
		OnMessage: n.onMessage,
		OnHeard:   n.onHeard,
		OnLost:    n.onLost,
		Log:       n.Log,
	})
}

func (n *news) close() {
	if n.listener != nil {
		n.listener.Close()
	}
}

func (n *news) onMessage(channel, payload string) {
	if channel == n.ResultsChannel() {
		n.onSettled(payload)
		return
	}
	kind, sku, _ := strings.Cut(payload, " ")
	switch kind {
	case eventStock:
		n.cache.Event(sku)
	case eventSale:
		n.cache.Event(sku)
		n.keeper.reconsider(sku)
		n.ringSale(sku) // it may have been dropped
	case eventOrders:
		n.ring(payload)
	}
}

// onSettled wakes who waits for the result of a reservation.
func (n *news) onSettled(payload string) {
	if !n.awaited() {
		return // most messages, in most sidecars
	}
	var message settled
	if json.Unmarshal([]byte(payload), &message) == nil && message.Type == settledType {
		n.ring(message.Data.Token)
	}
}

func (n *news) onHeard(until time.Time) {
	n.cache.Heard(until)
	n.heard.Store(int64(until.Sub(n.began)))
}

// onLost is called when something may have been missed: all that wait look again.
func (n *news) onLost() {
	n.cache.Reset()
	n.heard.Store(0)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, bells := range n.bells {
		ringAll(bells)
	}
}

// alive reports whether whoever waits will be told.
func (n *news) alive() bool {
	const silence = time.Second
	heard := n.heard.Load()
	return heard > 0 && time.Since(n.began)-time.Duration(heard) < silence
}

// await calls look until it says that it has found what was waited for, at first
// and then whenever what is published under this name, for as long as wait, or
// until ctx ends. It also looks from time to time, when every isn't 0, and while
// nothing can be heard.
func (n *news) await(ctx context.Context, name string, wait, every time.Duration, look func() (found bool, err error)) error {
	if wait <= 0 {
		_, err := look()
		return err
	}
	bell := n.hang(name)
	defer n.unhang(name, bell)
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		found, err := look()
		if found || err != nil {
			return err
		}
		again, stop := n.lookAgain(every)
		select {
		case <-bell:
			stop()
		case <-again:
		case <-end.C:
			stop()
			// Once more: not everybody may publish what he does.
			_, err := look()
			return err
		case <-ctx.Done():
			stop()
			return nil
		}
	}
}

// lookAgain is when to look without having been told.
func (n *news) lookAgain(every time.Duration) (again <-chan time.Time, stop func()) {
	const deaf = 500 * time.Millisecond
	if !n.alive() && (every == 0 || every > deaf) {
		every = deaf
	}
	if every == 0 {
		return nil, func() {}
	}
	timer := time.NewTimer(every)
	return timer.C, func() { timer.Stop() }
}

// hang returns a bell that rings when something is published under this name.
func (n *news) hang(name string) chan struct{} {
	bell := make(chan struct{}, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bells[name] == nil {
		n.bells[name] = make(map[chan struct{}]struct{})
	}
	n.bells[name][bell] = struct{}{}
	return bell
}

func (n *news) unhang(name string, bell chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.bells[name], bell)
	if len(n.bells[name]) == 0 {
		delete(n.bells, name)
	}
}

func (n *news) awaited() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.bells) > 0
}

func (n *news) ring(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ringAll(n.bells[name])
}

// ringSale wakes all who wait for something of a sale.
func (n *news) ringSale(sku string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ringAll(n.bells[event(eventOrders, sku)])
	tokens := tokensOf(sku)
	for name, bells := range n.bells {
		if strings.HasPrefix(name, tokens) {
			ringAll(bells)
		}
	}
}

// ringAll rings bells; one that rings already needs no more.
func ringAll(bells map[chan struct{}]struct{}) {
	for bell := range bells {
		select {
		case bell <- struct{}{}:
		default:
		}
	}
}
