package redistest

import "testing"

func TestSentinels(t *testing.T) {
	t.Parallel()
	s := StartSentinels(t, SentinelOptions{
		Replicas: 2, Sentinels: 3,
		Options:  Options{Args: []string{"--requirepass", "s p"}, TLS: NewCertificates(t)},
		Password: "of sentinels",
	})
	first := s.Master()
	if first != s.Servers[0] || len(s.Servers) != 3 || len(s.Addrs) != 3 {
		t.Fatalf("master %s of %d servers, %d sentinels", first.Addr, len(s.Servers), len(s.Addrs))
	}
	first.do("SET", "k", "v")

	s.Failover()
	second := s.Master()
	if second == first {
		t.Fatal("the master is the same after a failover")
	}
	if old := s.KillMaster(); old != second {
		t.Fatalf("killed %s, want %s", old.Addr, second.Addr)
	}
	third := s.Master()
	if third == second {
		t.Fatal("the killed master is still named")
	}
	conn := third.Client(t).Conn() // the sentinels cut older ones when it became the master
	defer conn.Close()
	if err := conn.Auth(t.Context(), "s p").Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := conn.Get(t.Context(), "k").Result(); err != nil || got != "v" {
		t.Fatalf("GET k = %q, %v; want v", got, err)
	}
}
