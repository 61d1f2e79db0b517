package proxy_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
	"seckill-proxy/sharding"
)

// keysOf returns keys with a prefix, one for each master and more.
func keysOf(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(prefix, i)
	}
	return keys
}

// owner is the master of a key.
func (c clustered) owner(key string) *redistest.Server { return c.nodes.OwnerOf(sharding.Slot(key)) }

// keyAt returns a key that a master serves.
func (c clustered) keyAt(node *redistest.Server, prefix string) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint(prefix, i); c.owner(key) == node {
			return key
		}
	}
}

// another returns a master that isn't the one of the key.
func (c clustered) another(key string) *redistest.Server {
	owner := c.owner(key)
	return c.nodes.Masters[slices.IndexFunc(c.nodes.Masters, func(s *redistest.Server) bool { return s != owner })]
}

// array is an array of bulk strings.
func array(elements ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(elements))
	for _, e := range elements {
		b.WriteString(rawclient.Bulk(e))
	}
	return b.String()
}

// An ordinary client sees one Redis. All subtests use one cluster, one after the other.
func TestACluster(t *testing.T) {
	c := startClustered(t, redistest.ClusterOptions{})
	for _, test := range []struct {
		name string
		run  func(*testing.T, clustered)
	}{
		{"replies come in order", repliesComeInOrder},
		{"many keys", manyKeys},
		{"MSET unsplit", msetUnsplit},
		{"all keys", allKeys},
		{"SCAN while slots move", scanWhileSlotsMove},
		{"scripts and functions", scriptsAndFunctions},
		{"settings and users", settingsAndUsers},
		{"transactions", transactions},
		{"WATCH", watchedKeys},
		{"what is kept on a connection", keptOnAConnection},
		{"a client that wants no replies", unwantedReplies},
		{"a client that asked for its id", askedForItsID},
		{"a client that dies while blocked", diesWhileBlocked},
		{"subscriptions", subscriptions},
		{"large commands", largeCommands},
		{"what is refused", whatIsRefused},
		{"a slot on its way", slotOnItsWay},
		{"blocked on a slot that moves", blockedOnAMovingSlot},
		{"a pause", aPause},
		{"custom commands", customCommandsInACluster},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.dial(t).Want(ok, "FLUSHALL")
			test.run(t, c)
		})
	}
}

func repliesComeInOrder(t *testing.T, c clustered) {
	client := c.dial(t)
	keys := keysOf("k", 300)
	var send, want strings.Builder
	for i, key := range keys {
		value := strings.Repeat(key, 1+i%40*(i%7))
		send.WriteString(rawclient.Encode("SET", key, value) + rawclient.Encode("GET", key) + rawclient.Encode("INCR", key))
		want.WriteString(ok + rawclient.Bulk(value) + "-ERR value is not an integer or out of range\r\n")
		if i%10 == 0 { // the other lane, keyless, one's own, another connection's
			send.WriteString(rawclient.Encode("EVAL", "return redis.call('GET', KEYS[1])", "1", key) + rawclient.Encode("PING", key) +
				rawclient.Encode("BLPOP", "list"+key, "0.001") + rawclient.Encode("MULTI") + rawclient.Encode("GET", key) + rawclient.Encode("EXEC"))
			want.WriteString(rawclient.Bulk(value) + rawclient.Bulk(key) + "*-1\r\n" + ok + queued + "*1\r\n" + rawclient.Bulk(value))
		}
	}
	client.Send(send.String())
	client.Expect(want.String())
	// A value that is large waits for its turn, and so do those behind it.
	large := strings.Repeat("x", 3<<20)
	client.Want(ok, "SET", "large", large)
	client.Send(rawclient.Encode("GET", "large") + rawclient.Encode("GET", "k1") + rawclient.Encode("GET", "large") + rawclient.Encode("GET", "k2"))
	client.Expect(rawclient.Bulk(large) + rawclient.Bulk("k1"+strings.Repeat("k1", 1)) + rawclient.Bulk(large))
	client.Reply()
}

func manyKeys(t *testing.T, c clustered) {
	client := c.dial(t)
	var mset, mget, values []string
	for i := range 50 {
		key := fmt.Sprint("m", i)
		mset = append(mset, key, "v"+key)
		mget = append(mget, key)
		values = append(values, "v"+key)
	}
	client.Want(ok, append([]string{"MSET"}, mset...)...)
	client.Want(array(values...), append([]string{"MGET"}, mget...)...)
	client.Want("*5\r\n$3\r\nvm3\r\n$-1\r\n$3\r\nvm1\r\n$3\r\nvm3\r\n$-1\r\n", "MGET", "m3", "none", "m1", "m3", "none2")
	client.Want(":4\r\n", "EXISTS", "m1", "none", "m2", "m1", "m3")
	client.Want(":3\r\n", "TOUCH", "m1", "none", "m2", "m3")
	client.Want(":2\r\n", "UNLINK", "m1", "none", "m2", "m1")
	client.Want(":2\r\n", "DEL", "m3", "m1", "m4", "m3")
	client.Want(ok, "MSET", "a", "1", "b", "2", "a", "3")
	client.Want(array("3", "2"), "MGET", "a", "b")
	client.Want("-ERR wrong number of arguments for 'mset' command\r\n", "MSET", "a", "1", "b")
	client.Want("-ERR wrong number of arguments for 'mget' command\r\n", "MGET")
	client.Want(":1\r\n", "RPUSH", "list", "x")
	client.Want("*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n2\r\n", "MGET", "a", "list", "b")
	client.Want(ok, "MSET", "{t}1", "x", "{t}2", "y")
	client.Want(array("x", "y"), "MGET", "{t}1", "{t}2")
	// In one pipeline, each sees what those before it did.
	client.Send(rawclient.Encode("MSET", "p1", "1", "p2", "1", "p3", "1") + rawclient.Encode("INCR", "p2") + rawclient.Encode("MGET", "p3", "p2", "p1") +
		rawclient.Encode("DEL", "p1", "p2", "p3") + rawclient.Encode("MGET", "p3", "p2", "p1"))
	client.Expect(ok + ":2\r\n" + array("1", "2", "1") + ":3\r\n*3\r\n$-1\r\n$-1\r\n$-1\r\n")
	wantPrefix(t, client, "%", "HELLO", "3")
	client.Want("*2\r\n_\r\n$1\r\n3\r\n", "MGET", "none", "a")
}

