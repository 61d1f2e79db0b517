package simulator

import (
	"bufio"
	"net"
	"sync/atomic"
	"testing"

	"seckill-proxy/internal/nettest"
	"seckill-proxy/internal/rawclient"
)

// TestCrashPoints ends a client of a relay at each moment of its second request,
// and looks at what got through.
func TestCrashPoints(t *testing.T) {
	for _, point := range []struct {
		when             moment
		asked, delivered int64
	}{{beforeRequest, 1, 1}, {afterRequest, 2, 2}, {beforeReply, 2, 1}} {
		var asked atomic.Int64
		ended := make(chan struct{})
		server, _ := nettest.Serve(t, func(conn net.Conn, rd *bufio.Reader) {
			defer close(ended)
			for ; ; asked.Add(1) {
				if _, err := rawclient.AppendReply(nil, rd); err != nil {
					return
				}
				if _, err := conn.Write([]byte("+OK\r\n")); err != nil {
					return
				}
			}
		})
		r := startRelay(t, server)
		conn, err := rawclient.Connect(r.addr)
		if err != nil {
			t.Fatal(err)
		}
		r.arm(2, point.when, func(*link) { conn.Close() })
		delivered := int64(0)
		for {
			if _, err := conn.Write([]byte(rawclient.Encode("PING"))); err != nil {
				break
			}
			if _, err := conn.TryReply(); err != nil {
				break
			}
			delivered++
		}
		<-ended
		if asked.Load() != point.asked || delivered > point.delivered {
			t.Errorf("moment %d: %d requests arrived, want %d; %d replies came, want %d at most",
				point.when, asked.Load(), point.asked, delivered, point.delivered)
		}
	}
}
