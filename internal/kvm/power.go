package kvm

import (
	"context"
	"errors"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// stop ends a domain's QEMU process, whatever state it is in. The guest of one
// that runs gets grace to shut down by itself.
func (b *Backend) stop(ctx context.Context, h *host, dom libvirt.Domain, state domainState, grace time.Duration) error {
	if state.State == libvirt.DomainRunning && grace > 0 {
		off, err := b.shutdown(ctx, h, dom, grace)
		if off || err != nil {
			return err
		}
	}
	if !state.active() {
		return nil
	}
	err := h.do(ctx, "ending domain "+dom.Name, func(lv *libvirt.Libvirt) error { return lv.DomainDestroy(dom) })
	// OperationInvalid: it stopped by itself in the meantime.
	if isCode(err, libvirt.ErrOperationInvalid, libvirt.ErrNoDomain) {
		return nil
	}
	return err
}

// shutdown presses the ACPI power button and waits for the guest to power off;
// a guest may well not listen, so after grace it reports false.
func (b *Backend) shutdown(ctx context.Context, h *host, dom libvirt.Domain, grace time.Duration) (off bool, err error) {
	doing := "shutting down domain " + dom.Name
	err = h.do(ctx, doing, func(lv *libvirt.Libvirt) error {
		return lv.DomainShutdownFlags(dom, libvirt.DomainShutdownAcpiPowerBtn)
	})
	if _, daemonSaid := codeOf(err); daemonSaid {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	tick := time.NewTicker(b.pollInterval)
	defer tick.Stop()
	for {
		state, err := h.domainState(ctx, dom)
		if errors.Is(err, egress.ErrNotFound) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if !state.active() {
			return true, nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return false, nil
		case <-ctx.Done():
			return false, h.fault(doing, ctx.Err())
		}
	}
}

// undefine removes the domain's definition with everything libvirt keeps
// beside it. Older daemons refuse flags they do not know, so the newest are
// left out until the daemon agrees.
func (h *host) undefine(ctx context.Context, dom libvirt.Domain) error {
	doing := "undefining domain " + dom.Name
	var err error
	for _, flags := range undefineFlags {
		err = h.do(ctx, doing, func(lv *libvirt.Libvirt) error { return lv.DomainUndefineFlags(dom, flags) })
		if !isCode(err, libvirt.ErrInvalidArg, libvirt.ErrNoSupport, libvirt.ErrArgumentUnsupported) {
			break
		}
	}
	if isCode(err, libvirt.ErrNoDomain) {
		return nil
	}
	return err
}

// undefineFlags are the flags to try, from what libvirt 8.9 knows down to what
// 1.2.9 knows.
var undefineFlags = []libvirt.DomainUndefineFlagsValues{
	libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata | libvirt.DomainUndefineNvram |
		libvirt.DomainUndefineCheckpointsMetadata | libvirt.DomainUndefineTpm,
	libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata | libvirt.DomainUndefineNvram |
		libvirt.DomainUndefineCheckpointsMetadata,
	libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata | libvirt.DomainUndefineNvram,
	libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata,
}
