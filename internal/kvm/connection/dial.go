package connection

import (
	"context"
	"fmt"
	"time"
)

// dial is one attempt to connect, shared by all that wait for it. The pool's
// mutex guards its fields; session and err are set before done is closed.
type dial struct {
	done    chan struct{}
	cancel  context.CancelCauseFunc
	waiting int
	session *session
	err     error
}

// session gives the shared connection with one call counted on it, and makes
// it where there is none.
func (p *Pool) session(ctx context.Context) (*session, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errPoolClosed
	}
	if s := p.current; s != nil {
		if !s.wire.isLost() {
			s.inFlight++
			p.mu.Unlock()
			return s, nil
		}
		p.settle(s)
	}
	if p.dialling == nil {
		p.startDial(ctx)
	}
	d := p.dialling
	d.waiting++
	p.mu.Unlock()

	select {
	case <-d.done:
		return d.session, d.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d.waiting--
	if d.session != nil { // it came to an end at the same moment
		d.session.inFlight--
		p.settle(d.session)
	}
	if d.waiting == 0 && p.dialling == d {
		d.cancel(nil)
		p.dialling = nil
	}
	return nil, ctx.Err()
}

// startDial begins an attempt that outlives the caller that needed it first,
// since others may wait for it too.
func (p *Pool) startDial(ctx context.Context) {
	shared, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	d := &dial{done: make(chan struct{}), cancel: cancel}
	p.dialling = d
	go func() {
		defer cancel(nil)
		s, err := p.connect(shared)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.dialling == d {
			p.dialling = nil
		}
		switch {
		case err != nil:
			d.err = err
		case p.closed:
			d.err = errPoolClosed
			_ = s.wire.Close()
		case d.waiting == 0: // all gave up
			_ = s.wire.Close()
		default:
			d.session = s
			s.inFlight = d.waiting
			p.sessions[s] = struct{}{}
			p.current = s
		}
		close(d.done)
	}()
}

// connect opens one connection within the dial's time-out.
func (p *Pool) connect(ctx context.Context) (*session, error) {
	ctx, cancel := p.within(ctx)
	defer cancel()
	conn, err := p.transport.open(ctx)
	if err != nil {
		return nil, err
	}
	return openSession(ctx, conn, p.endpoint)
}

// dialTimeout is the cause of a connect that took too long.
type dialTimeout struct{ after time.Duration }

func (e *dialTimeout) Error() string { return fmt.Sprintf("timed out after %s", e.after) }