func msetUnsplit(t *testing.T, c clustered) {
	whole := startSidecar(t, "", func(s *setup) { s.cluster, s.noSplit = c.nodes.Addrs(), true })
	client := whole.dial(t)
	client.Want("-CROSSSLOT Keys in request don't hash to the same slot\r\n", "MSET", "a", "1", "b", "2")
	client.Want(ok, "MSET", "{t}a", "1", "{t}b", "2")
	client.Want("*2\r\n$-1\r\n$-1\r\n", "MGET", "a", "b")
}

func allKeys(t *testing.T, c clustered) {
	client := c.dial(t)
	client.Want(null, "RANDOMKEY")
	keys := keysOf("key:", 1000)
	for _, key := range keys {
		client.SendCommand("SET", key, "v")
	}
	client.Expect(strings.Repeat(ok, len(keys)))
	client.Want(":1000\r\n", "DBSIZE")
	for _, count := range []string{"1", "10", "333", "100000"} {
		seen := make(map[string]bool)
		for cursor, first := "0", true; first || cursor != "0"; first = false {
			reply := decode(t, client.Do("SCAN", cursor, "COUNT", count, "MATCH", "key:*")).([]any)
			cursor = reply[0].(string)
			for _, key := range reply[1].([]any) {
				seen[key.(string)] = true
			}
		}
		if len(seen) != len(keys) {
			t.Errorf("SCAN with COUNT %s found %d keys, want %d", count, len(seen), len(keys))
		}
		for _, key := range keys {
			if !seen[key] {
				t.Errorf("SCAN with COUNT %s didn't find %s", count, key)
			}
		}
	}
	client.Want("-ERR invalid cursor\r\n", "SCAN", "x")
	client.Want("-ERR syntax error\r\n", "SCAN", "0", "COUNT", "0")
	if all := decode(t, client.Do("KEYS", "key:*")).([]any); len(all) != len(keys) {
		t.Errorf("KEYS found %d keys, want %d", len(all), len(keys))
	}
	nodes := make(map[*redistest.Server]bool)
	eventually(t, "RANDOMKEY has named keys of all masters", func() bool {
		nodes[c.owner(decode(t, client.Do("RANDOMKEY")).(string))] = true
		return len(nodes) == 3
	})
	client.Want(ok, "FLUSHALL")
	client.Want(":0\r\n", "DBSIZE")
	client.Want(ok, "SET", "one", "v")
	for range 20 {
		client.Want(rawclient.Bulk("one"), "RANDOMKEY")
	}
	// What stands before and behind it in a pipeline is before and behind it.
	var send strings.Builder
	for _, key := range keys {
		send.WriteString(rawclient.Encode("SET", key, "v"))
	}
	client.Send(send.String() + rawclient.Encode("DBSIZE") + rawclient.Encode("SET", "two", "v") + rawclient.Encode("FLUSHDB") + rawclient.Encode("DBSIZE"))
	client.Expect(strings.Repeat(ok, len(keys)) + ":1001\r\n" + ok + ok + ":0\r\n")
}

// scanWhileSlotsMove moves the first slot of each master, by which nobody may know it, in
// the middle of a SCAN. All keys of other slots are found.
func scanWhileSlotsMove(t *testing.T, c clustered) {
	client := c.dial(t)
	keys := keysOf("key:", 3000)
	for _, key := range keys {
		client.SendCommand("SET", key, "v")
	}
	client.Expect(strings.Repeat(ok, len(keys)))
	moved := make(map[int]*redistest.Server) // slots, and where they were
	move := func(slot int, to *redistest.Server) {
		c.nodes.MoveSlot(slot, to)
		client.Do("GET", keyIn(slot)) // the sidecar hears of it
	}
	seen := make(map[string]bool)
	for cursor, first := "0", true; first || cursor != "0"; first = false {
		reply := decode(t, client.Do("SCAN", cursor, "COUNT", "100")).([]any)
		cursor = reply[0].(string)
		for _, key := range reply[1].([]any) {
			seen[key.(string)] = true
		}
		if !first {
			continue
		}
		slots := make([]int, len(c.nodes.Masters))
		for i, node := range c.nodes.Masters {
			for c.nodes.OwnerOf(slots[i]) != node {
				slots[i]++
			}
		}
		for i, slot := range slots {
			moved[slot] = c.nodes.Masters[i]
			move(slot, c.nodes.Masters[(i+1)%len(slots)])
		}
	}
	missed := 0
	for _, key := range keys {
		if moved[sharding.Slot(key)] == nil && !seen[key] {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("SCAN missed %d keys of slots that never moved", missed)
	}
	for slot, back := range moved {
		move(slot, back)
	}
	// A cursor of a node that is gone begins anew.
	gone := decode(t, client.Do("SCAN", strconv.Itoa(1<<20), "COUNT", "100")).([]any) // no node has the number 0
	begun := decode(t, client.Do("SCAN", "0", "COUNT", "100")).([]any)
	if gone[0] != begun[0] {
		t.Errorf("the cursor of a node that is gone led to %v, a new SCAN to %v", gone[0], begun[0])
	}
}

// keyIn returns a key in a slot.
func keyIn(slot int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("in", i); sharding.Slot(key) == slot {
			return key
		}
	}
}

