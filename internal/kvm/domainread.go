package kvm

import (
	"math"
	"math/bits"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// readMachine reads from a domain's persistent definition what it tells of the
// machine. wanted are the interfaces as they are kept in our metadata, since the
// definition does not know static addresses; none of a machine that others made.
func readMachine(d libvirtxml.Domain, wanted []egress.Interface) egress.KVMInstance {
	m := egress.KVMInstance{
		VCPUs:      vcpus(d.VCPU),
		MemoryMiB:  memoryMiB(d.Memory),
		VirtType:   d.Type,
		Interfaces: readInterfaces(d, wanted),
		ConsoleLog: consoleLog(d),
	}
	if macs := macsOf(d); len(macs) > 0 {
		m.MAC = macs[0]
	}
	if d.CPU != nil {
		m.CPUMode = d.CPU.Mode
	}
	m.Firmware, m.SecureBoot = readFirmware(d.OS)
	return m
}

// readDescription gives the note that a person left on the domain.
func readDescription(d libvirtxml.Domain) string {
	if d.Description == defaultDescription {
		return ""
	}
	return d.Description
}

// vcpus gives the number that the machine starts with: "current" where more can
// be plugged in later.
func vcpus(v *libvirtxml.DomainVCPU) int {
	switch {
	case v == nil:
		return 1 // what libvirt takes it for
	case v.Current != 0:
		return int(v.Current)
	}
	return int(v.Value)
}

// memoryMiB converts a definition's memory to whole MiB, rounded down.
func memoryMiB(m *libvirtxml.DomainMemory) int {
	if m == nil {
		return 0
	}
	return inMiB(uint64(m.Value), m.Unit)
}

// scaledMiB is memoryMiB of an element's text. It is 0 where that is no number.
func scaledMiB(text, unit string) int {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0
	}
	return inMiB(n, unit)
}

// inMiB converts a size in one of the units of libvirt's domain format, where none
// is KiB, to whole MiB. It is 0 for a unit that is none, and no more than
// the largest there is for what no machine can have.
func inMiB(n uint64, unit string) int {
	high, low := bits.Mul64(n, memoryUnits[unit])
	if high != 0 {
		return math.MaxInt
	}
	return int(low >> 20)
}

var memoryUnits = map[string]uint64{
	"b": 1, "bytes": 1,
	"KB": 1e3, "": 1 << 10, "k": 1 << 10, "KiB": 1 << 10,
	"MB": 1e6, "M": 1 << 20, "MiB": 1 << 20,
	"GB": 1e9, "G": 1 << 30, "GiB": 1 << 30,
	"TB": 1e12, "T": 1 << 40, "TiB": 1 << 40,
}

// readFirmware tells the kind of firmware. libvirt does not always hand back the
// request for one, but then it names the file it chose, on a flash chip.
func readFirmware(os *libvirtxml.DomainOS) (kind string, secureBoot bool) {
	if os == nil {
		return firmwareBIOS, false
	}
	keyless := false // firmware that could enforce it has nothing to check signatures by
	if os.FirmwareInfo != nil {
		for _, feature := range os.FirmwareInfo.Features {
			switch {
			case feature.Name == "secure-boot" && feature.Enabled == "yes":
				secureBoot = true
			case feature.Name == "enrolled-keys" && feature.Enabled == "no":
				keyless = true
			}
		}
	}
	if os.Loader != nil {
		secureBoot = secureBoot || os.Loader.Secure == "yes"
	}
	secureBoot = secureBoot && !keyless
	if os.Firmware == firmwareEFI || (os.Loader != nil && os.Loader.Type == "pflash") {
		return firmwareEFI, secureBoot
	}
	return firmwareBIOS, false
}

func consoleLog(d libvirtxml.Domain) string {
	if d.Devices == nil || len(d.Devices.Serials) == 0 || d.Devices.Serials[0].Log == nil {
		return ""
	}
	return d.Devices.Serials[0].Log.File
}

