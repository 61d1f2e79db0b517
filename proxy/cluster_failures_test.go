package proxy_test

import (
	"context"
	"strings"
	"testing"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// A cluster with a password of which the sidecar knows nothing: clients authenticate
// themselves, and Redis decides, at every node.
func TestStrangersInFrontOfACluster(t *testing.T) {
	const noauth = "-NOAUTH Authentication required.\r\n"
	c := startClustered(t, redistest.ClusterOptions{Options: redistest.Options{Args: []string{"--requirepass", "secret", "--masterauth", "secret"}}})
	keys := keysOf("k", 20)
	stranger := c.dial(t)
	strangers := func() {
		for _, key := range keys {
			stranger.Want(noauth, "SET", key, "v")
		}
		for _, command := range []string{"PING", "DBSIZE", "SCAN 0", "RANDOMKEY", "MGET a b c", "EVAL return(1) 0", "MULTI", "BLPOP q 0", "SUBSCRIBE ch", "WATCH k", "SECKILL.BUY s u x"} {
			if got := stranger.Do(strings.Fields(command)...); got != noauth && !strings.HasPrefix(got, "-ERR") {
				t.Errorf("%s: got %q", command, got)
			}
		}
	}
	strangers() // nobody knows where anything is
	client := c.dial(t)
	client.Want("-WRONGPASS invalid username-password pair or user is disabled.\r\n", "AUTH", "wrong")
	client.Want(ok, "AUTH", "secret")
	var send strings.Builder
	for _, key := range keys {
		send.WriteString(rawclient.Encode("SET", key, "v"))
	}
	client.Send(send.String())
	client.Expect(strings.Repeat(ok, len(keys)))
	client.Want(":20\r\n", "DBSIZE")
	strangers()
	client.Want(":20\r\n", "DBSIZE")

	// A drain ends what blocks, and the client is closed.
	blocked := c.dial(t)
	blocked.Want(ok, "AUTH", "secret")
	blocked.SendCommand("BLPOP", "queue", "0")
	direct := c.direct(t)
	for _, node := range direct {
		node.Want(ok, "AUTH", "secret")
	}
	blockedInCluster(t, direct, 1)
	ctx, cancel := context.WithTimeout(t.Context(), rawclient.Patience)
	defer cancel()
	ended := shutdown(ctx, c.sidecar)
	blocked.ExpectClosed()
	<-ended
	blockedInCluster(t, direct, 0)
}

// A user who may not ask for the slot map is told so where only the map could help.
func TestAUserWhoMayNotAskWhereKeysAre(t *testing.T) {
	c := startClustered(t, redistest.ClusterOptions{Options: redistest.Options{Args: []string{"--requirepass", "secret", "--masterauth", "secret"}}})
	for _, node := range c.direct(t) {
		node.Want(ok, "AUTH", "secret")
		node.Want(ok, "ACL", "SETUSER", "shop", "on", ">shop", "~*", "&*", "+@all", "-cluster", "-command")
	}
	client := c.dial(t)
	client.Want(ok, "AUTH", "shop", "shop")
	for _, key := range keysOf("k", 20) {
		client.Want(ok, "SET", key, "v")
	}
	for _, command := range []string{"MGET k1 k2 k3", "DEL k1 k2 k3", "MSET k1 v k2 v k3 v"} {
		if got := client.Do(strings.Fields(command)...); !strings.HasPrefix(got, "-NOPERM ") || !strings.Contains(got, "+cluster|slots and +command") {
			t.Errorf("%s: got %q", command, got)
		}
	}
	client.Want(ok, "MSET", "{t}1", "v", "{t}2", "w")
	client.Want("*2\r\n$1\r\nv\r\n$1\r\nw\r\n", "MGET", "{t}1", "{t}2")
}

// While a node is down, what is for it fails, and says so truthfully; all else works.
func TestANodeThatIsDown(t *testing.T) {
	c := startClustered(t, redistest.ClusterOptions{Options: redistest.Options{Args: []string{"--cluster-require-full-coverage", "no"}}})
	for _, node := range c.direct(t) {
		node.Want(ok, "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	client := c.dial(t)
	there, here := c.keyAt(c.nodes.Masters[1], "k"), c.keyAt(c.nodes.Masters[0], "k")
	client.Want(ok, "MSET", there, "1", here, "1")
	c.nodes.Masters[1].Kill()
	eventually(t, "the sidecar knows", func() bool {
		reply := client.Do("INCR", there)
		return strings.HasPrefix(reply, "-UNAVAILABLE ") || strings.HasPrefix(reply, "-CLUSTERDOWN ")
	})
	client.Want("$1\r\n1\r\n", "GET", here)
	client.Send(rawclient.Encode("INCR", here) + rawclient.Encode("GET", there) + rawclient.Encode("INCR", here))
	client.Expect(":2\r\n")
	if reply := client.Reply(); !strings.HasPrefix(reply, "-UNAVAILABLE ") && !strings.HasPrefix(reply, "-CLUSTERDOWN ") {
		t.Errorf("GET of a key of the dead node: %q", reply)
	}
	client.Expect(":3\r\n")
	reply := wantPrefix(t, client, "-", "MSET", here, "5", there, "5")
	if !strings.HasPrefix(reply, "-UNCERTAIN the command was executed in part") && !strings.HasPrefix(reply, "-CLUSTERDOWN ") {
		t.Errorf("MSET with a key of the dead node: %q", reply)
	}
	client.Want("$1\r\n5\r\n", "GET", here)
	client.Want(ok, "MULTI")
	wantPrefix(t, client, "-", "GET", there)
	client.Want(queued, "SET", here, "6")
	wantPrefix(t, client, "-EXECABORT ", "EXEC")
	client.Want("$1\r\n5\r\n", "GET", here)
	c.nodes.Masters[1].Restart()
	eventually(t, "it is back", func() bool { return client.Do("SET", there, "7") == ok })
}
