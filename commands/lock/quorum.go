package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

// This file is Redlock (redis.io, "Distributed locks with Redis"): a lock is held
// by whoever has it on most of several servers that know nothing of each other, for
// as long as its TTL less the time that taking it took and what clocks may drift.
//
// Fences grow through the majority: after a grant the largest fence that any server
// drew is written to most of them. Any later grant has one of those among its own
// majority, which draws a larger one.

// ErrQuorum is returned for what several independent servers can't do: PERMITS,
// since a majority of each holder allows more holders than each server does,
// replicas, and several locks at once.
var ErrQuorum = errors.New("this is not available with independent lock servers")

const (
	// What clocks may drift apart in the life of a lock, as Redlock has it: a
	// hundredth of the TTL, and the precision with which TTLs lapse.
	driftPart = 100
	driftMin  = 2 * time.Millisecond
)

// NewQuorum returns a Locker over an odd number of independent servers, at least
// three. The clients are as New wants them; their timeouts say how long to wait for
// a server that is down.
func NewQuorum(nodes []*redis.Client, opts Options) *Locker {
	l := New(nil, opts)
	l.at = &quorum{nodes}
	return l
}

// quorum is several independent servers.
type quorum struct{ nodes []*redis.Client }

// vote is what one server said.
type vote struct {
	answer
	err error
}

// majority is how many servers decide.
func (q *quorum) majority() int { return len(q.nodes)/2 + 1 }

// run implements servers.
func (q *quorum) run(ctx context.Context, s *script.Script, token string, keys []string, args ...any) (answer, error) {
	switch s {
	case acquireScript:
		return q.acquire(ctx, token, keys, args)
	case renewScript:
		return q.renew(ctx, token, keys, args)
	case releaseScript:
		return q.release(ctx, token, keys, args)
	case checkScript:
		return q.check(ctx, token, keys, args)
	}
	return answer{}, ErrQuorum
}

// ask runs a script on all servers that are meant, at the same time.
func (q *quorum) ask(ctx context.Context, s *script.Script, token string, keys []string, args []any, meant func(i int) bool) []vote {
	votes := make([]vote, len(q.nodes))
	var asked sync.WaitGroup
	for i, node := range q.nodes {
		if meant(i) {
			asked.Go(func() { votes[i].answer, votes[i].err = single{node}.run(ctx, s, token, keys, args...) })
		}
	}
	asked.Wait()
	return votes
}

func all(int) bool { return true }

// count counts the votes with one of the outcomes.
func count(votes []vote, outcomes ...Outcome) int {
	n := 0
	for _, v := range votes {
		if v.err == nil && slices.Contains(outcomes, v.Outcome) {
			n++
		}
	}
	return n
}

// failed counts the servers that didn't answer, and joins what they failed with.
func failed(votes []vote) (n int, err error) {
	for _, v := range votes {
		if v.err != nil {
			n++
			err = errors.Join(err, v.err)
		}
	}
	return n, err
}

// refusal is why there is no majority: what stands in the way on any server, or that
// too few answered.
func (q *quorum) refusal(votes []vote, outcomes ...Outcome) (answer, error) {
	a := answer{more: []int64{1, 0, 0}}
	for _, outcome := range outcomes {
		if count(votes, outcome) == 0 {
			continue
		}
		for _, v := range votes {
			if v.err == nil && v.Outcome == outcome {
				a.TTL = max(a.TTL, v.TTL)
			}
		}
		a.Outcome = outcome
		break
	}
	if n, err := failed(votes); a.Outcome == "" || n >= q.majority() {
		return answer{}, fmt.Errorf("%w: %d of %d lock servers failed: %w", script.ErrNotExecuted, n, len(q.nodes), err)
	}
	return a, nil
}

// valid is how long a hold is sure to last that was set to ttl at the time began.
func valid(ttl time.Duration, began time.Time) time.Duration {
	return ttl - time.Since(began) - ttl/driftPart - driftMin
}

func (q *quorum) acquire(ctx context.Context, token string, keys []string, args []any) (answer, error) {
	began, ttl := time.Now(), milliseconds(args[1].(int64))
	votes := q.ask(ctx, acquireScript, token, keys, args, all)
	granted := count(votes, Acquired, Reentered)
	again := count(votes, Reentered)
	a := answer{Result: Result{Outcome: Acquired, Token: token}, more: []int64{0}}
	if again >= q.majority() {
		a.Outcome = Reentered
	}
	for _, v := range votes {
		if v.err == nil && (v.Outcome == Acquired || v.Outcome == Reentered) {
			a.Fence, a.Depth = max(a.Fence, v.Fence), max(a.Depth, v.Depth)
		}
	}
	if granted >= q.majority() && q.raise(ctx, token, keys, a.Fence, votes) {
		if a.TTL = valid(ttl, began).Truncate(time.Millisecond); a.TTL > 0 {
			return a, nil
		}
	}
	// What was taken is given back, also where it isn't known: but not a level that
	// the token may have had before.
	q.ask(context.WithoutCancel(ctx), releaseScript, token, keys, giveUp(token), func(i int) bool {
		if votes[i].err != nil {
			return again == 0
		}
		return votes[i].Outcome == Acquired || votes[i].Outcome == Reentered
	})
	if granted >= q.majority() {
		return answer{}, fmt.Errorf("%w: taking the lock took as long as it would have lasted, or its fence was not kept", script.ErrNotExecuted)
	}
	return q.refusal(votes, WrongType, NoTTL, OtherMode, Busy)
}