func scriptsAndFunctions(t *testing.T, c clustered) {
	client := c.dial(t)
	const sha = "7f923f79fe76194c868d7e1d0820de36700eb649" // of "return 2"
	client.Want("*1\r\n:0\r\n", "SCRIPT", "EXISTS", sha)
	client.Want(rawclient.Bulk(sha), "SCRIPT", "LOAD", "return 2")
	for _, key := range keysOf("k", 20) {
		client.Want(":2\r\n", "EVALSHA", sha, "1", key)
	}
	client.Want("*2\r\n:1\r\n:0\r\n", "SCRIPT", "EXISTS", sha, strings.Repeat("0", 40))
	client.Want(ok, "SCRIPT", "FLUSH")
	client.Want("*1\r\n:0\r\n", "SCRIPT", "EXISTS", sha)
	// One node alone isn't enough.
	rawclient.Dial(t, c.nodes.Masters[1].Addr).Want(rawclient.Bulk(sha), "SCRIPT", "LOAD", "return 2")
	client.Want("*1\r\n:0\r\n", "SCRIPT", "EXISTS", sha)
	client.Want("-NOTBUSY No scripts in execution right now.\r\n", "SCRIPT", "KILL")

	const library = "#!lua name=lib\nredis.register_function('f', function(keys) return redis.call('INCR', keys[1]) end)"
	client.Want(rawclient.Bulk("lib"), "FUNCTION", "LOAD", library)
	for _, key := range keysOf("n", 20) {
		client.Want(":1\r\n", "FCALL", "f", "1", key)
	}
	client.Want("-ERR Library 'lib' already exists\r\n", "FUNCTION", "LOAD", library)
	dump := decode(t, client.Do("FUNCTION", "DUMP")).(string)
	client.Want(ok, "FUNCTION", "DELETE", "lib")
	client.Want("-ERR Function not found\r\n", "FCALL", "f", "1", "n1")
	client.Want(ok, "FUNCTION", "RESTORE", dump)
	for _, key := range keysOf("n", 20) {
		client.Want(":2\r\n", "FCALL", "f", "1", key)
	}
	client.Want(ok, "FUNCTION", "FLUSH")
	client.Want("*0\r\n", "FUNCTION", "LIST")

	// A script that runs for ever is ended at whichever node it runs.
	busy := c.dial(t)
	key := c.keyAt(c.nodes.Masters[2], "busy")
	client.Want(ok, "CONFIG", "SET", "busy-reply-threshold", "10")
	defer client.Want(ok, "CONFIG", "SET", "busy-reply-threshold", "5000")
	busy.SendCommand("EVAL", "while true do end", "1", key)
	eventually(t, "the script is killed", func() bool { return client.Do("SCRIPT", "KILL") == ok })
	if reply := busy.Reply(); !strings.Contains(reply, "Script killed by user") {
		t.Errorf("the script was answered %q", reply)
	}
}

func settingsAndUsers(t *testing.T, c clustered) {
	client := c.dial(t)
	client.Want(ok, "CONFIG", "SET", "slowlog-max-len", "77")
	client.Want(ok, "ACL", "SETUSER", "alice", "on", ">pw", "+@all", "-acl", "+acl|whoami", "~*", "&*")
	for _, node := range c.direct(t) {
		node.Want(array("slowlog-max-len", "77"), "CONFIG", "GET", "slowlog-max-len")
		node.Want(ok, "AUTH", "alice", "pw")
	}
	alice := c.dial(t)
	alice.Want("-WRONGPASS invalid username-password pair or user is disabled.\r\n", "AUTH", "alice", "no")
	alice.Want(ok, "AUTH", "alice", "pw")
	var send strings.Builder
	for _, key := range keysOf("k", 30) {
		send.WriteString(rawclient.Encode("SET", key, "v"))
	}
	alice.Send(send.String())
	alice.Expect(strings.Repeat(ok, 30))
	alice.Want(rawclient.Bulk("alice"), "ACL", "WHOAMI")
	wantPrefix(t, alice, "-NOPERM ", "ACL", "SETUSER", "bob")
	alice.Want(ok, "MULTI")
	wantPrefix(t, alice, "-NOPERM ", "ACL", "LIST")
	alice.Want(queued, "GET", "k1")
	wantPrefix(t, alice, "-EXECABORT ", "EXEC")
	alice.Want("+RESET\r\n", "RESET")
	alice.Want(rawclient.Bulk("default"), "ACL", "WHOAMI")
	client.Want("*1\r\n:1\r\n"[4:], "ACL", "DELUSER", "alice")
	wantPrefix(t, alice, "-WRONGPASS ", "AUTH", "alice", "pw")
	client.Want(ok, "CONFIG", "RESETSTAT")
	client.Want("-ERR SELECT is not allowed in cluster mode\r\n", "SELECT", "1")
	client.Want(ok, "SELECT", "0")
}

