package proxy_test

import (
	"testing"
	"seckill-proxy/internal/rawclient"
	"time"
	"fmt"
)

func TestZZ(t *testing.T) {
	p := startPair(t)
	d := p.direct(t)
	for i := range 60 {
	d.Want(ok, "ACL", "SETUSER", "alice", "on", ">pw", "~*", "&*", "+@all")
	for range 5 {
		a, b := p.dial(t), p.dial(t)
		a.Send("AUTH alice pw\r\nACL WHOAMI\r\n")
		b.Send("ACL WHOAMI\r\n")
		a.Expect(ok + "$5\r\nalice\r\n")
		b.Reply()
		a.Do("AUTH", "alice", "wrong")
		a.Do("ACL", "WHOAMI")
		a.Close()
		b.Do("ACL", "WHOAMI")
		b.Close()
	}
		a := p.dial(t)
		a.Want(ok, "AUTH", "alice", "pw")
		w := [][]string{nil, {"GET","k"},{"SELECT","3"}}[i%3]
		if w != nil { a.Do(w...) }
		d.Want(":1\r\n", "ACL", "DELUSER", "alice")
		if i % 2 == 0 { a.Write([]byte(rawclient.Encode("ECHO", "x"))) }
		if i%4 < 2 { a.CloseWrite() }
		a.SetReadDeadline(time.Now().Add(1*time.Second))
		var b [1000]byte
		n := 0
		var err error
		for err == nil { var m int; m, err = a.Reader.Read(b[n:]); n += m }
		if n > 170 || i%2==1 && n>0 { t.Logf("%d %v: %q %v", i, w, b[:n], err) }
		a.Close()
	}
}
