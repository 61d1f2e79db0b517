package proxy_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// TestRepliesNeverCross has many clients, each with values that are its own,
// while the connections behind the sidecar are killed at random. A client may be
// told that an outcome is unknown, or be disconnected; it is never told what was
// meant for another.
func TestRepliesNeverCross(t *testing.T) {
	const clients, rounds = crossingClients, 5
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := redistest.Start(t, redistest.Options{})
	p := startSidecar(t, server.Addr, func(s *setup) { s.limits.Clients = 2 * clients })

	ctx, stop := context.WithCancel(context.Background())
	var killer sync.WaitGroup
	kills := 0
	killer.Go(func() {
		direct := rawclient.Dial(t, server.Addr)
		random := rand.New(rand.NewPCG(seed, 0))
		for ctx.Err() == nil {
			for line := range strings.Lines(direct.Do("CLIENT", "LIST")) {
				if id, found := strings.CutPrefix(strings.Fields(line + " x")[0], "id="); found && random.IntN(3) == 0 {
					kills += strings.Count(direct.Do("CLIENT", "KILL", "ID", id, "SKIPME", "yes"), ":1")
				}
			}
			direct.Do("BLPOP", "nothing", fmt.Sprintf("0.%03d", 1+random.IntN(40)))
		}
	})

	var answered, unknown, closed atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i+1)))
			for round := range rounds {
				switch outcome, err := crossingRound(p.addr, fmt.Sprintf("c%d-%d-", i, round), random); {
				case err != nil:
					t.Errorf("client %d, round %d: %v", i, round, err)
					return
				default:
					answered.Add(outcome.answered)
					unknown.Add(outcome.unknown)
					closed.Add(outcome.closed)
				}
			}
		})
	}
	all.Wait()
	stop()
	killer.Wait()
	t.Logf("%d kills; %d replies, %d of unknown outcome, %d clients disconnected", kills, answered.Load(), unknown.Load(), closed.Load())
	if kills == 0 || answered.Load() < clients {
		t.Error("nothing was tested")
	}
}

type crossingOutcome struct{ answered, unknown, closed int64 }

// crossingRound is the life of one client: it says things that only it would hear
// the answers to.
func crossingRound(addr, own string, random *rand.Rand) (o crossingOutcome, err error) {
	c, err := rawclient.Connect(addr)
	if err != nil {
		return o, err
	}
	defer c.Close()
	for n := range 1 + random.IntN(6) {
		value := fmt.Sprint(own, n, strings.Repeat("x", random.IntN(1+random.IntN(3000))))
		bulk := rawclient.Bulk(value)
		var send string
		var want []string
		switch random.IntN(6) {
		case 0: // by the shared lane, pipelined
			for range 1 + random.IntN(20) {
				send += rawclient.Encode("ECHO", value)
				want = append(want, bulk)
			}
		case 1: // by the lane of scripts
			send = rawclient.Encode("EVAL", "return ARGV[1]", "0", value)
			want = []string{bulk}
		case 2: // by a connection of its own
			send = rawclient.Encode("MULTI") + rawclient.Encode("ECHO", value) + rawclient.Encode("EXEC")
			want = []string{"+OK\r\n", "+QUEUED\r\n", "*1\r\n" + bulk}
		case 3: // from one to the other
			send = rawclient.Encode("ECHO", value) + rawclient.Encode("WATCH", value) + rawclient.Encode("UNWATCH") + rawclient.Encode("ECHO", value)
			want = []string{bulk, "+OK\r\n", "+OK\r\n", bulk}
		case 4: // messages to itself
			send = rawclient.Encode("SUBSCRIBE", value) + rawclient.Encode("PING", value) + rawclient.Encode("UNSUBSCRIBE", value)
			want = []string{
				"*3\r\n$9\r\nsubscribe\r\n" + bulk + ":1\r\n",
				"*2\r\n$4\r\npong\r\n" + bulk,
				"*3\r\n$11\r\nunsubscribe\r\n" + bulk + ":0\r\n",
			}
		case 5: // the sidecar's own
			send = rawclient.Encode("SECKILL.BUY", value[:min(len(value), 200)], "user") + rawclient.Encode("ECHO", value)
			want = []string{"", bulk}
		}
		if _, err := c.Write([]byte(send)); err != nil {
			o.closed++
			return o, nil
		}
		for _, w := range want {
			got, err := c.TryReply()
			switch {
			case err != nil && strings.Contains(fmt.Sprint(err), "timeout"):
				return o, fmt.Errorf("no reply to %.40q", send)
			case err != nil:
				o.closed++
				return o, nil
			case got == w, w == "" && strings.HasPrefix(got, "*5\r\n"):
				o.answered++
			case strings.HasPrefix(got, "-UNCERTAIN "), strings.HasPrefix(got, "-UNAVAILABLE "):
				o.unknown++
			case strings.HasPrefix(got, "-ERR EXEC without MULTI"), strings.HasPrefix(got, "*2\r\n$4\r\npong"), strings.HasPrefix(got, "*3\r\n$11\r\nunsubscribe"):
				return o, fmt.Errorf("a session goes on without its state: got %.80q, want %.80q", got, w)
			default:
				return o, fmt.Errorf("got %.80q, want %.80q", got, w)
			}
		}
	}
	return o, nil
}
