package commands

// lockCommands are the rows of the LOCK family. All of them but INFO and LIST
// answer [code word token fence ttl_ms depth].
var lockCommands = []Command{
	{
		Name:       "LOCK.ACQUIRE",
		Arity:      -3,
		Group:      "lock",
		Flags:      []string{"write", "denyoom", "blocking"},
		Categories: []string{"@write", "@blocking"},
		Since:      "1.0.0",
		Summary:    "Takes a lock for a limited time, and waits for it if asked to",
		Complexity: "O(1), O(log N) for a lock that N share",
		Arguments: []Argument{
			lockName,
			lockTTLArgument,
			lockWaitArgument,
			{Name: "token", Type: "string", Token: "TOKEN", Optional: true, Summary: "identifies the holder, 1 to 256 bytes; a random one is made without it; with the token that holds the lock, the lock is taken once more"},
			lockAutoArgument,
			{Name: "mode", Type: "oneof", Optional: true, Sub: []Argument{
				{Name: "shared", Type: "pure-token", Token: "SHARED", Summary: "any number may hold the lock so, and nobody exclusively meanwhile"},
				{Name: "n", Type: "integer", Token: "PERMITS", Summary: "the lock is taken so if fewer than that many hold it, all of them with PERMITS"},
			}},
			{Name: "replicas", Type: "integer", Token: "SYNC", Optional: true, Summary: "how many replicas shall have confirmed the lock before the reply, which waits lock.sync_timeout_ms for them"},
		},
		Replies: []Outcome{
			{200, "ACQUIRED", "[200 ACQUIRED token fence ttl_ms 1]", "The lock was free and is yours; fence is larger than that of any earlier holder"},
			{200, "REENTERED", "[200 REENTERED token fence ttl_ms depth]", "The token held the lock already and has to release it depth times; the TTL is the longer of what was left and what is asked now"},
			{202, "UNCERTAIN", "[202 UNCERTAIN token fence ttl_ms depth]", "With SYNC: the lock is yours, but fewer replicas than asked for have confirmed it"},
			{408, "TIMEOUT", `[408 TIMEOUT "" 0 0 0]`, "With WAIT: the time is over, and the lock is not yours"},
			{409, "BUSY", `[409 BUSY "" 0 ttl_ms 0]`, "Another holds the lock and has ttl_ms left, or waits for it and goes first"},
			{409, "OTHER_MODE", `[409 OTHER_MODE "" 0 ttl_ms 0]`, "The token holds the lock in another mode: release it first"},
			{409, "NO_TTL", `[409 NO_TTL "" 0 0 0]`, "A string without a TTL stands at the key: waiting for it to lapse is in vain"},
			lockWrongType,
			{202, "UNCERTAIN", "[202 UNCERTAIN token 0 0 0]", "The reply of Redis was lost: LOCK.CHECK with the token tells whether the lock was taken, LOCK.RELEASE undoes it"},
			{503, "BUSY", `[503 BUSY "" 0 0 0]`, "Not executed, try later: Redis is down, the sidecar stops, too many wait, or too many locks are kept for the connection"},
		},
		Handle: lockAcquire,
	},
	{
		Name:       "LOCK.MACQUIRE",
		Arity:      -4,
		Group:      "lock",
		Flags:      []string{"write", "denyoom", "blocking"},
		Categories: []string{"@write", "@blocking"},
		Since:      "1.0.0",
		Summary:    "Takes several locks, all of them or none",
		Complexity: "O(N), N being the number of names",
		Arguments: []Argument{
			lockTTLArgument,
			{Name: "n", Type: "integer", Summary: "how many names follow"},
			{Name: "name", Type: "string", Multiple: true, Summary: "the names of the locks, no two equal, 1 to 256 bytes of any kind each"},
			lockWaitArgument,
			lockAutoArgument,
		},
		Replies: []Outcome{
			{200, "ACQUIRED", "[200 ACQUIRED token fence ttl_ms 1]", "All of them are yours: LOCK.RELEASE each with the token; fence is larger than that of any earlier holder of any of them"},
			{408, "TIMEOUT", `[408 TIMEOUT "" 0 0 0]`, "With WAIT: the time is over, and none of them is yours"},
			{409, "BUSY", `[409 BUSY "" 0 ttl_ms 0]`, "One of them is taken for at most ttl_ms more, and none is yours"},
			{409, "NO_TTL", `[409 NO_TTL "" 0 0 0]`, "A string without a TTL stands at one of the keys, and none is yours"},
			lockWrongType,
			{202, "UNCERTAIN", "[202 UNCERTAIN token 0 0 0]", "The reply of Redis was lost: LOCK.CHECK with the token tells whether they were taken, LOCK.RELEASE undoes it"},
			lockNotTried,
		},
		Handle: lockMultiAcquire,
	},
	{
		Name:       "LOCK.RELEASE",
		Arity:      3,
		Group:      "lock",
		Flags:      []string{"write", "fast"},
		Categories: []string{"@write", "@fast"},
		Since:      "1.0.0",
		Summary:    "Gives a lock back, or one level of it, if the token holds it",
		Complexity: "O(1)",
		Arguments:  []Argument{lockName, lockToken},
		Replies: []Outcome{
			{200, "RELEASED", "[200 RELEASED token fence ttl_ms depth]", "One level is given back; with depth 0 the lock is free, else it is held depth times more, for ttl_ms"},
			lockNotOwner,
			lockExpired,
			lockWrongType,
			{202, "UNCERTAIN", "[202 UNCERTAIN token 0 0 0]", "The reply of Redis was lost: LOCK.CHECK tells whether the token still holds the lock, and how often"},
			lockNotTried,
		},
		Handle: lockRelease,
	},
	{
		Name:       "LOCK.RENEW",
		Arity:      4,
		Group:      "lock",
		Flags:      []string{"write", "fast"},
		Categories: []string{"@write", "@fast"},
		Since:      "1.0.0",
		Summary:    "Sets the TTL of a lock, longer or shorter, if the token holds it",
		Complexity: "O(1)",
		Arguments: []Argument{
			lockName,
			lockToken,
			{Name: "ttl_ms", Type: "integer", Summary: "how long the lock is held from now on, in milliseconds"},
		},
		Replies: []Outcome{
			{200, "RENEWED", "[200 RENEWED token fence ttl_ms depth]", "The lock lapses ttl_ms from now"},
			lockNotOwner,
			lockExpired,
			lockWrongType,
			{202, "UNCERTAIN", "[202 UNCERTAIN token 0 0 0]", "The reply of Redis was lost: renewing again does no harm"},
			lockNotTried,
		},
		Handle: lockRenew,
	},
	{
		Name:       "LOCK.CHECK",
		Arity:      3,
		Group:      "lock",
		Flags:      []string{"readonly", "fast"},
		Categories: []string{"@read", "@fast"},
		Since:      "1.0.0",
		Summary:    "Tells whether a token holds a lock, and for how long",
		Complexity: "O(1)",
		Arguments:  []Argument{lockName, lockToken},
		Replies: []Outcome{
			{200, "HELD", "[200 HELD token fence ttl_ms depth]", "The token holds the lock for ttl_ms more; fence is 0 when other code took it with a plain SET"},
			lockNotOwner,
			lockExpired,
			{409, "NO_TTL", "[409 NO_TTL token fence 0 depth]", "The token stands at the key, but without a TTL: LOCK.RENEW gives it one, LOCK.RELEASE deletes it"},
			lockWrongType,
			lockNotTried,
		},
		Handle: lockCheck,
	},
	{
		Name:       "LOCK.INFO",
		Arity:      2,
		Group:      "lock",
		Flags:      []string{"readonly", "fast"},
		Categories: []string{"@read", "@fast"},
		Since:      "1.0.0",
		Summary:    "Tells what is known of a lock, whoever holds it",
		Complexity: "O(1), O(log N) for a lock that N share",
		Arguments:  []Argument{lockName},
		Replies: []Outcome{
			{200, "INFO", "[200 INFO {field value…}]", "name, state (FREE, HELD, FOREIGN: taken by other code, NO_TTL, WRONG_TYPE), mode (exclusive, shared, permits), fence, ttl_ms, depth, holders, acquired_at, set_ttl_ms, sidecars (with clients that wait), and of this sidecar: waiters and kept (1: by AUTO). Tokens are never told"},
			{503, "BUSY", "[503 BUSY {}]", "Not executed, try later"},
		},
		Handle: lockInfo,
	},
	{
		Name:       "LOCK.LIST",
		Arity:      -1,
		Group:      "lock",
		Flags:      []string{"readonly"},
		Categories: []string{"@read", "@slow"},
		Since:      "1.0.0",
		Summary:    "Lists locks that are held, by whomever; for people, not for programs",
		Complexity: "O(N), N being the number of keys in the database, a thousand at a time",
		Arguments: []Argument{
			{Name: "pattern", Type: "pattern", Token: "MATCH", Optional: true, Summary: "which names, as for KEYS: * for all"},
		},
		Replies: []Outcome{
			{200, "", "[200 n [name ttl_ms]…]", "n locks, in no particular order, and what their holders have left; with n 1000 there may be more"},
			{503, "", "[503 0]", "Not executed, try later"},
		},
		Handle: lockList,
	},
	{
		Name:       "LOCK.FORCE",
		Arity:      2,
		Group:      "lock",
		Flags:      []string{"write"},
		Categories: []string{"@write", "@slow"},
		Since:      "1.0.0",
		Summary:    "Frees a lock, whoever holds it: its holders are not told, so the fence is all that stands between them and the next",
		Complexity: "O(1), O(N) for a lock that N share",
		Arguments:  []Argument{lockName},
		Replies: []Outcome{
			{200, "RELEASED", `[200 RELEASED "" fence 0 0]`, "The lock is free; fence is that of its latest holder, 0 if other code took it"},
			lockExpired,
			lockWrongType,
			{202, "UNCERTAIN", `[202 UNCERTAIN "" 0 0 0]`, "The reply of Redis was lost: the lock may be free or not"},
			lockNotTried,
		},
		Handle: lockForce,
	},
}

