package kvm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Create implements egress.Backend.
//
// The machine's name is taken first, by a domain without disks that is marked as
// unfinished: whatever is made afterwards belongs to a domain that the next run
// finds, wherever this one stops.
func (b *Backend) Create(ctx context.Context, spec egress.Spec) (egress.Instance, error) {
	h, err := b.host(spec.ID)
	if err != nil {
		return egress.Instance{}, err
	}
	if err := ValidateName(spec.ID.Name); err != nil {
		return egress.Instance{}, &egress.Fault{Kind: egress.ErrPermanent, Doing: "checking the instance's name", Host: h.name, Cause: err, Attribute: "name"}
	}
	unlock, err := h.locks.lock(ctx, "instance/"+spec.ID.Name)
	if err != nil {
		return egress.Instance{}, h.fault("waiting for other work on instance "+spec.ID.Name, err)
	}
	defer unlock()

	if leftover, err := b.clearTheWay(ctx, h, spec.ID); err != nil {
		return leftover, err
	}
	c, err := b.prepare(ctx, h, spec)
	if err != nil {
		return egress.Instance{}, err
	}
	dom, claimed, err := b.claim(ctx, h, c)
	if err != nil {
		if !claimed {
			return egress.Instance{}, err
		}
		return b.whatExists(ctx, h, spec.ID, c.machine.UUID), err
	}
	return b.complete(ctx, h, dom, c)
}

// clearTheWay makes sure that no domain has the instance's name. One of ours
// that is unfinished is what a run left that was killed: it goes, unless its run
// is alive. When that fails, the leftover is returned.
//
// It is not continued: whether its seed holds today's passwords cannot be known,
// and nothing depends on it yet. The base image stays.
func (b *Backend) clearTheWay(ctx context.Context, h *host, id egress.ProviderID) (egress.Instance, error) {
	dom, err := h.findDomain(ctx, id.Name)
	if errors.Is(err, egress.ErrNotFound) {
		return egress.Instance{}, nil
	}
	if err != nil {
		return egress.Instance{}, err
	}
	found, err := h.readDomain(ctx, dom)
	if err != nil {
		return egress.Instance{}, err
	}
	if found.metaErr != nil || !found.meta.Unfinished {
		return egress.Instance{}, alreadyExists(h, id, found.metaErr)
	}
	alive, err := b.isBeingMade(ctx, h, dom, found.meta)
	if err != nil {
		return egress.Instance{}, err
	}
	if alive {
		return egress.Instance{}, &egress.Fault{Kind: egress.ErrAlreadyExists, Doing: "creating instance " + id.Name, Host: h.name, Attribute: "name",
			Cause: fmt.Errorf("another run is creating an instance %s at this moment", id.Name),
			Remedy: "If it is the same configuration, let that run end, then plan again. If it is another one, choose another name: " +
				"a name can be used once on a host."}
	}
	if err := b.remove(ctx, h, dom, found, removal{}); err != nil {
		return b.whatExists(ctx, h, id, uuidOf(dom)), err
	}
	return egress.Instance{}, nil
}

// alreadyExists says what is in the way of a new instance.
func alreadyExists(h *host, id egress.ProviderID, foreign error) error {
	cause := fmt.Errorf("domain %s exists already and is a finished instance", id.Name)
	remedy := "If it is yours and not in any Terraform state, adopt it with: terraform import ADDRESS " + id.String() + ". Otherwise choose another name."
	if foreign != nil {
		cause = fmt.Errorf("domain %s exists already and was not made by this provider", id.Name)
		remedy = "Adopt it with terraform import ADDRESS " + id.String() + ", choose another name, or rename or remove that domain."
	}
	return &egress.Fault{Kind: egress.ErrAlreadyExists, Doing: "creating instance " + id.Name, Host: h.name, Cause: cause, Remedy: remedy, Attribute: "name"}
}

// creation is an instance about to be made: all that was found out before its
// first trace.
type creation struct {
	spec    egress.Spec
	pool    storagePool
	base    baseImage
	meta    metadata
	machine machine
	seed    []byte
}

