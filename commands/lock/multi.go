package lock

import (
	"context"
	"slices"
	"time"
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
// Who waits takes one lock after the other, in the order of their names, so that no
// two can wait for each other; none of them is the caller's before all are. ctx ends
// the waiting.
func (l *Locker) AcquireAll(ctx context.Context, req MultiRequest) (Result, error) {
	if l.rdb == nil {
		return Result{}, ErrQuorum
	}
	slices.Sort(req.Names)
	all := make([]keys, len(req.Names))
	for i, name := range req.Names {
		var err error
		if all[i], err = l.keys(name); err != nil {
			return Result{}, err
		}
	}
	ttl := req.TTL
	if req.Tie != nil {
		ttl = min(ttl, req.Tie.max(l.opts))
		if !req.Tie.Of.reserve(len(req.Names), l.opts.AutoMax) {
			return Result{}, ErrBusy
		}
	}
	token := newToken()
	result, err := l.takeAll(context.WithoutCancel(ctx), req.Names, all, token, ttl)
	if err == nil && result.Outcome == Busy && req.Wait > 0 {
		result, err = l.waitForAll(ctx, req, all, token, ttl)
	}
	if req.Tie != nil {
		for _, name := range req.Names {
			req.Tie.Of.settle(l, name, want{token: token, ttl: ttl}, *req.Tie, result, err)
		}
	}
	return result, err
}

// takeAll runs macquire.lua.
func (l *Locker) takeAll(ctx context.Context, names []string, all []keys, token string, ttl time.Duration) (Result, error) {
	var allKeys []string
	args := []any{token, ttl.Milliseconds(), flag(l.audible()), l.channel()}
	for i, name := range names {
		allKeys = append(allKeys, all[i].all()...)
		args = append(args, name)
	}
	a, err := l.at.run(ctx, macquireScript, token, allKeys, args...)
	return a.Result, err
}

// waitForAll takes one lock after the other, and keeps those that it has meanwhile.
func (l *Locker) waitForAll(ctx context.Context, req MultiRequest, all []keys, token string, ttl time.Duration) (Result, error) {
	deadline := time.Now().Add(req.Wait)
	var taken Ties
	for _, name := range req.Names {
		result, err := l.Acquire(ctx, Request{
			Name: name, TTL: ttl, Wait: max(time.Until(deadline), time.Millisecond), Token: token,
			Tie: &Tie{Of: &taken, HoldMax: req.Wait + ttl, inner: true},
		})
		if err != nil || result.Outcome != Acquired {
			taken.Release()
			return result, err
		}
	}
	taken.forget()
	result, err := l.takeAll(context.WithoutCancel(ctx), req.Names, all, token, ttl)
	if err == nil && result.Outcome != Acquired { // one was lost meanwhile
		for i, name := range req.Names {
			_, _ = l.release(ctx, name, all[i], giving{token: token, levels: 1})
		}
		result = Result{Outcome: TimedOut}
	}
	return result, err
}
