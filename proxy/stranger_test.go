package proxy_test

import (
	"strings"
	"testing"
)

// A password that is set while the sidecar runs holds for clients that come then,
// as on direct connections, though the connections that they would share were
// made before.
func TestAPasswordThatIsSetLater(t *testing.T) {
	p := startPair(t)
	direct, old := p.direct(t), p.dial(t)
	old.Want(ok, "SET", "k", "v")
	old.Want(ok, "WATCH", "k")
	old.Want(ok, "UNWATCH")
	old.Want(noSales, "SECKILL.LIST")
	direct.Want(ok, "CONFIG", "SET", "requirepass", "secret")
	eventually(t, "new clients have to authenticate", func() bool {
		return strings.HasPrefix(p.dial(t).Do("GET", "k"), "-NOAUTH ")
	})
	c := p.dial(t)
	for _, args := range [][]string{{"GET", "k"}, {"EVAL", "return 1", "0"}, {"WATCH", "k"}, {"SECKILL.LIST"}, {"LOCK.ACQUIRE", "l", "1000"}} {
		wantPrefix(t, c, "-NOAUTH ", args...)
	}
	c.Want(ok, "AUTH", "secret")
	c.Want("$1\r\nv\r\n", "GET", "k")
	c.Want(noSales, "SECKILL.LIST")
	// Who was in stays in, until RESET.
	old.Want("$1\r\nv\r\n", "GET", "k")
	old.Want("+RESET\r\n", "RESET")
	wantPrefix(t, old, "-NOAUTH ", "GET", "k")
	direct.Want(ok, "CONFIG", "SET", "requirepass", "")
	eventually(t, "new clients need not", func() bool { return p.dial(t).Do("GET", "k") == "$1\r\nv\r\n" })
}

// What ends a script may go by a connection that is in another database. What
// stands behind it in the pipeline may not.
func TestNothingFollowsAKillToItsDatabase(t *testing.T) {
	p := startPair(t)
	direct := p.direct(t)
	direct.Want(ok, "ACL", "SETUSER", "admin", "on", ">root", "~*", "&*", "+@all")
	for _, kill := range []string{"SCRIPT KILL", "FUNCTION KILL"} {
		c := p.dial(t)
		c.Want(ok, "SELECT", "5")
		c.Send(kill + "\r\nSET k v\r\nMULTI\r\nSET l v\r\nEXEC\r\nAUTH admin root\r\nACL WHOAMI\r\n")
		c.Expect("-NOTBUSY No scripts in execution right now.\r\n" + ok + ok + queued + "*1\r\n" + ok + ok + "$5\r\nadmin\r\n")
		c.Close()
		for range 3 {
			fresh := p.dial(t)
			fresh.Want("$7\r\ndefault\r\n", "ACL", "WHOAMI")
			fresh.Want(null, "GET", "k")
			fresh.Want("*-1\r\n", "BLPOP", "k", "0.001")
		}
		direct.Want(":0\r\n", "DBSIZE")
	}
}