func transactions(t *testing.T, c clustered) {
	client := c.dial(t)
	const crossed = "-CROSSSLOT Keys in request don't hash to the same slot\r\n"
	const aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n"
	for name, exchange := range map[string][][]string{
		"empty":                    {{ok, "MULTI"}, {"*0\r\n", "EXEC"}, {"-ERR EXEC without MULTI\r\n", "EXEC"}},
		"discarded":                {{ok, "MULTI"}, {queued, "PING"}, {ok, "DISCARD"}, {"-ERR DISCARD without MULTI\r\n", "DISCARD"}},
		"discarded at its node":    {{ok, "MULTI"}, {queued, "SET", "k", "x"}, {ok, "DISCARD"}, {null, "GET", "k"}},
		"nested":                   {{ok, "MULTI"}, {"-ERR MULTI calls can not be nested\r\n", "MULTI"}, {queued, "GET", "k"}, {"-ERR MULTI calls can not be nested\r\n", "MULTI"}, {"*1\r\n$-1\r\n", "EXEC"}},
		"keyless first":            {{ok, "MULTI"}, {queued, "PING"}, {queued, "ECHO", "x"}, {queued, "SET", "a", "1"}, {queued, "PING", "y"}, {queued, "INCR", "a"}, {"*5\r\n" + pong + "$1\r\nx\r\n" + ok + "$1\r\ny\r\n:2\r\n", "EXEC"}, {"$1\r\n2\r\n", "GET", "a"}},
		"keyless only":             {{ok, "MULTI"}, {queued, "PING"}, {"*1\r\n" + pong, "EXEC"}},
		"wrong before its node":    {{ok, "MULTI"}, {"-ERR unknown command 'NOSUCH', with args beginning with: \r\n", "NOSUCH"}, {queued, "SET", "w", "1"}, {aborted, "EXEC"}, {null, "GET", "w"}},
		"arity before its node":    {{ok, "MULTI"}, {"-ERR wrong number of arguments for 'get' command\r\n", "GET"}, {aborted, "EXEC"}},
		"arity of EXEC":            {{ok, "MULTI"}, {"-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n", "EXEC", "x"}, {"-ERR EXEC without MULTI\r\n", "EXEC"}},
		"two slots":                {{ok, "MULTI"}, {queued, "SET", "{1}", "1"}, {crossed, "SET", c.keyAt(c.another("{1}"), "o"), "1"}, {queued, "GET", "{1}"}, {aborted, "EXEC"}, {null, "GET", "{1}"}},
		"two slots of one node":    {{ok, "MULTI"}, {queued, "SET", "{1}", "1"}, {queued, "SET", c.keyAt(c.owner("{1}"), "o"), "1"}, {crossed, "EXEC"}, {null, "GET", "{1}"}},
		"one slot":                 {{ok, "MULTI"}, {queued, "SET", "{1}a", "1"}, {queued, "MGET", "{1}b", "{1}a"}, {"*2\r\n" + ok + "*2\r\n$-1\r\n$1\r\n1\r\n", "EXEC"}},
		"custom before its node":   {{ok, "MULTI"}, {"-ERR Command not allowed inside a transaction\r\n", "SECKILL.BUY", "s", "u"}, {queued, "GET", "k"}, {aborted, "EXEC"}},
		"custom at its node":       {{ok, "MULTI"}, {queued, "GET", "k"}, {"-ERR Command not allowed inside a transaction\r\n", "SECKILL.BUY", "s", "u"}, {aborted, "EXEC"}},
		"of all nodes before":      {{ok, "MULTI"}, {"-ERR DBSIZE concerns all nodes of the cluster, and a transaction is at one\r\n", "DBSIZE"}, {queued, "GET", "k"}, {aborted, "EXEC"}},
		"of all nodes at its node": {{ok, "MULTI"}, {queued, "SET", "z", "1"}, {"-ERR FLUSHALL concerns all nodes of the cluster, and a transaction is at one\r\n", "FLUSHALL"}, {aborted, "EXEC"}, {null, "GET", "z"}},
		"RESET":                    {{ok, "MULTI"}, {queued, "PING"}, {"+RESET\r\n", "RESET"}, {"-ERR EXEC without MULTI\r\n", "EXEC"}},
		"RESP3":                    {{"%", "HELLO", "3"}, {ok, "MULTI"}, {queued, "PING"}, {queued, "HGETALL", "none"}, {"*2\r\n" + pong + "%0\r\n", "EXEC"}},
		"many keyless":             append(append([][]string{{ok, "MULTI"}}, slices.Repeat([][]string{{queued, "PING"}}, 128)...), []string{"-ERR more than 128 commands or 65536 bytes ", "PING"}, []string{aborted, "EXEC"}),
	} {
		t.Run(name, func(t *testing.T) {
			one, all := c.dial(t), c.dial(t)
			client.Want(ok, "FLUSHALL")
			for _, step := range exchange {
				if got := one.Do(step[1:]...); got != step[0] && !(len(step[0]) > 0 && strings.HasPrefix(got, step[0]) && !strings.HasSuffix(step[0], "\n")) {
					t.Errorf("%v: got %q, want %q", step[1:], got, step[0])
				}
			}
			client.Want(ok, "FLUSHALL")
			var send strings.Builder
			for _, step := range exchange {
				send.WriteString(rawclient.Encode(step[1:]...))
			}
			all.Send(send.String())
			for _, step := range exchange {
				if got := all.Reply(); got != step[0] && !(strings.HasPrefix(got, step[0]) && !strings.HasSuffix(step[0], "\n")) {
					t.Errorf("in a pipeline, %v: got %q, want %q", step[1:], got, step[0])
				}
			}
		})
	}
}

