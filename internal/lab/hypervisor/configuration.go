package hypervisor

import (
	"crypto/rand"
	"encoding/xml"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// directories maps the directories in Options.Dir to the places where libvirt
// looks for them.
var directories = map[string]string{
	"etc":   "/etc/libvirt",
	"lib":   "/var/lib/libvirt",
	"run":   "/run/libvirt",
	"log":   "/var/log/libvirt",
	"cache": "/var/cache/libvirt",
}

// qemuConf suits a machine without systemd, D-Bus, a security module that
// knows the private paths, or cgroups it may change.
const qemuConf = `security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
user = "root"
group = "root"
remember_owner = 0
`

// libvirtdConf lets every process that may reach the directory use the
// daemon: it is reached by its path, not by who calls.
const libvirtdConf = `host_uuid = "%s"
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "3:stderr"
`

// writeConfiguration makes the directories and files the daemons start from.
func (h *Hypervisor) writeConfiguration() error {
	for dir := range directories {
		if err := os.MkdirAll(filepath.Join(h.options.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	// libvirtd wants these of the directories a package would make.
	for _, dir := range []string{h.PoolDir, filepath.Join(h.options.Dir, "lib", "dnsmasq"), filepath.Join(h.options.Dir, "log", "qemu")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// The host's UUID is part of its identity to clients: it stays.
	file := filepath.Join(h.options.Dir, "etc", "libvirtd.conf")
	if _, err := os.Stat(file); err != nil {
		if err := os.WriteFile(file, fmt.Appendf(nil, libvirtdConf, newUUID()), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(h.options.Dir, "etc", "qemu.conf"), []byte(qemuConf), 0o644)
}

// newUUID makes a random UUID, version 4 of RFC 9562.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// networkXML defines a routed network without firewall rules: what guests
// reach is on the host itself. dnsmasq neither asks a name server nor probes
// an address by ping before it offers it, which would take 3 seconds.
func networkXML(o Options) string {
	var dns strings.Builder
	byAddress := map[netip.Addr][]string{}
	for name, addr := range o.Hosts {
		byAddress[addr] = append(byAddress[addr], name)
	}
	for _, addr := range slices.SortedFunc(maps.Keys(byAddress), netip.Addr.Compare) {
		fmt.Fprintf(&dns, "    <host ip='%s'>\n", addr)
		for _, name := range slices.Sorted(slices.Values(byAddress[addr])) {
			dns.WriteString("      <hostname>")
			// Writing to a strings.Builder does not fail.
			_ = xml.EscapeText(&dns, []byte(name))
			dns.WriteString("</hostname>\n")
		}
		dns.WriteString("    </host>\n")
	}
	host := o.Subnet.Masked().Addr().Next()
	base := host.As4()
	first, last := base, base
	first[3], last[3] = 2, 254
	return fmt.Sprintf(`<network xmlns:dnsmasq='http://libvirt.org/schemas/network/dnsmasq/1.0'>
  <name>%s</name>
  <forward mode='open'/>
  <bridge name='%s' stp='off' delay='0'/>
  <dns>
%s  </dns>
  <ip address='%s' prefix='%d'>
    <dhcp>
      <range start='%s' end='%s'/>
    </dhcp>
  </ip>
  <dnsmasq:options>
    <dnsmasq:option value='no-ping'/>
    <dnsmasq:option value='no-resolv'/>
    <dnsmasq:option value='local=/test/'/>
  </dnsmasq:options>
</network>
`, Network, bridgePrefix+o.Name, dns.String(), host, o.Subnet.Bits(), netip.AddrFrom4(first), netip.AddrFrom4(last))
}

func poolXML(dir string) string {
	var path strings.Builder
	_ = xml.EscapeText(&path, []byte(dir)) // writing to a strings.Builder does not fail
	return fmt.Sprintf("<pool type='dir'>\n  <name>%s</name>\n  <target><path>%s</path></target>\n</pool>\n", Pool, path.String())
}

// virtType tells whether guests can run on KVM. The device alone proves
// nothing: where the CPU shows no virtualisation of its own, guests start
// under KVM and die of an internal error.
func virtType() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !virtualises(string(info)) {
		return "qemu"
	}
	kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "qemu"
	}
	_ = kvm.Close() // nothing was written
	return "kvm"
}

// virtualises tells whether /proc/cpuinfo lists Intel's or AMD's extension.
func virtualises(cpuinfo string) bool {
	for line := range strings.Lines(cpuinfo) {
		if key, flags, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "flags" {
			fields := strings.Fields(flags)
			return slices.Contains(fields, "vmx") || slices.Contains(fields, "svm")
		}
	}
	return false
}
