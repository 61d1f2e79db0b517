package lock

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"seckill-proxy/internal/listen"
)

// This file is how sidecars tell each other that it is another's turn: by messages
// on a channel that each of them has. The first byte of a message says what it is;
// then come the time at which it was sent, a space, and the name of the lock.

const (
	messageTurn    = 'T' // look: it is your turn, or things have changed
	messageStandby = 'S' // look soon: the one before you has its turn

	// heardMax is how old the proof that everything was heard may be. It comes
	// several times a second.
	heardMax = time.Second
	// leavingMax is how many lines are remembered that the sidecar is to leave; the
	// turns that it gets in others lapse.
	leavingMax = 1024
	// leaveTimeout is how long leaving one may take.
	leaveTimeout = time.Second
	// askEvery is for how long it is believed whether a user may publish.
	askEvery = time.Minute
)

// voice is what is known of the way of the messages. Guarded by Locker.mu.
type voice struct {
	heard time.Time // everything before was heard
	asked time.Time // when Redis was last asked whether this user may publish
	mute  bool      // it may not
}

// channel is the prefix of the channels.
func (l *Locker) channel() string { return l.opts.CompanionPrefix + "wake:" }

// listen starts listening, at the first wait. The caller holds mu.
func (l *Locker) listen() {
	if l.listening != nil || l.rdb == nil {
		return
	}
	l.listening = listen.StartNodes(l.rdb, listen.Options{
		Channels:  []string{l.channel() + l.id},
		OnMessage: l.message,
		OnHeard: func(until time.Time) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.voice.heard = until
		},
		OnLost: l.unheard,
		Log:    l.log,
	})
	l.running.Go(l.leaveLines)
}

// hears reports whether messages are heard. The caller holds mu.
func (l *Locker) hears() bool { return time.Since(l.voice.heard) < heardMax }

// message is called for each message.
func (l *Locker) message(_, payload string) {
	sent, name, ok := strings.Cut(payload, " ")
	if !ok || sent == "" {
		return // no message: who asks whether it may publish sends such
	}
	kind := sent[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[name]
	if q != nil {
		if q.heard == sent {
			return // of another master of a cluster
		}
		q.heard = sent
	}
	switch {
	case q != nil && kind == messageStandby:
		l.lookWithin(q, turnTime)
	case q != nil:
		l.lookNow(q)
	case kind == messageTurn:
		l.decline(name)
	}
}

// decline has the sidecar taken out of a line in which nobody of its clients stands any
// more.
func (l *Locker) decline(name string) {
	select {
	case l.leaving <- name:
	default: // its turn will lapse
	}
}

// unheard is called when messages may have been lost.
func (l *Locker) unheard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.voice.heard = time.Time{}
	for _, q := range l.queues {
		l.lookWithin(q, max(lookEvery, time.Duration(len(l.queues))*looksApart))
	}
}

// leaveLines takes the sidecar out of lines, until Close.
func (l *Locker) leaveLines() {
	for {
		select {
		case <-l.ending:
			return
		case name := <-l.leaving:
			if !l.waited(name) {
				l.leaveLine(name)
			}
		}
	}
}

func (l *Locker) leaveLine(name string) {
	k, err := l.keys(name)
	if err != nil {
		return // no name of ours
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if _, err := leaveScript.Run(ctx, l.rdb, k.all(), l.id, l.channel(), name); err != nil {
		l.log.Debug("a line was not left: the turn there will lapse", zap.Error(err))
	}
	// Those who have begun to wait meanwhile may have been taken out of the line.
	l.ofQueue(name, l.lookNow)
}

// audible reports whether this user may publish, so that those who wait for a lock
// that it releases need not look all the time. It asks Redis now and then.
func (l *Locker) audible() bool {
	if l.rdb == nil {
		return false
	}
	l.mu.Lock()
	ask := time.Since(l.voice.asked) > askEvery
	if ask {
		l.voice.asked = time.Now()
	}
	mute := l.voice.mute
	l.mu.Unlock()
	if !ask {
		return !mute
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	err := l.rdb.Publish(ctx, l.channel()+l.id, "").Err()
	if err != nil && !redis.IsPermissionError(err) {
		return !mute // what it says about rights isn't known; the caller will find out the rest
	}
	if err != nil && !mute {
		l.log.Warn("a user may not publish, so those who wait for its locks look every 50 ms",
			zap.String("missing", "&"+l.opts.CompanionPrefix+"* +publish"), zap.Error(err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.voice.mute = err != nil
	return err == nil
}
