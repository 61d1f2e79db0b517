package simulator

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"seckill-proxy/internal/rawclient"
)

// client is one client of the shop: one command after the other, on a connection
// to one sidecar at a time, to another one when it is lost.
type client struct {
	name   string
	world  *world
	model  *model
	random *rand.Rand
	resp3  bool

	at   *sidecar // where the connection leads
	conn *rawclient.Conn
}

func newClient(name string, w *world, m *model, random *rand.Rand) *client {
	return &client{name: name, world: w, model: m, random: random, resp3: random.IntN(2) == 0}
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// connect connects to any sidecar, or to the one that is asked for.
func (c *client) connect(to *sidecar) error {
	if c.conn != nil && (to == nil || to == c.at) {
		return nil
	}
	c.close()
	if to == nil {
		to = c.world.sidecars[c.random.IntN(len(c.world.sidecars))]
	}
	c.at = to
	conn, err := rawclient.Connect(to.addr)
	if err != nil {
		return err
	}
	c.conn = conn
	if !c.resp3 {
		return nil
	}
	if _, err := c.exchange(hangs, []string{"HELLO", "3"}); err != nil {
		c.close()
		return err
	}
	return nil
}

// exchange sends commands in one piece and returns the next reply; more are read
// by reply.
func (c *client) exchange(patience time.Duration, commands ...[]string) ([]byte, error) {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	var raw strings.Builder
	for _, args := range commands {
		raw.WriteString(rawclient.Encode(args...))
	}
	if _, err := io.WriteString(c.conn.TCPConn, raw.String()); err != nil {
		return nil, err
	}
	return c.reply()
}

func (c *client) reply() ([]byte, error) { return rawclient.AppendReply(nil, c.conn.Reader) }

// errImpatient is why a client that gives up has no reply.
var errImpatient = errors.New("gave up waiting")

// call sends a command to whichever sidecar the client is at. Now and then it
// goes to another one, or gives up before the reply.
func (c *client) call(args ...string) *answer { return c.pipeline(args)[0] }

// pipeline is call for several commands that are sent at once.
func (c *client) pipeline(commands ...[]string) []*answer {
	if c.random.IntN(40) == 0 {
		c.close()
	}
	patience := hangs
	if c.random.IntN(60) == 0 {
		patience = time.Duration(c.random.IntN(200)) * time.Millisecond
	}
	return c.send(nil, patience, commands...)
}

// callAt sends a command to one sidecar, nil for the one that the client is at, or
// any.
func (c *client) callAt(to *sidecar, args ...string) *answer { return c.send(to, hangs, args)[0] }

// send sends commands and notes each answer in the history. An error reply, and no
// reply within what no fault can last, is a fault of the program.
func (c *client) send(to *sidecar, patience time.Duration, commands ...[]string) []*answer {
	answers := make([]*answer, len(commands))
	start := time.Now()
	err := c.connect(to)
	sent := err == nil
	for i, args := range commands {
		a := &answer{args: args, client: c.name, sidecar: c.at.name, start: start, sent: sent}
		answers[i] = a
		var raw []byte
		switch {
		case err != nil:
		case i == 0:
			raw, err = c.exchange(patience, commands...)
		default:
			raw, err = c.reply()
		}
		if err == nil {
			a.reply, _, err = decode(raw)
		}
		a.end = time.Now()
		if err != nil {
			err = c.lost(a, patience, err)
			a.err = err
		}
		c.world.history.did(a)
		if text, isError := a.reply.(errorReply); isError {
			c.model.fail(a, "an error reply: %s", text)
		} else if err == nil && a.array() == nil {
			c.model.fail(a, "no array")
		}
	}
	return answers
}

// lost gives the connection up and returns why there is no reply.
func (c *client) lost(a *answer, patience time.Duration, err error) error {
	c.close()
	var timeout interface{ Timeout() bool }
	if !a.sent || !errors.As(err, &timeout) || !timeout.Timeout() {
		return err
	}
	if patience == hangs {
		c.model.fail(a, "no reply within %s", hangs)
	}
	return errImpatient
}

// sure repeats a command until its outcome is known, at one sidecar or any, as
// long as no fault lasts. It is for what does no harm when it is repeated.
func (c *client) sure(to *sidecar, args ...string) (*answer, error) {
	var a *answer
	for end := time.Now().Add(hangs); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if a = c.callAt(to, args...); !a.unknown() && !a.refused() {
			return a, nil
		}
	}
	return nil, fmt.Errorf("no certain answer within %s, the last: %s", hangs, a)
}
