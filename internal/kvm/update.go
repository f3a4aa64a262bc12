package kvm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Update implements egress.Backend. Sizes, CPU mode, console log and description
// are changed by redefining the domain over its existing definition, of which
// everything else stays as it is; a machine that runs is restarted where that
// takes it. A missing seed is made again, a disk grows while the machine runs.
// The machine is then started or stopped as it is wanted, and once it is to run
// it has to forward before the update counts.
//
// A machine that others made becomes ours by its first update: it is not
// configured, and has to forward as spec says already.
func (b *Backend) Update(ctx context.Context, id egress.ProviderID, spec egress.Spec) (egress.Instance, error) {
	h, err := b.host(id)
	if err != nil {
		return egress.Instance{}, err
	}
	unlock, err := h.locks.lock(ctx, "instance/"+id.Name)
	if err != nil {
		return egress.Instance{}, h.fault("waiting for other work on instance "+id.Name, err)
	}
	defer unlock()

	dom, err := h.findDomain(ctx, id.Name)
	if err != nil {
		return egress.Instance{}, err
	}
	if spec.UID != "" && uuidOf(dom) != spec.UID {
		return egress.Instance{}, &egress.Fault{Kind: egress.ErrNotFound, Doing: "updating instance " + id.Name, Host: h.name,
			Cause:  fmt.Errorf("the domain of this name is another one now: its UUID is %s, not %s", uuidOf(dom), spec.UID),
			Remedy: "Plan again."}
	}
	if err := b.update(ctx, h, dom, spec); err != nil {
		return b.whatExists(ctx, h, id, uuidOf(dom)), err
	}
	instance, err := b.inspect(ctx, h, id)
	if err != nil {
		return b.whatExists(ctx, h, id, uuidOf(dom)), err
	}
	instance.Ready = !spec.Stopped
	return instance, nil
}

func (b *Backend) update(ctx context.Context, h *host, dom libvirt.Domain, spec egress.Spec) error {
	found, err := h.readDomain(ctx, dom)
	if err != nil {
		return err
	}
	if found.metaErr != nil && !errors.Is(found.metaErr, errForeign) {
		return h.unreadable("updating domain "+dom.Name, found.metaErr)
	}
	seen, err := h.observeMachine(ctx, dom, found)
	if err != nil {
		return err
	}
	if slices.Contains(seen.missing, missingSeed) {
		if err := h.remakeSeed(ctx, seen, spec); err != nil {
			return err
		}
	}
	grew, err := b.growTo(ctx, h, dom, seen, spec)
	if err != nil {
		return err
	}
	redefined, err := b.redefine(ctx, h, dom, &seen, changeTo(seen.domain, spec))
	if err != nil {
		return err
	}
	if seen.autostart != spec.KVM.Autostart {
		if err := h.setAutostart(ctx, dom, spec.KVM.Autostart); err != nil {
			return err
		}
	}
	if err := b.bringTo(ctx, h, dom, seen, redefined, spec); err != nil {
		return err
	}
	if grew && seen.state.State == libvirt.DomainRunning && !redefined && !spec.Stopped {
		b.growFileSystem(ctx, h, dom)
	}
	return h.storeUpdated(ctx, dom, seen.domain, spec)
}

// bringTo brings the machine to run, or not to, as it is wanted. It waits for
// its proxy where it was started, and where nothing vouches for it yet.
func (b *Backend) bringTo(ctx context.Context, h *host, dom libvirt.Domain, seen observation, redefined bool, spec egress.Spec) error {
	if spec.Stopped {
		return b.stop(ctx, h, dom, seen.state, b.shutdownGrace)
	}
	from := launch{state: seen.state, afresh: redefined}
	unproven := seen.meta.Unfinished || seen.meta.ConfigHash != spec.ConfigHash()
	if from.state.instanceState(false) != egress.Stopped && !unproven {
		return nil
	}
	_, err := b.startAndAwait(ctx, h, dom, seen.domain, from, spec)
	return err
}

// changeTo tells what of a definition has to change for spec.
func changeTo(d domain, spec egress.Spec) domainChange {
	is := readMachine(d.Domain, nil)
	var change domainChange
	if spec.KVM.MemoryMiB != is.MemoryMiB {
		change.MemoryMiB = spec.KVM.MemoryMiB
	}
	if spec.KVM.VCPUs != is.VCPUs {
		change.VCPUs = spec.KVM.VCPUs
	}
	if spec.KVM.CPUMode != is.CPUMode {
		change.CPUMode = spec.KVM.CPUMode
	}
	if spec.KVM.ConsoleLog != is.ConsoleLog {
		change.ConsoleLog = &spec.KVM.ConsoleLog
	}
	if spec.Description != readDescription(d.Domain) {
		change.Description = &spec.Description
	}
	return change
}