// prepare finds out everything that can be refused, and has the base image
// ready. Nothing of the instance itself is made.
func (b *Backend) prepare(ctx context.Context, h *host, spec egress.Spec) (creation, error) {
	own := *spec.KVM // a list of checksums may have to complete it
	spec.KVM = &own
	macs := InterfaceMACs(h.name, spec.ID.Name, spec.KVM.Interfaces)
	var c creation
	var err error
	if c.seed, err = seedISO(spec, macs); err != nil {
		return creation{}, h.fault("building the seed of instance "+spec.ID.Name, err)
	}
	if c.pool, err = h.findPool(ctx, spec.KVM.Pool); err != nil {
		return creation{}, err
	}
	if err := h.checkPoolKind(ctx, c.pool.StoragePool); err != nil {
		return creation{}, err
	}
	if err := h.checkNetworks(ctx, spec.KVM.Interfaces); err != nil {
		return creation{}, err
	}
	target, err := h.choosePlatform(ctx, spec)
	if err != nil {
		return creation{}, err
	}
	if spec.KVM.Image, err = h.resolveImage(ctx, spec.KVM.Image); err != nil {
		return creation{}, err
	}
	c.spec = spec
	c.machine = machine{Name: spec.ID.Name, UUID: newUUID(), Description: spec.Description, Spec: *spec.KVM, Platform: target, MACs: macs}
	caps, err := h.capabilities(ctx)
	if err != nil {
		return creation{}, err
	}
	c.meta = newMetadata(spec, namesFor(spec.ID.Name, caps.Host.UUID, c.machine.UUID), b.now())
	if _, err := c.meta.encode(); err != nil { // before the download
		return creation{}, h.fault("describing instance "+spec.ID.Name, err)
	}
	c.base, err = h.ensureBase(ctx, c.pool, spec.KVM.Image, func(capacity uint64) error { return checkDiskSize(h, spec, capacity) })
	if err != nil {
		return creation{}, err
	}
	c.machine.MetadataXML, err = c.meta.encode()
	return c, h.fault("describing instance "+spec.ID.Name, err)
}

// claim takes the instance's name. libvirt defines no second domain of a name,
// so of two runs one gets it. claimed tells, beside an error, whether the domain
// may be there all the same.
func (b *Backend) claim(ctx context.Context, h *host, c creation) (dom libvirt.Domain, claimed bool, err error) {
	doing := "claiming the name " + c.machine.Name
	definition, err := placeholderXML(c.machine)
	if err != nil {
		return libvirt.Domain{}, false, h.fault(doing, err)
	}
	dom, err = h.defineDomain(ctx, doing, definition)
	if err == nil {
		return dom, true, nil
	}
	// An answer that was lost may have been a yes, or become one.
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	found, findErr := h.findDomain(cleanup, c.machine.Name)
	switch {
	case errors.Is(findErr, egress.ErrNotFound):
		return libvirt.Domain{}, isUnanswered(err), err
	case findErr != nil:
		return libvirt.Domain{}, true, err
	case uuidOf(found) == c.machine.UUID:
		return found, true, nil
	}
	if other, readErr := h.readDomain(cleanup, found); readErr == nil {
		return libvirt.Domain{}, false, alreadyExists(h, c.spec.ID, other.metaErr)
	}
	return libvirt.Domain{}, false, err
}

// complete turns a claimed name into a machine whose proxy forwards. Until it is
// started, what the daemon refuses has everything taken back; from then on it is
// kept to be looked at. So it is after a call without an answer: a daemon ends
// what it has begun for a client that is gone, and would make what was just taken
// back.
func (b *Backend) complete(ctx context.Context, h *host, dom libvirt.Domain, c creation) (egress.Instance, error) {
	ctx, stopBeating := b.keepBeating(ctx, h, dom, c.meta)
	defer stopBeating()
	err := b.furnish(ctx, h, dom, c)
	if err != nil {
		stopBeating()
		if isUnanswered(err) || !b.takeBack(ctx, h, dom) {
			return b.whatExists(ctx, h, c.spec.ID, c.machine.UUID), takenAwayOr(ctx, h, dom, err)
		}
		return egress.Instance{}, takenAwayOr(ctx, h, dom, err)
	}
	instance, err := b.finish(ctx, h, dom, c, stopBeating)
	if err != nil {
		stopBeating()
		return b.whatExists(ctx, h, c.spec.ID, c.machine.UUID), takenAwayOr(ctx, h, dom, err)
	}
	return instance, nil
}

