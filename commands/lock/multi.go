package lock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
	"seckill-proxy/sharding"
)

// This file is how several locks are taken: all or none.

// MultiRequest is what AcquireAll is asked for.
type MultiRequest struct {
	Names []string // no two equal
	TTL   time.Duration
	Wait  time.Duration
	Tie   *Tie // says for which connection they are kept, nil for none
}

// AcquireAll takes several locks exclusively, all or none of them: Acquired, with one
// token and one fence for all, Busy, NoTTL or WrongType; with a Wait TimedOut
// instead of Busy.
//
// Locks of one slot are taken in one step. Those of several slots of a cluster are
// taken slot by slot, always in the same order, and given back when not all can be
// had: others may find one of them busy for that moment. What can't be given back
// then is so as soon as Redis can do it, before it lapses. When it isn't known
// whether one was taken, the Result has the token.
//
// Who waits takes one lock after the other, in the order of their names, so that no
// two can wait for each other; none of them is the caller's before all are. ctx ends
// the waiting.
func (l *Locker) AcquireAll(ctx context.Context, req MultiRequest) (Result, error) {
	if l.rdb == nil {
		return Result{}, ErrQuorum
	}
	slices.Sort(req.Names)
	many := several{names: req.Names, keys: make([]keys, len(req.Names)), token: newToken(), ttl: req.TTL}
	for i, name := range req.Names {
		var err error
		if many.keys[i], err = l.keys(name); err != nil {
			return Result{}, err
		}
	}
	if req.Tie != nil {
		many.ttl = min(many.ttl, req.Tie.max(l.opts))
		if !req.Tie.Of.reserve(len(req.Names), l.opts.AutoMax) {
			return Result{}, ErrBusy
		}
	}
	result, err := l.takeAll(context.WithoutCancel(ctx), many)
	if err == nil && result.Outcome == Busy && req.Wait > 0 {
		// With another token: should a lock not have been given back, it is not yet to be
		// had, and may not be given back later as one that was waited for.
		many.token = newToken()
		result, err = l.waitForAll(ctx, many, req.Wait)
	}
	if req.Tie != nil {
		for _, name := range req.Names {
			req.Tie.Of.settle(l, name, want{token: many.token, ttl: many.ttl}, *req.Tie, result, err)
		}
	}
	return result, err
}

// several are locks that one wants.
type several struct {
	names []string
	keys  []keys // of each
	token string
	ttl   time.Duration
	had   bool // the token has each of them, unless it was lost
}

// bySlot takes several locks apart into those of each slot, in the order of the slots.
func (m several) bySlot() []several {
	places := make(map[int]int) // of a slot in the parts
	var slots []int
	for _, k := range m.keys {
		slot := sharding.Slot(k.lock)
		if _, known := places[slot]; !known {
			places[slot] = 0
			slots = append(slots, slot)
		}
	}
	slices.Sort(slots)
	parts := make([]several, len(slots))
	for place, slot := range slots {
		places[slot] = place
		parts[place] = several{token: m.token, ttl: m.ttl, had: m.had}
	}
	for i, k := range m.keys {
		part := &parts[places[sharding.Slot(k.lock)]]
		part.names, part.keys = append(part.names, m.names[i]), append(part.keys, k)
	}
	return parts
}

// allKeys are the keys of all locks, as scripts expect them.
func (m several) allKeys() []string {
	var all []string
	for _, k := range m.keys {
		all = append(all, k.all()...)
	}
	return all
}

// takeAll takes locks that the token may have already. When not all can be had, those
// that it has are given back.
func (l *Locker) takeAll(ctx context.Context, many several) (Result, error) {
	parts := []several{many}
	if _, ok := l.rdb.(*redis.ClusterClient); ok {
		parts = many.bySlot()
	}
	if len(parts) > 1 {
		return l.takeParts(ctx, parts)
	}
	a, err := l.takePart(ctx, many, 0)
	if many.had && (err != nil || a.Outcome != Acquired) {
		l.giveBackAll(many)
		err = noneKept(err)
	}
	return a.Result, err
}

