package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// flash is what many buyers of few units cost Redis.
type flash struct {
	sidecar string // name of the kind of sidecar
	buyers  int

	sold     int // units
	failed   int // buyers that got an error, or 503
	scripts  int64
	commands int64
	redisCPU time.Duration
	took     time.Duration
}

const (
	flashKey     = "flash"
	flashStock   = 100
	flashClients = 1000 // connections at most; a buyer after the other on each
)

// measureFlash lets all buyers ask once, through two fresh sidecars in front of a
// fresh Redis.
func measureFlash(ctx context.Context, l *lab, buyers int, progress io.Writer) (*flash, error) {
	redis, addr, err := l.startRedis(ctx)
	if err != nil {
		return nil, err
	}
	const variant = 0 // the program's own choice of everything
	var clients []*client
	defer func() { closeAll(clients) }()
	var creator *client
	for range 2 {
		sidecar, err := l.startSidecar(ctx, sidecarVariants[variant].name, sidecarVariants[variant].env, addr)
		if err != nil {
			return nil, err
		}
		more, err := connect(sidecar.addr, max(1, min(flashClients, buyers)/2))
		clients = append(clients, more...)
		if err != nil {
			return nil, err
		}
		creator = more[0]
	}
	asker, err := dial(addr)
	if err != nil {
		return nil, err
	}
	defer asker.Close()
	if _, err := creator.do("SECKILL.CREATE", "flash", strconv.Itoa(flashStock)); err != nil {
		return nil, err
	}
	if _, err := asker.do("CONFIG", "RESETSTAT"); err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "%s: %d buyers\n", flashKey, buyers)
	cpu, err := redis.cpu()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	result := rush(clients, buyers)
	result.took, result.sidecar = time.Since(begin), sidecarVariants[variant].name
	after, err := redis.cpu()
	if err != nil {
		return nil, err
	}
	result.redisCPU = after - cpu
	return result, result.count(asker)
}

// rush lets the buyers ask, on all connections at the same time.
func rush(clients []*client, buyers int) *flash {
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		total   = flash{buyers: buyers}
	)
	for i, c := range clients {
		running.Go(func() {
			var sold, failed int
			for buyer := i; buyer < buyers; buyer += len(clients) {
				reply, err := c.do("SECKILL.BUY", "flash", fmt.Sprint("buyer-", buyer), "ID", "click")
				values, _ := reply.([]any)
				switch {
				case err != nil || len(values) == 0 || values[0] == "503":
					failed++
				case values[0] == "200":
					sold++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total.sold += sold
			total.failed += failed
		})
	}
	running.Wait()
	return &total
}

// count asks Redis what it has executed.
func (f *flash) count(asker *client) error {
	reply, err := asker.do("INFO", "commandstats")
	if err != nil {
		return err
	}
	for line := range strings.Lines(fmt.Sprint(reply)) {
		name, stats, found := strings.Cut(strings.TrimSpace(line), ":calls=")
		if !found {
			continue
		}
		calls, _, _ := strings.Cut(stats, ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return fmt.Errorf("INFO commandstats: %q: %w", line, err)
		}
		f.commands += n
		if name == "cmdstat_evalsha" || name == "cmdstat_eval" {
			f.scripts += n
		}
	}
	return nil
}
