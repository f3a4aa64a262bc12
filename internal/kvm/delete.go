package kvm

import (
	"context"
	"errors"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Delete implements egress.Backend. It removes the domain, its overlay and its
// seed, also those of an instance whose domain is gone already. The base image
// stays for the next instance. A domain that was not made by this provider is
// refused.
func (b *Backend) Delete(ctx context.Context, id egress.ProviderID, uid string) error {
	h, err := b.host(id)
	if err != nil {
		return err
	}
	unlock, err := h.locks.lock(ctx, "instance/"+id.Name)
	if err != nil {
		return h.fault("waiting for other work on instance "+id.Name, err)
	}
	defer unlock()

	dom, err := h.findDomain(ctx, id.Name)
	if errors.Is(err, egress.ErrNotFound) {
		return h.deleteInstanceVolumes(ctx, id.Name, "")
	}
	if err != nil {
		return err
	}
	found, err := h.readDomain(ctx, dom)
	if err != nil {
		return err
	}
	if errors.Is(found.metaErr, errForeign) {
		return &egress.Fault{Kind: egress.ErrPermanent, Doing: "deleting domain " + id.Name, Host: h.name, Cause: found.metaErr,
			Remedy: "Take it out of the state with terraform state rm, or remove the domain with virsh undefine."}
	}
	// Metadata of ours that cannot be read does not say which pool it used:
	// then every pool is searched.
	return b.remove(ctx, h, dom, found.meta, b.shutdownGrace)
}

// remove ends a domain of ours and deletes everything made for it. The guest
// gets grace to shut down by itself; with none it is ended at once.
//
// The definition goes last: as long as anything is left, the domain is there to
// be found, and the next removal goes on from it.
func (b *Backend) remove(ctx context.Context, h *host, dom libvirt.Domain, meta metadata, grace time.Duration) error {
	pool, err := h.poolToClean(ctx, meta.Pool)
	if err != nil {
		return err
	}
	if err := b.stop(ctx, h, dom, meta, grace); err != nil {
		return err
	}
	for _, volume := range []string{overlayName(dom.Name), seedName(dom.Name)} {
		if pool == nil {
			break
		}
		if err := h.deleteVolume(ctx, *pool, volume); err != nil {
			return err
		}
	}
	if err := h.undefine(ctx, dom); err != nil {
		return err
	}
	if meta.Pool == "" {
		return h.deleteInstanceVolumes(ctx, dom.Name, "")
	}
	return nil
}

// poolToClean finds the pool that a domain's volumes are in, nil when there is
// none any more. One that is not active cannot be cleaned: that is an error now,
// before the machine is stopped.
func (h *host) poolToClean(ctx context.Context, name string) (*libvirt.StoragePool, error) {
	if name == "" {
		return nil, nil
	}
	pool, err := h.findPool(ctx, name)
	if errors.Is(err, errNoPool) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &pool.StoragePool, nil
}

// stop ends a domain's QEMU process, whatever state it is in.
func (b *Backend) stop(ctx context.Context, h *host, dom libvirt.Domain, meta metadata, grace time.Duration) error {
	state, err := h.domainState(ctx, dom)
	if errors.Is(err, egress.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if state.State == libvirt.DomainRunning && !meta.Unfinished && grace > 0 {
		off, err := b.shutdown(ctx, h, dom, grace)
		if off || err != nil {
			return err
		}
	}
	if !state.active() {
		return nil
	}
	err = h.do(ctx, "ending domain "+dom.Name, func(lv *libvirt.Libvirt) error { return lv.DomainDestroy(dom) })
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
