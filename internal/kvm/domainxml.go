package kvm

import (
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// agentChannel is the virtio-serial port the QEMU guest agent listens on.
const agentChannel = "org.qemu.guest_agent.0"

// machine is everything a domain's XML is written from.
type machine struct {
	Name        string
	Spec        egress.KVMSpec
	Platform    platform
	MAC         string
	Overlay     disk
	Seed        disk
	MetadataXML string
}

// disk is a volume as a domain sees it.
type disk struct {
	Path string
	// Block is true when Path is a block device, as in a logical pool.
	Block bool
}

// domainXML writes the definition of a domain.
//
// Disks are of type file or block with the volume's path: AppArmor's profile
// helper cannot see through type=volume (libvirt gitlab issue 546). The seed
// is a read-only virtio disk: Debian's cloud kernel has no AHCI driver, so a
// SATA CD-ROM is invisible to it, and q35 has no IDE.
func domainXML(m machine) (string, error) {
	port := uint(0)
	domain := libvirtxml.Domain{
		Type:        m.Platform.VirtType,
		Name:        m.Name,
		Description: "Egress proxy managed by terraform-provider-egressproxy",
		Metadata:    &libvirtxml.DomainMetadata{XML: m.MetadataXML},
		Memory:      &libvirtxml.DomainMemory{Unit: "MiB", Value: uint(m.Spec.MemoryMiB)},
		VCPU:        &libvirtxml.DomainVCPU{Placement: "static", Value: uint(m.Spec.VCPUs)},
		OS: &libvirtxml.DomainOS{
			Type:        &libvirtxml.DomainOSType{Arch: m.Platform.Arch, Machine: m.Platform.Machine, Type: "hvm"},
			BootDevices: []libvirtxml.DomainBootDevice{{Dev: "hd"}},
		},
		Features:   &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}},
		CPU:        &libvirtxml.DomainCPU{Mode: m.Platform.CPUMode, Check: "none"},
		Clock:      &libvirtxml.DomainClock{Offset: "utc"},
		OnPoweroff: "destroy",
		OnReboot:   "restart",
		OnCrash:    "restart",
		Devices: &libvirtxml.DomainDeviceList{
			Disks: []libvirtxml.DomainDisk{
				diskXML(m.Overlay, "qcow2", "vda", false),
				diskXML(m.Seed, "raw", "vdb", true),
			},
			Controllers: []libvirtxml.DomainController{{Type: "usb", Model: "none"}},
			Interfaces: []libvirtxml.DomainInterface{{
				MAC:    &libvirtxml.DomainInterfaceMAC{Address: m.MAC},
				Source: &libvirtxml.DomainInterfaceSource{Network: &libvirtxml.DomainInterfaceSourceNetwork{Network: m.Spec.Interfaces[0].Network}},
				Model:  &libvirtxml.DomainInterfaceModel{Type: "virtio"},
			}},
			Serials: []libvirtxml.DomainSerial{{
				Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
				Target: &libvirtxml.DomainSerialTarget{Port: &port},
			}},
			Consoles: []libvirtxml.DomainConsole{{
				Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
				Target: &libvirtxml.DomainConsoleTarget{Type: "serial", Port: &port},
			}},
			Channels: []libvirtxml.DomainChannel{{
				Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "bind"}},
				Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: agentChannel}},
			}},
			MemBalloon: &libvirtxml.DomainMemBalloon{Model: "virtio"},
			RNGs: []libvirtxml.DomainRNG{{
				Model:   "virtio",
				Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
			}},
		},
	}
	if m.Platform.Arch == "x86_64" {
		domain.Features.APIC = &libvirtxml.DomainFeatureAPIC{}
		domain.Devices.Panics = []libvirtxml.DomainPanic{{Model: "isa"}}
	}
	text, err := domain.Marshal()
	if err != nil {
		return "", fmt.Errorf("writing the definition of domain %s: %w", m.Name, err)
	}
	return text, nil
}

func diskXML(d disk, format, target string, readOnly bool) libvirtxml.DomainDisk {
	out := libvirtxml.DomainDisk{
		Device: "disk",
		Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: format},
		Source: &libvirtxml.DomainDiskSource{},
		Target: &libvirtxml.DomainDiskTarget{Dev: target, Bus: "virtio"},
	}
	if d.Block {
		out.Source.Block = &libvirtxml.DomainDiskSourceBlock{Dev: d.Path}
	} else {
		out.Source.File = &libvirtxml.DomainDiskSourceFile{File: d.Path}
	}
	if readOnly {
		out.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
	} else {
		out.Driver.Discard = "unmap"
	}
	return out
}

// volumeXML writes the definition of a volume. Capacities are in bytes, since
// libvirt reads "G" and "GB" as different units. backing is nil for a volume
// that stands alone.
func volumeXML(name, format string, capacity uint64, backing *baseImage) (string, error) {
	volume := libvirtxml.StorageVolume{
		Name:       name,
		Capacity:   &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: capacity},
		Allocation: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: 0},
		Target:     &libvirtxml.StorageVolumeTarget{Format: &libvirtxml.StorageVolumeTargetFormat{Type: format}},
	}
	if backing != nil {
		// Without its format, libvirt 6.0 and later refuse to probe a backing file.
		volume.BackingStore = &libvirtxml.StorageVolumeBackingStore{
			Path:   backing.Path,
			Format: &libvirtxml.StorageVolumeTargetFormat{Type: string(backing.Format)},
		}
	}
	text, err := volume.Marshal()
	if err != nil {
		return "", fmt.Errorf("writing the definition of volume %s: %w", name, err)
	}
	return text, nil
}
