package proxy

import (
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/redis/go-redis/v9"

	"seckill-proxy/commands"
	"seckill-proxy/upstream"
)

// backends keeps one backend for each user and database that sessions use, so
// that sessions of one user share its connections and what it remembers, and
// none works with another's rights. At most max are kept; one in use is closed
// when the last session has left it.
type backends struct {
	open func(*redis.Client) *commands.Backend
	dial func(upstream.Identity, int) *redis.Client

	mu   sync.Mutex
	kept *lru.Cache[backendKey, *shared]
}

type backendKey struct {
	identity upstream.Identity
	db       int
}

// shared is a backend and who uses it.
type shared struct {
	backend *commands.Backend
	client  *redis.Client
	users   int  // leases not yet released
	evicted bool // out of the cache: the last user closes it
}

// lease is a session's share of a backend.
type lease struct {
	key     backendKey
	backend *commands.Backend
	release func()
}

func newBackends(most int, dial func(upstream.Identity, int) *redis.Client, open func(*redis.Client) *commands.Backend) *backends {
	b := &backends{open: open, dial: dial}
	kept, err := lru.NewWithEvict(most, func(_ backendKey, s *shared) {
		s.evicted = true
		s.closeIfUnused()
	})
	if err != nil {
		panic("proxy: " + err.Error()) // most isn't positive: the configuration was not validated
	}
	b.kept = kept
	return b
}

// acquire returns the backend of a user and database, made if need be. The
// caller releases the lease once.
func (b *backends) acquire(key backendKey) *lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.kept.Get(key)
	if !ok {
		client := b.dial(key.identity, key.db)
		s = &shared{client: client, backend: b.open(client)}
		b.kept.Add(key, s)
	}
	s.users++
	return &lease{key: key, backend: s.backend, release: func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		s.users--
		s.closeIfUnused()
	}}
}

// closeIfUnused is called with the lock held.
func (s *shared) closeIfUnused() {
	if s.evicted && s.users == 0 {
		s.client.Close()
	}
}

// close closes all backends, once no session uses them any more.
func (b *backends) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept.Purge()
}
