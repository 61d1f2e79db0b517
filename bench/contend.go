package main

import (
	"context"
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
	rounds    []contended
}

// contended is one round of it.
type contended struct {
	handOvers float64 // per second
	mean, p99 float64 // of the wait for the lock, in milliseconds
	commands  float64 // that Redis executed per hand-over, those inside of scripts included
}

const (
	contendKey     = "lock100"
	contendClients = 100
	contendShare   = 30 * time.Microsecond // of time for each operation that -n asks for
	lockTTL        = "10000"               // milliseconds, far more than anyone holds the lock
)

// releaseLua gives back a lock as blog posts have it.
const releaseLua = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// measureContention lets clients fight for a lock: by SET NX and a random pause of
// one to three milliseconds on a direct connection, and by LOCK.ACQUIRE with WAIT.
// They hold it for no time, so that the lock itself is what is measured.
func measureContention(ctx context.Context, l *lab, opts options, progress io.Writer) ([]contention, error) {
	_, addr, err := l.startRedis(ctx)
	if err != nil {
		return nil, err
	}
	const variant = 0 // the program's own choice of everything
	sidecar, err := l.startSidecar(ctx, sidecarVariants[variant].name, sidecarVariants[variant].env, addr)
	if err != nil {
		return nil, err
	}
	asker, err := dial(addr)
	if err != nil {
		return nil, err
	}
	defer asker.Close()
	measured := []contention{{contender: direct}, {contender: sidecar.name}}
	for round := range opts.rounds {
		fmt.Fprintf(progress, "%s: round %d\n", contendKey, round+1)
		for i, way := range []struct {
			addr string
			turn func(c *client, name, token string) (wait time.Duration, err error)
		}{{addr, spinTurn}, {sidecar.addr, queueTurn}} {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			result, err := contend(way.addr, asker, time.Duration(opts.n)*contendShare, fmt.Sprint("lock-", round), way.turn)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", contendKey, measured[i].contender, err)
			}
			measured[i].rounds = append(measured[i].rounds, result)
		}
	}
	return measured, nil
}

// contend runs one round.
func contend(addr string, asker *client, length time.Duration, name string, turn func(c *client, name, token string) (time.Duration, error)) (contended, error) {
	clients, err := connect(addr, contendClients)
	defer closeAll(clients)
	if err != nil {
		return contended{}, err
	}
	before, err := asker.info("stats", "total_commands_processed")
	if err != nil {
		return contended{}, err
	}
	var (
		running sync.WaitGroup
		over    atomic.Bool
		waits   = make([][]time.Duration, len(clients))
		errs    = make([]error, len(clients))
	)
	begin := time.Now()
	timer := time.AfterFunc(length, func() { over.Store(true) })
	defer timer.Stop()
	for i, c := range clients {
		running.Go(func() {
			token := strconv.Itoa(i)
			for !over.Load() && errs[i] == nil {
				var wait time.Duration
				wait, errs[i] = turn(c, name, token)
				waits[i] = append(waits[i], wait)
			}
		})
	}
	running.Wait()
	took := time.Since(begin)
	after, err := asker.info("stats", "total_commands_processed")
	if err != nil {
		return contended{}, err
	}
	for _, err := range errs {
		if err != nil {
			return contended{}, err
		}
	}
	return sumUp(slices.Concat(waits...), took, after-before), nil
}

// sumUp wants at least one wait.
func sumUp(waits []time.Duration, took time.Duration, commands int64) contended {
	slices.Sort(waits)
	var total time.Duration
	for _, wait := range waits {
		total += wait
	}
	n := len(waits)
	return contended{
		handOvers: float64(n) / took.Seconds(),
		mean:      milliseconds(total) / float64(n),
		p99:       milliseconds(waits[n*99/100]),
		commands:  float64(commands) / float64(n),
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// spinTurn takes the lock and gives it back as code on a direct connection does.
func spinTurn(c *client, name, token string) (wait time.Duration, err error) {
	begin := time.Now()
	for {
		reply, err := c.do("SET", name, token, "NX", "PX", lockTTL)
		if err != nil {
			return 0, err
		}
		if reply == "OK" {
			break
		}
		time.Sleep(time.Millisecond + rand.N(2*time.Millisecond))
	}
	wait = time.Since(begin)
	_, err = c.do("EVAL", releaseLua, "1", name, token)
	return wait, err
}

// queueTurn takes the lock and gives it back by LOCK.ACQUIRE and LOCK.RELEASE.
func queueTurn(c *client, name, token string) (wait time.Duration, err error) {
	begin := time.Now()
	for _, step := range [][]string{
		{"LOCK.ACQUIRE", name, lockTTL, "WAIT", "25000", "TOKEN", token},
		{"LOCK.RELEASE", name, token},
	} {
		reply, err := c.do(step...)
		if err != nil {
			return 0, err
		}
		if values, _ := reply.([]any); len(values) == 0 || values[0] != "200" {
			return 0, fmt.Errorf("%s: %v", step[0], reply)
		}
		if wait == 0 {
			wait = time.Since(begin)
		}
	}
	return wait, nil
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
