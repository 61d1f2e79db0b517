package upstream

import "strconv"

// Identity is who a session is to Redis. The zero value is who a connection is
// before AUTH: the configured user, or Redis's default user.
type Identity struct {
	User     string // "" with a Password: the default user, by AUTH password
	Password string
	Known    bool // the client authenticated itself
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

// AfterReset returns the commands that make a connection on which the client
// sent RESET what a fresh session has.
func (t *Target) AfterReset() [][][]byte { return t.greeting(t.Profile()) }
