package kvm

import (
	"context"
	"sync"
)

// keyedLocks gives each key a lock that can be waited for with a context.
type keyedLocks struct {
	mutex sync.Mutex
	held  map[string]chan struct{}
}

// lock waits until nobody holds key, and holds it until the returned function
// is called.
func (l *keyedLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		l.mutex.Lock()
		if l.held == nil {
			l.held = make(map[string]chan struct{})
		}
		released, busy := l.held[key]
		if !busy {
			mine := make(chan struct{})
			l.held[key] = mine
			l.mutex.Unlock()
			return func() {
				l.mutex.Lock()
				delete(l.held, key)
				l.mutex.Unlock()
				close(mine)
			}, nil
		}
		l.mutex.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
