package simulator

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// nemesis makes things fail. It belongs to the test's own goroutine.
type nemesis struct {
	t      *testing.T
	world  *world
	model  *model
	random *rand.Rand
	tally  *tally

	agenda    []task
	redisAway bool              // killed or stopped
	disturbed map[*sidecar]bool // stopped, or its relay held
	reviving  map[*sidecar]bool // to be started again
}

// task is something to do later: a fault's end.
type task struct {
	at time.Time
	do func()
}

// fault is one kind of failure.
type fault struct {
	name   string
	weight int
	strike func(*nemesis)
}

var faults = []fault{
	{"crash point", 8, (*nemesis).armCrash},
	{"cut point", 8, (*nemesis).armCut},
	{"kill sidecar", 2, (*nemesis).killSidecar},
	{"kill redis", 2, (*nemesis).killRedis},
	{"stop redis", 2, (*nemesis).stopRedis},
	{"stop sidecar", 2, (*nemesis).stopSidecar},
	{"flush scripts", 2, (*nemesis).flushScripts},
	{"cut", 2, (*nemesis).cut},
	{"lose replies", 2, (*nemesis).loseReplies},
	{"partition", 2, (*nemesis).partition},
}

// rage strikes again and again until end, or until something is wrong.
func (n *nemesis) rage(end time.Time) {
	n.disturbed, n.reviving = map[*sidecar]bool{}, map[*sidecar]bool{}
	next := end
	if n.world.plan.fault > 0 {
		next = time.Now().Add(n.pause())
	}
	const tick = 10 * time.Millisecond
	for time.Now().Before(end) {
		select {
		case <-n.model.failed:
			return
		case <-time.After(tick):
		}
		n.work(time.Now())
		n.revive()
		if time.Now().After(next) {
			n.strike()
			next = time.Now().Add(n.pause())
		}
	}
}

func (n *nemesis) pause() time.Duration {
	return time.Duration(n.random.ExpFloat64() * float64(n.world.plan.fault))
}

// between returns a random duration.
func (n *nemesis) between(least, most time.Duration) time.Duration {
	return least + time.Duration(n.random.Int64N(int64(most-least)))
}

func (n *nemesis) strike() {
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	at := n.random.IntN(total)
	for _, f := range faults {
		if at -= f.weight; at < 0 {
			f.strike(n)
			return
		}
	}
}

func (n *nemesis) note(name, format string, args ...any) {
	n.tally.faults[name]++
	n.world.history.happened(name+": "+format, args...)
}

func (n *nemesis) later(after time.Duration, do func()) {
	n.agenda = append(n.agenda, task{time.Now().Add(after), do})
}

// work does what is due.
func (n *nemesis) work(now time.Time) {
	due := func(t task) bool { return !t.at.After(now) }
	var do []task
	for _, t := range n.agenda {
		if due(t) {
			do = append(do, t)
		}
	}
	n.agenda = slices.DeleteFunc(n.agenda, due)
	for _, t := range do {
		t.do()
	}
}

// revive sees to it that a dead sidecar is started again, sooner or later, with
// another error of its clock.
func (n *nemesis) revive() {
	for _, s := range n.world.sidecars {
		if n.reviving[s] || !s.dead() {
			continue
		}
		n.reviving[s] = true
		n.later(n.between(0, time.Second), func() {
			delete(n.reviving, s)
			n.start(s)
		})
	}
}

func (n *nemesis) start(s *sidecar) {
	s.relay.disarm()
	skew := randomSkew(n.random)
	n.world.history.happened("start %s, its clock off by %s", s.name, skew)
	s.start(skew)
}

func (n *nemesis) anySidecar() *sidecar {
	return n.world.sidecars[n.random.IntN(len(n.world.sidecars))]
}

// armCrash kills a sidecar at one of its next requests.
func (n *nemesis) armCrash() {
	s := n.anySidecar()
	kill := s.killer()
	n.arm("crash point", s, func(*link) {
		if kill() {
			n.world.history.happened("%s is killed at its crash point", s.name)
		}
	})
}

// armCut ends the connection of one of a sidecar's next requests.
func (n *nemesis) armCut() {
	s := n.anySidecar()
	n.arm("cut point", s, func(l *link) {
		n.world.history.happened("a connection of %s is cut at its request", s.name)
		l.lose()
	})
}