func watchedKeys(t *testing.T, c clustered) {
	client, other := c.dial(t), c.dial(t)
	there := c.keyAt(c.another("{w}"), "o")
	other.Want(ok, "SET", there, "v")
	client.Want(ok, "WATCH", "{w}1")
	client.Want(ok, "WATCH", "{w}2")
	client.Want("-CROSSSLOT Keys in request don't hash to the same slot\r\n", "WATCH", there)
	client.Want(rawclient.Bulk("v"), "GET", there) // keys of other nodes can be read
	client.Want("*2\r\n$1\r\nv\r\n$-1\r\n", "MGET", there, "none")
	client.Want(":1\r\n", "DBSIZE")
	other.Want(ok, "SET", "{w}2", "changed")
	client.Want(ok, "MULTI")
	client.Want(queued, "SET", "{w}1", "x")
	client.Want("*-1\r\n", "EXEC")
	client.Want(null, "GET", "{w}1")
	client.Want(ok, "WATCH", "{w}1")
	client.Want(ok, "MULTI")
	client.Want(queued, "SET", "{w}1", "x")
	client.Want("*1\r\n"+ok, "EXEC")
	client.Want(ok, "WATCH", there) // the session is free again
	client.Want(ok, "UNWATCH")
	client.Want(ok, "WATCH", "{w}1")
	client.Want(ok, "UNWATCH")
}

func keptOnAConnection(t *testing.T, c clustered) {
	client := c.dial(t)
	keys := keysOf("k", 20)
	id := client.Do("CLIENT", "ID")
	for _, key := range keys {
		client.Want(ok, "SET", key, "v")
		client.Want(rawclient.Bulk("v"), "GET", key)
		client.Want(id, "CLIENT", "ID")
	}
	client.Want("+RESET\r\n", "RESET")
	muted := c.dial(t)
	muted.SendCommand("CLIENT", "REPLY", "OFF")
	for _, key := range keys {
		muted.SendCommand("SET", key, "w")
	}
	muted.SendCommand("MSET", "a", "1", "b", "2", "c", "3")
	muted.SendCommand("CLIENT", "REPLY", "ON")
	muted.Expect(ok)
	muted.Want(array("1", "2", "3"), "MGET", "a", "b", "c")
	for _, key := range keys {
		muted.Send(rawclient.Encode("CLIENT", "REPLY", "SKIP") + rawclient.Encode("GET", "none") + rawclient.Encode("GET", key))
		muted.Expect(rawclient.Bulk("w"))
	}
	muted.Want(ok, "QUIT")
	muted.ExpectClosed()
	named := c.dial(t)
	named.Want(ok, "CLIENT", "SETNAME", "me")
	named.Want(rawclient.Bulk("me"), "CLIENT", "GETNAME")
}

// unwantedReplies has clients that want no replies, wherever the keys are: each exchange
// has what comes after them.
func unwantedReplies(t *testing.T, c clustered) {
	off, on, skip := []string{"CLIENT", "REPLY", "OFF"}, []string{"CLIENT", "REPLY", "ON"}, []string{"CLIENT", "REPLY", "SKIP"}
	multi, exec := []string{"MULTI"}, []string{"EXEC"}
	for _, node := range c.nodes.Masters {
		a, list, there := c.keyAt(node, "a"), c.keyAt(node, "list"), c.keyAt(c.another(c.keyAt(node, "a")), "o")
		set, get := []string{"SET", a, "new"}, []string{"GET", a}
		value := rawclient.Bulk("new")
		for name, exchange := range map[string]struct {
			send [][]string
			want string
		}{
			"off, a transaction":             {[][]string{off, multi, set, exec, on, get}, ok + value},
			"off, one with a keyless begin":  {[][]string{off, multi, {"PING"}, set, {"PING"}, exec, on, get}, ok + value},
			"off, one that watches":          {[][]string{off, {"SET", there, "v"}, {"WATCH", a}, {"GET", there}, multi, set, exec, on, get}, ok + value},
			"off, elsewhere first":           {[][]string{off, {"SET", there, "v"}, multi, {"GET", there}, exec, multi, set, exec, on, get}, ok + value},
			"off, blocking":                  {[][]string{off, {"RPUSH", list, "x", "y"}, {"BLPOP", list, "1"}, on, {"LRANGE", list, "0", "-1"}}, ok + array("y")},
			"off, errors":                    {[][]string{off, {"NOSUCH"}, {"INCR", a, "x"}, {"LPUSH", a}, {"MGET", a, there, "x"}, {"DBSIZE"}, set, on, get}, ok + value},
			"skip, a transaction":            {[][]string{skip, multi, set, exec, get}, queued + "*1\r\n" + ok + value},
			"skip, blocking":                 {[][]string{{"RPUSH", list, "x"}, skip, {"BLPOP", list, "1"}, set, get}, ":1\r\n" + ok + value},
			"skip, one of many keys":         {[][]string{skip, {"MSET", a, "1", there, "1"}, set, get}, ok + value},
			"skip, of all nodes":             {[][]string{skip, {"DBSIZE"}, set, get}, ok + value},
			"skip, what is refused":          {[][]string{skip, {"READONLY"}, set, get}, ok + value},
			"skip, WAIT at several":          {[][]string{set, {"SET", there, "v"}, skip, {"WAIT", "0", "0"}, get}, ok + ok + value},
			"skip twice":                     {[][]string{skip, skip, set, get}, value},
			"off, RESET":                     {[][]string{off, set, {"RESET"}, get}, "+RESET\r\n" + value},
			"off, scripts and large values":  {[][]string{off, {"EVAL", "return redis.call('SET', KEYS[1], ARGV[1])", "1", a, strings.Repeat("v", 100<<10)}, {"GET", a}, set, on, get}, ok + value},
			"off, large ones with an answer": {[][]string{off, {"SET", a, strings.Repeat("v", 100<<10)}, on, {"STRLEN", a}}, ok + ":102400\r\n"},
		} {
			t.Run(name, func(t *testing.T) {
				client := c.dial(t)
				client.Want(ok, "FLUSHALL")
				var send strings.Builder
				for _, command := range exchange.send {
					send.WriteString(rawclient.Encode(command...))
				}
				client.Send(send.String() + rawclient.Encode("PING", "end"))
				client.Expect(exchange.want + rawclient.Bulk("end"))
			})
		}
	}
}

