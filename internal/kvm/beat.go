package kvm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// missedBeats is how many beats a run may miss before it counts as dead: on a
// slow link one queues behind an upload's data.
const missedBeats = 3

// lastBeat is how long a beat may still take when no more are wanted.
const lastBeat = 5 * time.Second

// errTakenAway ends the making of an instance whose domain is gone.
var errTakenAway = errors.New("the domain was removed while the instance was being made: another run, or a person, took it away")

// keepBeating changes the mark on an unfinished domain again and again, so that
// another run, which cannot see this one, sees that it is alive. The context it
// returns ends when the domain was taken away. stop waits until the last beat is
// through, within a bound; it may be called twice.
func (b *Backend) keepBeating(parent context.Context, h *host, dom libvirt.Domain, meta metadata) (ctx context.Context, stop func()) {
	ctx, takenAway := context.WithCancelCause(parent)
	beats, end := context.WithCancel(ctx)
	// A beat under way is not cut short at once: a call that is given up costs
	// its neighbours their connection.
	underWay, cut := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(b.beatInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-beats.Done():
				return
			}
			meta.Beat = randomSuffix()
			err := h.setMetadata(underWay, dom, meta)
			if errors.Is(err, egress.ErrNotFound) {
				takenAway(errTakenAway)
				return
			}
		}
	}()
	var once sync.Once
	return ctx, func() {
		once.Do(func() {
			defer cut()
			end()
			bound := time.AfterFunc(lastBeat, cut)
			defer bound.Stop()
			<-ended
		})
	}
}

// isBeingMade tells whether the run that makes an unfinished domain is alive. It
// takes as long as a run may go without a beat; no clocks are compared, since the
// runs may be on two machines.
func (b *Backend) isBeingMade(ctx context.Context, h *host, dom libvirt.Domain, seen metadata) (bool, error) {
	patience := time.NewTimer(missedBeats * b.beatInterval)
	defer patience.Stop()
	tick := time.NewTicker(b.beatInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-patience.C:
			return false, nil
		case <-ctx.Done():
			return false, h.fault("finding out whether another run is making instance "+dom.Name, ctx.Err())
		}
		now, err := h.readDomain(ctx, dom)
		switch {
		case errors.Is(err, egress.ErrNotFound):
			return true, nil // whoever took it away is alive
		case err != nil:
			return false, err
		case now.metaErr != nil || !now.meta.Unfinished || now.meta.Beat != seen.Beat:
			return true, nil
		}
	}
}