func (n *nemesis) arm(name string, s *sidecar, strike func(*link)) {
	nth, when := 1+n.random.IntN(30), moment(n.random.IntN(int(moments)))
	s.relay.arm(nth, when, strike)
	n.note(name, "%s, request %d from now, moment %d", s.name, nth, when)
}

func (n *nemesis) killSidecar() {
	s := n.anySidecar()
	if s.kill() {
		n.note("kill sidecar", "%s", s.name)
	}
}

func (n *nemesis) killRedis() {
	if n.redisAway {
		return
	}
	n.redisAway = true
	n.note("kill redis", "")
	n.world.redis.Kill()
	for _, s := range n.world.sidecars {
		s.relay.refuse()
	}
	n.later(n.between(0, 500*time.Millisecond), n.restartRedis)
}

func (n *nemesis) restartRedis() {
	n.world.redis.Restart()
	for _, s := range n.world.sidecars {
		if err := s.relay.open(); err != nil {
			n.t.Fatal(err)
		}
	}
	n.redisAway = false
	n.world.history.happened("redis is back")
}

func (n *nemesis) stopRedis() {
	if n.redisAway {
		return
	}
	n.redisAway = true
	length := n.between(50*time.Millisecond, 2*time.Second)
	n.note("stop redis", "for %s", length)
	n.world.redis.Pause()
	n.later(length, func() {
		n.world.redis.Resume()
		n.redisAway = false
	})
}

// disturb stops a sidecar or its connections for some time, one thing at a time.
func (n *nemesis) disturb(name string, begin, end func(*sidecar)) {
	s := n.anySidecar()
	if n.disturbed[s] {
		return
	}
	n.disturbed[s] = true
	length := n.between(50*time.Millisecond, 2*time.Second)
	n.note(name, "%s for %s", s.name, length)
	begin(s)
	n.later(length, func() {
		end(s)
		delete(n.disturbed, s)
	})
}

func (n *nemesis) stopSidecar() {
	n.disturb("stop sidecar",
		func(s *sidecar) { s.signal(syscall.SIGSTOP) },
		func(s *sidecar) { s.signal(syscall.SIGCONT) })
}

func (n *nemesis) partition() {
	n.disturb("partition",
		func(s *sidecar) { s.relay.hold(true, true) },
		func(s *sidecar) { s.relay.hold(false, false) })
}

func (n *nemesis) loseReplies() {
	n.disturb("lose replies",
		func(s *sidecar) { s.relay.hold(false, true) },
		func(s *sidecar) {
			s.relay.cut()
			s.relay.hold(false, false)
		})
}

func (n *nemesis) cut() {
	s := n.anySidecar()
	n.note("cut", "%s", s.name)
	s.relay.cut()
}

func (n *nemesis) flushScripts() {
	if n.redisAway {
		return
	}
	n.note("flush scripts", "")
	ctx, cancel := context.WithTimeout(n.t.Context(), hangs)
	defer cancel()
	if err := n.world.direct.ScriptFlush(ctx).Err(); err != nil {
		n.t.Errorf("SCRIPT FLUSH: %v", err)
	}
}

// relent ends all faults.
func (n *nemesis) relent() {
	for len(n.agenda) > 0 {
		n.work(time.Now().Add(hangs))
	}
	for _, s := range n.world.sidecars {
		s.relay.disarm()
		if s.dead() {
			n.start(s)
		}
	}
	n.world.history.happened("all faults are over")
}

// settleDown returns when nothing that a client asked for can be carried out any
// more. Some episodes go on with the same sidecars and what they remember, others
// with new ones.
func (n *nemesis) settleDown() {
	if !n.world.plan.killAtEnd {
		time.Sleep(2500 * time.Millisecond) // longer than a sidecar waits for Redis, and Redis for a turn
	} else {
		for _, s := range n.world.sidecars {
			s.kill()
		}
		for _, s := range n.world.sidecars {
			s.wait()
		}
		n.awaitNobodyElse()
		for _, s := range n.world.sidecars {
			n.start(s)
		}
	}
	for _, s := range n.world.sidecars {
		if s.dead() {
			n.start(s)
		}
		s.awaitReady(n.t)
	}
}

// awaitNobodyElse waits until this process's connection is the only one to Redis.
func (n *nemesis) awaitNobodyElse() {
	ctx, cancel := context.WithTimeout(n.t.Context(), hangs)
	defer cancel()
	for {
		list, err := n.world.direct.ClientList(ctx).Result()
		if err != nil {
			n.t.Fatalf("CLIENT LIST: %v", err)
		}
		if strings.Count(list, "\n") <= 1 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