// What the rows have in common.
var (
	lockName  = Argument{Name: "name", Type: "string", Summary: "the name of the lock, 1 to 256 bytes of any kind"}
	lockToken = Argument{Name: "token", Type: "string", Summary: "the token that the lock was acquired with"}

	lockTTLArgument  = Argument{Name: "ttl_ms", Type: "integer", Summary: "how long the lock is held unless it is renewed, in milliseconds: 10000 for ten seconds"}
	lockWaitArgument = Argument{Name: "ms", Type: "integer", Token: "WAIT", Optional: true, Summary: "how long to wait for the lock, first come first served among the clients of a sidecar; no longer than the client is there, whose read timeout has to be longer"}
	lockAutoArgument = Argument{Name: "auto", Type: "block", Optional: true, Sub: []Argument{
		{Name: "auto", Type: "pure-token", Token: "AUTO", Summary: "the sidecar renews the lock while the connection lives, and releases it at its end, at RESET and at QUIT"},
		{Name: "ms", Type: "integer", Token: "MAXHOLD", Optional: true, Summary: "for how long in all at the most; lock.hold_ms without it"},
	}}

	lockNotOwner  = Outcome{403, "NOT_OWNER", `[403 NOT_OWNER "" 0 ttl_ms 0]`, "Another holds the lock and has ttl_ms left (0: it never lapses)"}
	lockExpired   = Outcome{410, "EXPIRED", `[410 EXPIRED "" 0 0 0]`, "Nobody holds the lock: it lapsed or was released"}
	lockWrongType = Outcome{409, "WRONG_TYPE", `[409 WRONG_TYPE "" 0 0 0]`, "Something that isn't a string stands at the key, so it isn't a lock"}
	lockNotTried  = Outcome{503, "BUSY", `[503 BUSY "" 0 0 0]`, "Not executed, try later"}
)
