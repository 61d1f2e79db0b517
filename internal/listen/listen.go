// Package listen keeps one subscription to Redis alive and says up to when
// everything that was published has been heard. Pub/sub loses what is published
// while a subscriber is away and says nothing of it, so whoever acts on silence
// needs a proof that it was silence.
//
// The proof is a PING on the subscribing connection: Redis answers it after all
// that it had published to that connection before. So when the PONG has come,
// everything published before the PING was sent has come too.
//
// That holds for one Redis server. A node of a cluster forwards what is published
// on it to the other nodes some time later: there, Nodes subscribes to each node
// that publishes. In the embedded store (miniredis)
// another goroutine writes the messages, so one may come shortly after the PONG
// that it should precede; none is lost.
package listen

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// Subscriber makes subscriptions; a *redis.Client does. Its own retries and
// health checks aren't used.
type Subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Options of a Listener. Durations that are zero become the defaults. The
// callbacks come one after the other from one goroutine, in the order of what
// they tell. They must not wait, and must not call Redis: meanwhile nothing is
// heard. None may be nil.
type Options struct {
	Channels []string // at least one, no two equal

	PingEvery      time.Duration // 200 ms
	SilenceMax     time.Duration // 1 s: an answer that takes longer ends the connection
	ConnectTimeout time.Duration // 5 s: to connect and to send SUBSCRIBE
	BackoffMin     time.Duration // 50 ms between attempts, doubled after each that fails
	BackoffMax     time.Duration // 2 s
	RefusedEvery   time.Duration // 5 s between attempts while Redis refuses
	LookEvery      time.Duration // 1 s between looks at a cluster's slot map

	// OnMessage is given each message once, in the order of their publication.
	OnMessage func(channel, payload string)
	// OnHeard says that all messages published before until (of this machine's
	// clock, with its monotonic reading) have been given to OnMessage, as far as
	// they were published after the last OnLost.
	OnHeard func(until time.Time)
	// OnLost says that messages may have been missed up to now. It comes when a
	// connection is lost, and again when the next one is subscribed: what was
	// published in between was not heard. So it comes before the first OnHeard
	// of every connection, and it is the last thing that Close brings.
	OnLost func()

	Log *zap.Logger // nil for none
}

// withDefaults returns the options with nothing left out.
func (o Options) withDefaults() Options {
	o.PingEvery = cmp.Or(o.PingEvery, 200*time.Millisecond)
	o.SilenceMax = cmp.Or(o.SilenceMax, time.Second)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 5*time.Second)
	o.BackoffMin = cmp.Or(o.BackoffMin, 50*time.Millisecond)
	o.BackoffMax = cmp.Or(o.BackoffMax, 2*time.Second)
	o.RefusedEvery = cmp.Or(o.RefusedEvery, 5*time.Second)
	o.LookEvery = cmp.Or(o.LookEvery, time.Second)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// Listener is a subscription that is made again whenever it is lost.
type Listener struct {
	rdb  Subscriber
	opts Options

	end     context.CancelFunc
	done    chan struct{} // closed when run has ended
	refused atomic.Pointer[error]

	lost bool // the log says so; run's own
}

// Start subscribes in the background. The caller closes the Listener, and rdb
// after it.
func Start(rdb Subscriber, opts Options) *Listener {
	ctx, end := context.WithCancel(context.Background())
	l := &Listener{rdb: rdb, opts: opts.withDefaults(), end: end, done: make(chan struct{})}
	go l.run(ctx)
	return l
}

// Close ends the subscription and waits until no callback is running and none
// will come. An attempt to connect can hold it up for ConnectTimeout.
func (l *Listener) Close() {
	l.end()
	<-l.done
}

// Refused returns the error with which Redis refused the last attempt to
// subscribe (NOPERM, NOAUTH and the like): nothing is heard until someone changes
// that. It is nil when Redis didn't refuse it, which doesn't mean that it can be
// reached.
func (l *Listener) Refused() error {
	if err := l.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// run makes one session after the other until ctx ends.
func (l *Listener) run(ctx context.Context) {
	defer close(l.done)
	var backoff time.Duration
	for ctx.Err() == nil {
		s := &session{opts: &l.opts, unconfirmed: len(l.opts.Channels), subscribed: l.subscribed}
		err := s.run(ctx, l.rdb)
		if ctx.Err() != nil {
			return
		}
		if s.heard {
			backoff = 0
		}
		backoff = min(max(2*backoff, l.opts.BackoffMin), l.opts.BackoffMax)
		pause := backoff
		if l.failed(err) {
			pause = l.opts.RefusedEvery
		}
		sleep(ctx, pause)
	}
}

// subscribed notes that there is a subscription.
func (l *Listener) subscribed() {
	l.refused.Store(nil)
	if l.lost {
		l.opts.Log.Info("subscribed again", zap.Strings("channels", l.opts.Channels))
	}
	l.lost = false
}

// failed notes that there is none, and logs it unless the log says so already.
// It reports whether Redis refused.
func (l *Listener) failed(err error) (refused bool) {
	refused = isRefusal(err)
	if news := refused && l.Refused() == nil; news || !l.lost {
		l.opts.Log.Warn("no subscription: changes by others aren't heard", zap.Strings("channels", l.opts.Channels), zap.Error(err))
	}
	l.lost = true
	if refused {
		l.refused.Store(&err)
	} else {
		l.refused.Store(nil)
	}
	return refused
}

// sleep waits between half of d and d, or until ctx ends: sidecars that lost
// Redis together don't return together.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// refusals are the prefixes of errors with which Redis says that this user may
// not subscribe, or that nobody may; go-redis compares them without "ERR ". Other
// errors (LOADING, too many clients) pass by themselves.
var refusals = []string{"NOPERM ", "NOAUTH ", "WRONGPASS ", "unknown command"}

func isRefusal(err error) bool {
	for _, prefix := range refusals {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
