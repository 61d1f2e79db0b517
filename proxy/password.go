package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"seckill-proxy/commands"
	"seckill-proxy/internal/resp"
)

// This file is how the sidecar itself asks clients for a password: where it vouches
// for them, because Redis knows only the sidecar's own user, or where Redis asks
// nobody. It is Redis's default user that they log in as, by AUTH and HELLO, in
// Redis's own words. Redis never sees what they give.

// DemandPassword has clients give a password before anything else. It must be called
// before Serve.
func (s *Server) DemandPassword(text string) {
	s.password = &password{sha256.Sum256([]byte(text))}
}

// password is one that can be compared without its length or a common start showing
// in the time that it takes.
type password struct{ digest [sha256.Size]byte }

func (p *password) is(given []byte) bool {
	digest := sha256.Sum256(given)
	return subtle.ConstantTimeCompare(digest[:], p.digest[:]) == 1
}

// defaultUser is the only user there is.
const defaultUser = "default"

// admits reports whether this is a user's password.
func (p *password) admits(user, given []byte) bool {
	right := p.is(given)
	return right && string(user) == defaultUser
}

// Redis's words.
const (
	errNoAuth      = commands.Error("NOAUTH Authentication required.")
	errNoAuthHello = commands.Error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> " +
		"option can be used to authenticate the client and select the RESP protocol version at the same time")
	errNoAuthExec = commands.Error("EXECABORT Transaction discarded because of: NOAUTH Authentication required.")
	errWrongPass  = commands.Error("WRONGPASS invalid username-password pair or user is disabled.")
	errNoProto    = commands.Error("NOPROTO unsupported protocol version")
)

// Redis's limits for commands of those who haven't authenticated.
const (
	strangerArgsMax  = 10
	strangerBytesMax = 16384
)

// admit serves what is decided here where clients must give a password: AUTH, and
// everything before it. It reports whether the command is done with. A HELLO goes on
// to Redis without its AUTH.
func (s *session) admit(cmd *resp.Command) (done bool, err error) {
	if !s.admitted {
		if err := tooLongForStrangers(cmd); err != nil {
			return true, err
		}
	}
	switch {
	case argumentIs(cmd, 0, "AUTH"):
		return true, s.authenticate(cmd)
	case argumentIs(cmd, 0, "HELLO"):
		return s.greet(cmd)
	case argumentIs(cmd, 0, "QUIT"), argumentIs(cmd, 0, "POST"), argumentIs(cmd, 0, "HOST:"):
		return false, nil
	case argumentIs(cmd, 0, "RESET") && cmd.Count == 1:
		if !s.admitted {
			return true, s.reply(commands.Status("RESET")) // there is nothing of the session in Redis
		}
		s.admitted = false
		return false, nil
	case s.admitted:
		return false, nil
	case argumentIs(cmd, 0, "EXEC"):
		return true, s.reply(errNoAuthExec)
	}
	return true, s.reply(errNoAuth)
}

func tooLongForStrangers(cmd *resp.Command) error {
	if cmd.Count > strangerArgsMax {
		return resp.ProtocolError("unauthenticated multibulk length")
	}
	tooLong := cmd.Partial
	for _, arg := range cmd.Args {
		tooLong = tooLong || len(arg) > strangerBytesMax
	}
	if tooLong {
		return resp.ProtocolError("unauthenticated bulk length")
	}
	return nil
}

// reply answers a command that Redis isn't sent, behind those before it.
func (s *session) reply(r commands.Reply) error {
	s.settle()
	s.answer(r)
	return nil
}

// AUTH [default] password
func (s *session) authenticate(cmd *resp.Command) error {
	switch {
	case s.inOtherMode():
		return s.refuseAuth()
	case cmd.Partial: // longer than any password
		return s.skip(func() error { return s.reply(errWrongPass) })
	case len(cmd.Args) < 2:
		return s.reply(commands.Error("ERR wrong number of arguments for 'auth' command"))
	case len(cmd.Args) > 3:
		return s.reply(commands.Error("ERR syntax error"))
	}
	user, given := []byte(defaultUser), cmd.Args[len(cmd.Args)-1]
	if len(cmd.Args) == 3 {
		user = cmd.Args[1]
	}
	if !s.server.password.admits(user, given) {
		return s.wrongPassword()
	}
	s.admitted = true
	return s.reply(commands.Status("OK"))
}

// HELLO [protocol [AUTH default password] [SETNAME name]]
func (s *session) greet(cmd *resp.Command) (done bool, err error) {
	if cmd.Partial {
		return true, s.skip(func() error { return s.reply(commands.Error("ERR HELLO is too long")) })
	}
	rest, odd, found, right := s.server.password.takeFrom(cmd.Args)
	switch {
	case found && s.inOtherMode():
		return true, s.refuseAuth()
	case !s.admitted && len(cmd.Args) > 1 && !argumentIs(cmd, 1, "2") && !argumentIs(cmd, 1, "3"):
		return true, s.reply(errNoProto)
	case found && !right:
		return true, s.wrongPassword()
	case !found && !s.admitted && odd != nil:
		return true, s.reply(commands.Error("ERR Syntax error in HELLO option '" + string(odd) + "'"))
	case !found && !s.admitted:
		return true, s.reply(errNoAuthHello)
	}
	s.admitted = true
	*cmd = resp.Command{Args: rest, Count: len(rest), Raw: resp.AppendCommand(nil, rest)}
	return false, nil
}

// takeFrom takes each AUTH out of a HELLO, and reports whether there is one and
// whether all are right. odd is an option that Redis will refuse, nil for none; what
// follows it is taken out as well.
func (p *password) takeFrom(args [][]byte) (rest [][]byte, odd []byte, found, right bool) {
	right = true
	cmd := resp.Command{Args: args}
	rest = append(rest, args[:min(2, len(args))]...)
	for i := 2; i < len(args); {
		switch left := len(args) - i - 1; {
		case argumentIs(&cmd, i, "AUTH") && left >= 2:
			found = true
			right = p.admits(args[i+1], args[i+2]) && right
			i += 3
		case argumentIs(&cmd, i, "SETNAME") && left >= 1:
			rest = append(rest, args[i], args[i+1])
			i += 2
		default:
			return append(rest, args[i]), args[i], found, right
		}
	}
	return rest, nil, found, right
}

func (s *session) wrongPassword() error {
	s.server.metrics.WrongPasswords.Inc()
	s.server.strangers.Warn("a client gave a wrong password", zap.Stringer("client", s.client.RemoteAddr()))
	return s.reply(errWrongPass)
}

// inOtherMode reports whether the next reply can't be one of the sidecar's own: in a
// transaction, or while only subscribing is allowed.
func (s *session) inOtherMode() bool {
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.multi || s.state.opaque || s.state.inSubscribedMode()
}

// bareAuth is what Redis refuses in every mode. A transaction is then aborted.
var bareAuth = resp.Command{Args: [][]byte{[]byte("AUTH")}, Count: 1, Raw: []byte("*1\r\n$4\r\nAUTH\r\n")}

// refuseAuth has Redis refuse an AUTH that it isn't sent.
func (s *session) refuseAuth() error { return s.sendAlone(&bareAuth, effect{}) }

// strangersEvery is how often the same about clients that aren't let in is logged at
// most: anybody can be one.
const strangersEvery = 10 * time.Second

func newStrangerLog(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, strangersEvery, 1, 0)
	}))
}
