package proxy

import (
	"strconv"
	"strings"
	"time"

	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// lane is how a command travels to Redis.
type lane byte

const (
	// own: on a connection that is the session's own while the command runs.
	// Every command that isn't known to be harmless to others takes it, so that
	// one we have never heard of works.
	own lane = iota
	// shared: in one pipeline with the commands of other sessions.
	shared
	// scripts: the same, in a pipeline of its own: a script that runs for long
	// holds up other scripts only, and Redis can tell everybody else that it is
	// busy.
	scripts
)

// effect is what a forwarded command does to its session when its reply says
// that it was done. Most commands have none.
type effect struct {
	kind effectKind

	identity upstream.Identity // effectAuth, effectHello with AUTH
	db       int               // effectSelect
	protocol int               // effectHello, 0 where it doesn't say
	replies  int               // effectSubscribe and its kin: replies to come, 0 for "one for each subscription"
	family   subscription      // the same
	names    []string          // effectCommandInfo, effectCommandDocs
	name     string            // effectSetName; effectRefused: why, "" where it is a custom command
	hold     hold              // effectHold, effectRelease
	doubt    hold              // what Redis may have done in part when it refuses
	mute     replyMode         // effectReplyMode
	named    bool              // effectHello with SETNAME
	again    bool              // effectHello with more than one AUTH
	pause    time.Duration     // effectPause
	quiet    bool              // the client isn't given the reply
	asking   bool              // the command is for a slot that is on its way to the node
}

// notInTransaction answers a command that can't be part of a transaction.
const notInTransaction = "ERR Command not allowed inside a transaction"

// refusal is the text of effectRefused.
func (e effect) refusal() string {
	if e.name != "" {
		return e.name
	}
	return notInTransaction
}

type effectKind byte

const (
	effectNone effectKind = iota

	effectMulti   // opens a transaction
	effectExec    // ends one, done
	effectDiscard // ends one, undone
	effectReset   // back to a fresh connection
	effectAuth
	effectHello
	effectSelect
	effectSubscribe
	effectUnsubscribe
	effectMonitor
	effectSetName
	effectHold    // the session has something that only its own connection has
	effectRelease // and now hasn't any more

	effectPause    // Redis pauses, or goes on
	effectBlocks   // may wait: when the client is gone, so is its wish
	effectWaits    // the same, for the replicas to have what the session wrote
	effectLarge    // may be too much for Redis, which then closes the connection
	effectKill     // ends what keeps Redis busy, so it must get through to a busy one
	effectShutdown // is answered by a closed connection
	effectOpaque   // from here on the stream can't be followed

	// Not sent to Redis: they end the session.
	effectQuit
	effectHTTP // a browser was sent here, maybe by somebody who means harm

	// The sidecar's own part of a reply.
	effectRefused       // a custom command inside MULTI
	effectSetup         // a command of the sidecar itself, which must succeed
	effectReplyMode     // CLIENT REPLY, whose mode the sidecar keeps
	effectCommandCount  // COMMAND COUNT
	effectCommandList   // COMMAND LIST
	effectCommandAll    // COMMAND, COMMAND INFO without names
	effectCommandInfo   // COMMAND INFO name …
	effectCommandDocs   // COMMAND DOCS name …
	effectCommandDocAll // COMMAND DOCS
)

// rewrites reports effects that replace the reply, so that it is held until it
// is whole.
func (k effectKind) rewrites() bool { return k >= effectRefused }

// changesSession reports effects that what follows in the session counts on.
func (k effectKind) changesSession() bool { return k >= effectMulti && k <= effectRelease }

// blocks reports effects of commands that may wait.
func (k effectKind) blocks() bool { return k == effectBlocks || k == effectWaits }

// lasts reports effects of commands that keep a connection for long, as a rule.
func (k effectKind) lasts() bool {
	switch k {
	case effectSubscribe, effectMonitor, effectHold, effectBlocks, effectWaits, effectKill, effectOpaque:
		return true
	}
	return false
}

// subscription is a family of subscriptions: each has commands, a count and
// message frames of its own.
type subscription byte

const (
	channels subscription = iota
	patterns
	shardChannels
	families
)

// routing is a row of the table of forwarded commands.
type routing struct {
	lane   lane
	effect func(*resp.Command) effect // nil: none
	choose func(*resp.Command) lane   // nil: always lane
}

// routeOf returns how a command travels and what it does to its session. Of a
// partial command only the name and the number of arguments are looked at.
func routeOf(cmd *resp.Command) (lane, effect) {
	if len(cmd.Args) == 0 || len(cmd.Args[0]) > longestRouteName {
		return own, effect{}
	}
	var name [longestRouteName]byte
	r, known := routes[string(upper(name[:0], cmd.Args[0]))]
	if !known {
		return own, effect{}
	}
	way, does := r.lane, effect{}
	if r.choose != nil {
		way = r.choose(cmd)
	}
	if r.effect != nil {
		does = r.effect(cmd)
	}
	if cmd.Partial {
		way = own // it takes its time; others can't wait for it
	}
	return way, does
}

// longestRouteName is more than any name in the table needs.
const longestRouteName = 24

func upper(dst, src []byte) []byte {
	for _, c := range src {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}

// routes is the table of forwarded commands. What isn't in it goes by the
// session's own connection and has no effect.
var routes = func() map[string]routing {
	table := map[string]routing{
		"QUIT":  {effect: always(effectQuit)},
		"POST":  {effect: always(effectHTTP)},
		"HOST:": {effect: always(effectHTTP)},

		"MULTI":    {effect: always(effectMulti)},
		"EXEC":     {effect: always(effectExec)},
		"DISCARD":  {effect: always(effectDiscard)},
		"WATCH":    {effect: holds(holdWatch)},
		"UNWATCH":  {effect: releases(holdWatch)},
		"RESET":    {effect: always(effectReset)},
		"MONITOR":  {effect: always(effectMonitor)},
		"SHUTDOWN": {effect: always(effectShutdown)},
		"SYNC":     {effect: always(effectOpaque)},
		"PSYNC":    {effect: always(effectOpaque)},

		"AUTH":   {effect: authEffect},
		"HELLO":  {effect: helloEffect},
		"SELECT": {effect: selectEffect},
		"CLIENT": {effect: clientEffect},

		"REPLCONF":  {effect: holds(holdConnection)},
		"READONLY":  {effect: holds(holdConnection)},
		"READWRITE": {effect: holds(holdConnection)},
		"ASKING":    {effect: holds(holdConnection)},

		"SUBSCRIBE":    {effect: subscribeEffect(effectSubscribe, channels)},
		"PSUBSCRIBE":   {effect: subscribeEffect(effectSubscribe, patterns)},
		"SSUBSCRIBE":   {effect: subscribeEffect(effectSubscribe, shardChannels)},
		"UNSUBSCRIBE":  {effect: subscribeEffect(effectUnsubscribe, channels)},
		"PUNSUBSCRIBE": {effect: subscribeEffect(effectUnsubscribe, patterns)},
		"SUNSUBSCRIBE": {effect: subscribeEffect(effectUnsubscribe, shardChannels)},

		"WAIT":    {effect: always(effectWaits)},
		"WAITAOF": {effect: always(effectWaits)},

		"COMMAND": {effect: commandEffect},

		"SCRIPT":     {choose: scriptLane, effect: scriptEffect},
		"FUNCTION":   {effect: scriptEffect},
		"XREAD":      {choose: streamReadLane, effect: streamReadEffect},
		"XREADGROUP": {choose: streamReadLane, effect: streamReadEffect},
	}
	for _, name := range blockingCommands {
		table[name] = routing{effect: always(effectBlocks)}
	}
	for _, name := range scriptCommands {
		table[name] = routing{lane: scripts}
	}
	for _, name := range sharedCommands {
		table[name] = routing{lane: shared}
	}
	return table
}()

// blockingCommands may wait in Redis for an element.
var blockingCommands = []string{
	"BLPOP", "BRPOP", "BLMOVE", "BRPOPLPUSH", "BLMPOP", "BZPOPMIN", "BZPOPMAX", "BZMPOP",
}

// scriptCommands run code of users.
var scriptCommands = []string{"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"}

// sharedCommands read and write data and leave nothing behind on the connection
// that they came by.
var sharedCommands = []string{
	// keys
	"COPY", "DEL", "DUMP", "EXISTS", "EXPIRE", "EXPIREAT", "EXPIRETIME", "KEYS", "MOVE", "OBJECT", "PERSIST", "PEXPIRE",
	"PEXPIREAT", "PEXPIRETIME", "PTTL", "RANDOMKEY", "RENAME", "RENAMENX", "RESTORE", "SCAN", "SORT", "SORT_RO", "TOUCH",
	"TTL", "TYPE", "UNLINK",
	// strings and bitmaps
	"APPEND", "BITCOUNT", "BITFIELD", "BITFIELD_RO", "BITOP", "BITPOS", "DECR", "DECRBY", "GET", "GETBIT", "GETDEL", "GETEX",
	"GETRANGE", "GETSET", "INCR", "INCRBY", "INCRBYFLOAT", "LCS", "MGET", "MSET", "MSETNX", "PSETEX", "SET", "SETBIT",
	"SETEX", "SETNX", "SETRANGE", "STRLEN", "SUBSTR",
	// hashes
	"HDEL", "HEXISTS", "HEXPIRE", "HEXPIREAT", "HEXPIRETIME", "HGET", "HGETALL", "HGETDEL", "HGETEX", "HINCRBY",
	"HINCRBYFLOAT", "HKEYS", "HLEN", "HMGET", "HMSET", "HPERSIST", "HPEXPIRE", "HPEXPIREAT", "HPEXPIRETIME", "HPTTL",
	"HRANDFIELD", "HSCAN", "HSET", "HSETEX", "HSETNX", "HSTRLEN", "HTTL", "HVALS",
	// lists
	"LINDEX", "LINSERT", "LLEN", "LMOVE", "LMPOP", "LPOP", "LPOS", "LPUSH", "LPUSHX", "LRANGE", "LREM", "LSET", "LTRIM",
	"RPOP", "RPOPLPUSH", "RPUSH", "RPUSHX",
	// sets
	"SADD", "SCARD", "SDIFF", "SDIFFSTORE", "SINTER", "SINTERCARD", "SINTERSTORE", "SISMEMBER", "SMEMBERS", "SMISMEMBER",
	"SMOVE", "SPOP", "SRANDMEMBER", "SREM", "SSCAN", "SUNION", "SUNIONSTORE",
	// sorted sets
	"ZADD", "ZCARD", "ZCOUNT", "ZDIFF", "ZDIFFSTORE", "ZINCRBY", "ZINTER", "ZINTERCARD", "ZINTERSTORE", "ZLEXCOUNT", "ZMPOP",
	"ZMSCORE", "ZPOPMAX", "ZPOPMIN", "ZRANDMEMBER", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZRANGESTORE", "ZRANK",
	"ZREM", "ZREMRANGEBYLEX", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE", "ZREVRANGE", "ZREVRANGEBYLEX", "ZREVRANGEBYSCORE",
	"ZREVRANK", "ZSCAN", "ZSCORE", "ZUNION", "ZUNIONSTORE",
	// geo and HyperLogLog
	"GEOADD", "GEODIST", "GEOHASH", "GEOPOS", "GEORADIUS", "GEORADIUS_RO", "GEORADIUSBYMEMBER", "GEORADIUSBYMEMBER_RO",
	"GEOSEARCH", "GEOSEARCHSTORE", "PFADD", "PFCOUNT", "PFMERGE",
	// streams
	"XACK", "XADD", "XAUTOCLAIM", "XCLAIM", "XDEL", "XGROUP", "XINFO", "XLEN", "XPENDING", "XRANGE", "XREVRANGE", "XSETID",
	"XTRIM",
	// the server and its connections
	"DBSIZE", "ECHO", "FLUSHALL", "FLUSHDB", "INFO", "LASTSAVE", "PING", "PUBLISH", "PUBSUB", "SPUBLISH", "SWAPDB", "TIME",
}

// argumentIs reports whether argument i of a command is word, in any case.
func argumentIs(cmd *resp.Command, i int, word string) bool {
	return i < len(cmd.Args) && strings.EqualFold(string(cmd.Args[i]), word)
}

// scriptLane keeps what ends a running script, or debugs one, away from scripts.
func scriptLane(cmd *resp.Command) lane {
	if argumentIs(cmd, 1, "LOAD") || argumentIs(cmd, 1, "EXISTS") || argumentIs(cmd, 1, "FLUSH") {
		return scripts
	}
	return own
}

func scriptEffect(cmd *resp.Command) effect {
	switch {
	case cmd.Partial: // neither of them is long
	case argumentIs(cmd, 1, "KILL"):
		return effect{kind: effectKill}
	case argumentIs(cmd, 1, "DEBUG"):
		return effect{kind: effectHold, hold: holdConnection}
	}
	return effect{}
}

// blocks reports whether XREAD or XREADGROUP has the option BLOCK. A stream or a
// group of that name makes it travel alone, which does no harm.
func blocks(cmd *resp.Command) bool {
	for i := range cmd.Args {
		if argumentIs(cmd, i, "BLOCK") {
			return true
		}
	}
	return cmd.Partial
}

func streamReadLane(cmd *resp.Command) lane {
	if blocks(cmd) {
		return own
	}
	return shared
}

func streamReadEffect(cmd *resp.Command) effect {
	if blocks(cmd) {
		return effect{kind: effectBlocks}
	}
	return effect{}
}

func always(kind effectKind) func(*resp.Command) effect {
	return func(*resp.Command) effect { return effect{kind: kind} }
}

func holds(h hold) func(*resp.Command) effect {
	return func(*resp.Command) effect { return effect{kind: effectHold, hold: h} }
}

func releases(h hold) func(*resp.Command) effect {
	return func(*resp.Command) effect { return effect{kind: effectRelease, hold: h} }
}

// clientEffect reads CLIENT subcommands. Those that ask who the connection is, or
// make it special, bind the session to its own from then on.
func clientEffect(cmd *resp.Command) effect {
	if cmd.Partial {
		return unread()
	}
	if len(cmd.Args) < 2 {
		return effect{}
	}
	switch strings.ToUpper(string(cmd.Args[1])) {
	case "SETNAME":
		if len(cmd.Args) == 3 {
			return effect{kind: effectSetName, name: string(cmd.Args[2])}
		}
	case "TRACKING":
		if argumentIs(cmd, 2, "OFF") {
			return effect{kind: effectRelease, hold: holdTracking}
		}
		return effect{kind: effectHold, hold: holdTracking}
	case "REPLY":
		return replyEffect(cmd)
	case "ID", "INFO":
		return effect{kind: effectHold, hold: holdID}
	case "NO-EVICT", "NO-TOUCH", "CAPA":
		return effect{kind: effectHold, hold: holdConnection}
	case "PAUSE":
		return pauseEffect(cmd)
	case "UNPAUSE":
		return effect{kind: effectPause}
	}
	return effect{}
}

// pauseEffect reads CLIENT PAUSE milliseconds [WRITE | ALL].
func pauseEffect(cmd *resp.Command) effect {
	if len(cmd.Args) < 3 {
		return effect{}
	}
	ms, err := strconv.ParseInt(string(cmd.Args[2]), 10, 64)
	if err != nil {
		return effect{}
	}
	return effect{kind: effectPause, pause: time.Duration(min(ms, pauseMax.Milliseconds())) * time.Millisecond}
}

// pauseMax bounds what is remembered of a pause.
const pauseMax = 24 * time.Hour

// replyEffect reads CLIENT REPLY. The sidecar keeps the mode itself and has Redis
// answer all the time: silence would hide what AUTH or MULTI came to. So Redis is
// asked whether the client may say CLIENT REPLY, and its reply is dropped.
func replyEffect(cmd *resp.Command) effect {
	if len(cmd.Args) != 3 {
		return effect{}
	}
	switch strings.ToUpper(string(cmd.Args[2])) {
	case "ON":
		return effect{kind: effectReplyMode, mute: replyOn}
	case "OFF":
		return effect{kind: effectReplyMode, mute: replyOff}
	case "SKIP":
		return effect{kind: effectReplyMode, mute: replySkipNext}
	}
	return effect{}
}

// replyProbe is what Redis is sent instead of CLIENT REPLY OFF and SKIP.
var replyProbe = []byte("*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$2\r\nON\r\n")

// unread is the effect of a partial command that may make its connection another
// user's, or special: nobody else must ever get it.
func unread() effect {
	return effect{kind: effectHold, hold: holdConnection, doubt: holdConnection}
}

// authEffect reads AUTH password and AUTH user password.
func authEffect(cmd *resp.Command) effect {
	switch {
	case cmd.Partial:
		return unread()
	case len(cmd.Args) == 2:
		return effect{kind: effectAuth, identity: identity("", cmd.Args[1])}
	case len(cmd.Args) == 3:
		return effect{kind: effectAuth, identity: identity(string(cmd.Args[1]), cmd.Args[2])}
	}
	return effect{}
}

func identity(user string, password []byte) upstream.Identity {
	return upstream.Identity{User: user, Password: string(password), Known: true}
}

// helloEffect reads HELLO [protocol [AUTH user password] [SETNAME name]].
func helloEffect(cmd *resp.Command) effect {
	if cmd.Partial {
		return unread()
	}
	if len(cmd.Args) < 2 {
		return effect{}
	}
	protocol, err := strconv.Atoi(string(cmd.Args[1]))
	if err != nil {
		return effect{}
	}
	e := effect{kind: effectHello, protocol: protocol}
	if len(cmd.Args) > 2 {
		e.doubt = holdConnection // Redis takes one option after the other, until it finds one that is wrong
	}
	for i := 2; i < len(cmd.Args); i++ {
		if argumentIs(cmd, i, "AUTH") && i+2 < len(cmd.Args) {
			e.again = e.identity.Known
			e.identity = identity(string(cmd.Args[i+1]), cmd.Args[i+2])
			i += 2
		} else if argumentIs(cmd, i, "SETNAME") && i+1 < len(cmd.Args) {
			e.name, e.named = string(cmd.Args[i+1]), true
			i++
		}
	}
	return e
}

func selectEffect(cmd *resp.Command) effect {
	if len(cmd.Args) != 2 {
		return effect{}
	}
	db, err := strconv.Atoi(string(cmd.Args[1]))
	if err != nil {
		return effect{}
	}
	return effect{kind: effectSelect, db: db}
}

func subscribeEffect(kind effectKind, family subscription) func(*resp.Command) effect {
	return func(cmd *resp.Command) effect {
		if cmd.Count == 1 && kind == effectSubscribe {
			return effect{} // an arity error
		}
		return effect{kind: kind, family: family, replies: cmd.Count - 1}
	}
}

// commandEffect reads COMMAND [COUNT | LIST | INFO [name …] | DOCS [name …]].
func commandEffect(cmd *resp.Command) effect {
	if cmd.Partial {
		return effect{}
	}
	if len(cmd.Args) == 1 {
		return effect{kind: effectCommandAll}
	}
	names := make([]string, 0, len(cmd.Args)-2)
	for _, name := range cmd.Args[2:] {
		names = append(names, strings.ToUpper(string(name)))
	}
	switch strings.ToUpper(string(cmd.Args[1])) {
	case "COUNT":
		return effect{kind: effectCommandCount}
	case "LIST":
		if len(names) == 0 {
			return effect{kind: effectCommandList}
		}
	case "INFO":
		if len(names) == 0 {
			return effect{kind: effectCommandAll}
		}
		return effect{kind: effectCommandInfo, names: names}
	case "DOCS":
		if len(names) == 0 {
			return effect{kind: effectCommandDocAll}
		}
		return effect{kind: effectCommandDocs, names: names}
	}
	return effect{}
}