// askedForItsID has CLIENT ID keep a session to a node only until it needs another one.
func askedForItsID(t *testing.T, c clustered) {
	client := c.dial(t)
	id := func() string { return wantPrefix(t, client, ":", "CLIENT", "ID") }
	for _, node := range c.nodes.Masters {
		key, list := c.keyAt(node, "k"), c.keyAt(node, "list")
		before := id()
		client.Want(ok, "SET", key, "v")
		client.Want(before, "CLIENT", "ID")
		client.Want(ok, "MULTI")
		client.Want(queued, "PING")
		client.Want(queued, "GET", key)
		client.Want("*2\r\n"+pong+rawclient.Bulk("v"), "EXEC")
		id()
		client.Want(":1\r\n", "RPUSH", list, "x")
		client.Want(array(list, "x"), "BLPOP", list, "1")
		id()
		client.Want(ok, "WATCH", key)
		client.Want(ok, "UNWATCH")
		client.Want(ok, "SET", key, strings.Repeat("v", 100<<10))
	}
	// After RESET the id is nobody's: the connection isn't another session's.
	client.Want(ok, "CLIENT", "SETNAME", "known")
	was := strings.Trim(id(), ":\r\n")
	all := c.direct(t)
	at := slices.IndexFunc(all, func(node *rawclient.Conn) bool {
		return strings.Contains(node.Do("CLIENT", "LIST", "ID", was), " name=known ")
	})
	if at < 0 {
		t.Fatalf("no node has a connection with the id %s", was)
	}
	client.Want("+RESET\r\n", "RESET")
	client.Want(pong, "PING")
	eventually(t, "the connection is closed", func() bool { return all[at].Do("CLIENT", "LIST", "ID", was) == rawclient.Bulk("") })
}

func diesWhileBlocked(t *testing.T, c clustered) {
	direct, client := c.direct(t), c.dial(t)
	for name, end := range map[string]func(*rawclient.Conn){
		"closed": func(c *rawclient.Conn) { c.Close() },
		"reset":  func(c *rawclient.Conn) { c.Reset() },
	} {
		for _, node := range c.nodes.Masters {
			key := c.keyAt(node, "q"+name)
			dying := c.dial(t)
			dying.Send(rawclient.Encode("GET", "x") + rawclient.Encode("BLPOP", key, "0") + rawclient.Encode("SET", "never", "v"))
			dying.Expect(null)
			blockedInCluster(t, direct, 1)
			end(dying)
			blockedInCluster(t, direct, 0)
			client.Want(":1\r\n", "RPUSH", key, "x")
			client.Want(array("x"), "LRANGE", key, "0", "-1")
		}
	}
	client.Want(null, "GET", "never")
	// One that lives is served, and goes on.
	waiting := c.dial(t)
	waiting.Send(rawclient.Encode("BLPOP", "served", "0") + rawclient.Encode("PING"))
	blockedInCluster(t, direct, 1)
	client.Want(":1\r\n", "RPUSH", "served", "x")
	waiting.Expect(array("served", "x") + pong)
}

func subscriptions(t *testing.T, c clustered) {
	client := c.dial(t)
	for _, protocol := range []string{"2", "3"} {
		mark := map[string]string{"2": "*", "3": ">"}[protocol]
		all, patterns := c.dial(t), c.dial(t)
		for _, s := range []*rawclient.Conn{all, patterns} {
			s.Do("HELLO", protocol)
		}
		all.Want(mark+"3\r\n$9\r\nsubscribe\r\n$3\r\nch1\r\n:1\r\n", "SUBSCRIBE", "ch1")
		patterns.Want(mark+"3\r\n$10\r\npsubscribe\r\n$3\r\nch*\r\n:1\r\n", "PSUBSCRIBE", "ch*")
		// A message says what was written before it.
		client.Send(rawclient.Encode("SET", "news", protocol) + rawclient.Encode("PUBLISH", "ch1", "m"))
		wantPrefix(t, client, "+OK")
		client.Reply()
		all.Expect(mark + "3\r\n$7\r\nmessage\r\n$3\r\nch1\r\n$1\r\nm\r\n")
		patterns.Expect(mark + "4\r\n$8\r\npmessage\r\n$3\r\nch*\r\n$3\r\nch1\r\n$1\r\nm\r\n")
		client.Want(array("ch1"), "PUBSUB", "CHANNELS", "ch*")
		client.Want("*4\r\n$3\r\nch1\r\n:1\r\n$4\r\nnone\r\n:0\r\n", "PUBSUB", "NUMSUB", "ch1", "none")
		client.Want(":1\r\n", "PUBSUB", "NUMPAT")
		for i, node := range c.nodes.Masters {
			channel := c.keyAt(node, "sch")
			sharded := c.dial(t)
			sharded.Do("HELLO", protocol)
			sharded.Want(mark+"3\r\n$10\r\nssubscribe\r\n"+rawclient.Bulk(channel)+":1\r\n", "SSUBSCRIBE", channel)
			client.Want(":1\r\n", "SPUBLISH", channel, "s")
			sharded.Expect(mark + "3\r\n$8\r\nsmessage\r\n" + rawclient.Bulk(channel) + "$1\r\ns\r\n")
			client.Want("*2\r\n"+rawclient.Bulk(channel)+":1\r\n", "PUBSUB", "SHARDNUMSUB", channel)
			elsewhere := c.keyAt(c.nodes.Masters[(i+1)%3], "sch")
			wantPrefix(t, sharded, "-CROSSSLOT this session keeps its connection to one node of the cluster, ", "SSUBSCRIBE", elsewhere)
			if protocol == "3" { // ordinary commands work meanwhile, wherever the key is
				for _, key := range keysOf("k", 10) {
					sharded.Want(ok, "SET", key, "v")
					sharded.Want(rawclient.Bulk("v"), "GET", key)
				}
			}
			sharded.Want(mark+"3\r\n$12\r\nsunsubscribe\r\n"+rawclient.Bulk(channel)+":0\r\n", "SUNSUBSCRIBE", channel)
			sharded.Want(mark+"3\r\n$10\r\nssubscribe\r\n"+rawclient.Bulk(elsewhere)+":1\r\n", "SSUBSCRIBE", elsewhere)
			sharded.Close()
			eventually(t, "the subscription is gone", func() bool { return client.Do("PUBSUB", "SHARDCHANNELS") == "*0\r\n" })
		}
		all.Close()
		patterns.Close()
		eventually(t, "the subscriptions are gone", func() bool {
			return client.Do("PUBSUB", "CHANNELS") == "*0\r\n" && client.Do("PUBSUB", "NUMPAT") == ":0\r\n" && client.Do("PUBSUB", "SHARDCHANNELS") == "*0\r\n"
		})
	}
}

