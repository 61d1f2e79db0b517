package upstream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// known is something about a cluster that is asked for once, by those who need
// it, with their rights.
type known[T any] struct {
	atomic.Pointer[T]

	mu     sync.Mutex
	down   failure              // of everybody
	denied map[Identity]failure // of those who may not ask
}

// failure is an error that is repeated for a while: every command of a client
// needs what couldn't be had.
type failure struct {
	err   error
	until time.Time
}

const (
	failureFor = 200 * time.Millisecond
	// deniedMax bounds how many identities are remembered that may not ask.
	deniedMax = 1024
)

// get returns what is known. Where nothing is, one caller at a time, who holds
// the place in asking, has it asked for.
func (k *known[T]) get(ctx context.Context, asking chan struct{}, id Identity, ask func(context.Context, Identity) error) (*T, error) {
	if value, err := k.have(id); value != nil || err != nil {
		return value, err
	}
	select {
	case asking <- struct{}{}:
		defer func() { <-asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if value, err := k.have(id); value != nil || err != nil {
		return value, err
	}
	err := ask(ctx, id)
	if err != nil && ctx.Err() == nil { // else it may be this caller's alone
		k.failed(id, err)
	}
	return k.Load(), err
}

// have returns what is known, or why it can't be had.
func (k *known[T]) have(id Identity) (*T, error) {
	if value := k.Load(); value != nil {
		return value, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range []failure{k.down, k.denied[id]} {
		if time.Now().Before(f.until) {
			return nil, f.err
		}
	}
	return nil, nil
}

// failed notes why it couldn't be had.
func (k *known[T]) failed(id Identity, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := failure{err, time.Now().Add(failureFor)}
	if !IsDenial(err) {
		k.down = f
		return
	}
	if k.denied == nil || len(k.denied) >= deniedMax {
		k.denied = map[Identity]failure{}
	}
	k.denied[id] = f
}
