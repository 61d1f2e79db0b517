package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"seckill-proxy/internal/rawclient"
	"seckill-proxy/internal/redistest"
)

// clustered is a cluster of three masters and a sidecar in front of it.
type clustered struct {
	*sidecar
	nodes *redistest.Cluster
}

func startClustered(t testing.TB, o redistest.ClusterOptions, changes ...func(*setup)) clustered {
	t.Helper()
	o.Masters = 3
	nodes := redistest.StartCluster(t, o)
	return clustered{startSidecar(t, "", append(changes, func(s *setup) { s.cluster = nodes.Addrs() })...), nodes}
}

// direct connects to all masters.
func (c clustered) direct(t testing.TB) (all []*rawclient.Conn) {
	t.Helper()
	for _, node := range c.nodes.Masters {
		all = append(all, rawclient.Dial(t, node.Addr))
	}
	return all
}

// blockedInCluster waits until so many clients are blocked at all nodes together.
func blockedInCluster(t testing.TB, direct []*rawclient.Conn, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d blocked clients", n), func() bool {
		blocked := 0
		for _, node := range direct {
			_, after, _ := strings.Cut(node.Do("INFO", "clients"), "\r\nblocked_clients:")
			var there int
			_, _ = fmt.Sscan(after, &there)
			blocked += there
		}
		return blocked == n
	})
}

// inACluster are the first words of what is answered otherwise in front of a cluster
// than by one Redis: first Redis's own, then the sidecar's.
var inACluster = regexp.MustCompile(`^(?:left to .: )?(?:\*[0-9]+\r\n)?-(?:` + strings.Join([]string{
	`CROSSSLOT Keys in request don't hash to the same slot\r\n`,
	`ERR (SELECT|MOVE) is not allowed in cluster mode`,
	`ERR (BY|GET) option of SORT denied in `,
	`ERR Script attempted to access a non local key in a cluster node `,

	`ERR [A-Z -]+ is about one node of the cluster, `,
	`ERR [A-Z]+ concerns all nodes of the cluster, `,
	`CROSSSLOT this session keeps its connection to one node of the cluster, `,
	`ERR this is for clients that speak to the nodes of a cluster themselves; `,
	`ERR the replication stream is that of one node of the cluster; `,
	`ERR (SHUTDOWN|MIGRATE) would `,
	`ERR CLIENT TRACKING is not possible in front of a cluster: `,
}, "|") + `)`)

// otherwise are commands whose replies are otherwise, where they are no errors: what a
// node counts or measures is its own, and the order of its subscriptions its own secret.
var otherwise = regexp.MustCompile(`^(INFO|MEMORY USAGE|SCAN 0|UNSUBSCRIBE$)`)

// silent are commands after which one Redis says what a cluster doesn't: they are
// refused, or are about one node's keys.
var silent = regexp.MustCompile(`(?m)^\s*([a-z]: )?(CLIENT TRACKING|CONFIG SET notify-keyspace-events)\b`)

// sameLines makes replies equal that differ in the order of their elements, which
// differs from process to process, and in what a server says that it is.
func sameLines(reply string) string {
	lines := strings.SplitAfter(strings.ReplaceAll(reply, "\r\ncluster\r\n", "\r\nstandalone\r\n"), "\r\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// fresh makes all nodes what they were at the beginning.
func (c clustered) fresh(t testing.TB, direct []*rawclient.Conn) {
	t.Helper()
	for _, node := range direct {
		node.Send("FLUSHALL\r\nFUNCTION FLUSH\r\nSCRIPT FLUSH\r\nACL LOG RESET\r\nSLOWLOG RESET\r\nACL DELUSER alice bob\r\n")
		for range 6 {
			node.Reply()
		}
		eventually(t, "earlier clients are gone", func() bool {
			return node.Do("PUBSUB", "CHANNELS", "*ch*") == "*0\r\n" && node.Do("PUBSUB", "NUMPAT") == ":0\r\n" && node.Do("PUBSUB", "SHARDCHANNELS") == "*0\r\n"
		})
	}
	blockedInCluster(t, direct, 0)
}

// The whole corpus is answered as by one Redis, but for what a cluster can't do.
func TestTheCorpusInFrontOfACluster(t *testing.T) {
	quick := redistest.Options{Args: []string{"--hz", "500"}}
	server := redistest.Start(t, quick)
	c := startClustered(t, redistest.ClusterOptions{Options: quick})
	one, nodes := rawclient.Dial(t, server.Addr), c.direct(t)
	random := newRandom(t)
	corpus := readCorpus(t)
	for i, m := range modes(random) {
		if m.name == "inline" {
			continue // it makes no difference to where a command goes
		}
		t.Run(m.name, func(t *testing.T) {
			equal, excused := 0, 0
			for _, paragraph := range corpus {
				if !m.takes(paragraph) || silent.MatchString(paragraph.String()) {
					continue
				}
				t.Run(paragraph.place, func(t *testing.T) {
					seed := random.Uint64()
					freshDatabase(t, one)
					c.fresh(t, nodes)
					dice := func() *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
					want := modes(dice())[i].run(t, server.Addr, paragraph, func(n int) { blockedClients(t, one, n) }, dice())
					got := modes(dice())[i].run(t, c.addr, paragraph, func(n int) { blockedInCluster(t, nodes, n) }, dice())
					at := firstDifference(mapped(got, sameLines), mapped(want, sameLines))
					switch {
					case at < 0:
						equal++
					case inACluster.MatchString(got[at]), otherwise.MatchString(paragraph.reading(at)):
						excused++
					default:
						t.Errorf("reply %d of\n%s\ngot  %s\nwant %s", at+1, paragraph, entry(got, at), entry(want, at))
					}
				})
			}
			t.Logf("%d paragraphs are answered as by one Redis, %d up to what a cluster can't do", equal, excused)
			if equal < 2*excused {
				t.Error("too much isn't compared")
			}
		})
	}
}

func mapped(all []string, change func(string) string) []string {
	changed := make([]string, len(all))
	for i, s := range all {
		changed[i] = change(s)
	}
	return changed
}

// reading returns the line whose reply is the i-th that is read.
func (p paragraph) reading(i int) string {
	for _, l := range p.lines {
		if l.kind == lineDo || l.kind == lineRead {
			if i == 0 {
				return l.text
			}
			i--
		}
	}
	return ""
}
