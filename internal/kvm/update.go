package kvm

import (
	"context"
	"maps"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Update implements egress.Backend: it starts a machine that is stopped, waiting
// until its proxy forwards again, and stores tags and health check. Whatever else
// changed is for a replacement to bring about.
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
	if err := b.update(ctx, h, dom, spec); err != nil {
		return b.whatExists(ctx, h, id), err
	}
	instance, err := b.inspectDomain(ctx, h, id, dom)
	if err != nil {
		return b.whatExists(ctx, h, id), err
	}
	instance.Ready = true
	return instance, nil
}

func (b *Backend) update(ctx context.Context, h *host, dom libvirt.Domain, spec egress.Spec) error {
	found, err := h.readDomain(ctx, dom)
	if err != nil {
		return err
	}
	meta := found.meta
	if found.metaErr != nil {
		return &egress.Fault{Kind: egress.ErrPermanent, Doing: "updating domain " + dom.Name, Host: h.name, Cause: found.metaErr,
			Remedy: "Only instances made by this provider can be updated."}
	}
	state, err := h.domainState(ctx, dom)
	if err != nil {
		return err
	}
	if meta.Unfinished || state.instanceState(false) == egress.Stopped {
		if _, err := b.startAndAwait(ctx, h, dom, spec); err != nil {
			return err
		}
	}
	if meta.Unfinished || !maps.Equal(meta.Tags, spec.Tags) || meta.HealthCheck != spec.HealthCheck {
		meta.Unfinished, meta.Tags, meta.HealthCheck = false, spec.Tags, spec.HealthCheck
		return h.setMetadata(ctx, dom, meta)
	}
	return nil
}
