package upstream

import (
	"context"
	"net"
	"slices"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// Embedded is an in-memory store inside the sidecar, for trying things out: a
// subset of Redis that keeps nothing on disk.
type Embedded struct{ store *miniredis.Miniredis }

// StartEmbedded starts the store. Its keys lapse on the real clock. The caller
// closes it.
func StartEmbedded() (*Embedded, error) {
	store := miniredis.NewMiniRedis()
	store.ClockTTL(true)
	// The first connection makes the server that hooks are set on.
	conn, err := store.Dial()
	if err != nil {
		return nil, err
	}
	conn.Close()
	store.Server().SetPreHook(answerCommandSubcommands)
	return &Embedded{store}, nil
}

// Dial connects to the store through memory; it opens no port.
func (e *Embedded) Dial(context.Context) (net.Conn, error) { return e.store.Dial() }

// Close stops the store; what it held is gone.
func (e *Embedded) Close() { e.store.Close() }

// answerCommandSubcommands answers COMMAND with a subcommand, which miniredis
// takes for COMMAND alone: it has no documentation and no details to give.
func answerCommandSubcommands(peer *server.Peer, name string, args ...string) bool {
	if !strings.EqualFold(name, "COMMAND") || len(args) == 0 {
		return false
	}
	switch strings.ToUpper(args[0]) {
	case "COUNT":
		peer.WriteInt(0)
	case "DOCS":
		peer.WriteMapLen(0)
	case "LIST":
		peer.WriteLen(0)
	case "INFO":
		peer.WriteLen(len(args) - 1)
		for range slices.Values(args[1:]) {
			peer.WriteNull()
		}
	default:
		peer.WriteError("ERR the embedded store doesn't know COMMAND " + strings.ToUpper(args[0]))
	}
	return true
}
