package proxy

import (
	"reflect"
	"strings"
	"testing"

	"seckill-proxy/internal/resp"
	"seckill-proxy/upstream"
)

// command parses a command as a client types it.
func command(t *testing.T, line string) *resp.Command {
	t.Helper()
	r := resp.NewCommandReader(resp.Limits{BulkBytes: 1 << 20, InlineBytes: 1 << 16, WholeBytes: 1 << 16})
	r.Filled(copy(r.Room(), line+"\r\n"))
	cmd, ok, err := r.Next()
	if !ok || err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return &cmd
}

// transition is a command with the reply that Redis gave to it.
type transition struct{ command, reply string }

// play applies transitions to a fresh session's state.
func play(t *testing.T, target *upstream.Target, transitions []transition) state {
	t.Helper()
	s := state{Profile: target.Profile()}
	for _, step := range transitions {
		_, e := routeOf(command(t, step.command))
		for more := true; more; {
			r := reply{kind: step.reply[0]}
			r.keep([]byte(step.reply))
			if e.kind == effectExec && r.kind == '*' {
				var scanner resp.ReplyScanner
				scanner.Elements = &r.elements
				if _, done, err := scanner.Scan([]byte(step.reply)); !done || err != nil {
					t.Fatalf("%q: %v", step.reply, err)
				}
			}
			e = s.answered(e, &r, target)
			more = e.replies > 0
		}
	}
	return s
}

