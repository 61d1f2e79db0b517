package proxy_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
	"seckill-proxy/sharding"
)

// movingTags are the hash tags of the keys that are in use while their slots move.
var movingTags = keysOf("t", 12)

// TestAClusterThatChanges has clients write and read all the time while slots move,
// connections are cut, masters come and go and are replaced by replicas. Nobody is
// told what was meant for another, each client's commands for a key are executed in
// order, and what was answered was executed exactly once.
func TestAClusterThatChanges(t *testing.T) {
	const clients = 12
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := startClustered(t, redistest.ClusterOptions{Replicas: 1})
	waitsForAllNodes(t, c)
	ctx, stop := context.WithCancel(t.Context())
	tally := tally{maybe: make(map[string]*atomic.Int64), counted: make(map[string]*atomic.Int64)}
	for _, tag := range movingTags {
		tally.maybe[tag], tally.counted[tag] = new(atomic.Int64), new(atomic.Int64)
	}
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for life := 0; ctx.Err() == nil; life++ {
				w := writer{name: fmt.Sprintf("c%d-%d", i, life), random: random, tally: &tally, sure: make(map[string]int), last: make(map[string]int)}
				if err := w.live(ctx, c.addr); err != nil {
					t.Errorf("client %s: %v", w.name, err)
					return
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(seed, 1<<32))
	move := func(n int) {
		for range n {
			c.nodes.MoveSlot(sharding.Slot(movingTags[random.IntN(len(movingTags))]), c.nodes.Masters[random.IntN(len(c.nodes.Masters))])
		}
	}
	busy := func() { // until they have done something since
		before := tally.answered.Load()
		eventually(t, "clients are answered", func() bool { return tally.answered.Load() > before+10*clients })
	}
	cut := func() {
		busy()
		for _, node := range c.direct(t) {
			node.Do("CLIENT", "KILL", "TYPE", "normal")
			node.Close()
		}
		busy()
	}
	move(10)
	cut()
	added := c.nodes.AddMaster()
	move(15)
	cut()
	c.nodes.Failover(0)
	busy()
	move(5)
	cut()
	c.nodes.RemoveMaster(added)
	move(5)
	busy()
	stop()
	all.Wait()
	t.Logf("%d replies, %d errors that say that nothing was done, %d that say that it isn't known, %d clients disconnected",
		tally.answered.Load(), tally.refused.Load(), tally.unknown.Load(), tally.closed.Load())

	client := c.dial(t)
	for _, tag := range movingTags {
		var n int64
		if _, err := fmt.Sscan(decode(t, client.Do("GET", counterOf(tag))).(string), &n); err != nil {
			t.Fatal(err)
		}
		if least := tally.counted[tag].Load(); n < least || n > least+tally.maybe[tag].Load() {
			t.Errorf("the counter at {%s} is %d; %d INCRs were answered, and of %d it isn't known", tag, n, least, tally.maybe[tag].Load())
		}
	}

	aMasterThatFallsSilent(t, c)

	// A master that dies is followed by its replica.
	c.nodes.KillMaster(1)
	eventually(t, "all slots are served again", func() bool {
		for _, tag := range movingTags {
			if !strings.HasPrefix(client.Do("INCR", counterOf(tag)), ":") {
				return false
			}
		}
		return true
	})
	client.Want(ok, "FLUSHALL")
}

// waitsForAllNodes has WAIT tell the truth about all that a session wrote, at whichever
// nodes.
func waitsForAllNodes(t *testing.T, c clustered) {
	client := c.dial(t)
	var mset []string
	for _, node := range c.nodes.Masters {
		mset = append(mset, c.keyAt(node, "w"), "v")
	}
	client.Want(ok, append([]string{"MSET"}, mset...)...)
	client.Want(":1\r\n", "WAIT", "1", "0")
	for i := range c.nodes.Masters {
		replica := c.nodes.Replicas[i][0]
		replica.Pause()
		client.Want(ok, append([]string{"MSET"}, mset...)...)
		client.Want(":0\r\n", "WAIT", "1", "10")
		client.Send(rawclient.Encode("CLIENT", "REPLY", "SKIP") + rawclient.Encode("SET", mset[2*i], "v"))
		client.Want(":0\r\n", "WAIT", "1", "10")
		replica.Resume()
		client.Want(ok, "SET", mset[2*i], "v")
		client.Want(":1\r\n", "WAIT", "1", "0")
	}
	client.Want("-ERR value is not an integer or out of range\r\n", "WAIT", "x", "0")
}

// aMasterThatFallsSilent has a master stand still and be replaced: who waits for it is
// told as soon as another serves, and hears nothing of it when it goes on.
func aMasterThatFallsSilent(t *testing.T, c clustered) {
	old := c.nodes.Masters[2]
	key := "{" + c.keyAt(old, "s") + "}" // the lock of that name is in the same slot
	client, reserved, locker, late := c.dial(t), c.dial(t), c.dial(t), c.dial(t)
	wantPrefix(t, locker, replyTo(200, "ACQUIRED"), "LOCK.ACQUIRE", key, "60000", "TOKEN", "t")
	client.Want(ok, "SET", key, "before")
	reserved.Want(ok, "WATCH", key)
	client.Want(":1\r\n", "WAIT", "1", "0")
	old.Pause()
	client.SendCommand("SET", key, "after")
	reserved.SendCommand("SET", key, "after")
	locker.SendCommand("LOCK.RELEASE", key, "t")
	for who, waits := range map[string]*rawclient.Conn{"by a shared connection": client, "by one of its own": reserved} {
		if got := waits.Reply(); !strings.HasPrefix(got, "-UNCERTAIN ") {
			t.Errorf("SET %s at a silent master: %q", who, got)
		}
	}
	if got := locker.Reply(); !strings.HasPrefix(got, replyTo(202, "UNCERTAIN")) {
		t.Errorf("LOCK.RELEASE at a silent master: %q", got)
	}
	late.Want(rawclient.Bulk("before"), "GET", key)
	late.Want(ok, "SET", key, "new")
	eventually(t, "the lock is released at the new master", func() bool {
		return strings.HasPrefix(locker.Do("LOCK.RELEASE", key, "t"), replyTo(200, "RELEASED"))
	})
	old.Resume()
	c.nodes.Masters[2], c.nodes.Replicas[2][0] = c.nodes.Replicas[2][0], old
	c.nodes.Settle()
	client.Want(rawclient.Bulk("new"), "GET", key)
	late.Want(rawclient.Bulk("new"), "GET", key)
}

func counterOf(tag string) string { return "{" + tag + "}counter" }

// tally is what all clients saw.
type tally struct {
	answered, refused, unknown, closed atomic.Int64
	counted, maybe                     map[string]*atomic.Int64 // INCRs of the counter of a tag
}

// writer is one client and its keys, one for each tag. The values of a key count up.
type writer struct {
	name   string
	random *rand.Rand
	tally  *tally
	sure   map[string]int // by tag: the value that the key has at least
	last   map[string]int // the last one that was sent
}

// live is a client's life, until it is disconnected or ctx ends.
func (w *writer) live(ctx context.Context, addr string) error {
	conn, err := rawclient.Connect(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	var sent []exchanged
	for ctx.Err() == nil {
		steps := w.pipeline()
		var send strings.Builder
		for _, s := range steps {
			send.WriteString(rawclient.Encode(s.command...))
		}
		_, _ = conn.Write([]byte(send.String())) // what is lost shows in the replies
		// Some are under way when the next ones are sent.
		behind := len(sent)
		sent = append(sent, steps...)
		for _, s := range sent[:behind] {
			got, err := conn.TryReply()
			if err != nil && strings.Contains(err.Error(), "timeout") {
				return fmt.Errorf("no reply to %v", s.command)
			}
			if err != nil {
				w.tally.closed.Add(1)
				for _, s := range sent {
					s.unknown()
				}
				return nil
			}
			if err := w.heard(s, got); err != nil {
				return fmt.Errorf("%v of %v: %w", s.command, commandsOf(sent), err)
			}
			sent = sent[1:]
		}
	}
	for _, s := range sent {
		s.unknown()
	}
	return nil
}

// heard takes the reply to a command.
func (w *writer) heard(s exchanged, got string) error {
	for _, code := range []string{"-UNAVAILABLE ", "-TRYAGAIN ", "-CLUSTERDOWN ", "-EXECABORT "} {
		if strings.HasPrefix(got, code) {
			w.tally.refused.Add(1)
			return nil
		}
	}
	if strings.HasPrefix(got, "-UNCERTAIN ") {
		w.tally.unknown.Add(1)
		s.unknown()
		return nil
	}
	w.tally.answered.Add(1)
	return s.check(got)
}

// exchanged is a command, what its reply has to be, and what it means that there is none.
type exchanged struct {
	command []string
	check   func(reply string) error
	unknown func()
}

func commandsOf(steps []exchanged) (all [][]string) {
	for _, s := range steps {
		all = append(all, s.command)
	}
	return all
}

func exact(want string) func(string) error {
	return func(got string) error {
		if got != want {
			return fmt.Errorf("got %.80q, want %.80q", got, want)
		}
		return nil
	}
}

func nothing() {}

// pipeline is some commands whose replies only this client can get.
func (w *writer) pipeline() (steps []exchanged) {
	add := func(check func(string) error, unknown func(), command ...string) {
		steps = append(steps, exchanged{command, check, unknown})
	}
	for range 1 + w.random.IntN(8) {
		tag := movingTags[w.random.IntN(len(movingTags))]
		key := "{" + tag + "}" + w.name
		switch w.random.IntN(8) {
		default:
			w.last[tag]++
			n := w.last[tag]
			add(func(got string) error { w.sure[tag] = n; return exact(ok)(got) }, nothing, "SET", key, w.value(n))
			add(w.isValue(tag, n), nothing, "GET", key)
		case 0:
			add(func(got string) error {
				w.tally.counted[tag].Add(1)
				if got[0] != ':' {
					return fmt.Errorf("got %.80q", got)
				}
				return nil
			}, func() { w.tally.maybe[tag].Add(1) }, "INCR", counterOf(tag))
		case 1:
			add(exact(rawclient.Bulk(w.name)), nothing, "ECHO", w.name)
		case 2:
			add(exact(rawclient.Bulk(w.name)), nothing, "EVAL", "return ARGV[1]", "1", key, w.name)
		case 3:
			keys := []string{"MGET"}
			for _, tag := range movingTags[:3] {
				keys = append(keys, "{"+tag+"}none"+w.name)
			}
			add(exact("*3\r\n"+strings.Repeat(null, 3)), nothing, keys...)
		case 4:
			add(exact(ok), nothing, "MULTI")
			add(exact(queued), nothing, "ECHO", w.name)
			add(exact(queued), nothing, "EXISTS", key)
			add(func(got string) error {
				if !strings.HasPrefix(got, "*2\r\n"+rawclient.Bulk(w.name)+":") {
					return fmt.Errorf("got %.80q", got)
				}
				return nil
			}, nothing, "EXEC")
		case 5:
			add(exact("*-1\r\n"), nothing, "BLPOP", "{"+tag+"}none"+w.name, "0.001")
		}
	}
	return steps
}

func (w *writer) value(n int) string { return w.name + ":" + strconv.Itoa(n) + ":" }

// isValue checks what GET has right behind SET: that value, or, where it isn't known
// whether the SET was executed, an earlier one that isn't older than the last that was.
func (w *writer) isValue(tag string, n int) func(string) error {
	return func(got string) error {
		if got == null && w.sure[tag] == 0 {
			return nil
		}
		_, value, _ := strings.Cut(got, "\r\n")
		var was int
		if _, err := fmt.Sscanf(strings.TrimPrefix(value, w.name+":"), "%d:", &was); err != nil || was < w.sure[tag] || was > n {
			return fmt.Errorf("got %.80q, want %d to %d", got, w.sure[tag], n)
		}
		return nil
	}
}
