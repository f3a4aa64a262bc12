package kvm

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
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
	// Firmware is "bios" or "efi".
	Firmware string
}

// The kinds of firmware.
const (
	firmwareBIOS = "bios"
	firmwareEFI  = "efi"
)

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
	p := platform{VirtType: virtType, Arch: arch, Machine: "q35", CPUMode: "host-passthrough", Firmware: firmwareBIOS}
	if arch != "x86_64" {
		p.Machine, p.Firmware = "virt", firmwareEFI
	}
	if virtType == "qemu" {
		p.CPUMode = "maximum"
	}
	return p, nil
}

// choosePlatform picks the platform for spec by what the host can do.
func (h *host) choosePlatform(ctx context.Context, spec egress.Spec) (platform, error) {
	caps, err := h.capabilities(ctx)
	if err != nil {
		return platform{}, err
	}
	target, err := choosePlatform(caps, spec.KVM.VirtType)
	if err != nil {
		return platform{}, &egress.Fault{Kind: egress.ErrPermanent, Doing: "choosing the kind of machine for " + spec.ID.Name, Host: h.name, Cause: err,
			Attribute: "kvm.virt_type", Remedy: "Leave kvm.virt_type out to use what the host can do."}
	}
	target.CPUMode = cmp.Or(spec.KVM.CPUMode, target.CPUMode)
	target.Firmware = cmp.Or(spec.KVM.Firmware, target.Firmware)
	if target.Firmware == firmwareEFI {
		return target, h.checkFirmware(ctx, target, spec)
	}
	return target, nil
}

// checkFirmware makes sure, before anything is made, that the host has the
// firmware that is wanted.
func (h *host) checkFirmware(ctx context.Context, target platform, spec egress.Spec) error {
	doing := "looking for EFI firmware for " + spec.ID.Name
	text, err := read(ctx, h, doing, func(lv *libvirt.Libvirt) (string, error) {
		return lv.ConnectGetDomainCapabilities(nil, libvirt.OptString{target.Arch}, libvirt.OptString{target.Machine}, libvirt.OptString{target.VirtType}, 0)
	})
	if err != nil {
		return err
	}
	var caps libvirtxml.DomainCaps
	if err := caps.Unmarshal(text); err != nil {
		return h.unreadable(doing, err)
	}
	if err := firmwareOffered(caps, spec.KVM.SecureBoot); err != nil {
		return &egress.Fault{Kind: egress.ErrPermanent, Doing: doing, Host: h.name, Cause: err, Attribute: "kvm.firmware",
			Remedy: "Install it on the host (packages ovmf on Debian and Ubuntu, edk2-ovmf on Fedora and its family), or leave kvm.firmware out."}
	}
	return nil
}

// firmwareOffered tells why a host cannot give EFI firmware, nil if it can.
func firmwareOffered(caps libvirtxml.DomainCaps, secure bool) error {
	offers := func(enums []libvirtxml.DomainCapsEnum, name, value string) bool {
		return slices.ContainsFunc(enums, func(e libvirtxml.DomainCapsEnum) bool { return e.Name == name && slices.Contains(e.Values, value) })
	}
	if !offers(caps.OS.Enums, "firmware", firmwareEFI) {
		return fmt.Errorf("the host has no EFI firmware for machines of type %s", caps.Machine)
	}
	if secure && (caps.OS.Loader == nil || !offers(caps.OS.Loader.Enums, "secure", "yes")) {
		return fmt.Errorf("the host has no EFI firmware with secure boot for machines of type %s", caps.Machine)
	}
	return nil
}
