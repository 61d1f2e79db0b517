package proxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"seckill-proxy/internal/rawclient"
)

// paragraph is a sequence of the corpus; see testdata/corpus/README.md.
type paragraph struct {
	place string // file:line
	only  []string
	lines []line
}

type line struct {
	text      string
	conn      string
	kind      lineKind
	args      []string
	count     int    // lineRead, lineBlocked
	normalise string // "" compares all bytes
}

type lineKind byte

const (
	lineDo lineKind = iota
	lineSend
	lineRead
	lineClose
	lineBlocked
)

var (
	labelled   = regexp.MustCompile(`^([a-z])([:><!])(?: (.*))?$`)
	normalised = regexp.MustCompile(` ~([a-z]+)$`)
)

// readCorpus reads all paragraphs of testdata/corpus.
func readCorpus(t testing.TB) []paragraph {
	t.Helper()
	files, err := filepath.Glob("testdata/corpus/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	var all []paragraph
	for _, file := range files {
		if filepath.Base(file) == leftOutFile {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var p paragraph
		number := 0
		for text := range strings.Lines(string(text) + "\n\n") {
			number++
			text = strings.TrimSpace(text)
			place := fmt.Sprintf("%s:%d", filepath.Base(file), number)
			switch {
			case text == "" && len(p.lines) > 0:
				all = append(all, p)
				p = paragraph{}
			case text == "" || strings.HasPrefix(text, "#"):
			case strings.HasPrefix(text, "@only "):
				p.only = strings.Fields(text)[1:]
			default:
				if p.place == "" {
					p.place = place
				}
				l, err := parseLine(text)
				if err != nil {
					t.Fatalf("%s: %v", place, err)
				}
				p.lines = append(p.lines, l)
			}
		}
	}
	return all
}

func parseLine(text string) (l line, err error) {
	l = line{text: text, conn: "a", count: 1}
	if count, found := strings.CutPrefix(text, "@blocked "); found {
		l.kind = lineBlocked
		l.count, err = strconv.Atoi(count)
		return l, err
	}
	if m := normalised.FindStringSubmatch(text); m != nil {
		l.normalise = m[1]
		if normalisers[l.normalise] == nil {
			return l, fmt.Errorf("no normaliser %q", l.normalise)
		}
		text = strings.TrimSuffix(text, m[0])
	}
	if m := labelled.FindStringSubmatch(text); m != nil {
		l.conn, text = m[1], m[3]
		switch {
		case m[2] == ">":
			l.kind = lineSend
		case m[2] == "<":
			l.kind = lineRead
			if text != "" {
				l.count, err = strconv.Atoi(text)
			}
			return l, err
		case m[2] == "!" && text == "close":
			l.kind = lineClose
			return l, nil
		case m[2] == "!":
			return l, fmt.Errorf("unknown action %q", text)
		}
	}
	l.args, err = words(text)
	return l, err
}

// words splits a command as redis-cli does.
func words(text string) (args []string, err error) {
	for text = strings.TrimLeft(text, " "); text != ""; text = strings.TrimLeft(text, " ") {
		var arg string
		switch text[0] {
		case '"':
			end := 1
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(text) {
				return nil, errors.New("a quote isn't closed")
			}
			if arg, err = strconv.Unquote(text[:end+1]); err != nil {
				return nil, err
			}
			text = text[end+1:]
		case '\'':
			var found bool
			if arg, text, found = strings.Cut(text[1:], "'"); !found {
				return nil, errors.New("a quote isn't closed")
			}
		default:
			arg, text, _ = strings.Cut(text, " ")
		}
		args = append(args, arg)
	}
	if len(args) == 0 {
		return nil, errors.New("no command")
	}
	return args, nil
}

var digits = regexp.MustCompile(`[0-9]+`)

// normalisers make two replies equal that can only be similar.
var normalisers = map[string]func(string) string{
	"digits": func(reply string) string { return digits.ReplaceAllString(reply, "N") },
	"type":   func(reply string) string { return reply[:1] },
	"sorted": func(reply string) string {
		rd := bufio.NewReader(strings.NewReader(reply))
		head, _ := rd.ReadString('\n')
		var elements []string
		for {
			element, err := rawclient.AppendReply(nil, rd)
			if err != nil {
				break
			}
			elements = append(elements, normaliseNested(string(element)))
		}
		slices.Sort(elements)
		return head + strings.Join(elements, "")
	},
}

// normaliseNested sorts the elements of an element that is an array, as the keys
// in SCAN's reply are.
func normaliseNested(element string) string {
	if element[0] != '*' {
		return element
	}
	lines := strings.SplitAfter(element, "\r\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// mode is how a paragraph is sent.
type mode struct {
	name     string
	protocol string // what HELLO is sent first, if any
	encode   func(...string) string
	pipeline bool // all at once, cut at random
}

func modes(random *rand.Rand) []mode {
	return []mode{
		{name: "resp2", encode: rawclient.Encode},
		{name: "resp3", protocol: "3", encode: rawclient.Encode},
		{name: "inline", encode: inline},
		{name: "pipeline", protocol: []string{"", "3"}[random.IntN(2)], pipeline: true, encode: func(args ...string) string {
			if random.IntN(4) == 0 {
				return inline(args...)
			}
			return rawclient.Encode(args...)
		}},
	}
}

// inline writes a command as a line, with its arguments quoted.
func inline(args ...string) string {
	var b strings.Builder
	for _, arg := range args {
		b.WriteByte('"')
		for i := range len(arg) {
			switch c := arg[i]; {
			case c == '"' || c == '\\':
				b.WriteByte('\\')
				b.WriteByte(c)
			case c < ' ' || c > '~':
				fmt.Fprintf(&b, `\x%02x`, c)
			default:
				b.WriteByte(c)
			}
		}
		b.WriteString(`" `)
	}
	return b.String() + "\r\n"
}

func (m mode) takes(p paragraph) bool {
	if len(p.only) > 0 && !slices.Contains(p.only, m.name) {
		return false
	}
	if !m.pipeline {
		return true
	}
	// One connection, and nothing that depends on when a command is executed.
	for _, l := range p.lines {
		if l.conn != "a" || l.kind != lineDo && l.kind != lineRead {
			return false
		}
	}
	return true
}

// run sends a paragraph to addr and returns what came back, one entry for each
// line that reads. blocked waits until so many clients are blocked.
func (m mode) run(t testing.TB, addr string, p paragraph, blocked func(n int), random *rand.Rand) []string {
	t.Helper()
	conns := make(map[string]*rawclient.Conn)
	var labels []string
	conn := func(label string) *rawclient.Conn {
		if conns[label] == nil {
			conns[label] = rawclient.Dial(t, addr)
			labels = append(labels, label)
			if m.protocol != "" {
				conns[label].Do("HELLO", m.protocol)
			}
		}
		return conns[label]
	}
	var transcript []string
	read := func(l line, replies int) {
		var got strings.Builder
		for range replies {
			reply, err := conn(l.conn).TryReply()
			if l.normalise != "" && err == nil {
				reply = normalisers[l.normalise](reply)
			}
			got.WriteString(reply)
			if err != nil {
				got.WriteString(describe(err))
				break
			}
		}
		transcript = append(transcript, got.String())
	}
	if m.pipeline {
		var raw strings.Builder
		for _, l := range p.lines {
			if l.kind == lineDo {
				raw.WriteString(m.encode(l.args...))
			}
		}
		for rest := raw.String(); rest != ""; {
			n := 1 + random.IntN(min(len(rest), 1+random.IntN(300)))
			// The server may have closed the connection, as after QUIT.
			_, _ = io.WriteString(conn("a"), rest[:n])
			rest = rest[n:]
		}
	}
	for _, l := range p.lines {
		switch l.kind {
		case lineDo:
			if !m.pipeline {
				_, _ = io.WriteString(conn(l.conn), m.encode(l.args...))
			}
			read(l, 1)
		case lineSend:
			_, _ = io.WriteString(conn(l.conn), m.encode(l.args...))
		case lineRead:
			read(l, l.count)
		case lineClose:
			conn(l.conn).Close()
			delete(conns, l.conn)
		case lineBlocked:
			blocked(l.count)
		}
	}
	// Whatever else was said shows before the end.
	for _, label := range labels {
		if c := conns[label]; c != nil {
			_ = c.CloseWrite()
			transcript = append(transcript, "left to "+label+": "+c.Rest())
			c.Close()
		}
	}
	return transcript
}

func describe(err error) string {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return " <nothing came>"
	}
	var op *net.OpError
	if errors.Is(err, io.EOF) || errors.As(err, &op) {
		return " <closed>"
	}
	return fmt.Sprintf(" <%v>", err)
}

// freshDatabase makes the server what it was at the beginning, as far as the
// corpus changes it.
func freshDatabase(t testing.TB, direct *rawclient.Conn) {
	t.Helper()
	for _, command := range []string{"FLUSHALL", "FUNCTION FLUSH", "SCRIPT FLUSH", "CONFIG RESETSTAT", "ACL LOG RESET", "SELECT 0"} {
		direct.Want(ok, strings.Fields(command)...)
	}
	for _, command := range []string{"SLOWLOG RESET", "LATENCY RESET", "ACL DELUSER alice bob"} {
		direct.Do(strings.Fields(command)...)
	}
	eventually(t, "earlier clients are gone", func() bool {
		if direct.Do("PUBSUB", "CHANNELS", "*ch*") != "*0\r\n" || direct.Do("PUBSUB", "NUMPAT") != ":0\r\n" ||
			direct.Do("PUBSUB", "SHARDCHANNELS") != "*0\r\n" {
			return false
		}
		info := direct.Do("INFO", "clients")
		return strings.Contains(info, "\r\nblocked_clients:0\r\n") && strings.Contains(info, "\r\ntracking_clients:0\r\n")
	})
}

// Case F8, among others.
func TestCorpusIsAnsweredAsByRedis(t *testing.T) {
	p := startQuickPair(t)
	direct := p.direct(t)
	random := newRandom(t)
	corpus := readCorpus(t)
	if len(corpus) < 300 {
		t.Errorf("the corpus has %d paragraphs, want at least 300", len(corpus))
	}
	for i, m := range modes(random) {
		if os.Getenv(tlsVariable) != "" && m.name != "resp3" {
			continue // what TLS has to carry is the same
		}
		t.Run(m.name, func(t *testing.T) {
			for _, paragraph := range corpus {
				if !m.takes(paragraph) {
					continue
				}
				t.Run(paragraph.place, func(t *testing.T) {
					seed := random.Uint64()
					run := func(addr string) []string {
						freshDatabase(t, direct)
						// The same dice, so that both get the same bytes.
						dice := rand.New(rand.NewPCG(seed, 0))
						return modes(dice)[i].run(t, addr, paragraph, func(n int) { blockedClients(t, direct, n) }, dice)
					}
					want, got := run(p.redisAddr), run(p.addr)
					if i := firstDifference(got, want); i >= 0 {
						t.Fatalf("reply %d of\n%s\ngot  %s\nwant %s", i+1, paragraph, entry(got, i), entry(want, i))
					}
				})
			}
		})
	}
}

// firstDifference returns where two transcripts differ, or -1.
func firstDifference(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if entry(a, i) != entry(b, i) || i < min(len(a), len(b)) && a[i] != b[i] {
			return i
		}
	}
	return -1
}

func entry(transcript []string, i int) string {
	if i >= len(transcript) {
		return "<nothing>"
	}
	return rawclient.Abridged(transcript[i])
}

func (p paragraph) String() string {
	var b strings.Builder
	for _, l := range p.lines {
		b.WriteString("\t" + l.text + "\n")
	}
	return b.String()
}

const leftOutFile = "left-out.txt"

// TestCorpusHasEveryCommand compares the corpus with the server's own list of
// commands.
func TestCorpusHasEveryCommand(t *testing.T) {
	p := startPair(t)
	inCorpus := make(map[string]bool)
	for _, paragraph := range readCorpus(t) {
		for _, l := range paragraph.lines {
			if len(l.args) > 0 {
				inCorpus[strings.ToLower(l.args[0])] = true
			}
			if len(l.args) > 1 {
				inCorpus[strings.ToLower(l.args[0]+"|"+l.args[1])] = true
			}
		}
	}
	text, err := os.ReadFile(filepath.Join("testdata/corpus", leftOutFile))
	if err != nil {
		t.Fatal(err)
	}
	leftOut := make(map[string]bool)
	for text := range strings.Lines(string(text)) {
		if fields := strings.Fields(text); len(fields) > 1 && fields[0] != "#" {
			leftOut[fields[0]] = true
		}
	}
	list := p.direct(t).Do("COMMAND", "LIST")
	names := regexp.MustCompile(`\r\n([a-z][a-z0-9_|-]*)\r\n`).FindAllStringSubmatch(strings.ReplaceAll(list, "\r\n", "\r\n\r\n"), -1)
	if len(names) < 300 {
		t.Fatalf("COMMAND LIST has %d names", len(names))
	}
	for _, name := range names {
		if !inCorpus[name[1]] && !leftOut[name[1]] {
			t.Errorf("%s is neither in the corpus nor in %s", name[1], leftOutFile)
		}
	}
	for name := range leftOut {
		if inCorpus[name] && name != "command" {
			t.Errorf("%s is in the corpus and in %s", name, leftOutFile)
		}
	}
}
