package redistest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// SentinelOptions of a master with replicas and the sentinels that watch it.
type SentinelOptions struct {
	Replicas, Sentinels int
	Options                    // of the master and its replicas; TLS is that of the sentinels too
	Password            string // that the sentinels ask for, from each other as well; empty: none
}

// Sentinels are a master, its replicas, and the sentinels that watch them. Its
// methods end the test when something goes wrong, so they are called from the
// test's own goroutine.
type Sentinels struct {
	Name     string    // of the master group
	Servers  []*Server // master and replicas, also those that were killed
	Addrs    []string  // of the sentinels
	Watchers []*Server // the sentinels

	t        testing.TB
	options  Options
	password string
}

// StartSentinels starts a master with replicas, and sentinels of which the
// majority decides. It returns when the replicas are in sync and the sentinels
// know them and each other. A server that doesn't answer counts as down after 2 s.
func StartSentinels(t testing.TB, o SentinelOptions) *Sentinels {
	t.Helper()
	s := &Sentinels{Name: "main", t: t, options: o.Options, password: o.Password}
	master := Start(t, o.Options)
	s.Servers = []*Server{master}
	for range o.Replicas {
		s.Servers = append(s.Servers, StartReplica(t, master, o.Options))
	}
	for range o.Sentinels {
		watcher := s.watch(master, o.Sentinels/2+1)
		s.Watchers, s.Addrs = append(s.Watchers, watcher), append(s.Addrs, watcher.Addr)
	}
	await(t, "the sentinels know the servers and each other", s.unknown)
	return s
}

// Master returns the master that all sentinels name.
func (s *Sentinels) Master() *Server {
	s.t.Helper()
	var master *Server
	await(s.t, "the sentinels name the same master", func() (err error) {
		master, err = s.named()
		return err
	})
	return master
}

// Failover makes another server the master, as SENTINEL FAILOVER does. It
// returns when all sentinels name it and all others are its replicas, in sync.
func (s *Sentinels) Failover() {
	s.t.Helper()
	old := s.Master()
	await(s.t, "the failover begins", func() error {
		_, err := s.Watchers[0].try("SENTINEL", "FAILOVER", s.Name)
		return err
	})
	s.awaitAnother(old)
}

// KillMaster kills the master with SIGKILL and returns it when all sentinels
// name another and the other living servers are its replicas, in sync.
func (s *Sentinels) KillMaster() (old *Server) {
	s.t.Helper()
	old = s.Master()
	old.Kill()
	s.awaitAnother(old)
	return old
}

func (s *Sentinels) awaitAnother(old *Server) {
	s.t.Helper()
	await(s.t, "the sentinels name another master than "+old.Addr, func() error {
		master, err := s.named()
		switch {
		case err != nil:
			return err
		case master == old:
			return errors.New("they name that one")
		}
		for _, server := range s.Servers {
			if server == master || !server.process.running() {
				continue
			}
			if err := server.outOfSyncWith(master); err != nil {
				return err
			}
		}
		return nil
	})
}

// named returns the master that all living sentinels name, which is one by its own
// word as well.
func (s *Sentinels) named() (*Server, error) {
	var master *Server
	for _, watcher := range s.Watchers {
		if !watcher.process.running() {
			continue
		}
		server, err := s.namedBy(watcher)
		if err != nil {
			return nil, err
		}
		if master != nil && server != master {
			return nil, fmt.Errorf("one sentinel names %s, another %s", master.Addr, server.Addr)
		}
		master = server
	}
	if master == nil {
		return nil, errors.New("no sentinel is alive")
	}
	if !master.process.running() {
		return nil, fmt.Errorf("%s is named, but was killed", master.Addr)
	}
	if info, err := master.info("INFO", "replication"); err != nil || info["role"] != "master" {
		return nil, fmt.Errorf("%s is named, but says that it is %q (%v)", master.Addr, info["role"], err)
	}
	return master, nil
}

