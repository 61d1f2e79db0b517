package proxy

import (
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"seckill-proxy/upstream"
)

// leases keeps one value for each profile that sessions use, such as the
// connections that they share. At most max are kept; what is in use when another
// takes its place is closed when the last session has left it.
type leases[V any] struct {
	open  func(upstream.Profile) V
	close func(V)

	mu   sync.Mutex
	kept *lru.Cache[upstream.Profile, *leased[V]]
}

// leased is a value and who uses it.
type leased[V any] struct {
	value   V
	users   int  // leases not yet released
	evicted bool // out of the cache: the last user closes it
}

// lease is a session's share of a value.
type lease[V any] struct {
	key     upstream.Profile
	value   V
	release func() // to be called once
}

func newLeases[V any](most int, open func(upstream.Profile) V, close func(V)) *leases[V] {
	l := &leases[V]{open: open, close: close}
	kept, err := lru.NewWithEvict(most, func(_ upstream.Profile, v *leased[V]) {
		v.evicted = true
		l.closeIfUnused(v)
	})
	if err != nil {
		panic("proxy: " + err.Error()) // most isn't positive: the configuration was not validated
	}
	l.kept = kept
	return l
}

// acquire returns the value of a profile, opened if need be.
func (l *leases[V]) acquire(key upstream.Profile) *lease[V] {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.kept.Get(key)
	if !ok {
		v = &leased[V]{value: l.open(key)}
		l.kept.Add(key, v)
	}
	v.users++
	return &lease[V]{key: key, value: v.value, release: func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		v.users--
		l.closeIfUnused(v)
	}}
}

// values returns all values that are kept.
func (l *leases[V]) values() (all []V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.kept.Values() {
		all = append(all, v.value)
	}
	return all
}

// closeIfUnused is called with the lock held.
func (l *leases[V]) closeIfUnused(v *leased[V]) {
	if v.evicted && v.users == 0 {
		l.close(v.value)
	}
}

// closeAll closes everything, now or when its last user leaves.
func (l *leases[V]) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept.Purge()
}

// closeNow closes everything that is kept, in use or not. close is called again
// when its last user leaves.
func (l *leases[V]) closeNow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.kept.Values() {
		l.close(v.value)
	}
}
