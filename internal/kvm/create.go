package kvm

import (
	"context"
	"errors"
	"fmt"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/cloudinit"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/proxy"
)

// Create implements egress.Backend.
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

	dom, made, err := b.ensureDomain(ctx, h, spec)
	if err != nil {
		if !made {
			return egress.Instance{}, err
		}
		return b.whatExists(ctx, h, spec.ID), err
	}
	return b.finish(ctx, h, dom, spec)
}

// ensureDomain makes sure that the domain is defined as spec wants it. made
// tells whether anything of this instance exists afterwards, also beside an
// error.
//
// An unfinished domain of ours is what an interrupted run left. Its image stays
// and all else is made anew: whether its seed holds today's passwords cannot be
// known, and nothing depends on it yet.
func (b *Backend) ensureDomain(ctx context.Context, h *host, spec egress.Spec) (dom libvirt.Domain, made bool, err error) {
	content, err := seedISO(spec, MACAddress(h.name, spec.ID.Name))
	if err != nil {
		return libvirt.Domain{}, false, h.fault("building the seed of instance "+spec.ID.Name, err)
	}
	dom, err = h.findDomain(ctx, spec.ID.Name)
	switch {
	case errors.Is(err, egress.ErrNotFound):
		return b.define(ctx, h, spec, content)
	case err != nil:
		return libvirt.Domain{}, false, err
	}
	found, err := h.readDomain(ctx, dom)
	if err != nil {
		return libvirt.Domain{}, false, err
	}
	if found.metaErr != nil || !found.meta.Unfinished {
		return libvirt.Domain{}, false, alreadyExists(h, spec.ID, found.metaErr)
	}
	if err := b.remove(ctx, h, dom, found.meta, 0); err != nil {
		return libvirt.Domain{}, true, err
	}
	return b.define(ctx, h, spec, content)
}

// alreadyExists says what is in the way of a new instance.
func alreadyExists(h *host, id egress.ProviderID, foreign error) error {
	cause := fmt.Errorf("domain %s exists already and is a finished instance", id.Name)
	remedy := "If it is yours and not in any Terraform state, adopt it with: terraform import ADDRESS " + id.String() + ". Otherwise choose another name."
	if foreign != nil {
		cause = fmt.Errorf("domain %s exists already and was not made by this provider", id.Name)
		remedy = "Choose another name, or rename or remove that domain."
	}
	return &egress.Fault{Kind: egress.ErrAlreadyExists, Doing: "creating instance " + id.Name, Host: h.name, Cause: cause, Remedy: remedy, Attribute: "name"}
}

