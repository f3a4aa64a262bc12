package kvm

import (
	"context"
	"errors"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// checkNetworks makes sure, before anything is made, that the machine will find
// its libvirt networks. What is a bridge or a device of the host the daemon does
// not tell.
func (h *host) checkNetworks(ctx context.Context, interfaces []egress.Interface) error {
	checked := map[string]bool{"": true}
	for _, i := range interfaces {
		if checked[i.Network] {
			continue
		}
		checked[i.Network] = true
		if err := h.checkNetwork(ctx, i.Network); err != nil {
			return err
		}
	}
	return nil
}

func (h *host) checkNetwork(ctx context.Context, name string) error {
	doing := "looking up network " + name
	active, err := read(ctx, h, doing, func(lv *libvirt.Libvirt) (bool, error) {
		network, err := lv.NetworkLookupByName(name)
		if err != nil {
			return false, err
		}
		active, err := lv.NetworkIsActive(network)
		return active != 0, err
	})
	switch {
	case isCode(err, libvirt.ErrNoNetwork):
		return &egress.Fault{Kind: egress.ErrPermanent, Doing: doing, Host: h.name, Cause: errors.New("there is no such network"), Attribute: "kvm.network",
			Remedy: "Name a libvirt network of the host (virsh net-list --all), or define this one."}
	case err != nil:
		return err
	case !active:
		return &egress.Fault{Kind: egress.ErrPermanent, Doing: doing, Host: h.name, Cause: errors.New("the network is not active"), Attribute: "kvm.network",
			Remedy: "Start it on the host: virsh net-start " + name}
	}
	return nil
}
