package kvm

import (
	"cmp"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// agentChannel is the virtio-serial port the QEMU guest agent listens on.
const agentChannel = "org.qemu.guest_agent.0"

// defaultDescription stands on machines whose configuration has none.
const defaultDescription = "Egress proxy managed by terraform-provider-egressproxy"

// machine is everything a domain's XML is written from.
type machine struct {
	Name string
	UUID string
	// Description may be empty.
	Description string
	Spec        egress.KVMSpec
	Platform    platform
	// MACs are the interfaces', in their order.
	MACs        []string
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
	domain := outline(m)
	domain.OS.BootDevices = []libvirtxml.DomainBootDevice{{Dev: "hd"}}
	firmwareXML(m, domain.OS)
	domain.Features = &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}}
	domain.CPU = &libvirtxml.DomainCPU{Mode: m.Platform.CPUMode, Check: "none"}
	domain.Clock = &libvirtxml.DomainClock{Offset: "utc"}
	domain.OnPoweroff, domain.OnReboot, domain.OnCrash = "destroy", "restart", "restart"
	port := uint(0)
	serial := libvirtxml.DomainSerial{
		Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
		Target: &libvirtxml.DomainSerialTarget{Port: &port},
	}
	if m.Spec.ConsoleLog != "" {
		serial.Log = &libvirtxml.DomainChardevLog{File: m.Spec.ConsoleLog, Append: "on"}
	}
	domain.Devices = &libvirtxml.DomainDeviceList{
		Disks: []libvirtxml.DomainDisk{
			diskXML(m.Overlay, "qcow2", "vda", false),
			diskXML(m.Seed, "raw", "vdb", true),
		},
		Controllers: []libvirtxml.DomainController{{Type: "usb", Model: "none"}},
		Interfaces:  interfacesXML(m.Spec.Interfaces, m.MACs),
		Serials:     []libvirtxml.DomainSerial{serial},
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
	}
	if m.Platform.Arch == "x86_64" {
		domain.Features.APIC = &libvirtxml.DomainFeatureAPIC{}
		domain.Devices.Panics = []libvirtxml.DomainPanic{{Model: "isa"}}
	}
	return marshalDomain(domain)
}

// placeholderXML writes a definition that takes the machine's name and carries
// its identity and metadata, and nothing that the machine would run with. It is
// redefined by domainXML once its volumes are there.
func placeholderXML(m machine) (string, error) { return marshalDomain(outline(m)) }

// outline is what a machine and its placeholder have in common.
func outline(m machine) libvirtxml.Domain {
	return libvirtxml.Domain{
		Type:        m.Platform.VirtType,
		Name:        m.Name,
		UUID:        m.UUID,
		Description: cmp.Or(m.Description, defaultDescription),
		Metadata:    &libvirtxml.DomainMetadata{XML: m.MetadataXML},
		Memory:      &libvirtxml.DomainMemory{Unit: "MiB", Value: uint(m.Spec.MemoryMiB)},
		VCPU:        &libvirtxml.DomainVCPU{Placement: "static", Value: uint(m.Spec.VCPUs)},
		OS:          &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: m.Platform.Arch, Machine: m.Platform.Machine, Type: "hvm"}},
	}
}

func marshalDomain(d libvirtxml.Domain) (string, error) {
	text, err := d.Marshal()
	if err != nil {
		return "", fmt.Errorf("writing the definition of domain %s: %w", d.Name, err)
	}
	return text, nil
}

// firmwareXML has libvirt choose a firmware of the wanted kind: the path of the
// file differs from one distribution to the next.
func firmwareXML(m machine, os *libvirtxml.DomainOS) {
	if m.Platform.Firmware != firmwareEFI {
		return
	}
	onOff := "no"
	if m.Spec.SecureBoot {
		onOff = "yes"
	}
	os.Firmware = firmwareEFI
	os.FirmwareInfo = &libvirtxml.DomainOSFirmwareInfo{Features: []libvirtxml.DomainOSFirmwareFeature{
		{Enabled: onOff, Name: "enrolled-keys"},
		{Enabled: onOff, Name: "secure-boot"},
	}}
}

// interfacesXML writes the network interfaces; macs are theirs, in their order.
func interfacesXML(interfaces []egress.Interface, macs []string) []libvirtxml.DomainInterface {
	out := make([]libvirtxml.DomainInterface, len(interfaces))
	for i, nic := range interfaces {
		x := libvirtxml.DomainInterface{
			MAC:    &libvirtxml.DomainInterfaceMAC{Address: macs[i]},
			Source: &libvirtxml.DomainInterfaceSource{},
			Model:  &libvirtxml.DomainInterfaceModel{Type: cmp.Or(nic.Model, defaultModel)},
		}
		switch {
		case nic.Bridge != "":
			x.Source.Bridge = &libvirtxml.DomainInterfaceSourceBridge{Bridge: nic.Bridge}
		case nic.Macvtap != "":
			x.Source.Direct = &libvirtxml.DomainInterfaceSourceDirect{Dev: nic.Macvtap, Mode: macvtapMode}
		default:
			x.Source.Network = &libvirtxml.DomainInterfaceSourceNetwork{Network: nic.Network, PortGroup: nic.Portgroup}
		}
		if nic.VLAN != 0 {
			x.VLan = &libvirtxml.DomainInterfaceVLan{Tags: []libvirtxml.DomainInterfaceVLanTag{{ID: uint(nic.VLAN)}}}
		}
		if nic.MTU != 0 {
			x.MTU = &libvirtxml.DomainInterfaceMTU{Size: uint(nic.MTU)}
		}
		out[i] = x
	}
	return out
}

// What an interface has where nothing else is wanted.
const (
	defaultModel = "virtio"
	macvtapMode  = "bridge"
)

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
	if format == "qcow2" {
		// Else libvirt makes files of version 2 of the format, whose machines have
		// no checkpoints, and so no incremental backups.
		volume.Target.Compat = "1.1"
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