func TestStateTransitions(t *testing.T) {
	const okReply, queuedReply, errorReply = "+OK\r\n", "+QUEUED\r\n", "-ERR no\r\n"
	target := upstream.New(upstream.Options{})
	alice := upstream.Identity{User: "alice", Password: "pw", Known: true}
	subscribed := func(kind, name string, n string) string {
		return "*3\r\n$9\r\n" + kind + "\r\n$1\r\n" + name + "\r\n:" + n + "\r\n"
	}
	fresh := state{Profile: target.Profile()}
	with := func(change func(*state)) state {
		s := fresh
		change(&s)
		return s
	}
	for _, test := range []struct {
		name   string
		steps  []transition
		want   state
		pinned bool
	}{
		{"nothing", nil, fresh, false},
		{"a command without effect", []transition{{"GET k", "$1\r\nv\r\n"}}, fresh, false},
		{"SELECT", []transition{{"SELECT 3", okReply}}, with(func(s *state) { s.DB = 3 }), false},
		{"SELECT refused", []transition{{"SELECT 99", errorReply}}, fresh, false},
		{"AUTH", []transition{{"AUTH alice pw", okReply}}, with(func(s *state) { s.Identity = alice }), false},
		{"AUTH refused", []transition{{"AUTH alice pw", "-WRONGPASS\r\n"}}, fresh, false},
		{"AUTH of the default user", []transition{{"AUTH pw", okReply}},
			with(func(s *state) { s.Identity = upstream.Identity{Password: "pw", Known: true} }), false},
		{"HELLO", []transition{{"HELLO 3", "%0\r\n"}}, with(func(s *state) { s.Protocol = 3 }), false},
		{"HELLO with all", []transition{{"HELLO 3 AUTH alice pw SETNAME n", "%0\r\n"}},
			with(func(s *state) { s.Protocol, s.Identity, s.name = 3, alice, "n" }), false},
		{"HELLO refused", []transition{{"HELLO 4", "-NOPROTO no\r\n"}}, fresh, false},
		{"CLIENT SETNAME", []transition{{"CLIENT SETNAME n", okReply}}, with(func(s *state) { s.name = "n" }), false},
		{"MULTI", []transition{{"MULTI", okReply}}, with(func(s *state) { s.multi = true }), true},
		{"MULTI refused", []transition{{"MULTI", errorReply}}, fresh, false},
		{"MULTI and EXEC", []transition{{"MULTI", okReply}, {"GET k", queuedReply}, {"EXEC", "*1\r\n$-1\r\n"}},
			with(func(s *state) { s.queued = 1 }), false},
		{"MULTI and DISCARD", []transition{{"MULTI", okReply}, {"SELECT 3", queuedReply}, {"DISCARD", okReply}},
			with(func(s *state) { s.queued = 1 }), false},
		{"EXEC aborted", []transition{{"MULTI", okReply}, {"SELECT 3", queuedReply}, {"EXEC", "-EXECABORT no\r\n"}},
			with(func(s *state) { s.queued = 1 }), false},
		{"EXEC refused", []transition{{"MULTI", okReply}, {"EXEC x", errorReply}}, with(func(s *state) { s.multi = true }), true},
		{"EXEC with a null", []transition{{"MULTI", okReply}, {"SELECT 3", queuedReply}, {"EXEC", "*-1\r\n"}},
			with(func(s *state) { s.queued = 1 }), false},
		{"SELECT in MULTI", []transition{{"MULTI", okReply}, {"GET k", queuedReply}, {"SELECT 3", queuedReply}, {"EXEC", "*2\r\n*2\r\n-a\r\n:1\r\n+OK\r\n"}},
			with(func(s *state) { s.queued, s.DB = 2, 3 }), false},
		{"SELECT in MULTI that fails", []transition{{"MULTI", okReply}, {"GET k", queuedReply}, {"SELECT 99", queuedReply}, {"EXEC", "*2\r\n$-1\r\n-ERR\r\n"}},
			with(func(s *state) { s.queued = 2 }), false},
		{"SUBSCRIBE in MULTI", []transition{{"MULTI", okReply}, {"SUBSCRIBE c", queuedReply}, {"EXEC", "*1\r\n*3\r\n+subscribe\r\n+c\r\n:1\r\n"}},
			with(func(s *state) { s.queued, s.opaque = 1, true }), true},
		{"WATCH", []transition{{"WATCH k", okReply}}, with(func(s *state) { s.held = holdWatch }), true},
		{"WATCH and UNWATCH", []transition{{"WATCH k", okReply}, {"UNWATCH", okReply}}, fresh, false},
		{"WATCH and EXEC", []transition{{"WATCH k", okReply}, {"MULTI", okReply}, {"EXEC", "*0\r\n"}}, fresh, false},
		{"WATCH and DISCARD", []transition{{"WATCH k", okReply}, {"MULTI", okReply}, {"DISCARD", okReply}}, fresh, false},
		{"SUBSCRIBE", []transition{{"SUBSCRIBE a", subscribed("subscribe", "a", "1")}},
			with(func(s *state) { s.subscribed[channels] = 1 }), true},
		{"two families", []transition{{"SUBSCRIBE a", subscribed("subscribe", "a", "1")}, {"PSUBSCRIBE b", subscribed("psubscribe", "b", "2")}},
			with(func(s *state) { s.subscribed = [families]int{channels: 1, patterns: 1} }), true},
		{"SSUBSCRIBE", []transition{{"SSUBSCRIBE a", subscribed("ssubscribe", "a", "1")}},
			with(func(s *state) { s.subscribed[shardChannels] = 1 }), true},
		{"UNSUBSCRIBE", []transition{{"SUBSCRIBE a", subscribed("subscribe", "a", "1")}, {"UNSUBSCRIBE", subscribed("unsubscribe", "a", "0")}}, fresh, false},
		{"UNSUBSCRIBE from nothing", []transition{{"UNSUBSCRIBE", "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n"}}, fresh, false},
		{"SUBSCRIBE refused", []transition{{"SUBSCRIBE a", "-NOPERM no\r\n"}}, fresh, false},
		{"MONITOR", []transition{{"MONITOR", okReply}}, with(func(s *state) { s.monitoring = true }), true},
		{"CLIENT TRACKING", []transition{{"CLIENT TRACKING ON", okReply}}, with(func(s *state) { s.held = holdTracking }), true},
		{"CLIENT TRACKING OFF", []transition{{"CLIENT TRACKING ON", okReply}, {"CLIENT TRACKING OFF", okReply}}, fresh, false},
		{"CLIENT ID", []transition{{"CLIENT ID", ":7\r\n"}}, with(func(s *state) { s.held = holdID }), true},
		{"CLIENT REPLY OFF", []transition{{"CLIENT REPLY OFF", okReply}}, with(func(s *state) { s.mute = replyOff }), true},
		{"CLIENT REPLY ON", []transition{{"CLIENT REPLY OFF", okReply}, {"CLIENT REPLY ON", okReply}}, fresh, false},
		{"CLIENT REPLY SKIP while OFF", []transition{{"CLIENT REPLY OFF", okReply}, {"CLIENT REPLY SKIP", okReply}},
			with(func(s *state) { s.mute = replyOff }), true},
		{"CLIENT REPLY refused", []transition{{"CLIENT REPLY OFF", "-NOPERM no\r\n"}}, fresh, false},
		{"AUTH in a database", []transition{{"SELECT 3", okReply}, {"AUTH alice pw", okReply}},
			with(func(s *state) { s.Identity, s.DB, s.held = alice, 3, holdConnection }), true},
		{"RESET", []transition{{"HELLO 3 AUTH alice pw", "%0\r\n"}, {"SELECT 3", okReply}, {"CLIENT SETNAME n", okReply}, {"WATCH k", okReply},
			{"MULTI", okReply}, {"RESET", "+RESET\r\n"}}, fresh, false},
		{"RESET keeps who the connection is", []transition{{"CLIENT ID", ":7\r\n"}, {"RESET", "+RESET\r\n"}},
			with(func(s *state) { s.held = holdID }), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := play(t, target, test.steps)
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			if got.pinned() != test.pinned {
				t.Errorf("pinned() = %t, want %t", got.pinned(), test.pinned)
			}
		})
	}
}

