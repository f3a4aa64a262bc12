// Package packages says which Debian or Ubuntu packages the lab needs, and
// finds out which of them are missing.
package packages

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Tool is a program or file the lab needs and the package that brings it.
type Tool struct {
	// Path is a program's name, looked up in PATH and the sbin directories, or
	// the absolute path of a file.
	Path string
	// Package is the name of the package, the same in Debian and Ubuntu.
	Package string
}

// Hypervisor is what a private hypervisor needs.
var Hypervisor = []Tool{
	{"libvirtd", "libvirt-daemon-system"},
	{"virtlogd", "libvirt-daemon-system"},
	{"/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so", "libvirt-daemon-driver-qemu"},
	{"virsh", "libvirt-clients"},
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"qemu-img", "qemu-utils"},
	{"dnsmasq", "dnsmasq-base"},
	{"iptables", "iptables"},
	{"ip", "iproute2"},
	{"unshare", "util-linux"},
	{"nsenter", "util-linux"},
	{"curl", "curl"},
}

// Image is what building the guest image needs.
var Image = []Tool{
	{"mmdebstrap", "mmdebstrap"},
	{"/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"},
	{"extlinux", "extlinux"},
	{"/usr/lib/syslinux/mbr/mbr.bin", "syslinux-common"},
	{"mkfs.ext4", "e2fsprogs"},
	{"sfdisk", "fdisk"},
	{"losetup", "mount"},
	{"qemu-img", "qemu-utils"},
	{"unshare", "util-linux"},
}

// ErrMissing marks the error of Require when packages are missing.
var ErrMissing = errors.New("packages are missing")

// Missing returns the packages that tools need and that are not installed,
// sorted, each once.
func Missing(tools ...[]Tool) []string {
	var missing []string
	for _, tool := range slices.Concat(tools...) {
		if !tool.installed() {
			missing = append(missing, tool.Package)
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// Require returns nil if nothing is missing, else an error of the kind
// ErrMissing that gives the command to type.
func Require(tools ...[]Tool) error {
	missing := Missing(tools...)
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w; install them with: %s", ErrMissing, strings.Join(Install(missing), " "))
}

// Install returns the command, to be run by root, that installs packages.
func Install(packages []string) []string {
	return append([]string{"apt-get", "install", "--yes", "--no-install-recommends"}, packages...)
}

func (t Tool) installed() bool {
	if strings.HasPrefix(t.Path, "/") {
		_, err := os.Stat(t.Path)
		return err == nil
	}
	if _, err := exec.LookPath(t.Path); err == nil {
		return true
	}
	// A user's PATH often lacks the directories of root's programs.
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if _, err := os.Stat(dir + t.Path); err == nil {
			return true
		}
	}
	return false
}
