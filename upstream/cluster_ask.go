package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/rawio"
	"seckill-proxy/internal/resp"
	"seckill-proxy/sharding"
)

// askMap asks for the slot map with the rights of an identity, and puts it in
// force.
func (c *Cluster) askMap(ctx context.Context, id Identity) error {
	c.mu.Lock()
	hint := c.hint
	c.hint, c.moved = "", map[int]*Target{}
	c.mu.Unlock()
	var found *layout
	err := c.ask(ctx, id, hint, func(reply any, from *Target) (err error) {
		found, err = parseLayout(reply, from.Address())
		return err
	}, "CLUSTER", "SLOTS")

	c.mu.Lock()
	defer c.mu.Unlock()
	moved := c.moved
	c.moved = nil
	c.mapAsker.learn(id, err)
	if err != nil {
		return err
	}
	targets := c.nodes.setMap(found.nodes)
	var served [sharding.Slots]*Target
	for slot, address := range found.masters {
		served[slot] = targets[address]
	}
	// What a MOVED said meanwhile is newer, or as new.
	before, m := c.current.Load(), newSlotMap(&served).with(moved)
	if !m.equal(before) {
		c.current.Store(m)
	}
	if c.layout != nil {
		c.retireReplaced(before, m)
	}
	c.layout = found
	for _, master := range m.Masters() {
		master.restore()
	}
	return nil
}

// askTable asks for the commands with the rights of an identity.
func (c *Cluster) askTable(ctx context.Context, id Identity) error {
	var table *CommandTable
	err := c.ask(ctx, id, "", func(reply any, _ *Target) (err error) {
		table, err = parseCommands(reply, c.missed)
		return err
	}, "COMMAND")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tableMissed, c.tableAsked = false, time.Now()
	c.tableAsker.learn(id, err)
	if err == nil {
		c.table.Store(table)
	}
	return err
}

// learn notes whether an identity was allowed to ask.
func (a *asker) learn(id Identity, err error) {
	switch {
	case err == nil:
		*a = asker{allowed: true, id: id}
	case IsDenial(err) && a.id == id:
		*a = asker{}
	}
}

// anotherAfter is how long a node may take to answer before another one is asked
// as well.
const anotherAfter = 200 * time.Millisecond

// answer is what became of asking a node.
type answer struct {
	from  *Target
	reply any
	err   error
}

// ask asks one node after the other with the rights of an identity, the one at
// the address hint first, until take has taken an answer. A refusal of the
// identity ends it as well: the others wouldn't say otherwise.
func (c *Cluster) ask(ctx context.Context, id Identity, hint string, take func(reply any, from *Target) error, command ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	var under sync.WaitGroup
	defer under.Wait()
	defer cancel()

	targets := c.nodes.all()
	if hint != "" {
		targets = inFront([]*Target{c.nodes.get(hint)}, targets)
	}
	answers := make(chan answer, len(targets))
	open := 0
	another := func() {
		if len(targets) == 0 {
			return
		}
		target := targets[0]
		targets = targets[1:]
		open++
		under.Go(func() {
			reply, err := target.ask(ctx, id, command...)
			answers <- answer{target, reply, err}
		})
	}
	patience := time.NewTicker(anotherAfter)
	defer patience.Stop()
	var failures []error
	for another(); open > 0; {
		select {
		case <-patience.C:
			another()
		case a := <-answers:
			open--
			if a.err == nil {
				a.err = take(a.reply, a.from)
			}
			if a.err == nil {
				return nil
			}
			if IsDenial(a.err) {
				return explained(a.err)
			}
			failures = append(failures, noNode(command[0], a.from.Address(), a.err))
			another()
		}
	}
	return clusterDown(ctx, failures)
}

// noNode is the error of a server that didn't answer a command as a node of a
// cluster does.
func noNode(command, address string, err error) error {
	for _, said := range []string{"This instance has cluster support disabled", "unknown command"} {
		if command == "CLUSTER" && redis.HasErrorPrefix(err, said) {
			return strangerError{address, err}
		}
	}
	return locatedAt(address, err)
}

// strangerError is of a server that belongs to no cluster.
type strangerError struct {
	address string
	said    error
}

// IsStranger reports an error that says of a server that should be a node of a
// cluster that it isn't.
func IsStranger(err error) bool { return errors.As(err, new(strangerError)) }