func TestSubscriptionsAreAnsweredOneByOne(t *testing.T) {
	target := upstream.New(upstream.Options{})
	s := state{Profile: target.Profile()}
	_, e := routeOf(command(t, "SUBSCRIBE a b a"))
	for i, left := range []int{2, 1, 0} {
		r := reply{kind: '*'}
		r.keep([]byte("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:" + []string{"1", "2", "2"}[i] + "\r\n"))
		if e = s.answered(e, &r, target); e.replies != left {
			t.Fatalf("after reply %d there are %d to come, want %d", i, e.replies, left)
		}
	}
	_, e = routeOf(command(t, "UNSUBSCRIBE"))
	for i, left := range []int{1, 0} {
		r := reply{kind: '*'}
		r.keep([]byte("*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:" + []string{"1", "0"}[i] + "\r\n"))
		if e = s.answered(e, &r, target); e.replies != left {
			t.Fatalf("after reply %d there are %d to come, want %d", i, e.replies, left)
		}
	}
	if s.pinned() {
		t.Errorf("unsubscribed from all, the session is still %+v", s)
	}
}

func TestMessagesAreToldFromReplies(t *testing.T) {
	plain, monitor := state{}, state{monitoring: true}
	plain.Protocol, monitor.Protocol = 2, 2
	listening := state{subscribed: [families]int{channels: 1}}
	listening.Protocol = 2
	resp3 := listening
	resp3.Protocol = 3
	message := "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"
	for _, test := range []struct {
		name  string
		state state
		waits effectKind
		frame string
		want  bool
	}{
		{"an array that looks like a message", plain, effectNone, message, false},
		{"a message", listening, effectNone, message, true},
		{"an array in RESP3 while subscribed", resp3, effectNone, message, false},
		{"a push", resp3, effectNone, ">" + message[1:], true},
		{"a PING while subscribed", listening, effectNone, "*2\r\n$4\r\npong\r\n$0\r\n\r\n", false},
		{"a confirmation", listening, effectSubscribe, "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:2\r\n", false},
		{"a slot that moves away", listening, effectSubscribe, "*3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n", true},
		{"an invalidation", resp3, effectNone, ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", true},
		{"a line of MONITOR", monitor, effectNone, "+1764528410.1 [0 127.0.0.1:1] \"PING\"\r\n", true},
		{"a status while monitoring", monitor, effectNone, "+PONG\r\n", false},
	} {
		r := reply{kind: test.frame[0]}
		r.keep([]byte(test.frame))
		if got := test.state.isMessage(&r, test.waits); got != test.want {
			t.Errorf("%s: isMessage = %t", test.name, got)
		}
	}
}

func TestReplyKeepsHeadAndTail(t *testing.T) {
	frame := "*3\r\n$9\r\nsubscribe\r\n$500\r\n" + strings.Repeat("x", 500) + "\r\n:12345\r\n"
	for step := 1; step < len(frame); step++ {
		r := reply{kind: '*'}
		for at := 0; at < len(frame); at += step {
			r.keep([]byte(frame[at:min(at+step, len(frame))]))
		}
		if frameName(r.head) != "subscribe" || lastInteger(r.tail) != 12345 || len(r.head) > headBytes || len(r.tail) > tailBytes {
			t.Fatalf("in pieces of %d: head %q, tail %q", step, r.head, r.tail)
		}
	}
}

// Whatever isn't known to be harmless has a connection of its own.
func TestRoutes(t *testing.T) {
	for line, want := range map[string]lane{
		"get k": shared, "SET k v": shared, "PING": shared, "EVAL x 0": scripts, "evalsha x 0": scripts, "SCRIPT LOAD x": scripts,
		"SCRIPT KILL": own, "FT.SEARCH i q": own, "NOSUCHCOMMANDTHATISVERYLONGINDEED": own, "BLPOP q 0": own, "XREAD STREAMS s 0": shared,
		"XREAD BLOCK 0 STREAMS s 0": own, "MULTI": own, "SUBSCRIBE c": own, "CLIENT ID": own, "WAIT 1 0": own, "DEBUG SLEEP 1": own,
		"CONFIG GET x": own, "SELECT 1": own, "COMMAND": own,
	} {
		if got, _ := routeOf(command(t, line)); got != want {
			t.Errorf("%s goes by lane %d, want %d", line, got, want)
		}
	}
}
