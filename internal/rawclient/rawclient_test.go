package rawclient

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

func TestAppendReplyEndsWhereTheReplyEnds(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	for _, reply := range []string{
		"+OK\r\n", "-ERR no\r\n", ":-1\r\n", "_\r\n", ",3.14\r\n", "#t\r\n", "(12345678901234567890\r\n",
		"$0\r\n\r\n", "$-1\r\n", "$2\r\n\r\n\r\n", Bulk(long), "+" + long + "\r\n",
		"*-1\r\n", "*0\r\n", "*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
		"%1\r\n+k\r\n~2\r\n:1\r\n:2\r\n", ">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
		"=7\r\ntxt:abc\r\n", "!5\r\nERR x\r\n", "|1\r\n+ttl\r\n:5\r\n$1\r\nv\r\n",
	} {
		rd := bufio.NewReader(strings.NewReader(reply + "rest"))
		got, err := AppendReply([]byte("before"), rd)
		if err != nil || string(got) != "before"+reply {
			t.Errorf("%s: got %s, %v", Abridged(reply), Abridged(string(got)), err)
		}
		if rest, _ := io.ReadAll(rd); string(rest) != "rest" {
			t.Errorf("%s: %q is left, want rest", Abridged(reply), rest)
		}
	}
}

func TestAppendReplyRefusesWhatIsNoReply(t *testing.T) {
	for _, raw := range []string{"", "+OK", "+OK\n", "hello\r\n", "$x\r\n", "$5\r\nab\r\n", "*2\r\n:1\r\n", "*1\r\nx\r\n", "\r\n"} {
		if got, err := AppendReply(nil, bufio.NewReader(strings.NewReader(raw))); err == nil {
			t.Errorf("%q was taken for the reply %q", raw, got)
		}
	}
}
