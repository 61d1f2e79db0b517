package lock

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"seckill-proxy/internal/script"
)

// This file is how locks are given back that nobody else would give back: those of a
// connection that has ended, and those that were taken with others that could not be
// had. Where Redis can't do it now (a slot moves, a replica takes over), it is tried
// again until they would have lapsed anyway.

const (
	// givingMax is how long somebody waits until such locks are given back; what
	// takes longer goes on without them.
	givingMax = time.Second
	// debtsMax is how many such locks a Locker has at a time. More are given back one
	// after the other, and lapse where that fails.
	debtsMax = 1024
)

// errTooMany is why a lock isn't even tried to be given back.
var errTooMany = errors.New("too many others are being given back, and Redis is slow")

// debt is a lock to give back.
type debt struct {
	locker *Locker
	name   string
	giving giving
	until  time.Time // when it lapses; nothing is sent after that
	own    bool      // nobody else knows the token, so it may be given back twice
}

// giveBack gives locks back, and waits until each was tried once, or for givingMax.
func giveBack(debts []debt) {
	timer := time.NewTimer(givingMax)
	defer timer.Stop()
	late := time.Now().Add(givingMax)
	tried := make(chan struct{}, len(debts))
	for _, d := range debts {
		if !d.locker.owe(d, tried) {
			d.once(late)
			tried <- struct{}{}
		}
	}
	for range debts {
		select {
		case <-tried:
		case <-timer.C:
			return
		}
	}
}

// owe begins to give a lock back in a goroutine of the Locker's; false when it has too
// many or is closed. The first attempt is told to tried.
func (l *Locker) owe(d debt, tried chan<- struct{}) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.debts >= debtsMax {
		return false
	}
	l.debts++
	l.running.Go(func() {
		d.settle(tried)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.debts--
	})
	return true
}

// settle gives the lock back as soon as it can be.
func (d debt) settle(tried chan<- struct{}) {
	err := d.try()
	tried <- struct{}{}
	for pause := retryMin; d.again(err) && d.locker.idle(pause) && time.Now().Before(d.until); pause = min(2*pause, retryMax) {
		err = d.try()
	}
	if err != nil {
		d.lapses(err)
	}
}

// once tries to give the lock back, unless it is late already.
func (d debt) once(late time.Time) {
	err := errTooMany
	if time.Now().Before(late) {
		err = d.try()
	}
	if err != nil {
		d.lapses(err)
	}
}

func (d debt) try() error {
	k, err := d.locker.keys(d.name)
	if err != nil {
		return err
	}
	_, err = d.locker.release(context.Background(), d.name, k, d.giving)
	return err
}

// again reports whether another attempt makes sense, and does no harm: whoever shares
// a token may have taken the lock again after an attempt that was carried out
// though no answer came.
func (d debt) again(err error) bool {
	uncertain := errors.Is(err, script.ErrUncertain) // of several servers, one may be
	return uncertain && d.own || !uncertain && errors.Is(err, script.ErrNotExecuted)
}

func (d debt) lapses(err error) {
	d.locker.log.Warn("a lock could not be given back, and lapses", zap.String("lock", d.name), zap.Error(err))
}

// idle waits for d; false when the Locker ends.
func (l *Locker) idle(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.ending:
		return false
	case <-timer.C:
		return true
	}
}
