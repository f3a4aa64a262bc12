package kvm

import (
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"
)

// platform is the kind of machine a host can run.
type platform struct {
	// VirtType is "kvm" or "qemu".
	VirtType string
	// Arch is the guest's architecture, always the host's own.
	Arch string
	// Machine is QEMU's machine type; an alias, so that each host gives the
	// newest it has.
	Machine string
	// CPUMode is libvirt's cpu mode.
	CPUMode string
}

// choosePlatform picks the platform from a host's capabilities. want is "kvm",
// "qemu", or "" for KVM where the host has it and QEMU's emulation elsewhere.
func choosePlatform(caps libvirtxml.Caps, want string) (platform, error) {
	arch := "x86_64"
	if caps.Host.CPU != nil && caps.Host.CPU.Arch != "" {
		arch = caps.Host.CPU.Arch
	}
	var offered []string
	for _, guest := range caps.Guests {
		if guest.OSType != "hvm" || guest.Arch.Name != arch {
			continue
		}
		for _, domain := range guest.Arch.Domains {
			offered = append(offered, domain.Type)
		}
	}
	virtType := want
	if virtType == "" {
		virtType = "qemu"
		if slices.Contains(offered, "kvm") {
			virtType = "kvm"
		}
	}
	if !slices.Contains(offered, virtType) {
		if len(offered) == 0 {
			return platform{}, fmt.Errorf("the host runs no %s machines: it has no QEMU for them", arch)
		}
		return platform{}, fmt.Errorf("the host cannot run machines of type %q, only %q: /dev/kvm may be missing or closed to QEMU", virtType, offered)
	}
	p := platform{VirtType: virtType, Arch: arch, Machine: "q35", CPUMode: "host-passthrough"}
	if arch != "x86_64" {
		p.Machine = "virt"
	}
	if virtType == "qemu" {
		p.CPUMode = "maximum"
	}
	return p, nil
}
