package lock

import (
	"container/list"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"seckill-proxy/internal/script"
)

// This file is how clients wait. Those who want the same lock stand in a queue in
// their sidecar, first come first served, and only the head of the queue looks
// whether the lock can be had: when somebody says so, when its holder's time is
// over, and every lookEvery where nobody would say so. The sidecars in turn stand
// in a line in Redis, and the one whose turn it is takes the lock for its head.
//
// A release through a sidecar in which others wait takes the next one along: it is
// offered the lock, and gets it in the same call.

const (
	lookEvery = 50 * time.Millisecond // where nobody tells that a lock is free
	turnTime  = 50 * time.Millisecond // as TURN_MS of hold.lua
	// looksApart keeps a sidecar with very many queues from asking Redis all the
	// time: with n queues that have to look by themselves each does so every n times
	// that.
	looksApart = 100 * time.Microsecond
	// lookMax is the longest time without a look, should a message be lost or a key
	// be deleted by hand.
	lookMax = 5 * time.Second
	// lapseMargin is added to what a holder has left, as Redis counts whole
	// milliseconds.
	lapseMargin = time.Millisecond
	// grace is how much later than its time a waiter may be told what became of a
	// call that is under way then.
	grace = 40 * time.Millisecond
	// streakMax is how often a lock is handed over inside of a sidecar while
	// another waits.
	streakMax = 16
)

// queue are the waiters of one lock in this sidecar. It exists while there are any.
// Guarded by Locker.mu, as are its waiters.
type queue struct {
	waiters list.List // of *waiter; the front is the head
	lookAt  time.Time // when the head looks next
	alarm   *time.Timer
	alarmAt time.Time // when alarm wakes the head; zero: it doesn't
	calls   int       // how often something happened that makes a look worthwhile
	heard   string    // the latest message, without the name
	streak  int       // hand-overs inside of this sidecar in a row
}

// waiter is one who waits. It ends as soon as it has been served, or its time is
// over, or its client is gone.
type waiter struct {
	want     want
	deadline time.Time
	gone     context.Context // done when the client is
	place    *list.Element
	changed  chan struct{} // has room for one: something below changed, or lookAt did

	looking bool // its own call is under way
	waited  bool // it was not served at once
	offered bool // a release that takes it along is under way
	doubt   bool // a call may have given it the lock, and was not answered
	served  bool // result and err are final
	result  Result
	err     error
}

func (w *waiter) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// serve ends the waiting of w.
func (w *waiter) serve(result Result, err error) {
	w.served, w.result, w.err = true, result, err
	w.notify()
}

// head returns the first waiter, nil if there is none.
func (q *queue) head() *waiter {
	if front := q.waiters.Front(); front != nil {
		return front.Value.(*waiter)
	}
	return nil
}

// lookNow makes the head of a queue look, also if it is looking: the answer may be
// older than what happened. The caller holds mu.
func (l *Locker) lookNow(q *queue) {
	q.calls++
	q.lookAt = time.Time{}
	l.rouse(q)
}

// lookWithin makes the head of a queue look no later than after d. The caller holds mu.
func (l *Locker) lookWithin(q *queue, d time.Duration) {
	if at := time.Now().Add(d); at.Before(q.lookAt) {
		q.lookAt = at
		l.rouse(q)
	}
}

// rouse sees to it that the head of a queue wakes up when it is to look: now, or by the
// queue's alarm. An alarm that is set for earlier stays: where a lock goes from hand
// to hand, nobody has to be woken only to learn that there is nothing to look for.
// The caller holds mu.
func (l *Locker) rouse(q *queue) {
	head, in := q.head(), time.Until(q.lookAt)
	switch {
	case head == nil:
	case in <= 0:
		head.notify()
	case !q.alarmAt.IsZero() && !q.lookAt.Before(q.alarmAt):
	case q.alarm == nil:
		q.alarmAt = q.lookAt
		q.alarm = time.AfterFunc(in, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			q.alarmAt = time.Time{}
			l.rouse(q)
		})
	default:
		q.alarmAt = q.lookAt
		q.alarm.Reset(in)
	}
}

// ofQueue does something with the queue of those who wait for a lock, if any do.
func (l *Locker) ofQueue(name string, do func(q *queue)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queues[name]; q != nil {
		do(q)
	}
}

// waited reports whether anybody waits for a lock here.
func (l *Locker) waited(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queues[name] != nil
}

