package connection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

var (
	errCallTimeout = errors.New("the limit for one call is reached")
	errPoolClosed  = errors.New("the connection pool is closed")
	errRetired     = errors.New("it was given up because another call went unanswered")
)

// lostError says that the connection broke under a call.
type lostError struct{ cause error }

func (e *lostError) Error() string { return "connection lost: " + e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// abandonedError says that a call was given up while it ran.
type abandonedError struct {
	after time.Duration
	cause error
}

func (e *abandonedError) Error() string {
	return fmt.Sprintf("gave up after %s without an answer: %v", e.after.Round(time.Millisecond), e.cause)
}
func (e *abandonedError) Unwrap() error { return e.cause }

// explain says what fn's error means. Errors of fn's own making, and the
// daemon's, are passed on with the call's name.
func (p *Pool) explain(s *session, what string, err error) error {
	var answer libvirt.Error
	var fault *egress.Fault
	switch {
	case err == nil:
		return nil
	case errors.As(err, &fault):
		return err
	case errors.As(err, &answer), !s.wire.isLost():
		return fmt.Errorf("%s on host %s: %w", what, p.host.Name, err)
	}
	return &egress.Fault{
		Kind:   egress.ErrUnreachable,
		Doing:  what,
		Host:   p.host.Name,
		Cause:  &lostError{cause: fmt.Errorf("%w (%w)", s.wire.cause, err)},
		Remedy: "Check the network and the daemon on that machine; then apply again.",
	}
}

// abandoned says that a call was given up while it ran.
func (p *Pool) abandoned(ctx context.Context, what string, after time.Duration) error {
	cause := ctx.Err()
	if errors.Is(context.Cause(ctx), errCallTimeout) {
		cause = errCallTimeout // not the caller's own deadline
	}
	f := &egress.Fault{
		Doing: what,
		Host:  p.host.Name,
		Cause: &abandonedError{after: after, cause: cause},
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		f.Kind = egress.ErrUnreachable
		f.Remedy = "See whether the daemon hangs: run `virsh list` on that machine."
	}
	return f
}

// gaveUp says that ctx ended before a call began.
func (p *Pool) gaveUp(ctx context.Context, what, where string) error {
	f := &egress.Fault{
		Doing: what,
		Host:  p.host.Name,
		Cause: fmt.Errorf("%s: %w", where, ctx.Err()),
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		f.Kind = egress.ErrUnreachable
	}
	return f
}

// unconnected says that there was no connection to make a call on.
func (p *Pool) unconnected(ctx context.Context, what string, err error) error {
	if errors.Is(err, errPoolClosed) {
		return p.isClosed(what)
	}
	if ctx.Err() != nil {
		return p.gaveUp(ctx, what, fmt.Sprintf("connecting to %s", p.endpoint))
	}
	f := &egress.Fault{Kind: egress.ErrUnreachable}
	var reason *egress.Fault
	if errors.As(err, &reason) {
		*f = *reason
		err = reason.Cause
	}
	f.Doing = what
	f.Host = p.host.Name
	f.Cause = fmt.Errorf("connecting to %s: %w", p.endpoint, err)
	return f
}

func (p *Pool) isClosed(what string) error {
	return fmt.Errorf("%s on host %s: %w", what, p.host.Name, errPoolClosed)
}