func largeCommands(t *testing.T, c clustered) {
	client := c.dial(t)
	value := strings.Repeat("v", 200<<10)
	var mset, keys []string
	for _, key := range keysOf("large", 6) {
		client.Want(ok, "SET", key, value)
		client.Want(fmt.Sprintf(":%d\r\n", len(value)), "STRLEN", key)
		mset, keys = append(mset, key+"m", value), append(keys, key+"m")
	}
	client.Want(ok, append([]string{"MSET"}, mset...)...)
	client.Want(array(slices.Repeat([]string{value}, 6)...), append([]string{"MGET"}, keys...)...)
	script := "return redis.call('GET', KEYS[1]) --" + value
	for _, key := range keys {
		client.Want(rawclient.Bulk(value), "EVAL", script, "1", key)
	}
	many := keysOf(strings.Repeat("many", 20), 2000)
	var set strings.Builder
	for _, key := range many {
		set.WriteString(rawclient.Encode("SET", key, key))
	}
	client.Send(set.String())
	client.Expect(strings.Repeat(ok, len(many)))
	client.Want(array(many...), append([]string{"MGET"}, many...)...)
	client.Want(":2000\r\n", append([]string{"DEL"}, many...)...)
	client.Want(ok, "MULTI")
	client.Want(queued, "SET", "large0", value+"x")
	client.Want(queued, "STRLEN", "large0")
	client.Want("*2\r\n"+ok+":"+strconv.Itoa(len(value)+1)+"\r\n", "EXEC")
	// A command that breaks off is executed by nobody.
	broken := c.dial(t)
	broken.Send("*3\r\n$3\r\nSET\r\n$6\r\nbroken\r\n$300000\r\n" + value)
	broken.Close()
	client.Want(null, "GET", "broken")
}

func whatIsRefused(t *testing.T, c clustered) {
	client := c.dial(t)
	for _, command := range []string{
		"CLIENT TRACKING ON", "SHUTDOWN", "SHUTDOWN NOSAVE", "REPLICAOF NO ONE", "SLAVEOF NO ONE", "FAILOVER", "SYNC", "PSYNC ? -1", "REPLCONF x y",
		"MIGRATE 127.0.0.1 1 k 0 100", "READONLY", "READWRITE", "ASKING", "CLUSTER RESET", "CLUSTER ADDSLOTS 1", "CLUSTER SETSLOT 1 STABLE", "CLUSTER FAILOVER",
		"cluster meet 127.0.0.1 1", "SCRIPT DEBUG YES",
	} {
		if reply := wantPrefix(t, client, "-ERR ", strings.Fields(command)...); len(reply) < 60 {
			t.Errorf("%s: %q doesn't say why", command, reply)
		}
	}
	// A script that says MOVED or ASK doesn't make the sidecar connect to anywhere, nor
	// others' commands go astray.
	for _, said := range []string{"MOVED %d 127.0.0.1:1", "ASK %d 127.0.0.1:1", "MOVED %d " + c.another("k").Addr} {
		wantPrefix(t, client, "-", "EVAL", "return {err = ARGV[1]}", "1", "k", fmt.Sprintf(said, sharding.Slot("k")))
		client.Want(ok, "SET", "k", "v")
	}
	client.Want("-MOVED x\r\n", "EVAL", "return {err = 'MOVED x'}", "1", "k")
	client.Want(ok, "CLIENT", "TRACKING", "OFF")
	client.Want(fmt.Sprintf(":%d\r\n", sharding.Slot("k")), "CLUSTER", "KEYSLOT", "k")
	client.Want("-CROSSSLOT Keys in request don't hash to the same slot\r\n", "SINTER", "a", "b")
	client.Want("-ERR unknown command 'NOSUCH', with args beginning with: 'x' \r\n", "NOSUCH", "x")
}