// takenAwayOr gives the reason why ctx ended, where that was the domain's
// removal by others, and otherwise err.
func takenAwayOr(ctx context.Context, h *host, dom libvirt.Domain, err error) error {
	if !errors.Is(context.Cause(ctx), errTakenAway) {
		return err
	}
	return &egress.Fault{Kind: egress.ErrAlreadyExists, Doing: "creating instance " + dom.Name, Host: h.name, Cause: errTakenAway, Attribute: "name",
		Remedy: "Two configurations may use the same name on this host: see who has it now, and choose another name for one of them."}
}

// removeLeftovers deletes volumes that earlier machines of the name have left in
// the pool, as when somebody undefines a domain by hand. The name is claimed, so
// they are nobody's; those that some other domain uses stay.
func (h *host) removeLeftovers(ctx context.Context, c creation) error {
	caps, err := h.capabilities(ctx)
	if err != nil {
		return err
	}
	volumes, err := h.listVolumes(ctx, c.pool.StoragePool, volumePrefix+c.machine.Name+"-")
	if err != nil {
		return err
	}
	for _, vol := range volumes {
		if !isVolumeOf(c.machine.Name, caps.Host.UUID, vol.Name) {
			continue
		}
		if err := h.deleteUnusedVolume(ctx, c.pool.StoragePool, vol.Name); err != nil && !errors.Is(err, errInUse) {
			return err
		}
	}
	return nil
}

// furnish makes the volumes, defines the domain with them, and says whether it
// starts with its host.
func (b *Backend) furnish(ctx context.Context, h *host, dom libvirt.Domain, c creation) error {
	m := c.machine
	err := h.removeLeftovers(ctx, c)
	if err != nil {
		return err
	}
	if m.Overlay, err = h.createOverlay(ctx, c.pool, c.meta.Volumes.Root, c.spec, c.base); err != nil {
		return err
	}
	if m.Seed, err = h.createSeed(ctx, c.pool.StoragePool, c.meta.Volumes.Seed, c.seed); err != nil {
		return err
	}
	doing := "defining domain " + m.Name
	definition, err := domainXML(m)
	if err != nil {
		return h.fault(doing, err)
	}
	if _, err := h.defineDomain(ctx, doing, definition); err != nil {
		return err
	}
	if !c.spec.KVM.Autostart {
		return nil
	}
	return h.setAutostart(ctx, dom, true)
}

// takeBack removes what was made of an instance that was never started. It
// tells whether nothing is left.
func (b *Backend) takeBack(ctx context.Context, h *host, dom libvirt.Domain) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	found, err := h.readDomain(ctx, dom)
	if errors.Is(err, egress.ErrNotFound) { // another run took it away, volumes first
		return true
	}
	return err == nil && b.remove(ctx, h, dom, found, removal{}) == nil
}

// finish starts the machine, waits until its proxy forwards, and clears the
// unfinished mark.
func (b *Backend) finish(ctx context.Context, h *host, dom libvirt.Domain, c creation, stopBeating func()) (egress.Instance, error) {
	made, err := h.readDomain(ctx, dom)
	if err != nil {
		return egress.Instance{}, err
	}
	state := domainState{State: libvirt.DomainShutoff}
	var addresses []netip.Addr
	if !c.spec.Stopped {
		if addresses, err = b.startAndAwait(ctx, h, dom, made, launch{state: state}, c.spec); err != nil {
			return egress.Instance{}, err
		}
		state.State = libvirt.DomainRunning
	}
	stopBeating()
	made.meta = c.meta
	made.meta.Unfinished = false
	if err := h.setMetadata(ctx, dom, made.meta); err != nil {
		return egress.Instance{}, err
	}
	instance := describe(c.spec.ID, observation{domain: made, state: state, autostart: c.spec.KVM.Autostart, diskGiB: c.spec.KVM.DiskGiB})
	instance.Addresses = addresses
	instance.Ready = !c.spec.Stopped
	return instance, nil
}

// whatExists describes an instance after a failure, in a time of its own, so
// that what was made is known even when the failure was a time-out. What
// cannot be read is left out; the ID is always there.
func (b *Backend) whatExists(ctx context.Context, h *host, id egress.ProviderID, uuid string) egress.Instance {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	instance, err := b.inspect(ctx, h, id)
	if err != nil || instance.UID != uuid {
		return egress.Instance{ID: id, UID: uuid, State: egress.Provisioning, Unfinished: true, KVM: &egress.KVMInstance{UUID: uuid}}
	}
	return instance
}
