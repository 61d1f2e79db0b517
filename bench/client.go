package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// client is a connection that speaks RESP2 and RESP3, small because there are
// thousands of them.
type client struct {
	net.Conn
	reader *bufio.Reader
}

// patience bounds how long a reply is waited for.
const patience = 30 * time.Second

func dial(addr string) (*client, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	const bufferBytes = 1 << 10
	return &client{Conn: conn, reader: bufio.NewReaderSize(conn, bufferBytes)}, nil
}

// do sends a command and returns its reply: string for any scalar, nil, or []any
// for an array, a map (keys and values in turn) or a set. An error reply is an
// error.
func (c *client) do(args ...string) (any, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(c, b.String()); err != nil {
		return nil, err
	}
	reply, err := c.reply()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", args[0], err)
	}
	return reply, nil
}

// reply reads one reply.
func (c *client) reply() (any, error) {
	line, err := c.reader.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, rest := line[0], strings.TrimSuffix(line[1:], "\r\n")
	switch kind {
	case '-':
		return nil, fmt.Errorf("answered %s", rest)
	case '_':
		return nil, nil
	case '$', '=':
		return c.bulk(rest)
	case '*', '~', '>':
		return c.aggregate(rest, 1)
	case '%':
		return c.aggregate(rest, 2)
	default: // + : , # (
		return rest, nil
	}
}

func (c *client) bulk(length string) (any, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return nil, err
	}
	text := make([]byte, n+len("\r\n"))
	if _, err := io.ReadFull(c.reader, text); err != nil {
		return nil, err
	}
	return string(text[:n]), nil
}

func (c *client) aggregate(length string, perEntry int) (any, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return nil, err
	}
	values := make([]any, n*perEntry)
	for i := range values {
		if values[i], err = c.reply(); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// info returns a number of Redis's INFO.
func (c *client) info(section, field string) (int64, error) {
	reply, err := c.do("INFO", section)
	if err != nil {
		return 0, err
	}
	text, _ := reply.(string)
	_, after, _ := strings.Cut(text, "\n"+field+":")
	value, _, _ := strings.Cut(after, "\r\n")
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("INFO %s: %s: %w", section, field, err)
	}
	return n, nil
}
