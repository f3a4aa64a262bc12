package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"
)

// refusesAnonymous connects and wants 407 without credentials.
func (p Probe) refusesAnonymous(ctx context.Context) *Failure {
	t, failure := p.dial(ctx)
	if failure != nil {
		return failure
	}
	defer t.close()
	answer, err := t.connect(p.Target, "")
	switch {
	case err != nil:
		return &Failure{Step: StepRefusesAnonymous, Seen: noAnswer("a CONNECT without credentials", err), Err: err}
	case answer.status == http.StatusProxyAuthRequired:
		return nil
	case answer.opened():
		return &Failure{
			Step: StepRefusesAnonymous, Final: true,
			Seen: fmt.Sprintf("the proxy is open to everyone: it answered a CONNECT without credentials with %q instead of 407", answer.line),
		}
	default:
		return &Failure{
			Step: StepRefusesAnonymous,
			Seen: fmt.Sprintf("the proxy answered a CONNECT without credentials with %q instead of 407: it does not ask for them, or it is not configured yet", answer.line),
		}
	}
}

// forwards wants a byte of the target's through the tunnel.
func (p Probe) forwards(ctx context.Context) *Failure {
	t, failure := p.dial(ctx)
	if failure != nil {
		return failure
	}
	defer t.close()
	fail := func(err error, format string, args ...any) *Failure {
		return &Failure{Step: StepForwards, Seen: fmt.Sprintf(format, args...), Err: err}
	}
	answer, err := t.connect(p.Target, p.credentials())
	if err != nil {
		return fail(err, "%s", noAnswer("a CONNECT to "+p.Target, err))
	}
	if !answer.opened() {
		refused := fail(nil, "the proxy answered a CONNECT to %s with %q: %s", p.Target, answer.line, meaning(answer.status))
		refused.CredentialsRefused = authenticationFailed(answer.status)
		return refused
	}
	err = t.awaitByte(ctx, p.Target)
	switch {
	case err == nil:
		return nil
	case closed(err):
		return fail(err, "the proxy answered a CONNECT to %s with %q and then closed the tunnel without a byte from the target", p.Target, answer.line)
	case timedOut(err):
		return fail(err, "the proxy answered a CONNECT to %s with %q, but nothing came back through the tunnel in time", p.Target, answer.line)
	default:
		return fail(err, "the proxy answered a CONNECT to %s with %q, but the tunnel broke before a byte came back", p.Target, answer.line)
	}
}

// refusesMetadata wants no byte from the metadata address. A 200 that is
// followed by the end of the connection passes: such a proxy answers before
// it dials.
func (p Probe) refusesMetadata(ctx context.Context, authenticated bool) *Failure {
	t, failure := p.dial(ctx)
	if failure != nil {
		return failure
	}
	defer t.close()
	credentials := ""
	if authenticated {
		credentials = p.credentials()
	}
	answer, err := t.connect(MetadataTarget, credentials)
	switch {
	case err != nil && timedOut(err):
		return &Failure{Step: StepRefusesMetadata, Seen: noAnswer("a CONNECT to "+MetadataTarget, err), Err: err}
	case err != nil || !answer.opened():
		return nil
	}
	err = t.awaitByte(ctx, MetadataTarget)
	switch {
	case err == nil:
		return &Failure{
			Step: StepRefusesMetadata, Final: true,
			Seen: fmt.Sprintf("the metadata service can be reached through the proxy: a CONNECT to %s was answered with %q and brought data back", MetadataTarget, answer.line),
		}
	case timedOut(err):
		return &Failure{
			Step: StepRefusesMetadata, Err: err,
			Seen: fmt.Sprintf("the proxy answered a CONNECT to %s with %q and kept the tunnel open", MetadataTarget, answer.line),
		}
	default:
		return nil
	}
}

// noAnswer says how a request ended that got no answer.
func noAnswer(request string, err error) string {
	switch {
	case timedOut(err):
		return "the proxy did not answer " + request + " in time"
	case closed(err):
		return "the proxy closed the connection without answering " + request
	default:
		return "the proxy did not answer " + request + " in HTTP"
	}
}

func authenticationFailed(status int) bool {
	return status == http.StatusProxyAuthRequired || status == http.StatusUnauthorized
}

// meaning says what a refusal of the target points to.
func meaning(status int) string {
	switch {
	case authenticationFailed(status):
		return "it does not accept the client's credentials"
	case status == http.StatusForbidden:
		return "its policy does not allow the target, or the target's name leads to a private address"
	case status >= 500:
		return "it could not reach the target"
	default:
		return "it does not forward"
	}
}

// closed tells whether the other side ended the connection. One that does so
// while we still write is seen as a reset, or as a broken pipe.
func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func timedOut(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}
