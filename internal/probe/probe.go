// Package probe tells whether an egress proxy really forwards, by using it.
//
// A port that is open proves nothing, and neither does a 200 to CONNECT: some
// proxies give it before they dial. So the probe wants a byte back from the
// target, and it wants refusals where they are due: without credentials, and
// for the metadata address of clouds.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// DefaultStepTimeout bounds a step when Probe.StepTimeout is 0. It outlasts
// the ten seconds that the rendered Squid tries to connect.
const DefaultStepTimeout = 15 * time.Second

// MetadataTarget is the destination that every proxy must refuse.
const MetadataTarget = "169.254.169.254:80"

// unresolvable is asked for when no target is known. It never names a host
// (RFC 6761), so an answer other than 407 says that the request got past the
// check of credentials.
const unresolvable = "egressproxy.invalid:443"

// Dialer opens the connections to the proxy. net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Probe is one way of using one proxy.
type Probe struct {
	// Proxy is where the HTTP proxy listens.
	Proxy netip.AddrPort
	// User and Password are a client's credentials; unused by
	// RunWithoutCredentials.
	User     string
	Password egress.Secret
	// Target is the HOST:PORT to be reached through the proxy. On port 80 it
	// is spoken to in HTTP, on any other port in TLS; one byte of any answer
	// is enough. RunWithoutCredentials takes an empty one, too.
	Target string
	// Dialer opens connections; nil means net.Dialer.
	Dialer Dialer
	// StepTimeout bounds each step; 0 means DefaultStepTimeout.
	StepTimeout time.Duration
}

// Step is a part of a probe.
type Step string

// The steps, in their order.
const (
	// StepConnect opens a TCP connection to the proxy.
	StepConnect Step = "connect"
	// StepRefusesAnonymous wants 407 to a CONNECT without credentials.
	StepRefusesAnonymous Step = "refuses-anonymous"
	// StepForwards wants a byte from the target.
	StepForwards Step = "forwards"
	// StepRefusesMetadata wants a CONNECT to MetadataTarget to fail.
	StepRefusesMetadata Step = "refuses-metadata"
)

// Failure is the step that failed and why.
type Failure struct {
	// Step is the first step that failed.
	Step Step
	// Seen says in words what the proxy did instead.
	Seen string
	// Final tells that waiting longer cannot help: the proxy is open to
	// everyone or leads to the metadata service.
	Final bool
	// CredentialsRefused tells that the proxy did not take User and Password.
	CredentialsRefused bool
	// Err is the error below, if there is one.
	Err error
}

// Error gives "probe step STEP: SEEN: ERR".
func (f *Failure) Error() string {
	text := fmt.Sprintf("probe step %s: %s", f.Step, f.Seen)
	if f.Err != nil {
		text += ": " + f.Err.Error()
	}
	return text
}

// Unwrap gives the error below.
func (f *Failure) Unwrap() error { return f.Err }

// Run does all steps. It returns nil or a *Failure.
func (p Probe) Run(ctx context.Context) error {
	if err := checkTarget(p.Target); err != nil {
		return &Failure{Step: StepForwards, Seen: "the target cannot be asked for", Final: true, Err: err}
	}
	for _, step := range []func(context.Context) *Failure{
		p.refusesAnonymous,
		p.forwards,
		func(ctx context.Context) *Failure { return p.refusesMetadata(ctx, true) },
	} {
		if failure := p.bounded(ctx, step); failure != nil {
			return failure
		}
	}
	return nil
}

// RunWithoutCredentials does the steps that need no password: connect, the
// refusal of anonymous requests, the refusal of the metadata address. It
// returns nil or a *Failure.
func (p Probe) RunWithoutCredentials(ctx context.Context) error {
	if p.Target == "" {
		p.Target = unresolvable
	}
	if err := checkTarget(p.Target); err != nil {
		return &Failure{Step: StepRefusesAnonymous, Seen: "the target cannot be asked for", Final: true, Err: err}
	}
	for _, step := range []func(context.Context) *Failure{
		p.refusesAnonymous,
		func(ctx context.Context) *Failure { return p.refusesMetadata(ctx, false) },
	} {
		if failure := p.bounded(ctx, step); failure != nil {
			return failure
		}
	}
	return nil
}

// bounded runs a step under its time-out. A step that ends because ctx did
// says so, whatever its connection reported.
func (p Probe) bounded(ctx context.Context, step func(context.Context) *Failure) *Failure {
	timeout := p.StepTimeout
	if timeout == 0 {
		timeout = DefaultStepTimeout
	}
	stepCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	failure := step(stepCtx)
	if failure != nil && !failure.Final {
		if err := ctx.Err(); err != nil {
			failure.Err = errors.Join(err, failure.Err)
		}
	}
	return failure
}

// checkTarget refuses what would not be one HOST:PORT in a request line.
func checkTarget(target string) error {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return fmt.Errorf("%q is not HOST:PORT: %w", target, err)
	}
	if host == "" || port == "" || strings.ContainsFunc(target, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return fmt.Errorf("%q is not HOST:PORT", target)
	}
	return nil
}
