package proxy

import (
	"github.com/redis/go-redis/v9"

	"seckill-proxy/upstream"
)

// Upstream is what a server forwards to: one Redis, or a cluster.
type Upstream struct {
	Target  *upstream.Target  // one Redis; nil for a cluster
	Cluster *upstream.Cluster // nil for one Redis

	// SplitMSET has an MSET over several slots of a cluster sent in parts, which
	// aren't one step together. Without it Redis refuses such an MSET.
	SplitMSET bool
}

// Seed is the one Redis, or a Target that dials any node of the cluster. It knows
// what sessions start with.
func (u Upstream) Seed() *upstream.Target {
	if u.Cluster != nil {
		return u.Cluster.Seed()
	}
	return u.Target
}

// Client returns a client of the control plane for one identity, and database
// where there are several. The caller closes it.
func (u Upstream) Client(id upstream.Identity, db int) redis.UniversalClient {
	if u.Cluster != nil {
		return u.Cluster.Client(id)
	}
	return u.Target.Client(id, db)
}
