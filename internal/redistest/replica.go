package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// StartReplica starts a replica of a server and returns when it is in sync. With
// TLS and password it is to have those of the master.
func StartReplica(t testing.TB, of *Server, o Options) *Server {
	t.Helper()
	s := launch(t, o, func(*Server) []string { return replicaArgs(of) })
	await(t, s.Addr+" is in sync", func() error { return s.outOfSyncWith(of) })
	return s
}

func replicaArgs(of *Server) []string {
	args := []string{"--replicaof", "127.0.0.1", strconv.Itoa(of.Port)}
	if password := of.options.password(); password != "" {
		args = append(args, "--masterauth", password)
	}
	return args
}

// outOfSyncWith says why s isn't a replica that has all of master's data and
// gets what comes.
func (s *Server) outOfSyncWith(master *Server) error {
	replica, err := s.info("INFO", "replication")
	if err != nil {
		return err
	}
	if replica["master_link_status"] != "up" || replica["master_port"] != strconv.Itoa(master.Port) {
		return fmt.Errorf("%s isn't in sync with %s: its role is %s, the link to port %s is %s",
			s.Addr, master.Addr, replica["role"], replica["master_port"], replica["master_link_status"])
	}
	return s.unacknowledged(master)
}

// unacknowledged says why the master doesn't know yet that the replica s has
// loaded its data: it sends nothing new until then, and up to a second may pass.
func (s *Server) unacknowledged(master *Server) error {
	replicas, err := master.info("INFO", "replication")
	if err != nil {
		return err
	}
	for name, replica := range replicas {
		// slave0:ip=127.0.0.1,port=6379,state=online,offset=14,lag=0
		if strings.HasPrefix(name, "slave") && strings.Contains(replica, fmt.Sprintf(",port=%d,state=online,", s.Port)) &&
			!strings.Contains(replica, ",offset=0,") {
			return nil
		}
	}
	// A WAIT that can't be satisfied makes the master ask its replicas how far
	// they are, which it otherwise does with the next write.
	if _, err := master.try("WAIT", 1000, 1); err != nil {
		return err
	}
	return fmt.Errorf("%s doesn't know that its replica %s is ready", master.Addr, s.Addr)
}
