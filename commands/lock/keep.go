package lock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"seckill-proxy/internal/script"
)

// This file is how a lock is kept for a connection (AUTO): it is renewed at a third
// of its TTL for as long as the connection lives, but no longer than it may
// be held in all.

// Tie says that a lock is to be kept for a connection.
type Tie struct {
	Of      *Ties
	HoldMax time.Duration // for how long at most; 0: Options.Hold

	inner bool // the connection is one of AcquireAll's own
}

// room reserves room for a hold.
func (t *Tie) room(o Options) bool {
	most := o.AutoMax
	if t.inner {
		most = o.NamesMax
	}
	return t.Of.reserve(1, most)
}

func (t *Tie) max(o Options) time.Duration {
	if t.HoldMax > 0 {
		return t.HoldMax
	}
	return o.Hold
}

// holdKey is what a hold is found by when its token is released.
type holdKey struct{ name, token string }

// hold is a lock that is kept for a connection. One goroutine, keep, renews it until
// stop, or until it is lost.
type hold struct {
	locker  *Locker
	ties    *Ties
	key     holdKey
	ttl     time.Duration
	began   time.Time
	holdMax time.Duration
	sure    bool  // the lock was acquired, and not maybe; keep's own
	levels  int64 // of the lock's depth, which are this connection's; guarded by Locker.mu
	fence   int64 // the latest with which it was acquired, 0 if it isn't sure; guarded by Locker.mu

	validUntil time.Time // when the lock lapses at the earliest; keep's own until it has returned

	end   context.CancelFunc
	ended chan struct{} // closed when keep has returned
}

// settle makes a hold of a lock that was acquired for a connection, or gives up the
// room that was reserved for it. When it isn't known whether it was acquired, it is
// kept in case it was, unless it is being given back.
func (t *Ties) settle(l *Locker, name string, w want, tie Tie, result Result, err error) {
	got := result.Outcome == Acquired || result.Outcome == Reentered
	if !got && (!errors.Is(err, script.ErrUncertain) || errors.As(err, new(givenBack))) {
		t.free()
		return
	}
	if !l.keepOn(holdKey{name, w.token}, w.ttl, tie, got, result.Fence) {
		t.free() // it had a hold already
	}
}

// keepOn begins to keep a lock for a connection; false when it is kept for it
// already, and is now so for one level more.
func (l *Locker) keepOn(key holdKey, ttl time.Duration, tie Tie, sure bool, fence int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.holds[key] {
		if h.ties == tie.Of {
			h.levels++
			h.fence = max(h.fence, fence)
			return false
		}
	}
	ctx, end := context.WithCancel(context.Background())
	h := &hold{
		locker: l, ties: tie.Of, key: key, ttl: ttl, began: time.Now(), holdMax: tie.max(l.opts), levels: 1, sure: sure, fence: fence,
		end: end, ended: make(chan struct{}),
	}
	h.validUntil = h.began.Add(ttl)
	l.holds[key] = append(l.holds[key], h)
	tie.Of.add(h)
	l.told.Kept(1)
	go h.keep(ctx)
	return true
}

// untie is called when a level of a lock was released: those who keep it stop when
// all is released, or the caller's part of it. One with a larger fence has it anew:
// the release handed it over to another who waited with the same token.
func (l *Locker) untie(key holdKey, ties *Ties, released Result) {
	var over []*hold
	l.mu.Lock()
	for _, h := range l.holds[key] {
		if h.ties == ties && h.levels > 0 {
			h.levels--
		}
		if released.Depth == 0 && h.fence <= released.Fence || h.levels == 0 {
			h.levels = 0 // and none to give back
			over = append(over, h)
		}
	}
	for _, h := range over {
		l.forget(h) // who has the lock anew begins to keep it anew
	}
	l.mu.Unlock()
	for _, h := range over {
		h.stop()
	}
}

// lifeOf is how long a lock is kept at most; 0 if it isn't kept.
func (l *Locker) lifeOf(key holdKey) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ttl time.Duration
	for _, h := range l.holds[key] {
		ttl = max(ttl, h.holdMax)
	}
	return ttl
}

// stop ends the renewals, and waits until none is under way. It may be called more
// than once.
func (h *hold) stop() {
	h.end()
	<-h.ended
}

// debt is what the connection has of the lock, once stop has returned; false when that is nothing.
func (h *hold) debt() (debt, bool) {
	h.locker.mu.Lock()
	levels := h.levels
	h.locker.mu.Unlock()
	g := giving{token: h.key.token, levels: levels, life: h.holdMax}
	return debt{locker: h.locker, name: h.key.name, giving: g, until: h.validUntil}, levels > 0
}

