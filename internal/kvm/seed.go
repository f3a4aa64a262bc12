package kvm

import (
	"github.com/egressproxy/terraform-provider-egressproxy/internal/cloudinit"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/proxy"
)

// seedISO renders what configures the machine on its first boot: a person's own
// part, then ours, which cloud-init merges into it. macs are those of the
// interfaces, in their order.
func seedISO(spec egress.Spec, macs []string) ([]byte, error) {
	var parts []cloudinit.Part
	if !spec.UserData.IsZero() {
		attribute := "user_data"
		if spec.UserDataVersion > 0 {
			attribute = "user_data_wo"
		}
		own, err := ownPart("user-data", attribute, spec.UserData.Reveal())
		if err != nil {
			return nil, err
		}
		parts = append(parts, own)
	}
	if spec.Proxy != nil {
		config, err := proxyPart(*spec.Proxy)
		if err != nil {
			return nil, err
		}
		parts = append(parts, config)
	}
	userData, err := cloudinit.UserData(parts...)
	if err != nil {
		return nil, err
	}
	vendorData := cloudinit.DefaultVendorData()
	if spec.KVM.VendorData != "" {
		if _, err := ownPart("vendor-data", "kvm.vendor_data", spec.KVM.VendorData); err != nil {
			return nil, err
		}
		vendorData = []byte(spec.KVM.VendorData)
	}
	return cloudinit.Seed{
		InstanceID:    instanceID(spec),
		Hostname:      spec.ID.Name,
		UserData:      userData,
		VendorData:    vendorData,
		NetworkConfig: cloudinit.NetworkConfig(spec.KVM.Interfaces, macs),
	}.ISO()
}

// ownPart is what a person gave to cloud-init by an attribute.
func ownPart(name, attribute, content string) (cloudinit.Part, error) {
	contentType, err := cloudinit.DetectContentType([]byte(content))
	if err != nil {
		return cloudinit.Part{}, &egress.Fault{Kind: egress.ErrPermanent, Doing: "reading " + name, Cause: err, Attribute: attribute}
	}
	return cloudinit.Part{ContentType: contentType, Name: name, Content: []byte(content)}, nil
}

// proxyPart is our own configuration of the proxy.
func proxyPart(p egress.Proxy) (cloudinit.Part, error) {
	setup, err := proxy.Render(p)
	if err != nil {
		return cloudinit.Part{}, err
	}
	files := make([]cloudinit.File, len(setup.Files))
	for i, f := range setup.Files {
		files[i] = cloudinit.File(f)
	}
	config, err := cloudinit.CloudConfig(cloudinit.Config{BootCommands: setup.BootCommands, Files: files, Commands: setup.Commands})
	if err != nil {
		return cloudinit.Part{}, err
	}
	return cloudinit.Part{ContentType: "text/cloud-config", Name: "egressproxy.cfg", Content: config}, nil
}
