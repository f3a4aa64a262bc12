package kvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/probe"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/proxy"
)

// launch is how a machine is brought up.
type launch struct {
	// state is what it was found in.
	state domainState
	// afresh boots a machine that is off whatever it was saved as.
	afresh bool
}

// startAndAwait starts the machine unless it runs, and waits until it has an
// address and its proxy forwards. A machine that dies in the meantime ends the
// wait at once. It returns the addresses, the one that answered first.
func (b *Backend) startAndAwait(ctx context.Context, h *host, dom libvirt.Domain, defined domain, from launch, spec egress.Spec) ([]netip.Addr, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	output := &console{panicked: func(line string) { cancel(&deathError{cause: "the guest's kernel panicked: " + line}) }}
	started, done := make(chan struct{}), make(chan struct{})
	consoleEnd := h.followConsole(ctx, dom, output, started)
	watchEnd := make(chan struct{})
	defer func() { // leave no goroutine behind, nor a call half done
		close(done)
		<-watchEnd
		cancel(nil)
		<-consoleEnd
	}()

	if err := b.bringUp(ctx, h, dom, from); err != nil {
		close(watchEnd)
		return nil, withConsole(err, output)
	}
	close(started)
	go func() {
		defer close(watchEnd)
		if death := b.watch(ctx, h, dom, done); death != nil {
			waitBriefly(consoleEnd) // for its last words
			cancel(death)
		}
	}()

	addresses, err := b.awaitReady(ctx, h, dom, nicsOf(defined), spec)
	var death *deathError
	if err != nil && errors.As(context.Cause(ctx), &death) {
		err = &egress.Fault{Kind: egress.ErrPermanent, Doing: "waiting for instance " + dom.Name + " to become ready", Host: h.name,
			Cause: death, Remedy: remedyFor(death)}
	}
	return addresses, withConsole(err, output)
}

// deathError says how a machine ended while it was waited for.
type deathError struct{ cause string }

func (d *deathError) Error() string { return d.cause }

// withConsole adds what the guest said last to an error.
func withConsole(err error, output *console) error {
	var fault *egress.Fault
	if errors.As(err, &fault) {
		fault.Console = output.tail()
	}
	return err
}

