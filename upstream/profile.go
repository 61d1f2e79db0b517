package upstream

import (
	"context"
	"strconv"
	"time"
)

// Identity is who a session is to Redis. The zero value is who a connection is
// before AUTH: the configured user, or Redis's default user.
type Identity struct {
	User     string // "" with a Password: the default user, by AUTH password
	Password string
	Known    bool // the client authenticated itself
	Stranger bool // it has yet to, and Redis demanded it when the session began
}

// Profile is what distinguishes a connection to Redis that clients can share
// from another: every command on it acts as this user, in this database, and is
// answered in this protocol.
type Profile struct {
	Identity Identity
	DB       int
	Protocol int // 2 or 3
}

// credentials are what a profile authenticates with; the password is "" when it
// doesn't.
func (t *Target) credentials(id Identity) (user, password string) {
	if id.Known {
		return id.User, id.Password
	}
	return t.opts.User, t.opts.Password
}

// greeting returns the commands that make a fresh connection what the profile
// says.
func (t *Target) greeting(as Profile) [][][]byte {
	var commands [][][]byte
	add := func(words ...string) {
		command := make([][]byte, len(words))
		for i, word := range words {
			command[i] = []byte(word)
		}
		commands = append(commands, command)
	}
	user, password := t.credentials(as.Identity)
	switch {
	case password == "" && !as.Identity.Known:
	case user == "":
		add("AUTH", password)
	default:
		add("AUTH", user, password)
	}
	if as.Protocol != 2 {
		add("HELLO", strconv.Itoa(as.Protocol))
	}
	if as.DB != 0 {
		add("SELECT", strconv.Itoa(as.DB))
	}
	return commands
}

// Change returns the commands that make a connection with one profile one with
// another. Redis 6.2 or later is needed to give up an identity.
func (t *Target) Change(from, to Profile) [][][]byte {
	if from.Identity != to.Identity {
		return append([][][]byte{{[]byte("RESET")}}, t.greeting(to)...)
	}
	var commands [][][]byte
	if from.Protocol != to.Protocol {
		commands = append(commands, [][]byte{[]byte("HELLO"), []byte(strconv.Itoa(to.Protocol))})
	}
	if from.DB != to.DB {
		commands = append(commands, [][]byte{[]byte("SELECT"), []byte(strconv.Itoa(to.DB))})
	}
	return commands
}

// strangersFor is how long it is believed whether Redis demands authentication of
// new connections.
const strangersFor = time.Second

// Admit returns what a session starts with that begins now. Redis decides when a
// connection is made whether it must authenticate, and a session that shares one
// made long ago would escape a password that was set since; so Redis is asked, by
// a connection made for that, at most once in strangersFor.
func (t *Target) Admit(ctx context.Context) Profile {
	if t.opts.Password != "" || t.opts.Dialer != nil {
		return t.Profile()
	}
	t.asking.Lock()
	defer t.asking.Unlock()
	if time.Since(t.asked) > strangersFor {
		if conn, err := t.Dial(ctx, t.Profile()); err == nil {
			if barred, err := t.barred(ctx, conn); err == nil {
				t.strangers.Store(barred)
			}
			conn.Close()
		}
		t.asked = time.Now()
	}
	return t.fresh()
}

// fresh is what a session starts with, or has after RESET, as far as is known
// without asking.
func (t *Target) fresh() Profile {
	as := t.Profile()
	as.Identity.Stranger = t.strangers.Load()
	return as
}

// AfterReset returns what a session has after RESET, and the commands that give
// its connection the same.
func (t *Target) AfterReset() (Profile, [][][]byte) {
	as := t.fresh()
	return as, t.greeting(as)
}
