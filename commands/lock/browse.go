package lock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/script"
)

// Info is what is known of a lock, whoever holds it. What isn't known is zero.
type Info struct {
	State      string        // FREE, HELD, FOREIGN (taken by other code), NO_TTL or WRONG_TYPE
	Mode       Mode          // of a lock that was taken through a sidecar
	Fence      int64         // of its latest hold
	TTL        time.Duration // until it lapses
	Depth      int64         // how often its only holder has it
	Holders    int64
	AcquiredAt time.Time     // of its latest hold
	SetTTL     time.Duration // the TTL last set
	Sidecars   int64         // with clients that wait for it
	Waiters    int           // of this sidecar
	Kept       bool          // for a connection of this sidecar
}

// Info tells what is known of a lock.
func (l *Locker) Info(ctx context.Context, name string) (Info, error) {
	k, err := l.keys(name)
	if err != nil {
		return Info{}, err
	}
	var info Info
	if q, ok := l.at.(*quorum); ok {
		info, err = q.info(ctx, k)
	} else {
		info, err = infoFrom(ctx, l.rdb, k)
	}
	if err != nil {
		return Info{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queues[name]; q != nil {
		info.Waiters = q.waiters.Len()
	}
	for key := range l.holds {
		info.Kept = info.Kept || key.name == name
	}
	return info, nil
}

// infoFrom asks one server.
func infoFrom(ctx context.Context, rdb redis.Scripter, k keys) (Info, error) {
	value, err := infoScript.Run(ctx, rdb, k.all())
	if err != nil {
		return Info{}, err
	}
	fields, ok := value.([]any)
	if !ok || len(fields) != 9 {
		return Info{}, fmt.Errorf("%w: unexpected answer of a script: %v", script.ErrUncertain, value)
	}
	state, _ := fields[0].(string)
	mode, _ := fields[1].(string)
	number := func(i int) int64 { n, _ := fields[i].(int64); return n }
	return Info{
		State: state, Mode: Mode(mode), Fence: number(2), TTL: milliseconds(number(3)), Depth: number(4), Holders: number(5),
		AcquiredAt: time.UnixMilli(number(6)), SetTTL: milliseconds(number(7)), Sidecars: number(8),
	}, nil
}

// Listed is one lock of a list.
type Listed struct {
	Name string
	TTL  time.Duration // until it lapses
}

const (
	listMax   = 1000 // locks in a list
	scanCount = 1000 // keys that Redis looks at in one call
)

// List returns up to listMax locks that are held and whose names match a pattern of
// Redis's, by whomever they were taken. It looks at all keys of the database, in a
// cluster at those of all masters, scanCount at a time, and ends with ctx.
func (l *Locker) List(ctx context.Context, pattern string) ([]Listed, error) {
	if q, ok := l.at.(*quorum); ok {
		return q.list(ctx, l.opts, pattern)
	}
	if cluster, ok := l.rdb.(*redis.ClusterClient); ok {
		return listOfAll(ctx, cluster, l.opts, pattern)
	}
	return listOf(ctx, l.rdb, l.rdb, l.opts, pattern)
}

// listOfAll lists the locks of all masters. One whose slot moves meanwhile may be seen at
// two of them.
func listOfAll(ctx context.Context, cluster *redis.ClusterClient, o Options, pattern string) ([]Listed, error) {
	var (
		mu    sync.Mutex
		locks []Listed
		seen  = make(map[string]bool)
	)
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		found, err := listOf(ctx, master, cluster, o, pattern)
		mu.Lock()
		defer mu.Unlock()
		for _, lock := range found {
			if !seen[lock.Name] {
				seen[lock.Name] = true
				locks = append(locks, lock)
			}
		}
		return err
	})
	if err != nil {
		return nil, unread(err)
	}
	return locks[:min(len(locks), listMax)], nil
}

// listOf lists the locks of one server; rdb knows where each of them is now.
func listOf(ctx context.Context, server, rdb redis.Cmdable, o Options, pattern string) ([]Listed, error) {
	var (
		locks  []Listed
		cursor uint64
	)
	for {
		page, next, err := server.ScanType(ctx, cursor, literal(o.Prefix)+pattern, scanCount, "string").Result()
		if err != nil {
			return nil, unread(err)
		}
		if locks, err = held(ctx, rdb, o, locks, page); err != nil {
			return nil, unread(err)
		}
		if next == 0 || len(locks) >= listMax {
			return locks[:min(len(locks), listMax)], nil
		}
		cursor = next
	}
}

// unread is the error of a command that only reads: what Redis answered, or
// script.ErrNotExecuted.
func unread(err error) error {
	if isAnswer(err) && !script.Refused(err) {
		return err
	}
	return fmt.Errorf("%w: %w", script.ErrNotExecuted, err)
}

// held appends those of the keys that are locks.
func held(ctx context.Context, rdb redis.Cmdable, o Options, locks []Listed, page []string) ([]Listed, error) {
	lefts := make([]*redis.DurationCmd, len(page))
	if len(page) == 0 {
		return locks, nil
	}
	if _, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range page {
			lefts[i] = p.PTTL(ctx, key)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for i, key := range page {
		name := strings.TrimPrefix(key, o.Prefix)
		if left := lefts[i].Val(); left > 0 && !o.reserved(name) {
			locks = append(locks, Listed{name, left})
		}
	}
	return locks, nil
}

// literal escapes what a pattern would take for something else.
func literal(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}