// waitBriefly waits for done, but not for long.
func waitBriefly(done <-chan struct{}) {
	timer := time.NewTimer(500 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// bringUp makes the machine run, whatever state it is in.
func (b *Backend) bringUp(ctx context.Context, h *host, dom libvirt.Domain, from launch) error {
	switch state := from.state; {
	case state.State == libvirt.DomainShutoff:
		return h.startDomain(ctx, dom, from.afresh)
	case state.State == libvirt.DomainPmsuspended:
		return h.do(ctx, "waking domain "+dom.Name, func(lv *libvirt.Libvirt) error { return lv.DomainPmWakeup(dom, 0) })
	case state.dead() || state.State == libvirt.DomainShutdown:
		// What an error paused or crashed does not come back by a resume.
		if err := b.stop(ctx, h, dom, state, 0); err != nil {
			return err
		}
		return h.startDomain(ctx, dom, from.afresh)
	case state.State == libvirt.DomainPaused:
		err := h.do(ctx, "resuming domain "+dom.Name, func(lv *libvirt.Libvirt) error { return lv.DomainResume(dom) })
		if isCode(err, libvirt.ErrOperationInvalid) {
			// It was seen in the moment before its start was through, or
			// somebody else was faster.
			if now, stateErr := h.domainState(ctx, dom); stateErr == nil && now.State == libvirt.DomainRunning {
				return nil
			}
		}
		return err
	}
	return nil
}

// watch looks at the machine until done is closed or ctx ends, and returns how
// it died if it does. A host that cannot be asked for a while proves nothing.
func (b *Backend) watch(ctx context.Context, h *host, dom libvirt.Domain, done <-chan struct{}) *deathError {
	tick := time.NewTicker(b.pollInterval)
	defer tick.Stop()
	for {
		state, err := h.domainState(ctx, dom)
		switch {
		case errors.Is(err, egress.ErrNotFound):
			return &deathError{cause: "the domain was removed while it was waited for"}
		case err == nil && state.dead():
			return &deathError{cause: "the machine is " + state.String()}
		}
		select {
		case <-tick.C:
		case <-done:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// awaitReady looks for an address and probes the proxy there, again and again,
// until the proxy forwards or ctx ends. When it fails it says which step was
// the last to fail and what was seen.
func (b *Backend) awaitReady(ctx context.Context, h *host, dom libvirt.Domain, nics []nic, spec egress.Spec) ([]netip.Addr, error) {
	tick := time.NewTicker(cmp.Or(spec.HealthCheck.Interval, time.Second))
	defer tick.Stop()
	seen := errors.New("it was not looked at yet")
	var addresses []netip.Addr
	otherwise := b.now() // when it was last more than the password that was wrong
	for {
		found, err := b.look(ctx, h, dom, nics, spec)
		if ctx.Err() == nil { // else the look was cut short
			addresses, seen = found, err
			var failure *probe.Failure
			refused := errors.As(seen, &failure) && failure.CredentialsRefused
			if !refused {
				otherwise = b.now()
			}
			switch {
			case seen == nil:
				return addresses, nil
			case refused && b.now().Sub(otherwise) > b.passwordPatience:
				return addresses, passwordRefused(h, dom, seen)
			case failure != nil && failure.Final:
				return addresses, notReady(h, dom, seen, egress.ErrPermanent)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return addresses, notReady(h, dom, fmt.Errorf("%w; last seen: %w", context.Cause(ctx), seen), egress.ErrTransient)
		}
	}
}

// look finds the addresses and probes the proxy there, once. It returns them,
// the one that answered first, or says what is not as it must be.
func (b *Backend) look(ctx context.Context, h *host, dom libvirt.Domain, nics []nic, spec egress.Spec) ([]netip.Addr, error) {
	report, err := h.addresses(ctx, dom, nics)
	if err != nil {
		return nil, err
	}
	if len(report.found) == 0 {
		return nil, fmt.Errorf("it has no address (%s)", strings.Join(report.silent, "; "))
	}
	answered, err := b.checkAll(ctx, report.found, spec)
	if err != nil {
		return report.found, err
	}
	return first(report.found, answered), nil
}

// checkAll probes every address, since one may be of a lease that outlived
// another machine. It returns the index of the first that passes, or what was
// seen at the first that did not.
func (b *Backend) checkAll(ctx context.Context, addresses []netip.Addr, spec egress.Spec) (answered int, seen error) {
	for i, addr := range addresses {
		err := b.check(ctx, addr, spec)
		if err == nil {
			return i, nil
		}
		var failure *probe.Failure
		if errors.As(err, &failure) && failure.Final {
			return 0, err
		}
		// A proxy that refuses a password says more than an address that is dead.
		if seen == nil || (failure != nil && failure.CredentialsRefused) {
			seen = err
		}
	}
	return 0, seen
}

// first puts the address at i before the others.
func first(addresses []netip.Addr, i int) []netip.Addr {
	return append([]netip.Addr{addresses[i]}, slices.Delete(slices.Clone(addresses), i, i+1)...)
}

// passwordRefused says what to do about a proxy that is up and takes another
// password than the one at hand.
func passwordRefused(h *host, dom libvirt.Domain, seen error) error {
	return &egress.Fault{Kind: egress.ErrPermanent, Doing: "waiting for instance " + dom.Name + " to become ready", Host: h.name, Cause: seen,
		Attribute: "proxy.clients",
		Remedy: "The machine has the password it was made with. If another one is given now, change password_wo_version too: that replaces the instance " +
			"with one that has the new password."}
}

func notReady(h *host, dom libvirt.Domain, seen error, kind error) error {
	return &egress.Fault{Kind: kind, Doing: "waiting for instance " + dom.Name + " to become ready", Host: h.name, Cause: seen,
		Remedy: "The machine is kept for you to look at; the next apply replaces it. Its console shows how far it came: virsh console " + dom.Name + "."}
}

// check probes the proxy at addr, if there is one to probe from here.
func (b *Backend) check(ctx context.Context, addr netip.Addr, spec egress.Spec) error {
	if spec.Proxy == nil || spec.HealthCheck.From == egress.FromNone {
		return nil
	}
	user, ok := proxy.TargetClient(*spec.Proxy, spec.HealthCheck.Target)
	if !ok {
		return fmt.Errorf("no client may reach health_check.target %q", spec.HealthCheck.Target)
	}
	p := probe.Probe{
		Proxy:    netip.AddrPortFrom(addr, uint16(spec.Proxy.HTTPPort)),
		User:     user,
		Password: spec.Proxy.Clients[user].Password,
		Target:   spec.HealthCheck.Target,
	}
	if p.Password.IsZero() {
		// An instance that was imported and whose configuration gives no
		// password: what can be known without one must do.
		return p.RunWithoutCredentials(ctx)
	}
	return b.probe(ctx, p)
}
