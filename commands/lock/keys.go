package lock

import "seckill-proxy/sharding"

// The keys of the locks, with the default prefixes. N is the lock's name, any
// bytes; {T} is the hash tag that stands for the slot of the lock's own key, so
// that all keys of one lock live in one slot whatever its name contains.
//
//	lock:N                 string: the token of the holder. Lives for the TTL of
//	                       the lock, and is never without one.
//	lockmeta:{T}:held:N    hash: what else is known of the holder. Same TTL.
//	  token                  the holder that the record belongs to. Other code
//	                         may have deleted and retaken the lock: a record
//	                         whose token isn't the lock's value counts for nothing
//	  fence                  the number of this hold
//	  depth                  how often the holder has it, 1 or more
//	  ttl_ms                 the TTL last set, in milliseconds
//	  acquired_at            when this hold began, Unix milliseconds
//	lockmeta:{T}:fence     string: the last fence drawn in the slot, a decimal
//	                       number below 2^53. No TTL: at most 16384 such keys,
//	                       one per slot, however many names there are.
//
// A Redis ACL user needs, for all of LOCK.*:
//
//	~lock:* ~lockmeta:* +evalsha +eval +pttl +type +get +set +time +hmget +hset
//	+hdel +pexpire +del
//
// ("~lock*" says the same of the keys in one pattern.)
type keys struct {
	lock   string
	record string
	fence  string
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
	}, nil
}