// readInterfaces gives the network interfaces with their MAC addresses, or nil
// when there are none or one is of a kind that egress.Interface cannot express:
// half of a machine's network would be worse than to say nothing of it.
func readInterfaces(d libvirtxml.Domain, wanted []egress.Interface) []egress.Interface {
	if d.Devices == nil {
		return nil
	}
	var out []egress.Interface
	for i, x := range d.Devices.Interfaces {
		nic, ok := readInterface(x)
		if !ok {
			return nil
		}
		if len(wanted) == len(d.Devices.Interfaces) && (wanted[i].MAC == "" || strings.EqualFold(wanted[i].MAC, nic.MAC)) {
			nic.Addresses, nic.Gateways, nic.Nameservers = wanted[i].Addresses, wanted[i].Gateways, wanted[i].Nameservers
		}
		out = append(out, nic)
	}
	return out
}

func readInterface(x libvirtxml.DomainInterface) (egress.Interface, bool) {
	var nic egress.Interface
	switch {
	case x.Source == nil:
		return nic, false
	case x.Source.Network != nil && x.Source.Network.Network != "":
		nic.Network, nic.Portgroup = x.Source.Network.Network, x.Source.Network.PortGroup
	case x.Source.Bridge != nil && x.Source.Bridge.Bridge != "":
		nic.Bridge = x.Source.Bridge.Bridge
	case x.Source.Direct != nil && x.Source.Direct.Dev != "" && x.Source.Direct.Mode == macvtapMode:
		nic.Macvtap = x.Source.Direct.Dev
	default:
		return nic, false
	}
	if x.MAC != nil {
		nic.MAC = strings.ToLower(x.MAC.Address)
	}
	if x.Model != nil && x.Model.Type != defaultModel {
		nic.Model = x.Model.Type
	}
	if x.MTU != nil {
		nic.MTU = int(x.MTU.Size)
	}
	if x.VLan != nil {
		if len(x.VLan.Tags) != 1 || x.VLan.Trunk == "yes" || x.VLan.Tags[0].NativeMode != "" {
			return nic, false
		}
		nic.VLAN = int(x.VLan.Tags[0].ID)
	}
	return nic, true
}

// macsOf gives the MAC addresses of a domain's interfaces, in their order.
func macsOf(d libvirtxml.Domain) []string {
	var macs []string
	if d.Devices == nil {
		return nil
	}
	for _, iface := range d.Devices.Interfaces {
		if iface.MAC != nil {
			macs = append(macs, strings.ToLower(iface.MAC.Address))
		}
	}
	return macs
}

// diskRef is a disk as a definition names it.
type diskRef struct {
	// Target is the device on the guest, such as "vda".
	Target string
	// Path is the file or device behind it; empty when it is none, or a volume.
	Path string
	// Pool and Volume name the volume behind it, where the definition does so.
	Pool, Volume string
	// ReadOnly tells that the guest cannot write to it.
	ReadOnly bool
}

// disksOf gives a domain's hard disks, in their order; no drives.
func disksOf(d libvirtxml.Domain) []diskRef {
	if d.Devices == nil {
		return nil
	}
	var out []diskRef
	for _, x := range d.Devices.Disks {
		if (x.Device != "" && x.Device != "disk") || x.Target == nil {
			continue
		}
		ref := diskRef{Target: x.Target.Dev, ReadOnly: x.ReadOnly != nil}
		switch {
		case x.Source == nil:
		case x.Source.File != nil:
			ref.Path = x.Source.File.File
		case x.Source.Block != nil:
			ref.Path = x.Source.Block.Dev
		case x.Source.Volume != nil:
			ref.Pool, ref.Volume = x.Source.Volume.Pool, x.Source.Volume.Volume
		}
		out = append(out, ref)
	}
	return out
}

// rootDisk gives the disk that the machine lives on: the first that it can write
// to.
func rootDisk(d libvirtxml.Domain) (diskRef, bool) {
	for _, disk := range disksOf(d) {
		if !disk.ReadOnly {
			return disk, true
		}
	}
	return diskRef{}, false
}
