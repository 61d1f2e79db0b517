package lock

import (
	"context"
	"sync"
	"testing"

	"seckill-proxy/internal/redistest"
)

// BenchmarkHandOver is one hand-over among a hundred clients of a sidecar.
func BenchmarkHandOver(b *testing.B) {
	l := New(redistest.Start(b, redistest.Options{}).Client(b), DefaultOptions())
	defer l.Close()
	const clients = 100
	var wait sync.WaitGroup
	for range clients {
		wait.Go(func() {
			for range b.N/clients + 1 {
				got, err := l.Acquire(context.Background(), Request{Name: "x", TTL: minute, Wait: minute})
				if err != nil || got.Outcome != Acquired {
					b.Errorf("got %+v, %v", got, err)
					return
				}
				if _, err := l.Release(context.Background(), "x", got.Token, nil); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wait.Wait()
}