func (s *Sentinels) namedBy(watcher *Server) (*Server, error) {
	reply, err := watcher.try("SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Name)
	if err != nil {
		return nil, err
	}
	host, port := reply.([]any)[0].(string), reply.([]any)[1].(string)
	group, err := fieldsOf(watcher.try("SENTINEL", "MASTER", s.Name))
	if err != nil {
		return nil, err
	}
	if group["port"] != port {
		// Were the new master killed now, it would never end it.
		return nil, fmt.Errorf("%s has not ended the failover to %s:%s", watcher.Addr, host, port)
	}
	for _, server := range s.Servers {
		if server.Addr == host+":"+port {
			return server, nil
		}
	}
	return nil, fmt.Errorf("%s names %s:%s, which isn't one of the servers", watcher.Addr, host, port)
}

// watch starts a sentinel.
func (s *Sentinels) watch(master *Server, quorum int) *Server {
	s.t.Helper()
	options := Options{TLS: s.options.TLS}
	if s.password != "" {
		options.Args = []string{"--requirepass", s.password}
	}
	watcher := launch(s.t, options, func(watcher *Server) []string {
		file := filepath.Join(watcher.Dir, "sentinel.conf")
		if err := os.WriteFile(file, []byte(s.configuration(master, quorum)), 0o600); err != nil {
			s.t.Fatal(err)
		}
		return []string{file, "--sentinel"}
	})
	// Sentinels look at each other and at the servers once in some seconds; and
	// one whose machine is busy for 2 s does nothing for 30 s. Who leads a failover
	// may need a second to notice that the replica is promoted; for four times
	// PUBLISH-PERIOD the others wait to hear of it, and then undo it.
	watcher.do("SENTINEL", "DEBUG", "INFO-PERIOD", 200, "PING-PERIOD", 200, "ASK-PERIOD", 200,
		"PUBLISH-PERIOD", 700, "TILT-TRIGGER", 60000)
	return watcher
}

func (s *Sentinels) configuration(master *Server, quorum int) string {
	lines := []string{
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d %d", s.Name, master.Port, quorum),
		fmt.Sprintf("sentinel down-after-milliseconds %s 2000", s.Name),
		// After a failover the next one begins twice this later at the earliest.
		fmt.Sprintf("sentinel failover-timeout %s 3000", s.Name),
	}
	if password := s.options.password(); password != "" {
		lines = append(lines, fmt.Sprintf("sentinel auth-pass %s %q", s.Name, password))
	}
	if s.password != "" {
		lines = append(lines, fmt.Sprintf("sentinel sentinel-pass %q", s.password))
	}
	return strings.Join(lines, "\n") + "\n"
}

// unknown says what a sentinel doesn't know yet.
func (s *Sentinels) unknown() error {
	for _, watcher := range s.Watchers {
		if err := s.unknownTo(watcher); err != nil {
			return fmt.Errorf("%s: %w", watcher.Addr, err)
		}
	}
	return nil
}

func (s *Sentinels) unknownTo(watcher *Server) error {
	group, err := fieldsOf(watcher.try("SENTINEL", "MASTER", s.Name))
	if err != nil {
		return err
	}
	if group["flags"] != "master" ||
		group["num-slaves"] != strconv.Itoa(len(s.Servers)-1) ||
		group["num-other-sentinels"] != strconv.Itoa(len(s.Watchers)-1) {
		return fmt.Errorf("the master is %q, with %s replicas and %s other sentinels", group["flags"], group["num-slaves"], group["num-other-sentinels"])
	}
	reply, err := watcher.try("SENTINEL", "REPLICAS", s.Name)
	if err != nil {
		return err
	}
	for _, replica := range reply.([]any) {
		fields, err := fieldsOf(replica, nil)
		if err != nil {
			return err
		}
		if fields["flags"] != "slave" || fields["master-link-status"] != "ok" {
			return fmt.Errorf("the replica %s is %q, its link is %s", fields["name"], fields["flags"], fields["master-link-status"])
		}
	}
	return nil
}

// fieldsOf turns a reply into its fields: a map of RESP3, or a row of names and
// values.
func fieldsOf(reply any, err error) (map[string]string, error) {
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	switch reply := reply.(type) {
	case map[any]any:
		for name, value := range reply {
			fields[fmt.Sprint(name)] = fmt.Sprint(value)
		}
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			fields[fmt.Sprint(reply[i])] = fmt.Sprint(reply[i+1])
		}
	default:
		return nil, fmt.Errorf("a reply without fields: %v", reply)
	}
	return fields, nil
}