// redefine changes a domain's persistent definition. It tells whether the machine
// has to be started afresh for that; one that ran is shut off then. It is stopped
// before its definition changes: a run that ends in between leaves a machine that
// is seen to be off, and not one that goes on as it was under a definition that
// says otherwise.
func (b *Backend) redefine(ctx context.Context, h *host, dom libvirt.Domain, seen *observation, change domainChange) (restart bool, err error) {
	if change == (domainChange{}) {
		return false, nil
	}
	doing := "redefining domain " + dom.Name
	// With its secrets, such as a display's password: without them they would
	// be lost.
	text, err := read(ctx, h, "reading the definition of domain "+dom.Name, func(lv *libvirt.Libvirt) (string, error) {
		return lv.DomainGetXMLDesc(dom, libvirt.DomainXMLInactive|libvirt.DomainXMLSecure)
	})
	if err != nil {
		return false, err
	}
	edited, err := editDomain(text, change)
	if err != nil {
		return false, h.fault(doing, err)
	}
	change.Description = nil
	restart = change != (domainChange{})
	ran := restart && seen.state.active()
	if ran {
		if err := b.stop(ctx, h, dom, seen.state, b.shutdownGrace); err != nil {
			return false, err
		}
		seen.state = domainState{State: libvirt.DomainShutoff}
	}
	// Not validated against the schema: what a person put there was accepted
	// once.
	_, err = write(ctx, h, doing, func(lv *libvirt.Libvirt) (libvirt.Domain, error) { return lv.DomainDefineXML(edited) })
	if _, refused := codeOf(err); refused && ran {
		// As it was before, as far as that can be had.
		return false, errors.Join(err, h.startDomain(ctx, dom, false))
	}
	return restart, err
}

// growTo makes the root disk as large as spec wants it. It never shrinks.
func (b *Backend) growTo(ctx context.Context, h *host, dom libvirt.Domain, seen observation, spec egress.Spec) (grew bool, err error) {
	root, ok := rootDisk(seen.Domain)
	if !ok || seen.diskGiB == 0 || spec.KVM.DiskGiB <= seen.diskGiB {
		return false, nil
	}
	return true, h.growDisk(ctx, dom, seen.state.active(), root, uint64(spec.KVM.DiskGiB)<<30)
}

// growFileSystem has the guest use the new size of its disk at once, by the same
// parts of cloud-init that do so on every boot. A guest that cannot grows it on
// its next boot.
func (b *Backend) growFileSystem(ctx context.Context, h *host, dom libvirt.Domain) {
	for _, module := range []string{"growpart", "resizefs"} {
		if _, err := h.runOnGuest(ctx, dom, b.pollInterval, "cloud-init", "single", "--name", module, "--frequency", "always"); err != nil {
			return
		}
	}
}

// remakeSeed makes the volume of a seed that is gone. Without it the machine
// would not start again; one that was configured already does not read it.
func (h *host) remakeSeed(ctx context.Context, seen observation, spec egress.Spec) error {
	pool, err := h.findPool(ctx, seen.meta.Pool)
	if err != nil {
		return err
	}
	macs := make([]string, 0, len(spec.KVM.Interfaces))
	for _, n := range nicsOf(seen.domain) {
		macs = append(macs, n.mac)
	}
	content, err := seedISO(spec, macs)
	if err != nil {
		return h.fault("building the seed of instance "+seen.Name, err)
	}
	_, err = h.createSeed(ctx, pool.StoragePool, seen.meta.Volumes.Seed, content)
	return err
}

// storeUpdated keeps on the domain what spec says and its definition does not.
func (h *host) storeUpdated(ctx context.Context, dom libvirt.Domain, found domain, spec egress.Spec) error {
	meta := updatedMetadata(found.meta, found.metaErr != nil, spec)
	before, err := found.meta.encode()
	if err != nil {
		return h.fault("describing instance "+dom.Name, err)
	}
	after, err := meta.encode()
	if err != nil || (after == before && found.metaErr == nil) {
		return h.fault("describing instance "+dom.Name, err)
	}
	return h.setMetadata(ctx, dom, meta)
}

// updatedMetadata gives the metadata after an update. What configures the
// machine is taken over only where it was not known: a change of it is a
// replacement.
func updatedMetadata(meta metadata, foreign bool, spec egress.Spec) metadata {
	meta.Unfinished, meta.Beat = false, ""
	meta.Adopted = meta.Adopted || foreign
	meta.Tags, meta.HealthCheck = spec.Tags, spec.HealthCheck
	if meta.ConfigHash == "" {
		meta.ConfigHash, meta.Proxy, meta.UserDataVersion = spec.ConfigHash(), spec.Proxy, spec.UserDataVersion
	}
	if meta.Image == (imageIdentity{}) {
		meta.Image = imageIdentity{Name: spec.KVM.Image.Name, SHA256: spec.KVM.Image.SHA256, Volume: spec.KVM.Image.Volume()}
	}
	return meta
}