// giveUp are the arguments of release.lua for one level, with nobody next.
func giveUp(token string) []any {
	return append([]any{token, 1, flag(false), "", 0, flag(true), "", ""}, want{}.args(false)...)
}

// raise raises the fence on the servers that granted a lock; false when most of all
// don't have it then.
func (q *quorum) raise(ctx context.Context, token string, keys []string, fence int64, votes []vote) bool {
	raised := q.ask(ctx, fenceScript, token, keys, []any{token, fence}, func(i int) bool {
		return votes[i].err == nil && votes[i].Depth > 0
	})
	return count(raised, Held) >= q.majority()
}

func (q *quorum) renew(ctx context.Context, token string, keys []string, args []any) (answer, error) {
	began, ttl := time.Now(), milliseconds(args[1].(int64))
	votes := q.ask(ctx, renewScript, token, keys, args, all)
	if count(votes, Renewed) < q.majority() {
		return q.refusal(votes, WrongType, NotOwner, Expired)
	}
	a := best(votes, Renewed)
	if a.TTL = valid(ttl, began).Truncate(time.Millisecond); a.TTL <= 0 {
		return answer{}, fmt.Errorf("%w: renewing took as long as the lock would have lasted", script.ErrNotExecuted)
	}
	return a, nil
}

func (q *quorum) release(ctx context.Context, token string, keys []string, args []any) (answer, error) {
	votes := q.ask(ctx, releaseScript, token, keys, args, all)
	n, err := failed(votes)
	switch released := count(votes, Released); {
	case n >= q.majority() && released == 0:
		return q.refusal(votes)
	case n >= q.majority():
		return answer{Result: Result{Token: token}}, fmt.Errorf("%w: %d of %d lock servers failed: %w", script.ErrUncertain, n, len(q.nodes), err)
	case released+n < q.majority() && token != "", released == 0:
		return q.refusal(votes, WrongType, NotOwner, Expired)
	}
	return best(votes, Released), nil
}

func (q *quorum) check(ctx context.Context, token string, keys []string, args []any) (answer, error) {
	votes := q.ask(ctx, checkScript, token, keys, args, all)
	if count(votes, Held) < q.majority() {
		return q.refusal(votes, WrongType, NoTTL, NotOwner, Expired)
	}
	a := best(votes, Held)
	var lefts []time.Duration
	for _, v := range votes {
		if v.err == nil && v.Outcome == Held {
			lefts = append(lefts, v.TTL)
		}
	}
	slices.Sort(lefts)
	// Until then most servers have it.
	left := lefts[len(lefts)-q.majority()]
	a.TTL = max(left-left/driftPart-driftMin, time.Millisecond).Truncate(time.Millisecond)
	return a, nil
}

// best puts together what the servers with an outcome said: fence and depth are the
// largest.
func best(votes []vote, outcome Outcome) answer {
	var a answer
	for _, v := range votes {
		if v.err != nil || v.Outcome != outcome {
			continue
		}
		if a.Outcome == "" {
			a = v.answer
		}
		a.Fence, a.Depth, a.TTL = max(a.Fence, v.Fence), max(a.Depth, v.Depth), max(a.TTL, v.TTL)
	}
	return a
}

// info is Info for several servers: what most of them say of the same state, with
// the latest fence; PARTIAL where no majority agrees.
func (q *quorum) info(ctx context.Context, k keys) (Info, error) {
	infos, errs := make([]Info, len(q.nodes)), make([]error, len(q.nodes))
	var asked sync.WaitGroup
	for i, node := range q.nodes {
		asked.Go(func() { infos[i], errs[i] = infoFrom(ctx, node, k) })
	}
	asked.Wait()
	states := map[string]int{}
	var latest Info
	for i, info := range infos {
		if errs[i] != nil {
			continue
		}
		states[info.State]++
		if states[info.State] >= q.majority() {
			latest.State = info.State
		}
	}
	if n := len(slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })); n >= q.majority() {
		return Info{}, fmt.Errorf("%w: %d of %d lock servers failed: %w", script.ErrNotExecuted, n, len(q.nodes), errors.Join(errs...))
	}
	if latest.State == "" {
		return Info{State: "PARTIAL"}, nil
	}
	for i, info := range infos {
		if errs[i] == nil && info.State == latest.State && info.Fence >= latest.Fence {
			latest = info
		}
	}
	return latest, nil
}

// list is List for several servers: what most of them have.
func (q *quorum) list(ctx context.Context, o Options, pattern string) ([]Listed, error) {
	found := map[string][]time.Duration{}
	missing := 0
	var failures error
	for _, node := range q.nodes {
		locks, err := listOf(ctx, node, node, o, pattern)
		if err != nil {
			missing++
			failures = errors.Join(failures, err)
		}
		for _, lock := range locks {
			found[lock.Name] = append(found[lock.Name], lock.TTL)
		}
	}
	if missing >= q.majority() {
		return nil, fmt.Errorf("%w: %w", script.ErrNotExecuted, failures)
	}
	var locks []Listed
	for name, lefts := range found {
		if len(lefts) >= q.majority() {
			slices.Sort(lefts)
			locks = append(locks, Listed{name, lefts[len(lefts)-q.majority()]})
		}
	}
	return locks, nil
}
