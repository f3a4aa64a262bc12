package kvm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

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
		instance, err := b.inspectDomain(ctx, h, id, dom)
		switch {
		case errors.Is(err, egress.ErrUnreachable):
			return nil, err
		case ctx.Err() != nil:
			return nil, h.fault("listing domains", ctx.Err())
		case err != nil || instance.ConfigHash == "" || !instance.Tags.Contains(tags):
			continue
		}
		out = append(out, instance)
	}
	slices.SortFunc(out, func(a, b egress.Instance) int { return strings.Compare(a.ID.Name, b.ID.Name) })
	return out, nil
}

// inspect reads the instance as the host has it.
func (b *Backend) inspect(ctx context.Context, h *host, id egress.ProviderID) (egress.Instance, error) {
	dom, err := h.findDomain(ctx, id.Name)
	if err != nil {
		return egress.Instance{}, err
	}
	return b.inspectDomain(ctx, h, id, dom)
}

func (b *Backend) inspectDomain(ctx context.Context, h *host, id egress.ProviderID, dom libvirt.Domain) (egress.Instance, error) {
	found, err := h.readDomain(ctx, dom)
	if err != nil {
		return egress.Instance{}, err
	}
	if found.metaErr != nil && !errors.Is(found.metaErr, errForeign) {
		return egress.Instance{}, h.unreadable("reading the metadata of domain "+dom.Name, found.metaErr)
	}
	state, err := h.domainState(ctx, dom)
	if err != nil {
		return egress.Instance{}, err
	}
	diskGiB, err := h.rootDiskGiB(ctx, dom, found.Domain)
	if err != nil {
		return egress.Instance{}, err
	}
	instance := describe(id, found, state, diskGiB)
	if state.State == libvirt.DomainRunning && found.metaErr == nil {
		report, err := h.addresses(ctx, dom, macsOf(found.Domain))
		if err != nil {
			return egress.Instance{}, err
		}
		instance.Addresses = report.found
	}
	return instance, nil
}

// describe puts together what a domain's definition, our metadata in it and its
// state say.
func describe(id egress.ProviderID, definition domain, state domainState, diskGiB int) egress.Instance {
	meta := definition.meta
	machine := &egress.KVMInstance{
		UUID:        definition.UUID,
		MemoryMiB:   memoryMiB(definition.Memory),
		DiskGiB:     diskGiB,
		Image:       meta.Image.Name,
		ImageSHA256: meta.Image.SHA256,
		Pool:        meta.Pool,
		VirtType:    definition.Type,
	}
	if definition.VCPU != nil {
		machine.VCPUs = int(definition.VCPU.Value)
	}
	if definition.Devices != nil && len(definition.Devices.Interfaces) > 0 {
		first := definition.Devices.Interfaces[0]
		if first.MAC != nil {
			machine.MAC = strings.ToLower(first.MAC.Address)
		}
		if first.Source != nil && first.Source.Network != nil {
			machine.Interfaces = []egress.Interface{{Network: first.Source.Network.Network, MAC: machine.MAC}}
		}
	}
	return egress.Instance{
		ID:          id,
		UID:         definition.UUID,
		Foreign:     errors.Is(definition.metaErr, errForeign),
		State:       state.instanceState(meta.Unfinished),
		Unfinished:  meta.Unfinished,
		Tags:        meta.Tags,
		ConfigHash:  meta.ConfigHash,
		Proxy:       meta.Proxy,
		HealthCheck: meta.HealthCheck,
		CreatedAt:   meta.CreatedAt,
		KVM:         machine,

		UserDataVersion: meta.UserDataVersion,
	}
}

// memoryMiB converts a definition's memory, whose unit libvirt normalises to
// KiB when it hands it back.
func memoryMiB(m *libvirtxml.DomainMemory) int {
	if m == nil {
		return 0
	}
	perUnit := map[string]uint64{"b": 1, "bytes": 1, "": 1 << 10, "KiB": 1 << 10, "k": 1 << 10, "MiB": 1 << 20, "M": 1 << 20, "GiB": 1 << 30, "G": 1 << 30}
	return int(uint64(m.Value) * perUnit[m.Unit] >> 20)
}

// rootDiskGiB reads the size of a domain's first disk, 0 when it has none or
// the disk is gone.
func (h *host) rootDiskGiB(ctx context.Context, dom libvirt.Domain, definition libvirtxml.Domain) (int, error) {
	if definition.Devices == nil || len(definition.Devices.Disks) == 0 {
		return 0, nil
	}
	first := definition.Devices.Disks[0]
	if first.Target == nil {
		return 0, nil
	}
	doing := "reading the size of disk " + first.Target.Dev + " of domain " + dom.Name
	capacity, err := read(ctx, h, doing, func(lv *libvirt.Libvirt) (uint64, error) {
		_, capacity, _, err := lv.DomainGetBlockInfo(dom, first.Target.Dev, 0)
		return capacity, err
	})
	if _, daemonSaid := codeOf(err); daemonSaid {
		return 0, nil
	}
	return int(capacity >> 30), err
}

func macsOf(definition libvirtxml.Domain) []string {
	var macs []string
	if definition.Devices == nil {
		return nil
	}
	for _, iface := range definition.Devices.Interfaces {
		if iface.MAC != nil {
			macs = append(macs, iface.MAC.Address)
		}
	}
	return macs
}
