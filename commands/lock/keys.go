package lock

import "seckill-proxy/sharding"

// The keys of the locks, with the default prefixes. N is the lock's name, any
// bytes; {T} is the hash tag that stands for the slot of the lock's own key, so
// that all keys of one lock live in one slot whatever its name contains.
//
//	lock:N                 string: the token of the holder, or, while several
//	                       share the lock, random bytes that are nobody's token.
//	                       Lives for the TTL of the lock, and is never without
//	                       one.
//	lockmeta:{T}:held:N    hash: what else is known of the holders. Lives 5 ms longer
//	                       than the lock, so that it is never gone before.
//	  token                  the value of lock:N that the record belongs to. Other
//	                         code may have deleted and retaken the lock: a record
//	                         whose token isn't the lock's value counts for nothing
//	  mode                   exclusive, shared or permits
//	  wakes                  1 when whoever releases the lock can wake who waits
//	  fence                  the number of this hold, or of the latest share
//	  depth                  how often the holder has it, 1 or more
//	  ttl_ms                 the TTL last set, in milliseconds
//	  acquired_at            when this hold began, Unix milliseconds
//	  =TOKEN                 of each share: fence, depth, acquired_at and ttl_ms
//	lockmeta:{T}:shares:N  sorted set: the token of each share, and when it lapses,
//	                       Unix milliseconds. Lives as long as lockmeta:{T}:held:N.
//	lockmeta:{T}:line:N    sorted set: the sidecars whose clients wait, in order.
//	                       Ten seconds longer than what they wait for.
//	lockmeta:{T}:turn:N    string: the sidecar that may take the open lock before
//	                       all others. 50 ms.
//	lockmeta:{T}:fence     string: the last fence drawn in the slot, a decimal
//	                       number below 2^53. No TTL: at most 16384 such keys,
//	                       one per slot, however many names there are. Where it is
//	                       lost, or a failover loses its latest values, the clock
//	                       makes fences grow: that of the new master may be behind
//	                       by less than the failover took. What SYNC confirmed is
//	                       not lost, the counter included.
//
// A sidecar listens on the channel lockmeta:wake:ID, where ID is random.
//
// A Redis ACL user needs, for all of LOCK.*:
//
//	~lock:* ~lockmeta:* &lockmeta:* +evalsha +eval +pttl +get +mget +set
//	+time +hmget +hget +hset +hdel +pexpire +del +exists +zadd +zrem +zrange +zcard
//	+zscore +zcount +zrangebyscore +publish +subscribe +ping
//	+wait (for SYNC) +scan (for LOCK.LIST)
//
// ("~lock*" says the same of the keys in one pattern.) Without the right to the
// channels everything works, and who waits looks every 50 ms. Without +mget a
// release costs Redis more.
type keys struct {
	lock   string
	record string
	fence  string
	shares string
	line   string
	turn   string
}

// keys returns the keys of one lock, or ErrReservedName.
func (l *Locker) keys(name string) (keys, error) {
	if l.opts.reserved(name) {
		return keys{}, ErrReservedName
	}
	lock := l.opts.Prefix + name
	tagged := l.opts.CompanionPrefix + "{" + sharding.Tag(sharding.Slot(lock)) + "}"
	return keys{
		lock:   lock,
		record: tagged + ":held:" + name,
		fence:  tagged + ":fence",
		shares: tagged + ":shares:" + name,
		line:   tagged + ":line:" + name,
		turn:   tagged + ":turn:" + name,
	}, nil
}

// all returns the keys in the order in which hold.lua expects them.
func (k keys) all() []string { return []string{k.lock, k.record, k.fence, k.shares, k.line, k.turn} }
