package kvm

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

func parseDomain(t testing.TB, text string) libvirtxml.Domain {
	t.Helper()
	var d libvirtxml.Domain
	if err := d.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	return d
}

func testdata(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// byValue compares netip's values by what they are.
var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func TestMachineIsReadWhoeverMadeIt(t *testing.T) {
	ours := egress.KVMInstance{VCPUs: 1, MemoryMiB: 512, VirtType: "kvm", CPUMode: "host-passthrough", Firmware: "bios", MAC: "52:54:00:98:3e:64",
		Interfaces: []egress.Interface{{Network: "default", MAC: "52:54:00:98:3e:64"}}}
	but := func(change func(*egress.KVMInstance)) egress.KVMInstance { m := ours; change(&m); return m }
	for name, want := range map[string]egress.KVMInstance{
		"domain-kvm-x86_64":    ours,
		"domain-logical-disks": ours,
		"domain-described":     ours,
		"domain-qemu-x86_64":   but(func(m *egress.KVMInstance) { m.VirtType, m.CPUMode = "qemu", "maximum" }),
		"domain-kvm-aarch64":   but(func(m *egress.KVMInstance) { m.Firmware = "efi" }),
		"domain-efi":           but(func(m *egress.KVMInstance) { m.Firmware = "efi" }),
		"domain-secure-boot":   but(func(m *egress.KVMInstance) { m.Firmware, m.SecureBoot = "efi", true }),
		"domain-console-log":   but(func(m *egress.KVMInstance) { m.ConsoleLog = "/var/log/egress/ci-egress-1.log" }),
		"domain-interfaces": but(func(m *egress.KVMInstance) {
			m.Interfaces = []egress.Interface{
				{Network: "lan", Portgroup: "proxies", MTU: 1400, MAC: m.MAC},
				{Bridge: "br0", VLAN: 42, Model: "e1000e", MAC: "52:54:00:aa:bb:cc"},
				{Macvtap: "eno1", MAC: "52:54:00:89:58:43"},
			}
		}),
		"foreign-virt-install": {VCPUs: 1, MemoryMiB: 2048, VirtType: "kvm", CPUMode: "host-passthrough", Firmware: "bios", MAC: "52:54:00:ab:cd:01", ConsoleLog: "/var/log/libvirt/old.log",
			Interfaces: []egress.Interface{
				{Network: "lab", Portgroup: "proxies", MAC: "52:54:00:ab:cd:01"},
				{Bridge: "br0", VLAN: 42, MTU: 9000, Model: "e1000e", MAC: "52:54:00:ab:cd:02"},
				{Macvtap: "eno1", MAC: "52:54:00:ab:cd:03"},
			}},
		"foreign-efi":   {VCPUs: 2, MemoryMiB: 1024, VirtType: "qemu", CPUMode: "custom", Firmware: "efi", SecureBoot: true, MAC: "52:54:00:ab:cd:04"},
		"foreign-least": {VCPUs: 1, MemoryMiB: 128, VirtType: "qemu", Firmware: "bios"},
	} {
		got := readMachine(parseDomain(t, testdata(t, name+".xml")), nil)
		if diff := cmp.Diff(want, got, byValue); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestDescriptionIsAPersonsOrNone(t *testing.T) {
	for name, want := range map[string]string{
		"domain-kvm-x86_64": "", "domain-described": `the "first" <proxy> & its note`, "foreign-efi": "An old & trusted proxy", "foreign-least": "",
	} {
		if got := readDescription(parseDomain(t, testdata(t, name+".xml"))); got != want {
			t.Errorf("%s: read %q, want %q", name, got, want)
		}
	}
}

func TestNetworkIsReadWholeOrNotAtAll(t *testing.T) {
	const network = `<interface type='network'><mac address='52:54:00:00:00:01'/><source network='default'/></interface>`
	for name, devices := range map[string]string{
		"none":                   ``,
		"behind QEMU's own NAT":  network + `<interface type='user'><mac address='52:54:00:00:00:02'/></interface>`,
		"tap device of a person": `<interface type='ethernet'><target dev='tap7'/></interface>`,
		"passed through":         `<interface type='hostdev'><source><address type='pci' domain='0' bus='1' slot='0' function='0'/></source></interface>`,
		"vhost-user":             `<interface type='vhostuser'><source type='unix' path='/run/x' mode='server'/></interface>`,
		"multicast":              `<interface type='mcast'><source address='230.0.0.1' port='5558'/></interface>`,
		"macvtap of another way": `<interface type='direct'><source dev='eno1' mode='vepa'/></interface>` + network,
		"macvtap unspecified":    `<interface type='direct'><source dev='eno1'/></interface>`,
		"several VLANs":          `<interface type='bridge'><source bridge='br0'/><vlan trunk='yes'><tag id='1'/><tag id='2'/></vlan></interface>`,
		"trunk of one VLAN":      `<interface type='bridge'><source bridge='br0'/><vlan trunk='yes'><tag id='1'/></vlan></interface>`,
		"native VLAN":            `<interface type='bridge'><source bridge='br0'/><vlan><tag id='1' nativeMode='tagged'/></vlan></interface>`,
		"bridge without a name":  `<interface type='bridge'/>`,
	} {
		if got := readInterfaces(parseDomain(t, "<domain><devices>"+devices+"</devices></domain>"), nil); got != nil {
			t.Errorf("%s: read as %+v", name, got)
		}
	}
	if got := readInterfaces(libvirtxml.Domain{}, nil); got != nil {
		t.Errorf("no devices at all: read as %+v", got)
	}
}

func TestStaticAddressesAreThoseTheMachineWasMadeWith(t *testing.T) {
	static := egress.Interface{Network: "lan", MAC: "52:54:00:00:00:0A", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24")},
		Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Nameservers: []netip.Addr{netip.MustParseAddr("192.0.2.53")}}
	const first = `<interface type='network'><mac address='52:54:00:00:00:0a'/><source network='lan'/></interface>`
	read := static
	read.MAC = "52:54:00:00:00:0a"
	withoutMAC := static
	withoutMAC.MAC = ""
	for name, test := range map[string]struct {
		devices string
		wanted  []egress.Interface
		want    []egress.Interface
	}{
		"as made":              {first, []egress.Interface{static}, []egress.Interface{read}},
		"MAC that follows":     {first, []egress.Interface{withoutMAC}, []egress.Interface{read}},
		"adopted":              {first, nil, []egress.Interface{{Network: "lan", MAC: "52:54:00:00:00:0a"}}},
		"another one in place": {`<interface type='bridge'><mac address='52:54:00:00:00:0b'/><source bridge='br0'/></interface>`, []egress.Interface{static}, []egress.Interface{{Bridge: "br0", MAC: "52:54:00:00:00:0b"}}},
		"one more by hand": {first + `<interface type='bridge'><source bridge='br0'/></interface>`, []egress.Interface{static},
			[]egress.Interface{{Network: "lan", MAC: "52:54:00:00:00:0a"}, {Bridge: "br0"}}},
	} {
		got := readInterfaces(parseDomain(t, "<domain><devices>"+test.devices+"</devices></domain>"), test.wanted)
		if diff := cmp.Diff(test.want, got, byValue); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestFirmwareIsToldByWhatLibvirtHandsBack(t *testing.T) {
	for name, test := range map[string]struct {
		os     string
		kind   string
		secure bool
	}{
		"nothing said":      {``, "bios", false},
		"BIOS named":        {`<os firmware='bios'/>`, "bios", false},
		"BIOS by its file":  {`<os><loader type='rom'>/usr/share/seabios/bios.bin</loader></os>`, "bios", false},
		"EFI asked for":     {`<os firmware='efi'/>`, "efi", false},
		"EFI by its file":   {`<os><loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd</loader></os>`, "efi", false},
		"secure file":       {`<os><loader readonly='yes' secure='yes' type='pflash'>/x</loader></os>`, "efi", true},
		"secure by feature": {`<os firmware='efi'><firmware><feature enabled='yes' name='secure-boot'/></firmware></os>`, "efi", true},
		"refused":           {`<os firmware='efi'><firmware><feature enabled='no' name='secure-boot'/></firmware></os>`, "efi", false},
		"able, but without keys": {`<os firmware='efi'><firmware><feature enabled='no' name='enrolled-keys'/><feature enabled='yes' name='secure-boot'/></firmware>
			<loader readonly='yes' secure='yes' type='pflash'>/x</loader></os>`, "efi", false},
	} {
		kind, secure := readFirmware(parseDomain(t, "<domain>"+test.os+"</domain>").OS)
		if kind != test.kind || secure != test.secure {
			t.Errorf("%s: read %s, secure boot %t", name, kind, secure)
		}
	}
}

func TestMemoryIsWholeMiBInEveryUnit(t *testing.T) {
	for unit, per := range map[string]float64{
		"b": 1.0 / (1 << 20), "bytes": 1.0 / (1 << 20), "": 1.0 / 1024, "k": 1.0 / 1024, "KiB": 1.0 / 1024, "KB": 1000.0 / (1 << 20),
		"M": 1, "MiB": 1, "MB": 1e6 / (1 << 20), "G": 1024, "GiB": 1024, "GB": 1e9 / (1 << 20), "T": 1 << 20, "TiB": 1 << 20, "TB": 1e12 / (1 << 20),
	} {
		for _, n := range []uint{0, 1, 1023, 1024, 1048575, 1048576} {
			if got, want := memoryMiB(&libvirtxml.DomainMemory{Value: n, Unit: unit}), int(float64(n)*per); got != want {
				t.Errorf("%d %s: %d MiB, want %d", n, unit, got, want)
			}
		}
	}
	if got := memoryMiB(nil); got != 0 {
		t.Errorf("no memory element: %d", got)
	}
}

func TestRootDiskIsTheFirstThatTheMachineCanWriteTo(t *testing.T) {
	for name, want := range map[string]diskRef{
		"foreign-virt-install": {Target: "vdb", Pool: "default", Volume: "old-proxy.qcow2"},
		"foreign-efi":          {Target: "sda", Path: "/var/lib/libvirt/images/efi.img"},
		"domain-logical-disks": {Target: "vda", Path: "/dev/vg0/root"},
		"foreign-least":        {},
	} {
		got, found := rootDisk(parseDomain(t, testdata(t, name+".xml")))
		if got != want || found != (want != diskRef{}) {
			t.Errorf("%s: %+v, %t, want %+v", name, got, found, want)
		}
	}
}

func FuzzMemoryIsNeverMoreThanItSays(f *testing.F) {
	for unit := range memoryUnits {
		f.Add("4096", unit)
	}
	f.Add("18446744073709551615", "TiB")
	f.Add("-1", "EiB")
	f.Fuzz(func(t *testing.T, text, unit string) {
		got := scaledMiB(text, unit)
		if got < 0 {
			t.Errorf("%q %q is %d MiB", text, unit, got)
		}
		if per, known := memoryUnits[unit]; !known && got != 0 {
			t.Errorf("%q is no unit, and %q of it is %d MiB", unit, text, got)
		} else if known && per >= 1<<20 && len(text) < 7 && scaledMiB(text, "b") > got {
			t.Errorf("%q bytes are more than as many %s", text, unit)
		}
	})
}