func (e strangerError) Error() string {
	return e.address + " is no node of a cluster: " + e.said.Error()
}

// clusterDown is the error when no node answered; of the nodes' own errors it has
// the first few.
func clusterDown(ctx context.Context, failures []error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: no node of the cluster has answered: %w", ErrDown, ctx.Err())
	}
	if !slices.ContainsFunc(failures, func(err error) bool { return !IsStranger(err) }) {
		return fmt.Errorf("%w: %w", ErrDown, several(failures))
	}
	return fmt.Errorf("%w: no node of the cluster answers: %w", ErrDown, several(failures))
}

// ask sends a command on a connection made for it, and returns the reply as
// readReply does.
func (t *Target) ask(ctx context.Context, id Identity, command ...string) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*t.opts.DialTimeout) // to connect, and to be answered
	defer cancel()
	conn, err := t.dialNetwork(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { rawio.Shut(conn) })() // ends a read that waits
	if err := t.introduce(ctx, conn, Profile{Identity: id, Protocol: 2}); err != nil {
		return nil, err
	}
	return call(conn, command...)
}

const (
	replyDepth   = 12      // arrays in arrays; COMMAND has eight
	replyBytes   = 1 << 20 // of a string
	replyEntries = 1 << 20 // of an array
)

// readReply reads a reply of RESP2: a string, an int64, nil or a []any. An error
// reply is returned as an error.
func readReply(rd *bufio.Reader, depth int) (any, error) {
	line, err := rd.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, rest := line[0], strings.TrimRight(line[1:], "\r\n")
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, answered(rest)
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %q", resp.ErrMalformedReply, line)
	case kind == ':':
		return n, nil
	case n == -1:
		return nil, nil
	case kind == '$' && 0 <= n && n <= replyBytes:
		b := make([]byte, n+2)
		_, err := io.ReadFull(rd, b)
		return string(b[:n]), err
	case kind == '*' && 0 <= n && n <= replyEntries && depth > 0:
		var entries []any
		for range n {
			entry, err := readReply(rd, depth-1)
			if err != nil {
				return nil, err
			}
			entries = append(entries, entry)
		}
		return entries, nil
	}
	return nil, fmt.Errorf("%w: %q", resp.ErrMalformedReply, line)
}

// denials are the errors with which Redis turns an identity away.
var denials = []string{"NOPERM ", "NOAUTH ", "WRONGPASS "}

// IsDenial reports an error with which Redis says that an identity may not ask,
// or that there has to be one.
func IsDenial(err error) bool {
	return slices.ContainsFunc(denials, func(prefix string) bool { return redis.HasErrorPrefix(err, prefix) })
}

// answered is an error that Redis answered. It is a redis.Error, so it reaches a
// client, and no refusal, so it doesn't end its session.
type answered string

func (a answered) Error() string { return string(a) }

// RedisError makes it a redis.Error.
func (answered) RedisError() {}

// explained adds to a missing right what can be done about it. Redis speaks of a
// command that the client didn't send.
func explained(err error) error {
	said, lacking := strings.CutPrefix(err.Error(), "NOPERM ")
	if !lacking {
		return err
	}
	return answered("NOPERM the user needs +cluster|slots and +command, so that the sidecar finds the node of a key with its rights; " +
		"grant them, or configure a user who has them in upstream.url (Redis said: " +
		said + ")")
}

// reach connects to any node that answers. Those that are known not to are left
// out.
func (c *Cluster) reach(ctx context.Context) (net.Conn, error) {
	targets := c.nodes.all()
	if m := c.current.Load(); m != nil {
		masters := slices.Clone(m.Masters())
		shuffle(masters)
		targets = inFront(masters, targets)
	}
	var failures []error
	for i, target := range targets {
		conn, err := target.tryOne(ctx, i == len(targets)-1)
		if err == nil {
			return conn, nil
		}
		failures = append(failures, bare(err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, several(failures)
}

// tryOne connects to one of several nodes. Unless it is the last, it takes no
// more than half of the time that is left.
func (t *Target) tryOne(ctx context.Context, last bool) (net.Conn, error) {
	if err := t.paused(); err != nil {
		return nil, err
	}
	if end, ok := ctx.Deadline(); ok && !last {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		ctx = half
	}
	conn, err := t.dialNetwork(ctx)
	if err != nil {
		return nil, t.failed(err)
	}
	t.reached()
	return conn, nil
}