// takePart runs macquire.lua.
func (l *Locker) takePart(ctx context.Context, part several, fence int64) (answer, error) {
	args := []any{part.token, part.ttl.Milliseconds(), flag(l.audible()), l.channel(), fence}
	for _, name := range part.names {
		args = append(args, name)
	}
	return l.at.run(ctx, macquireScript, part.token, part.allKeys(), args...)
}

// takeParts takes the locks of several slots. The fence of all is that of the last
// slot, which is no less than any before it.
func (l *Locker) takeParts(ctx context.Context, parts []several) (Result, error) {
	began := time.Now()
	var result Result
	for i, part := range parts {
		a, err := l.takePart(ctx, part, result.Fence)
		if err != nil || a.Outcome != Acquired {
			taken := parts[:i]
			switch {
			case part.had:
				taken = parts
			case errors.Is(err, script.ErrUncertain):
				taken = parts[:i+1]
			}
			l.giveBackAll(taken...)
			return a.Result, noneKept(err)
		}
		result = a.Result
	}
	err := l.raiseAll(ctx, parts[:len(parts)-1], result.Fence)
	if result.TTL = (result.TTL - time.Since(began)).Truncate(time.Millisecond); err == nil && result.TTL <= 0 {
		err = fmt.Errorf("%w: taking the locks took as long as they would have lasted", script.ErrNotExecuted)
	}
	if err != nil {
		l.giveBackAll(parts...)
		return Result{}, err
	}
	return result, nil
}

// raiseAll gives the locks of several slots one fence, which none of them had before, and
// none that comes later will have.
func (l *Locker) raiseAll(ctx context.Context, parts []several, fence int64) error {
	for _, part := range parts {
		a, err := l.at.run(ctx, fenceScript, part.token, part.allKeys(), part.token, fence)
		if err == nil && a.Outcome != Held {
			err = errors.New("a lock was lost before all were taken")
		}
		if err != nil {
			return fmt.Errorf("%w: %v", script.ErrNotExecuted, err) // all are given back
		}
	}
	return nil
}

// givenBack is an error after which locks are being given back, though it may not be known
// whether they were taken.
type givenBack struct{ error }

func (g givenBack) Unwrap() error { return g.error }

// noneKept makes a givenBack of an error, if it is one.
func noneKept(err error) error {
	if err == nil {
		return nil
	}
	return givenBack{err}
}

// giveBackAll gives locks back, as far as they are held, however often.
func (l *Locker) giveBackAll(parts ...several) {
	var debts []debt
	for _, part := range parts {
		for _, name := range part.names {
			debts = append(debts, debt{
				locker: l, name: name, giving: giving{token: part.token, levels: math.MaxInt32}, until: time.Now().Add(part.ttl), own: true,
			})
		}
	}
	giveBack(debts)
}

// waitForAll takes one lock after the other, and keeps those that it has meanwhile. In
// the end it has each of them once, however often it took them.
func (l *Locker) waitForAll(ctx context.Context, many several, wait time.Duration) (Result, error) {
	deadline := time.Now().Add(wait)
	var taken Ties
	for i, name := range many.names {
		result, err := l.Acquire(ctx, Request{
			Name: name, TTL: many.ttl, Wait: max(time.Until(deadline), time.Millisecond), Token: many.token,
			Tie: &Tie{Of: &taken, HoldMax: wait + many.ttl, inner: true},
		})
		if err != nil || result.Outcome != Acquired && result.Outcome != Reentered {
			taken.forget()
			if errors.Is(err, script.ErrUncertain) {
				i++
			}
			l.giveBackAll(several{names: many.names[:i], token: many.token, ttl: many.ttl})
			return result, noneKept(err)
		}
	}
	taken.forget()
	many.had = true
	result, err := l.takeAll(context.WithoutCancel(ctx), many)
	if err == nil && result.Outcome != Acquired { // one was lost meanwhile, or Redis is
		result = Result{Outcome: TimedOut}
	}
	return result, err
}
