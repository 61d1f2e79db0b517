package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"seckill-proxy/internal/nettest"
	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
	"seckill-proxy/sharding"
)

// scriptedCluster is two nodes that say what a test wants.
type scriptedCluster struct {
	addrs [2]string

	mu    sync.Mutex
	moved bool        // all slots are at the second node
	heard [2][]string // commands with keys
}

// answer answers a command at a node.
type answer func(node int, command string) string

func startScripted(t *testing.T, say answer) *scriptedCluster {
	t.Helper()
	commands := rawclient.Dial(t, redistest.Start(t, redistest.Options{}).Addr).Do("COMMAND")
	c := &scriptedCluster{}
	for node := range c.addrs {
		c.addrs[node], _ = nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
			for {
				raw, err := rawclient.AppendReply(nil, rd)
				if err != nil {
					return
				}
				reply := ok
				switch command := plain(string(raw)); {
				case command == "PING":
					reply = pong
				case command == "COMMAND":
					reply = commands
				case command == "CLUSTER SLOTS":
					reply = c.slots()
				case strings.HasPrefix(command, "CLIENT "), command == "ASKING":
				default:
					c.mu.Lock()
					c.heard[node] = append(c.heard[node], command)
					c.mu.Unlock()
					reply = say(node, command)
				}
				if _, err := io.WriteString(conn, reply); err != nil {
					return
				}
			}
		})
	}
	return c
}

// plain is a command without its lengths.
func plain(raw string) string {
	lines := strings.Split(raw, "\r\n")
	var words []string
	for i := 2; i < len(lines); i += 2 {
		words = append(words, lines[i])
	}
	return strings.Join(words, " ")
}

func (c *scriptedCluster) slots() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	half := func(from, to, node int) string {
		host, port, _ := net.SplitHostPort(c.addrs[node])
		return fmt.Sprintf("*3\r\n:%d\r\n:%d\r\n*3\r\n%s:%s\r\n%s", from, to, rawclient.Bulk(host), port, rawclient.Bulk(strings.Repeat(fmt.Sprint(node), 40)))
	}
	first := 0
	if c.moved {
		first = 1
	}
	return "*2\r\n" + half(0, 8191, first) + half(8192, 16383, 1)
}

func (c *scriptedCluster) heardAt(node int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.heard[node])
}

func (c *scriptedCluster) movedTo(key string) string {
	return fmt.Sprintf("-MOVED %d %s\r\n", sharding.Slot(key), c.addrs[1])
}

// A command isn't executed before one that the client sent before it for the same key,
// though that one went to the old node of the key, which is slow to say so, and the
// sidecar knows the new one meanwhile.
func TestCommandsForAKeyDontPassEachOtherWhenItMoves(t *testing.T) {
	const key = "{k3}" // of the first half
	if sharding.Slot(key) > 8191 {
		t.Fatal("the key is at the wrong node")
	}
	slow, release := make(chan struct{}), make(chan struct{})
	var c *scriptedCluster
	c = startScripted(t, func(node int, command string) string {
		switch {
		case node == 0 && strings.HasPrefix(command, "SET"):
			close(slow)
			<-release
			return c.movedTo(key)
		case node == 0:
			return c.movedTo(key)
		}
		return ok
	})
	p := startSidecar(t, "", func(s *setup) { s.cluster = c.addrs[:1] })
	client, other := p.dial(t), p.dial(t)
	client.SendCommand("SET", key, "1")
	<-slow
	c.mu.Lock()
	c.moved = true
	c.mu.Unlock()
	script := func() { other.Want(ok, "EVAL", "x", "1", key) }
	eventually(t, "the sidecar has the new map", func() bool {
		before := len(c.heardAt(0))
		script()
		return len(c.heardAt(0)) == before
	})
	client.SendCommand("SET", key, "2")
	for range 20 { // time enough for what mustn't happen
		script()
	}
	close(release)
	client.Expect(ok + ok)
	var sets []string
	for _, command := range c.heardAt(1) {
		if strings.HasPrefix(command, "SET") {
			sets = append(sets, command)
		}
	}
	if want := []string{"SET " + key + " 1", "SET " + key + " 2"}; !slices.Equal(sets, want) {
		t.Errorf("the new node was sent %q, want %q", sets, want)
	}
}

// Nodes that send a command to one another don't keep it going for ever.
func TestNodesThatDontAgree(t *testing.T) {
	var c *scriptedCluster
	c = startScripted(t, func(node int, command string) string {
		return fmt.Sprintf("-MOVED %d %s\r\n", sharding.Slot("k"), c.addrs[1-node])
	})
	p := startSidecar(t, "", func(s *setup) { s.cluster = c.addrs[:] })
	client := p.dial(t)
	for _, command := range []string{"GET k", "BLPOP k 0", "EVAL x 1 k"} {
		sent := len(c.heardAt(0)) + len(c.heardAt(1))
		client.Want("-CLUSTERDOWN the nodes send the command to one another; it was not executed\r\n", strings.Fields(command)...)
		if n := len(c.heardAt(0)) + len(c.heardAt(1)) - sent; n != 6 {
			t.Errorf("%s was sent %d times, want once and 5 times on", command, n)
		}
	}
}
