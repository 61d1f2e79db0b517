package config

import "strings"

// setting is one row: everything there is to know about a key. Another key is
// another row, a field of Config, and a run of `go generate ./config`.
type setting struct {
	key     string // as in the file, sections separated by a dot; numbers have their unit last
	initial any    // the default, a string, an int or a bool
	why     string // one sentence, for -h and config.yaml
	value   func(*Config) value
	flag    string // short name on the command line, for the few keys that have one
	secret  bool   // a password may be in it
}

//go:generate go test -run=^TestConfigFileIsTheTable$ . -update

var settings = []setting{
	{key: "listen", initial: "127.0.0.1:6380", flag: "listen",
		why:   "Where clients connect: host:port, tls://host:port or unix:///path, several separated by commas.",
		value: func(c *Config) value { return listeners(&c.Listen) }},
	{key: "listen_password", initial: "", secret: true,
		why:   "What clients give to AUTH (or HELLO) before anything else; then all of them have the rights of the sidecar's own user, and users of Redis can't log in. Empty: Redis decides.",
		value: func(c *Config) value { return secret(&c.Entry.Password) }},
	{key: "listen_unix_mode", initial: "",
		why:   "Who may connect to the unix sockets of listen, in octal as for chmod, such as \"0770\"; empty for what the umask makes it.",
		value: func(c *Config) value { return unixMode(&c.Entry.UnixMode) }},

	{key: "listen_tls.cert_file", initial: "",
		why:   "The certificate of tls:// listeners, PEM, with those between it and the authority; this and the other files are read again when they change.",
		value: func(c *Config) value { return plain(&c.Entry.TLS.CertFile) }},
	{key: "listen_tls.key_file", initial: "",
		why:   "Its private key, PEM, not encrypted.",
		value: func(c *Config) value { return plain(&c.Entry.TLS.KeyFile) }},
	{key: "listen_tls.client_ca_file", initial: "",
		why:   "The authorities, PEM, of which clients must have a certificate; empty for clients without one.",
		value: func(c *Config) value { return plain(&c.Entry.TLS.ClientCAFile) }},
	{key: "listen_tls.handshake_timeout_ms", initial: 10_000,
		why:   "How long a client may take for the TLS handshake.",
		value: func(c *Config) value { return milliseconds(&c.Entry.TLS.HandshakeTimeout, 1, hourMS) }},

	{key: "upstream.url", initial: "embedded", flag: "upstream", secret: true,
		why:   "Where Redis is: host:port, redis://user:password@host:port/db, unix:///path?db=n, redis+sentinel://host:port,host:port/master/db (of the sentinels), redis+cluster://host:port,host:port (of some of its nodes), rediss in place of redis for TLS, or embedded (a store in memory).",
		value: func(c *Config) value { return location(&c.Upstream) }},
	{key: "upstream.sentinel_user", initial: "",
		why:   "Who the sidecar is to the sentinels of redis+sentinel://; empty for their default user. The user in the URL is that of the Redis servers.",
		value: func(c *Config) value { return plain(&c.Control.SentinelUser) }},
	{key: "upstream.sentinel_password", initial: "", secret: true,
		why:   "The password of that user; empty where sentinels demand none.",
		value: func(c *Config) value { return secret(&c.Control.SentinelPassword) }},
	{key: "upstream.tls_ca_file", initial: "",
		why:   "The authorities, PEM, of which Redis must have a certificate where upstream.url says rediss; empty for those of the system.",
		value: func(c *Config) value { return plain(&c.Control.TLS.CAFile) }},
	{key: "upstream.tls_cert_file", initial: "",
		why:   "The sidecar's own certificate, PEM, for a Redis that demands one; it and its key are read again when they change.",
		value: func(c *Config) value { return plain(&c.Control.TLS.CertFile) }},
	{key: "upstream.tls_key_file", initial: "",
		why:   "Its private key, PEM, not encrypted.",
		value: func(c *Config) value { return plain(&c.Control.TLS.KeyFile) }},
	{key: "upstream.tls_server_name", initial: "",
		why:   "The name that must stand in the certificate of Redis; empty for the host that is connected to.",
		value: func(c *Config) value { return plain(&c.Control.TLS.ServerName) }},
	{key: "upstream.dial_timeout_ms", initial: 1000,
		why:   "How long connecting to Redis and authenticating there may take.",
		value: func(c *Config) value { return milliseconds(&c.Control.DialTimeout, 1, hourMS) }},
	{key: "upstream.script_timeout_ms", initial: 3000,
		why:   "How long a SECKILL.* or LOCK.* command waits for Redis; after that its outcome is unknown.",
		value: func(c *Config) value { return milliseconds(&c.Control.ScriptTimeout, 1, hourMS) }},
	{key: "upstream.backoff_min_ms", initial: 50,
		why:   "How long commands fail at once after a connection to Redis failed; doubles with each failure.",
		value: func(c *Config) value { return milliseconds(&c.Control.BackoffMin, 1, hourMS) }},
	{key: "upstream.backoff_max_ms", initial: 2000,
		why:   "The longest such pause.",
		value: func(c *Config) value { return milliseconds(&c.Control.BackoffMax, 1, hourMS) }},
	{key: "upstream.identities_max", initial: 64,
		why:   "For how many distinct users and databases connections for SECKILL.* and LOCK.* are kept.",
		value: func(c *Config) value { return integer(&c.Control.IdentitiesMax, 1, 10_000) }},

	{key: "upstream.pinned_idle_ms", initial: 30_000,
		why:   "After which time a connection that clients had to themselves is closed, if none needs it again.",
		value: func(c *Config) value { return milliseconds(&c.Control.PinnedIdle, 1, yearMS) }},

	{key: "cluster.split_mset", initial: true,
		why:   "Whether an MSET over several slots of a cluster is sent in parts, which aren't one step together; else Redis refuses it with CROSSSLOT.",
		value: func(c *Config) value { return boolean(&c.Cluster.SplitMSET) }},

	{key: "admin.listen", initial: "127.0.0.1:9380", flag: "admin",
		why:   "Where metrics and health are served over HTTP, host:port; empty for nowhere.",
		value: func(c *Config) value { return adminAddress(&c.Admin.Listen) }},

	{key: "limits.processors_max", initial: 1,
		why:   "How many processors the sidecar's own work may use at a time; with one it costs least for each command (GOMAXPROCS in the environment beats this).",
		value: func(c *Config) value { return integer(&c.Limits.ProcessorsMax, 1, 1024) }},
	{key: "limits.clients_max", initial: 10_000,
		why:   "Client connections at a time; one more is refused.",
		value: func(c *Config) value { return integer(&c.Limits.ClientsMax, 1, 1_000_000) }},
	{key: "limits.command_bytes_max", initial: 512 << 20,
		why:   "The longest argument of a command; Redis's own limit is proto-max-bulk-len.",
		value: func(c *Config) value { return integer(&c.Limits.CommandBytesMax, 1<<20, 1<<40) }},
	{key: "limits.inline_bytes_max", initial: 64 << 10,
		why:   "The longest inline command, one typed without RESP.",
		value: func(c *Config) value { return integer(&c.Limits.InlineBytesMax, 1<<10, 1<<20) }},
	{key: "limits.custom_bytes_max", initial: 64 << 10,
		why:   "The longest SECKILL.* or LOCK.* command, all arguments together.",
		value: func(c *Config) value { return integer(&c.Limits.CustomBytesMax, 4<<10, 512<<20) }},
	{key: "limits.pipeline_max", initial: 128,
		why:   "How many SECKILL.BUYs of one connection's pipeline execute at a time.",
		value: func(c *Config) value { return integer(&c.Limits.PipelineMax, 1, 10_000) }},

	{key: "limits.pinned_max", initial: 1024,
		why:   "Connections to Redis that clients have to themselves at a time, while they block, subscribe, watch or are in a transaction.",
		value: func(c *Config) value { return integer(&c.Limits.PinnedMax, 1, 1_000_000) }},
	{key: "limits.pinned_wait_ms", initial: 1000,
		why:   "How long a client waits for such a connection when all are in use, before it gets an error.",
		value: func(c *Config) value { return milliseconds(&c.Limits.PinnedWait, 0, hourMS) }},
	{key: "limits.client_output_bytes_max", initial: 1 << 30,
		why:   "Replies kept in memory for a client that doesn't read them; one with more is disconnected.",
		value: func(c *Config) value { return integer(&c.Limits.ClientOutputMax, 1<<20, 1<<40) }},
	{key: "limits.output_bytes_max", initial: 2 << 30,
		why:   "The same for all clients together.",
		value: func(c *Config) value { return integer(&c.Limits.OutputMax, 1<<20, 1<<40) }},

	{key: "client.idle_timeout_ms", initial: 0,
		why:   "How long a client may be silent before it is disconnected; 0 for as long as it likes.",
		value: func(c *Config) value { return milliseconds(&c.Client.IdleTimeout, 0, yearMS) }},

	{key: "client.linger_timeout_ms", initial: 10_000,
		why:   "How long a client that has closed its sending side waits for the replies it is owed.",
		value: func(c *Config) value { return milliseconds(&c.Client.LingerTimeout, 0, hourMS) }},

	{key: "seckill.prefix", initial: "seckill:",
		why:   "The start of every key of a sale; not empty, without braces.",
		value: func(c *Config) value { return prefix(&c.Seckill.Prefix, false) }},
	{key: "seckill.takeover_ms", initial: 30_000,
		why:   "How long a worker has for an order that it pulled before it is given out again, to the same or another.",
		value: func(c *Config) value { return milliseconds(&c.Seckill.Takeover, 1, yearMS) }},

	{key: "seckill.shards", initial: 0,
		why:   "Into how many parts the stock of a sale is split that is created without SHARDS; 0 for one per master of a cluster, which is 1 elsewhere.",
		value: func(c *Config) value { return integer(&c.Seckill.Shards, 0, 128) }},
	{key: "seckill.batch_max", initial: 128,
		why:   "How many purchases of a shard one script call carries at most.",
		value: func(c *Config) value { return integer(&c.Seckill.BatchMax, 1, 500) }},
	{key: "seckill.queue_max", initial: 10_000,
		why:   "How many purchases of one sale may wait for their script call; one more is answered 503.",
		value: func(c *Config) value { return integer(&c.Seckill.QueueMax, 1, 1_000_000) }},
	{key: "seckill.queues_max", initial: 50_000,
		why:   "The same for all sales together.",
		value: func(c *Config) value { return integer(&c.Seckill.QueuesMax, 1, 10_000_000) }},
	{key: "seckill.queue_wait_ms", initial: 2000,
		why:   "How long a purchase waits for its script call; after that it is answered 503.",
		value: func(c *Config) value { return milliseconds(&c.Seckill.QueueWait, 1, hourMS) }},
	{key: "seckill.sync_replicas", initial: 0,
		why:   "How many replicas must have a purchase that comes without SYNC, and all else that is answered 200; with fewer it is answered 202. The same in all sidecars.",
		value: func(c *Config) value { return integer(&c.Seckill.SyncReplicas, 0, 100) }},
	{key: "seckill.sync_timeout_ms", initial: 100,
		why:   "How long replicas may take to have it.",
		value: func(c *Config) value { return milliseconds(&c.Seckill.SyncTimeout, 1, hourMS) }},
	{key: "seckill.audit_interval_ms", initial: 60_000,
		why:   "How often each sale is audited by one of the sidecars, which logs and counts what differs; 0 for never.",
		value: func(c *Config) value { return milliseconds(&c.Seckill.AuditInterval, 0, yearMS) }},
	{key: "seckill.audit_orders_max", initial: 5000,
		why:   "Up to so many reservations of a shard are audited in one step, for which Redis serves nobody else; with more, the audits of audit_interval_ms only compare the counters, and SECKILL.AUDIT reads it in parts.",
		value: func(c *Config) value { return integer(&c.Seckill.AuditOrdersMax, 1, 100_000_000) }},

	{key: "cache.sales_max", initial: 10_000,
		why:   "How many sales a sidecar remembers, for each user and database; so the others of this section.",
		value: func(c *Config) value { return integer(&c.Seckill.Cache.SalesMax, 1, 10_000_000) }},
	{key: "cache.absent_max", initial: 50_000,
		why:   "Of how many SKUs it remembers that they have no sale.",
		value: func(c *Config) value { return integer(&c.Seckill.Cache.AbsentMax, 1, 10_000_000) }},
	{key: "cache.rates_max", initial: 100_000,
		why:   "Of how many users it remembers that they ask too often, some 220 bytes each.",
		value: func(c *Config) value { return integer(&c.Seckill.Cache.RatesMax, 1, 10_000_000) }},
	{key: "cache.buyers_max", initial: 4_000_000,
		why:   "How many buyers of sold-out sales it knows, 8 bytes each; a sale with more asks Redis about every purchase.",
		value: func(c *Config) value { return integer(&c.Seckill.Cache.BuyersMax, 1, 1_000_000_000) }},
	{key: "cache.receipts_max", initial: 100_000,
		why:   "How many answers to buyers of sold-out sales it remembers.",
		value: func(c *Config) value { return integer(&c.Seckill.Cache.ReceiptsMax, 1, 10_000_000) }},

	{key: "lock.prefix", initial: "lock:",
		why:   "The start of a lock's key, the one that SET NX and other lock libraries use; may be empty; without braces.",
		value: func(c *Config) value { return prefix(&c.Lock.Prefix, true) }},
	{key: "lock.companion_prefix", initial: "lockmeta:",
		why:   "The start of the keys that a lock has beside it; not empty, without braces.",
		value: func(c *Config) value { return prefix(&c.Lock.CompanionPrefix, false) }},
	{key: "lock.ttl_max_ms", initial: 86_400_000,
		why:   "The longest TTL that a client may ask for.",
		value: func(c *Config) value { return milliseconds(&c.Lock.TTLMax, 1, yearMS) }},
	{key: "lock.wait_max_ms", initial: 3_600_000,
		why:   "The longest WAIT that a client may ask for.",
		value: func(c *Config) value { return milliseconds(&c.Lock.WaitMax, 1, yearMS) }},
	{key: "lock.queue_max", initial: 10_000,
		why:   "How many clients of the sidecar may wait for one lock; one more is told BUSY.",
		value: func(c *Config) value { return integer(&c.Lock.QueueMax, 1, 1_000_000) }},
	{key: "lock.names_max", initial: 64,
		why:   "How many locks LOCK.MACQUIRE may take at once.",
		value: func(c *Config) value { return integer(&c.Lock.NamesMax, 1, 1000) }},
	{key: "lock.hold_ms", initial: 600_000,
		why:   "For how long at the most a lock with AUTO is kept for a connection that gives no MAXHOLD; a MAXHOLD may be as long as a TTL.",
		value: func(c *Config) value { return milliseconds(&c.Lock.Hold, 1, yearMS) }},
	{key: "lock.auto_max", initial: 128,
		why:   "How many locks with AUTO one connection may have at a time.",
		value: func(c *Config) value { return integer(&c.Lock.AutoMax, 1, 100_000) }},
	{key: "lock.long_hold_percent", initial: 50,
		why:   "A lock held for more than this part of its TTL, or of its MAXHOLD with AUTO, is counted and logged; 0 for none.",
		value: func(c *Config) value { return integer(&c.Lock.LongHoldPercent, 0, 100) }},
	{key: "lock.sync_timeout_ms", initial: 1000,
		why:   "How long replicas have to confirm a lock with SYNC.",
		value: func(c *Config) value { return milliseconds(&c.Lock.SyncTimeout, 1, hourMS) }},
	{key: "lock.nodes", initial: "", secret: true,
		why:   "Three or five independent Redis servers, separated by commas, on most of which a lock has to be held (Redlock); empty for locks in the client's own database.",
		value: func(c *Config) value { return lockNodes(&c.Lock.Nodes) }},
	{key: "lock.node_timeout_ms", initial: 50,
		why:   "How long each of them has to answer; much shorter than the TTLs of the locks.",
		value: func(c *Config) value { return milliseconds(&c.Lock.NodeTimeout, 1, hourMS) }},

	{key: "log.level", initial: "info",
		why:   "From which level on the log is written: debug, info, warn or error.",
		value: func(c *Config) value { return oneOf(&c.Log.Level, "debug", "info", "warn", "error") }},
	{key: "log.format", initial: "console",
		why:   "For people to read, console, or for machines, json.",
		value: func(c *Config) value { return oneOf(&c.Log.Format, "console", "json") }},

	{key: "shutdown.drain_timeout_ms", initial: 5000,
		why:   "How long running commands may take to finish when the sidecar is told to stop.",
		value: func(c *Config) value { return milliseconds(&c.Shutdown.DrainTimeout, 0, hourMS) }},
}

const (
	hourMS = 60 * 60 * 1000
	yearMS = 365 * 24 * hourMS
)

// find returns the row of a key.
func find(key string) (setting, bool) {
	for _, s := range settings {
		if s.key == key {
			return s, true
		}
	}
	return setting{}, false
}

// section is the part of the key before the dot, "" where it has none.
func (s setting) section() string {
	section, _, found := strings.Cut(s.key, ".")
	if !found {
		return ""
	}
	return section
}

// variables are the key's names in the environment. The first follows the rule:
// SECKILL_ and the key in capitals, dots as underscores. A key with a flag can
// also be called as the flag is.
func (s setting) variables() []string {
	names := []string{variable(s.key)}
	if s.flag != "" && s.flag != s.key {
		names = append(names, variable(s.flag))
	}
	return names
}

const variablePrefix = "SECKILL_"

func variable(key string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}