// slotOnItsWay has half of a slot's keys at one node and half at another.
func slotOnItsWay(t *testing.T, c clustered) {
	client := c.dial(t)
	const here, gone, both = "{s}here", "{s}gone", "{s}list"
	from := c.owner(here)
	to := c.another(here)
	client.Want(ok, "MSET", here, "1", gone, "2")
	finish := c.nodes.BeginMove(sharding.Slot(here), to)
	c.nodes.MoveKeys(from, to, gone)
	for range 3 {
		client.Send(rawclient.Encode("GET", here) + rawclient.Encode("GET", gone) + rawclient.Encode("INCR", gone) + rawclient.Encode("GET", "elsewhere") +
			rawclient.Encode("DECR", gone) + rawclient.Encode("GET", here) + rawclient.Encode("EVAL", "return redis.call('GET', KEYS[1])", "1", gone))
		client.Expect("$1\r\n1\r\n$1\r\n2\r\n:3\r\n$-1\r\n:2\r\n$1\r\n1\r\n$1\r\n2\r\n")
	}
	wantPrefix(t, client, "-TRYAGAIN ", "MGET", here, gone)
	wantPrefix(t, client, "-TRYAGAIN ", "MGET", here, gone, "elsewhere")
	client.Want(":1\r\n", "RPUSH", both, "x") // new keys are made where the slot goes
	client.Want(array(both, "x"), "BLPOP", both, "0")
	for _, watched := range [][2]string{{gone, here}, {here, gone}} { // whose node differs, but not their slot
		client.Want(ok, "WATCH", watched[0])
		client.Want("-TRYAGAIN the slot is moving to another node; the command was not executed\r\n", "WATCH", watched[1])
		client.Want(ok, "UNWATCH")
	}
	client.Want(ok, "WATCH", here)
	client.Want(ok, "MULTI")
	client.Want(queued, "GET", here)
	client.Want("-TRYAGAIN the slot is moving to another node; the command was not executed\r\n", "GET", gone)
	wantPrefix(t, client, "-EXECABORT ", "EXEC")
	wantPrefix(t, client, "-TRYAGAIN ", "SET", gone, strings.Repeat("v", 100<<10)) // too long to be kept
	finish()
	client.Want(array("1", "2"), "MGET", here, gone)
	client.Want(ok, "SET", gone, strings.Repeat("v", 100<<10))
	eventually(t, "transactions go to the new node", func() bool {
		client.Want(ok, "MULTI")
		if client.Do("SET", here, "3") != queued {
			wantPrefix(t, client, "-EXECABORT ", "EXEC")
			return false
		}
		client.Want("*1\r\n"+ok, "EXEC")
		return true
	})
}

func blockedOnAMovingSlot(t *testing.T, c clustered) {
	direct, client, waiting := c.direct(t), c.dial(t), c.dial(t)
	const key = "{b}queue"
	waiting.SendCommand("BLPOP", key, "0")
	sharded := c.dial(t)
	sharded.Do("HELLO", "3")
	wantPrefix(t, sharded, ">3", "SSUBSCRIBE", key)
	blockedInCluster(t, direct, 1)
	c.nodes.MoveSlot(sharding.Slot(key), c.another(key))
	blockedInCluster(t, direct, 1) // at its new node
	client.Want(":1\r\n", "RPUSH", key, "x")
	waiting.Expect(array(key, "x"))
	// Redis ends the subscription, and the client may make it anew.
	sharded.Expect(">3\r\n$12\r\nsunsubscribe\r\n" + rawclient.Bulk(key) + ":0\r\n")
	sharded.Want(">3\r\n$10\r\nssubscribe\r\n"+rawclient.Bulk(key)+":1\r\n", "SSUBSCRIBE", key)
	client.Want(":1\r\n", "SPUBLISH", key, "m")
	sharded.Expect(">3\r\n$8\r\nsmessage\r\n" + rawclient.Bulk(key) + "$1\r\nm\r\n")
}

func aPause(t *testing.T, c clustered) {
	client, writer, reader := c.dial(t), c.dial(t), c.dial(t)
	client.Want(ok, "CLIENT", "PAUSE", "60000", "WRITE")
	writer.SendCommand("SET", "k", "v")
	blockedInCluster(t, c.direct(t), 1)
	for _, key := range keysOf("k", 10) {
		reader.Want(null, "GET", key)
	}
	client.Want(ok, "CLIENT", "UNPAUSE")
	writer.Expect(ok)
}

func customCommandsInACluster(t *testing.T, c clustered) {
	client := c.dial(t)
	wantPrefix(t, client, "*4\r\n:200\r\n$7\r\nCREATED\r\n", "SECKILL.CREATE", "s", "5")
	client.Send(rawclient.Encode("SET", "x", "1") + rawclient.Encode("SECKILL.BUY", "s", "u") + rawclient.Encode("GET", "x") + rawclient.Encode("LOCK.ACQUIRE", "l", "60000"))
	client.Expect(ok)
	for _, want := range []string{"*5\r\n:200\r\n$8\r\nRESERVED\r\n", "$1\r\n1", "*6\r\n:200\r\n$8\r\nACQUIRED\r\n"} {
		if got := client.Reply(); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q and more", got, want)
		}
	}
	wantPrefix(t, client, "*", "COMMAND", "INFO", "SECKILL.BUY", "GET")
	client.Send(rawclient.Encode("CLIENT", "REPLY", "SKIP") + rawclient.Encode("SECKILL.BUY", "s", "v") + rawclient.Encode("GET", "x"))
	client.Expect("$1\r\n1\r\n")
}