// wait waits for a lock, at most for d.
func (l *Locker) wait(ctx context.Context, name string, k keys, wanted want, d time.Duration) (Result, error) {
	began := time.Now()
	w := &waiter{want: wanted, deadline: began.Add(d), gone: ctx, changed: make(chan struct{}, 1)}
	if !l.enqueue(name, w) {
		return Result{}, ErrBusy
	}
	l.told.Waiting(1)
	result, err := l.attend(name, k, w)
	l.told.Waiting(-1)
	l.told.Waited(waitWord(result, err), time.Since(began))
	return result, err
}

// waitWord is what became of a wait, for the metrics.
func waitWord(result Result, err error) string {
	switch {
	case errors.Is(err, script.ErrUncertain):
		return "UNCERTAIN"
	case err != nil:
		return "FAILED"
	}
	return string(result.Outcome)
}

func (l *Locker) enqueue(name string, w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.listen()
	q := l.queues[name]
	if q == nil {
		q = &queue{}
		l.queues[name] = q
	}
	if q.waiters.Len() >= l.opts.QueueMax {
		return false
	}
	w.waited = q.waiters.Len() > 0
	w.place = q.waiters.PushBack(w)
	return true
}

// leave takes a waiter out of its queue. Who is the head now looks when it is time.
func (l *Locker) leave(name string, w *waiter) {
	q := l.queues[name]
	wasHead := q.head() == w
	q.waiters.Remove(w.place)
	switch {
	case q.waiters.Len() == 0:
		if q.alarm != nil {
			q.alarm.Stop()
		}
		delete(l.queues, name)
	case wasHead:
		l.rouse(q)
	}
}

// depart is leave for one who goes without the lock: when nobody waits any more, the
// sidecar has no business in the line.
func (l *Locker) depart(name string, w *waiter) {
	l.leave(name, w)
	if l.queues[name] == nil {
		l.decline(name)
	}
}

// attend does for a waiter what is to be done, until it is served.
func (l *Locker) attend(name string, k keys, w *waiter) (Result, error) {
	set := w.deadline
	timer := time.NewTimer(time.Until(set))
	defer timer.Stop()
	for {
		step, until := l.next(name, w)
		switch step {
		case stepServed:
			return l.kept(name, k, w)
		case stepLook:
			l.look(name, k, w)
			continue
		}
		if !until.Equal(set) {
			timer.Reset(time.Until(until))
			set = until
		}
		gone := w.gone.Done()
		if step == stepHold {
			gone = nil // its end changes nothing now
		}
		select {
		case <-w.changed:
		case <-timer.C:
			set = time.Time{}
		case <-gone:
		}
	}
}

// step is what a waiter does next.
type step int

const (
	stepServed step = iota // it returns
	stepLook               // it asks Redis
	stepPause              // it waits for its client to go, or until something changes or a time
	stepHold               // it waits until something changes or a time
)

// next decides what a waiter does next, and until when at the latest. From here on who
// looks is offered nothing.
func (l *Locker) next(name string, w *waiter) (step, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q, now, gone := l.queues[name], time.Now(), w.gone.Err() != nil
	switch {
	case w.served:
		return stepServed, now
	case w.offered && gone:
		return stepHold, now.Add(lookMax) // whoever made the offer is about to tell
	case w.offered && now.Before(w.deadline.Add(grace)):
		return stepHold, w.deadline.Add(grace)
	case w.offered:
		w.serve(Result{Token: w.want.token}, script.ErrUncertain)
	case !w.waited:
		w.looking = true
		return stepLook, now // it may be had without waiting
	case w.doubt && (gone || !now.Before(w.deadline)):
		w.serve(Result{Token: w.want.token}, script.ErrUncertain)
	case gone:
		w.serve(Result{}, ErrBusy)
	case !now.Before(w.deadline):
		w.serve(Result{Outcome: TimedOut}, nil)
	case q.head() != w:
		return stepPause, w.deadline
	case !now.Before(q.lookAt):
		w.looking = true
		return stepLook, now
	default:
		l.rouse(q)
		return stepPause, w.deadline
	}
	l.depart(name, w)
	return stepServed, now
}

// kept returns what a waiter was served. A lock that it got while nobody is there
// any more to have it goes to the next.
func (l *Locker) kept(name string, k keys, w *waiter) (Result, error) {
	l.mu.Lock()
	result, err, late := w.result, w.err, w.waited && w.gone.Err() != nil
	l.mu.Unlock()
	got := result.Outcome == Acquired || errors.Is(err, script.ErrUncertain)
	if !late || !got {
		return result, err
	}
	if released, err := l.release(w.gone, name, k, giving{token: w.want.token, levels: 1}); err != nil && released.Outcome != Expired {
		return result, err
	}
	return Result{}, ErrBusy
}

