package proxy

import (
	"seckill-proxy/internal/resp"
)

// rule is a row of the table of commands that are something special in a cluster.
type rule struct {
	// refusal is why a command can't work; allows are those that can all the same.
	refusal string
	allows  func(*resp.Command) bool
	// serve serves what concerns all nodes, or more than the one of a key.
	serve func(*session, *resp.Command) error
	// split tells that it is sent in parts, one for each slot, whose replies join
	// makes one.
	split bool
	pairs bool // each key is followed by its value
	join  func(parts []*part, replies [][]byte) []byte
	// follows tells that others may act on the command as soon as it is executed, so
	// all that was sent before must have been.
	follows bool

	subcommands map[string]*rule
}

// refuses reports whether a command can't work.
func (r *rule) refuses(cmd *resp.Command) bool {
	return r.refusal != "" && (r.allows == nil || !r.allows(cmd))
}

// ordinary is the rule of all others: to the node of their key, or to any.
var ordinary = &rule{}

// rules is the table of what is something special in a cluster.
type rules map[string]*rule

// of returns the rule of a command.
func (rules rules) of(cmd *resp.Command) *rule {
	if len(cmd.Args) == 0 || len(cmd.Args[0]) > longestRouteName {
		return ordinary
	}
	var name [longestRouteName]byte
	r := rules[string(upper(name[:0], cmd.Args[0]))]
	switch {
	case r == nil:
		return ordinary
	case r.subcommands == nil:
		return r
	case len(cmd.Args) < 2 || len(cmd.Args[1]) > longestRouteName:
		return ordinary
	}
	if r = r.subcommands[string(upper(name[:0], cmd.Args[1]))]; r == nil {
		return ordinary
	}
	return r
}

// newRules returns that table.
func newRules() rules {
	table := rules{
		"MGET":   {split: true, join: joinArrays},
		"MSET":   {split: true, pairs: true, join: joinStatus},
		"DEL":    {split: true, join: joinSums},
		"UNLINK": {split: true, join: joinSums},
		"EXISTS": {split: true, join: joinSums},
		"TOUCH":  {split: true, join: joinSums},

		"PUBLISH":  {follows: true},
		"SPUBLISH": {follows: true},

		"DBSIZE":       spread(shared, sum),
		"KEYS":         spread(shared, concatenated),
		"FLUSHALL":     spread(shared, agreed),
		"FLUSHDB":      spread(shared, agreed),
		"SAVE":         spread(shared, agreed),
		"BGSAVE":       spread(shared, agreed),
		"BGREWRITEAOF": spread(shared, agreed),
		"RANDOMKEY":    {serve: (*session).randomKey},
		"SCAN":         {serve: (*session).scan},

		"SCRIPT": {subcommands: map[string]*rule{
			"LOAD":   spread(scripts, agreed),
			"FLUSH":  spread(scripts, agreed),
			"EXISTS": spread(scripts, everywhere),
			"KILL":   spreadAll(shared, anywhere),
			"DEBUG":  {refusal: "ERR SCRIPT DEBUG needs a connection to the node of the script's keys; connect to it directly"},
		}},
		"FUNCTION": {subcommands: map[string]*rule{
			"LOAD":    spread(scripts, agreed),
			"DELETE":  spread(scripts, agreed),
			"FLUSH":   spread(scripts, agreed),
			"RESTORE": spread(scripts, agreed),
			"KILL":    spreadAll(shared, anywhere),
		}},
		"CONFIG": {subcommands: map[string]*rule{
			"SET":       spread(shared, agreed),
			"RESETSTAT": spread(shared, agreed),
			"REWRITE":   spread(shared, agreed),
		}},
		"ACL": {subcommands: map[string]*rule{
			"SETUSER": spread(shared, agreed),
			"DELUSER": spread(shared, agreed),
			"LOAD":    spread(shared, agreed),
			"SAVE":    spread(shared, agreed),
		}},
		"PUBSUB": {subcommands: map[string]*rule{
			"CHANNELS":      spread(shared, united),
			"SHARDCHANNELS": spread(shared, united),
			"NUMSUB":        spread(shared, counted),
			"SHARDNUMSUB":   spread(shared, counted),
			"NUMPAT":        spread(shared, sum),
		}},
		"CLIENT": {subcommands: map[string]*rule{
			"PAUSE":   {serve: (*session).pause},
			"UNPAUSE": {serve: (*session).pause},
			"TRACKING": {
				refusal: "ERR CLIENT TRACKING is not possible in front of a cluster: each node would tell only of its own keys, and only those that this connection read there; " +
					"read without it",
				allows: func(cmd *resp.Command) bool { return argumentIs(cmd, 2, "OFF") },
			},
		}},

		"SHUTDOWN":  {refusal: "ERR SHUTDOWN would stop one node of the cluster, any of them; connect to the node that is meant"},
		"REPLICAOF": {refusal: notOfOneNode("REPLICAOF")},
		"SLAVEOF":   {refusal: notOfOneNode("SLAVEOF")},
		"FAILOVER":  {refusal: notOfOneNode("FAILOVER")},
		"SYNC":      {refusal: replication},
		"PSYNC":     {refusal: replication},
		"REPLCONF":  {refusal: replication},
		"MIGRATE":   {refusal: "ERR MIGRATE would move keys away from the node that serves their slot; move the slot, with redis-cli --cluster reshard"},
		"READONLY":  {refusal: forClusterClients},
		"READWRITE": {refusal: forClusterClients},
		"ASKING":    {refusal: forClusterClients},
		"CLUSTER":   {subcommands: map[string]*rule{}},
	}
	for _, name := range changingCluster {
		table["CLUSTER"].subcommands[name] = &rule{refusal: notOfOneNode("CLUSTER " + name)}
	}
	return table
}

// changingCluster are subcommands of CLUSTER that change the node that they are sent to.
var changingCluster = []string{
	"ADDSLOTS", "ADDSLOTSRANGE", "BUMPEPOCH", "DELSLOTS", "DELSLOTSRANGE", "FAILOVER", "FLUSHSLOTS", "FORGET", "MEET", "REPLICATE", "RESET",
	"SAVECONFIG", "SET-CONFIG-EPOCH", "SETSLOT",
}

// notOfOneNode refuses what is about one node.
func notOfOneNode(name string) string {
	return "ERR " + name + " is about one node of the cluster, and here it would be any of them; connect to the node that is meant, or use redis-cli --cluster"
}

const (
	replication       = "ERR the replication stream is that of one node of the cluster; connect to the node that is meant"
	forClusterClients = "ERR this is for clients that speak to the nodes of a cluster themselves; here they appear as one Redis"
)