// define makes the volumes and the domain, everything that can be refused
// first. No domain of this name exists. What it made is taken back when a later
// step fails: without a domain, nothing would ever find it again.
func (b *Backend) define(ctx context.Context, h *host, spec egress.Spec, seed []byte) (dom libvirt.Domain, made bool, err error) {
	pool, err := h.findPool(ctx, spec.KVM.Pool)
	if err != nil {
		return libvirt.Domain{}, false, err
	}
	if err := h.checkNetwork(ctx, spec.KVM.Interfaces[0].Network); err != nil {
		return libvirt.Domain{}, false, err
	}
	caps, err := h.capabilities(ctx)
	if err != nil {
		return libvirt.Domain{}, false, err
	}
	target, err := choosePlatform(caps, spec.KVM.VirtType)
	if err != nil {
		return libvirt.Domain{}, false, &egress.Fault{Kind: egress.ErrPermanent, Doing: "choosing the kind of machine for " + spec.ID.Name, Host: h.name, Cause: err,
			Attribute: "kvm.virt_type", Remedy: "Leave kvm.virt_type out to use what the host can do."}
	}
	metadataXML, err := newMetadata(spec, b.now()).encode()
	if err != nil {
		return libvirt.Domain{}, false, h.fault("describing instance "+spec.ID.Name, err)
	}
	base, err := h.ensureBase(ctx, pool, spec.KVM.Image, func(capacity uint64) error { return checkDiskSize(h, spec, capacity) })
	if err != nil {
		return libvirt.Domain{}, false, err
	}
	dom, err = h.defineOnBase(ctx, pool, spec, machine{Name: spec.ID.Name, Spec: *spec.KVM, Platform: target, MAC: MACAddress(h.name, spec.ID.Name), MetadataXML: metadataXML}, base, seed)
	if err == nil {
		return dom, true, nil
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	// A definition whose answer was lost may have taken effect.
	if _, findErr := h.findDomain(cleanup, spec.ID.Name); !errors.Is(findErr, egress.ErrNotFound) {
		return libvirt.Domain{}, true, err
	}
	if cleanupErr := h.deleteInstanceVolumes(cleanup, spec.ID.Name, pool.Name); cleanupErr != nil {
		return libvirt.Domain{}, true, errors.Join(err, cleanupErr)
	}
	return libvirt.Domain{}, false, err
}

func (h *host) defineOnBase(ctx context.Context, pool storagePool, spec egress.Spec, m machine, base baseImage, seed []byte) (dom libvirt.Domain, err error) {
	if m.Overlay, err = h.createOverlay(ctx, pool, spec, base); err != nil {
		return libvirt.Domain{}, err
	}
	if m.Seed, err = h.createSeed(ctx, pool.StoragePool, spec.ID.Name, seed); err != nil {
		return libvirt.Domain{}, err
	}
	doing := "defining domain " + spec.ID.Name
	definition, err := domainXML(m)
	if err != nil {
		return libvirt.Domain{}, h.fault(doing, err)
	}
	return write(ctx, h, doing, func(lv *libvirt.Libvirt) (libvirt.Domain, error) {
		return lv.DomainDefineXMLFlags(definition, libvirt.DomainDefineValidate)
	})
}

// finish starts the machine, waits until its proxy forwards, and clears the
// unfinished mark.
func (b *Backend) finish(ctx context.Context, h *host, dom libvirt.Domain, spec egress.Spec) (egress.Instance, error) {
	addresses, err := b.startAndAwait(ctx, h, dom, spec)
	if err != nil {
		return b.whatExists(ctx, h, spec.ID), err
	}
	made, err := h.readDomain(ctx, dom)
	if err == nil && made.metaErr != nil {
		err = h.unreadable("reading the metadata of domain "+dom.Name, made.metaErr)
	}
	if err == nil {
		made.meta.Unfinished = false
		err = h.setMetadata(ctx, dom, made.meta)
	}
	if err != nil {
		return b.whatExists(ctx, h, spec.ID), err
	}
	instance := describe(spec.ID, made, domainState{State: libvirt.DomainRunning}, spec.KVM.DiskGiB)
	instance.Addresses = addresses
	instance.Ready = true
	return instance, nil
}

// whatExists describes an instance after a failure, in a time of its own, so
// that what was made is known even when the failure was a time-out. What
// cannot be read is left out; the ID is always there.
func (b *Backend) whatExists(ctx context.Context, h *host, id egress.ProviderID) egress.Instance {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	instance, err := b.inspect(ctx, h, id)
	if err != nil {
		return egress.Instance{ID: id, State: egress.Provisioning, Unfinished: true}
	}
	return instance
}

// seedISO renders what configures the machine on its first boot: a person's own
// part, then ours, which cloud-init merges into it.
func seedISO(spec egress.Spec, mac string) ([]byte, error) {
	var parts []cloudinit.Part
	if !spec.UserData.IsZero() {
		own := []byte(spec.UserData.Reveal())
		contentType, err := cloudinit.DetectContentType(own)
		if err != nil {
			attribute := "user_data"
			if spec.UserDataVersion > 0 {
				attribute = "user_data_wo"
			}
			return nil, &egress.Fault{Kind: egress.ErrPermanent, Doing: "reading user-data", Cause: err, Attribute: attribute}
		}
		parts = append(parts, cloudinit.Part{ContentType: contentType, Name: "user-data", Content: own})
	}
	if spec.Proxy != nil {
		setup, err := proxy.Render(*spec.Proxy)
		if err != nil {
			return nil, err
		}
		files := make([]cloudinit.File, len(setup.Files))
		for i, f := range setup.Files {
			files[i] = cloudinit.File(f)
		}
		config, err := cloudinit.CloudConfig(cloudinit.Config{BootCommands: setup.BootCommands, Files: files, Commands: setup.Commands})
		if err != nil {
			return nil, err
		}
		parts = append(parts, cloudinit.Part{ContentType: "text/cloud-config", Name: "egressproxy.cfg", Content: config})
	}
	userData, err := cloudinit.UserData(parts...)
	if err != nil {
		return nil, err
	}
	return cloudinit.Seed{
		InstanceID:    instanceID(spec),
		Hostname:      spec.ID.Name,
		UserData:      userData,
		NetworkConfig: cloudinit.NetworkConfigDHCP(mac),
	}.ISO()
}
