package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// contention is what many clients make of one lock that all of them want.
type contention struct {
	contender string
	clients   int
	rounds    []contended
}

// contended is one round of it. A hand-over is when the lock goes from one client to
// another: one that takes it again right after giving it back is no hand-over.
type contended struct {
	handOvers float64 // per second
	again     float64 // part of all holds that began without a hand-over
	mean, p99 float64 // of the wait for the lock, in milliseconds
	commands  float64 // that Redis executed per hand-over, those inside of scripts included
	// CPU time per hand-over in microseconds, of the sidecar (0 for the direct way) and of Redis.
	proxyCPU, redisCPU float64
}

const (
	contendKey     = "lock100"
	contendClients = 100                   // the bars are about
	contendShare   = 30 * time.Microsecond // of time for each operation that -n asks for
	lockTTL        = "10000"               // milliseconds, far more than anyone holds the lock
)

// crowds are how many clients fight. A hundred that poll leave the lock free for
// hardly a moment; few of them do.
var crowds = []int{10, contendClients}

// releaseLua gives back a lock as blog posts have it.
const releaseLua = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// measureContention lets clients fight for a lock: by SET NX and a random pause of
// one to three milliseconds on a direct connection, and by LOCK.ACQUIRE with WAIT.
// They hold it for no time, so that the lock itself is what is measured.
func measureContention(ctx context.Context, l *lab, opts options, progress io.Writer) ([]contention, error) {
	redis, addr, err := l.startRedis(ctx)
	if err != nil {
		return nil, err
	}
	const variant = 0 // the program's own choice of everything
	sidecar, err := l.startSidecar(ctx, sidecarVariants[variant].name, sidecarVariants[variant].env, addr)
	if err != nil {
		return nil, err
	}
	f := &field{redis: redis, addr: addr}
	ways := []struct {
		contender
		lockWay
	}{{contender{name: direct, addr: addr}, spinWay}, {sidecar, queueWay}}
	var measured []contention
	for _, clients := range crowds {
		for _, by := range ways {
			measured = append(measured, contention{contender: by.name, clients: clients})
		}
	}
	for round := range opts.rounds {
		fmt.Fprintf(progress, "%s: round %d\n", contendKey, round+1)
		for i := range measured {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			by, name := ways[i%len(ways)], fmt.Sprintf("lock-%d-%d", round, i)
			result, err := contend(f, by.contender, by.lockWay, measured[i].clients, time.Duration(opts.n)*contendShare, name)
			if err != nil {
				return nil, fmt.Errorf("%s, %d clients, %s: %w", contendKey, measured[i].clients, by.name, err)
			}
			measured[i].rounds = append(measured[i].rounds, result)
		}
	}
	return measured, nil
}

// lockWay is a way to take a lock, which says with what token, and to give it back.
type lockWay struct {
	take func(c *client, name string) (token string, err error)
	give func(c *client, name, token string) error
}

var (
	spinWay  = lockWay{spinTake, spinGive}
	queueWay = lockWay{queueTake, queueGive}
)

// contend runs one round.
func contend(f *field, by contender, way lockWay, crowd int, length time.Duration, name string) (contended, error) {
	clients, err := connect(by.addr, crowd)
	defer closeAll(clients)
	if err != nil {
		return contended{}, err
	}
	before, err := readMeters(f, by)
	if err != nil {
		return contended{}, err
	}
	var (
		running sync.WaitGroup
		over    atomic.Bool
		latest  atomic.Int64 // who holds the lock, or did last; -1 nobody
		passed  atomic.Int64 // hand-overs
		waits   = make([][]time.Duration, len(clients))
		errs    = make([]error, len(clients))
	)
	latest.Store(-1)
	begin := time.Now()
	timer := time.AfterFunc(length, func() { over.Store(true) })
	defer timer.Stop()
	for i, c := range clients {
		running.Go(func() {
			for !over.Load() && errs[i] == nil {
				asked := time.Now()
				token, err := way.take(c, name)
				if err != nil {
					errs[i] = err
					return
				}
				waits[i] = append(waits[i], time.Since(asked))
				if latest.Swap(int64(i)) != int64(i) {
					passed.Add(1)
				}
				errs[i] = way.give(c, name, token)
			}
		})
	}
	running.Wait()
	took := time.Since(begin)
	after, err := readMeters(f, by)
	if err != nil {
		return contended{}, err
	}
	if err := errors.Join(errs...); err != nil {
		return contended{}, err
	}
	return sumUp(slices.Concat(waits...), passed.Load(), took, before, after), nil
}

// sumUp wants at least one wait and one hand-over.
func sumUp(waits []time.Duration, passed int64, took time.Duration, before, after meters) contended {
	slices.Sort(waits)
	var total time.Duration
	for _, wait := range waits {
		total += wait
	}
	n := len(waits)
	return contended{
		handOvers: float64(passed) / took.Seconds(),
		again:     1 - float64(passed)/float64(n),
		mean:      milliseconds(total) / float64(n),
		p99:       milliseconds(waits[n*99/100]),
		commands:  float64(after.commands-before.commands) / float64(passed),
		proxyCPU:  micros(after.proxy-before.proxy) / float64(passed),
		redisCPU:  micros(after.redis-before.redis) / float64(passed),
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// spinTake takes the lock as code on a direct connection does.
func spinTake(c *client, name string) (token string, err error) {
	token = strconv.FormatUint(rand.Uint64(), 36)
	for {
		reply, err := c.do("SET", name, token, "NX", "PX", lockTTL)
		if err != nil || reply == "OK" {
			return token, err
		}
		time.Sleep(time.Millisecond + rand.N(2*time.Millisecond))
	}
}

func spinGive(c *client, name, token string) error {
	_, err := c.do("EVAL", releaseLua, "1", name, token)
	return err
}

func queueTake(c *client, name string) (token string, err error) {
	values, err := succeed(c, "LOCK.ACQUIRE", name, lockTTL, "WAIT", "25000")
	if err != nil {
		return "", err
	}
	token, _ = values[2].(string)
	return token, nil
}

func queueGive(c *client, name, token string) error {
	_, err := succeed(c, "LOCK.RELEASE", name, token)
	return err
}

// succeed sends a command of the locks, which has to be answered 200 and the five fields
// behind it.
func succeed(c *client, command ...string) ([]any, error) {
	reply, err := c.do(command...)
	if err != nil {
		return nil, err
	}
	if values, _ := reply.([]any); len(values) == 6 && values[0] == "200" {
		return values, nil
	}
	return nil, fmt.Errorf("%s: %v", command[0], reply)
}

// Measures of a round.

func handOvers(c contended) float64  { return c.handOvers }
func unfairness(c contended) float64 { return c.p99 / c.mean }

// column applies a measure to all rounds.
func (c contention) column(measure func(contended) float64) []float64 {
	values := make([]float64, len(c.rounds))
	for i, round := range c.rounds {
		values[i] = measure(round)
	}
	return values
}