// look asks Redis for the head of a queue.
func (l *Locker) look(name string, k keys, w *waiter) {
	l.mu.Lock()
	q := l.queues[name]
	calls, t := q.calls, turnOf{waits: true, others: q.waiters.Len() > 1, doubt: w.doubt}
	l.mu.Unlock()

	ctx, cancel := context.WithDeadline(context.Background(), w.deadline.Add(grace))
	a, err := l.take(ctx, name, k, w.want, t)
	cancel()

	l.mu.Lock()
	defer l.mu.Unlock()
	w.looking = false
	first := !w.waited
	w.waited = true
	switch {
	case errors.Is(err, script.ErrUncertain):
		w.doubt = true
		q.lookAt = time.Now().Add(lookEvery)
	case errors.Is(err, script.ErrNotExecuted) && !first:
		q.lookAt = time.Now().Add(lookEvery)
	case err != nil:
		l.depart(name, w)
		w.serve(a.Result, err)
	case a.Outcome == Busy:
		q.lookAt = time.Now().Add(l.nextLook(a.TTL, a.more[0] == 1))
	default:
		w.waited = !first
		l.taken(name, q, w, a.Result, t.others)
		q.streak = 0
	}
	if q.calls != calls {
		q.lookAt = time.Time{}
		l.rouse(q)
	}
}

// taken serves a waiter that has the lock, and tells the next head when to look. lined:
// the sidecar is still in line, for others.
func (l *Locker) taken(name string, q *queue, w *waiter, result Result, lined bool) {
	q.lookAt = time.Time{} // there may be room for one more
	if w.want.mode == Exclusive && result.Outcome == Acquired && lined {
		q.lookAt = time.Now().Add(l.nextLook(result.TTL, false))
	}
	l.leave(name, w)
	w.serve(result, nil)
}

// nextLook is how long to wait before the next look at a lock that opens in ttl.
// blind: its holder will not tell. The caller holds mu.
func (l *Locker) nextLook(ttl time.Duration, blind bool) time.Duration {
	if l.rdb == nil {
		// Chance keeps those from meeting again who got a part of the servers each.
		return lookEvery/2 + rand.N(lookEvery)
	}
	if blind || !l.hears() {
		return min(ttl+lapseMargin, max(lookEvery, time.Duration(len(l.queues))*looksApart))
	}
	return min(ttl+lapseMargin, l.lookMax)
}

// offer is a waiter that a release takes along.
type offer struct {
	to      *waiter // nil: none
	waiters int     // in the queue
	first   bool    // it need not let another sidecar go first
}

// want is what the waiter wants, nothing if there is none.
func (o offer) want() want {
	if o.to == nil {
		return want{}
	}
	return o.to.want
}

// offer offers a lock that is about to be released to the first who is waiting
// for it. Who is looking for itself can't be offered anything: it could get it twice.
func (l *Locker) offer(name string) offer {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[name]
	if q == nil || l.rdb == nil {
		return offer{}
	}
	o := offer{waiters: q.waiters.Len(), first: q.streak < streakMax}
	now := time.Now()
	for place := q.waiters.Front(); place != nil; place = place.Next() {
		w := place.Value.(*waiter)
		if w.gone.Err() != nil || !now.Before(w.deadline) {
			continue // it is about to leave
		}
		if !w.looking && !w.offered && !w.doubt {
			w.offered, o.to = true, w
		}
		break
	}
	return o
}

// settleOffer tells the waiter what became of the offer, and reports whether it has the
// lock now. Those who have begun to wait since may have looked before the release,
// which then took the sidecar out of the line.
func (l *Locker) settleOffer(name string, o offer, a answer, err error) (handedOver bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[name]
	if q == nil {
		return false
	}
	w := o.to
	if w != nil && !w.served {
		w.offered = false
		if err == nil && a.more[2] > 0 {
			l.taken(name, q, w, Result{Outcome: Acquired, Token: w.want.token, Fence: a.more[2], TTL: w.want.ttl, Depth: 1}, o.waiters > 1)
			q.streak++
			l.told.HandedOver()
			return true
		}
		w.doubt = w.doubt || errors.Is(err, script.ErrUncertain)
		w.notify()
	}
	switch {
	case err != nil:
		l.lookWithin(q, lookEvery)
	case w == nil:
		l.lookNow(q)
	case a.Outcome == Released && a.Depth == 0 || a.Outcome == Expired:
		// Others have their turn, or it isn't open yet.
		q.streak = 0
		l.lookWithin(q, turnTime)
	}
	return false
}