// over takes the hold out of where it is known.
func (h *hold) over() {
	l := h.locker
	l.mu.Lock()
	l.forget(h)
	l.mu.Unlock()
	h.ties.remove(h)
	l.told.Kept(-1)
	close(h.ended)
}

// forget takes a hold out of those that can be released, or gain levels. The caller
// holds mu.
func (l *Locker) forget(h *hold) {
	holds := slices.DeleteFunc(slices.Clone(l.holds[h.key]), func(other *hold) bool { return other == h })
	if l.holds[h.key] = holds; len(holds) == 0 {
		delete(l.holds, h.key)
	}
}

// keep renews the lock until ctx ends, or until it is lost, which is reported.
func (h *hold) keep(ctx context.Context) {
	defer h.over()
	timer := time.NewTimer(h.ttl / 3)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		left := time.Until(h.began.Add(h.holdMax))
		if left < time.Millisecond {
			h.lost(ctx, LostHoldMax)
			return
		}
		asked := time.Now()
		result, err := h.renew(ctx, min(h.ttl, left))
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && result.Outcome != Renewed && !h.sure:
			return // it never was
		case err == nil && result.Outcome == Renewed && left <= h.ttl:
			h.validUntil, h.sure = asked.Add(left), true
			timer.Reset(left) // the last time
		case err == nil && result.Outcome == Renewed:
			h.validUntil, h.sure = asked.Add(h.ttl), true
			timer.Reset(h.ttl / 3)
		case err == nil && result.Outcome == NotOwner:
			h.lost(ctx, LostTaken)
			return
		case err == nil:
			h.lost(ctx, LostLapsed)
			return
		case isAnswer(err):
			h.lost(ctx, LostRefused)
			return
		case !time.Now().Before(h.validUntil.Add(h.ttl)):
			h.lost(ctx, LostLapsed) // nobody can have kept it for so long
			return
		default:
			timer.Reset(min(max(h.ttl/20, retryMin), retryMax))
		}
	}
}

// How renewals behave when Redis is slow or can't be reached.
const (
	retryMin = 5 * time.Millisecond // between two attempts
	retryMax = 250 * time.Millisecond

	renewMin = 10 * time.Millisecond // that Redis has to answer a renewal
	renewMax = time.Second

	spare = 5 * time.Millisecond // as SPARE_MS of hold.lua
)

// renew renews the lock, and waits for Redis no longer than a third of the TTL, so
// that there is time to try again.
func (h *hold) renew(ctx context.Context, ttl time.Duration) (Result, error) {
	patience := min(max(h.ttl/3, renewMin), renewMax)
	_, clustered := h.locker.rdb.(*redis.ClusterClient)
	if clustered {
		patience /= 2 // for each of two attempts
	}
	renewing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	result, err := h.locker.renew(renewing, h.key.name, h.key.token, ttl, true)
	if err == nil || isAnswer(err) || !clustered {
		return result, err
	}
	prolonging, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if h.prolong(prolonging, ttl) {
		return Result{Outcome: Renewed}, nil
	}
	return result, err
}

// prolong keeps an exclusive lock alive while its slot moves, which can take longer than
// its TTL: Redis serves each of its keys meanwhile, but not all of them together.
func (h *hold) prolong(ctx context.Context, ttl time.Duration) bool {
	k, err := h.locker.keys(h.key.name)
	if err != nil {
		return false
	}
	for _, key := range []string{k.lock, k.record} {
		if key == k.record {
			ttl += spare
		}
		a, err := h.locker.at.run(ctx, prolongScript, h.key.token, []string{key}, h.key.token, ttl.Milliseconds(), flag(key == k.record))
		if err != nil || a.Outcome != Renewed {
			return false
		}
	}
	return true
}

// isAnswer reports an error that Redis itself answered.
func isAnswer(err error) bool {
	var answered redis.Error
	return errors.As(err, &answered)
}

// lost reports that the lock isn't held any more.
func (h *hold) lost(ctx context.Context, reason string) {
	if ctx.Err() != nil {
		return
	}
	h.locker.told.Lost(reason)
	h.locker.log.Warn("a lock that was kept for a client is lost", zap.String("lock", h.key.name), zap.String("reason", reason),
		zap.Duration("held", time.Since(h.began)))
}
