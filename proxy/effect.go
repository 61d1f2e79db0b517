package proxy

import (
	"bytes"
	"strconv"
	"strings"

	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// effect is what a forwarded command does to its session when its reply says
// that it was done. A command that isn't in the table of effectOf has none.
type effect struct {
	kind effectKind

	identity upstream.Identity // effectAuth, effectHello with AUTH
	db       int               // effectSelect
	protocol int               // effectHello, 0 where it doesn't say
	replies  int               // effectSubscribe and its kin: replies to come, 0 for "one for each subscription"
	family   subscription      // the same
	names    []string          // effectCommandInfo, effectCommandDocs
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

	effectBlocks   // may wait: when the client is gone, so is its wish
	effectShutdown // is answered by a closed connection
	effectOpaque   // from here on the stream can't be followed

	// The sidecar's own part of a reply.
	effectRefused       // a custom command inside MULTI
	effectSwallow       // a command of the sidecar itself
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

// changesSession reports effects that are worth remembering while they are
// queued in a transaction.
func (k effectKind) changesSession() bool { return k >= effectReset && k <= effectMonitor }

// subscription is a family of subscriptions: each has commands, a count and
// message frames of its own.
type subscription byte

const (
	channels subscription = iota
	patterns
	shardChannels
	families
)

// effectOf returns the effect of a command. A partial command has those effects
// only that its name and argument count decide.
func effectOf(cmd *resp.Command) effect {
	if len(cmd.Args) == 0 || len(cmd.Args[0]) > longestEffectName {
		return effect{}
	}
	var name [longestEffectName]byte
	find, ok := effects[string(upper(name[:0], cmd.Args[0]))]
	if !ok {
		return effect{}
	}
	return find(cmd)
}

// longestEffectName is the length of PUNSUBSCRIBE and SUNSUBSCRIBE.
const longestEffectName = 12

func upper(dst, src []byte) []byte {
	for _, c := range src {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}

// effects is the table of all forwarded commands that change a session.
var effects = map[string]func(*resp.Command) effect{
	"MULTI":    always(effectMulti),
	"EXEC":     always(effectExec),
	"DISCARD":  always(effectDiscard),
	"RESET":    always(effectReset),
	"MONITOR":  always(effectMonitor),
	"SHUTDOWN": always(effectShutdown),
	"SYNC":     always(effectOpaque),
	"PSYNC":    always(effectOpaque),

	"AUTH":   authEffect,
	"HELLO":  helloEffect,
	"SELECT": selectEffect,

	"SUBSCRIBE":    subscribeEffect(effectSubscribe, channels),
	"PSUBSCRIBE":   subscribeEffect(effectSubscribe, patterns),
	"SSUBSCRIBE":   subscribeEffect(effectSubscribe, shardChannels),
	"UNSUBSCRIBE":  subscribeEffect(effectUnsubscribe, channels),
	"PUNSUBSCRIBE": subscribeEffect(effectUnsubscribe, patterns),
	"SUNSUBSCRIBE": subscribeEffect(effectUnsubscribe, shardChannels),

	"BLPOP":      always(effectBlocks),
	"BRPOP":      always(effectBlocks),
	"BLMOVE":     always(effectBlocks),
	"BRPOPLPUSH": always(effectBlocks),
	"BLMPOP":     always(effectBlocks),
	"BZPOPMIN":   always(effectBlocks),
	"BZPOPMAX":   always(effectBlocks),
	"BZMPOP":     always(effectBlocks),
	"WAIT":       always(effectBlocks),
	"WAITAOF":    always(effectBlocks),
	"XREAD":      always(effectBlocks),
	"XREADGROUP": always(effectBlocks),

	"COMMAND": commandEffect,
}

func always(kind effectKind) func(*resp.Command) effect {
	return func(*resp.Command) effect { return effect{kind: kind} }
}

// authEffect reads AUTH password and AUTH user password.
func authEffect(cmd *resp.Command) effect {
	switch {
	case cmd.Partial:
		return effect{}
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
	if cmd.Partial || len(cmd.Args) < 2 {
		return effect{}
	}
	protocol, err := strconv.Atoi(string(cmd.Args[1]))
	if err != nil {
		return effect{}
	}
	e := effect{kind: effectHello, protocol: protocol}
	for i := 2; i+2 < len(cmd.Args); i++ {
		if bytes.EqualFold(cmd.Args[i], []byte("AUTH")) {
			e.identity = identity(string(cmd.Args[i+1]), cmd.Args[i+2])
			i += 2
		} else if bytes.EqualFold(cmd.Args[i], []byte("SETNAME")) {
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
