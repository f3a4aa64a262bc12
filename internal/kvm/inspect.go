package kvm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Get implements egress.Backend. A domain that was not made by this provider
// is described as far as its own definition tells.
func (b *Backend) Get(ctx context.Context, id egress.ProviderID) (egress.Instance, error) {
	h, err := b.host(id)
	if err != nil {
		return egress.Instance{}, err
	}
	return b.inspect(ctx, h, id)
}

// List implements egress.Backend, over all hosts.
func (b *Backend) List(ctx context.Context, tags egress.Tags) ([]egress.Instance, error) {
	names := slices.Sorted(maps.Keys(b.hosts))
	found := make([][]egress.Instance, len(names))
	errs := make([]error, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { found[i], errs[i] = b.listHost(ctx, b.hosts[name], tags) })
	}
	group.Wait()
	return slices.Concat(found...), errors.Join(errs...)
}

func (b *Backend) listHost(ctx context.Context, h *host, tags egress.Tags) ([]egress.Instance, error) {
	domains, err := h.listDomains(ctx)
	if err != nil {
		return nil, err
	}
	var out []egress.Instance
	for _, dom := range domains {
		id := egress.ProviderID{Backend: egress.KVM, Location: h.name, Name: dom.Name}
		instance, err := b.inspectOwn(ctx, h, id, dom, tags)
		switch {
		case errors.Is(err, errNotWanted), errors.Is(err, egress.ErrNotFound): // somebody removed it meanwhile
			continue
		case err != nil:
			return nil, err
		}
		out = append(out, instance)
	}
	slices.SortFunc(out, func(a, b egress.Instance) int { return strings.Compare(a.ID.Name, b.ID.Name) })
	return out, nil
}

// errNotWanted keeps a domain out of a list.
var errNotWanted = errors.New("not one of ours with these tags")

// inspectOwn reads a domain if it is one of ours that carries tags.
func (b *Backend) inspectOwn(ctx context.Context, h *host, id egress.ProviderID, dom libvirt.Domain, tags egress.Tags) (egress.Instance, error) {
	found, err := h.readDomain(ctx, dom)
	if err != nil {
		return egress.Instance{}, err
	}
	if found.metaErr != nil || !found.meta.Tags.Contains(tags) {
		return egress.Instance{}, errNotWanted
	}
	return b.inspectDomain(ctx, h, id, dom, found)
}

// inspect reads the instance as the host has it.
func (b *Backend) inspect(ctx context.Context, h *host, id egress.ProviderID) (egress.Instance, error) {
	dom, err := h.findDomain(ctx, id.Name)
	if err != nil {
		return egress.Instance{}, err
	}
	found, err := h.readDomain(ctx, dom)
	if err != nil {
		return egress.Instance{}, err
	}
	return b.inspectDomain(ctx, h, id, dom, found)
}

// inspectDomain completes a definition by what only the daemon knows.
func (b *Backend) inspectDomain(ctx context.Context, h *host, id egress.ProviderID, dom libvirt.Domain, found domain) (egress.Instance, error) {
	if found.metaErr != nil && !errors.Is(found.metaErr, errForeign) {
		return egress.Instance{}, h.unreadable("reading the metadata of domain "+dom.Name, found.metaErr)
	}
	seen, err := h.observeMachine(ctx, dom, found)
	if err != nil {
		return egress.Instance{}, err
	}
	instance := describe(id, seen)
	if seen.state.State == libvirt.DomainRunning {
		report, err := h.addresses(ctx, dom, nicsOf(found))
		if err != nil {
			return egress.Instance{}, err
		}
		instance.Addresses = report.found
	}
	return instance, nil
}

// observation is what was found out about a domain.
type observation struct {
	domain
	state     domainState
	autostart bool
	// diskGiB is the root disk's size in whole GiB, 0 when not known.
	diskGiB int
	// pool is the root disk's; empty when it is in none.
	pool string
	// missing is KVMInstance.MissingVolumes.
	missing []string
}

// observeMachine finds out what a definition does not tell.
func (h *host) observeMachine(ctx context.Context, dom libvirt.Domain, found domain) (observation, error) {
	seen := observation{domain: found, pool: found.meta.Pool}
	var err error
	if seen.state, err = h.domainState(ctx, dom); err != nil {
		return observation{}, err
	}
	if seen.autostart, err = h.autostart(ctx, dom); err != nil {
		return observation{}, err
	}
	if err := h.observeDisks(ctx, dom, &seen); err != nil {
		return observation{}, err
	}
	return seen, nil
}

// describe puts together what a domain's definition, our metadata in it and the
// daemon say.
func describe(id egress.ProviderID, seen observation) egress.Instance {
	meta := seen.meta
	machine := readMachine(seen.Domain, meta.Interfaces)
	machine.UUID = seen.UUID
	machine.DiskGiB = seen.diskGiB
	machine.Image = meta.Image.Name
	machine.ImageSHA256 = meta.Image.SHA256
	machine.ImageVolume = meta.Image.Volume
	machine.Pool = seen.pool
	machine.Autostart = seen.autostart
	machine.MissingVolumes = seen.missing
	return egress.Instance{
		ID:          id,
		UID:         seen.UUID,
		Foreign:     errors.Is(seen.metaErr, errForeign),
		Description: readDescription(seen.Domain),
		State:       seen.state.instanceState(meta.Unfinished),
		Unfinished:  meta.Unfinished,
		Tags:        meta.Tags,
		ConfigHash:  meta.ConfigHash,
		Proxy:       meta.Proxy,
		HealthCheck: meta.HealthCheck,
		CreatedAt:   meta.CreatedAt,
		KVM:         &machine,

		UserDataVersion: meta.UserDataVersion,
	}
}

// autostart tells whether the domain starts with its host. One that runs without
// a definition has no such setting.
func (h *host) autostart(ctx context.Context, dom libvirt.Domain) (bool, error) {
	on, err := read(ctx, h, "reading the autostart of domain "+dom.Name, func(lv *libvirt.Libvirt) (int32, error) {
		return lv.DomainGetAutostart(dom)
	})
	if isCode(err, libvirt.ErrOperationInvalid) {
		return false, nil
	}
	return on != 0, err
}
