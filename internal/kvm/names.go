package kvm

import (
	"crypto/sha256"
	"fmt"
	"regexp"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/image"
)

// All volumes of ours carry this prefix, so that a pool shared with other
// machines shows at once what belongs here. An instance's own volumes end in
// "-root.qcow2" and "-seed.iso" and a base image's name ends in its checksum,
// so no two kinds can collide, whatever the instance is called.
const volumePrefix = "egressproxy-"

func overlayName(instance string) string { return volumePrefix + instance + "-root.qcow2" }

func seedName(instance string) string { return volumePrefix + instance + "-seed.iso" }

// basePrefix starts the name of every copy of the base image with this
// checksum.
func basePrefix(sha256 string) string { return volumePrefix + "base-" + sha256 }

// baseName names one upload of a base image. Each upload has a name of its own
// (unique), so that two processes that fetch the same image at the same time
// never write over each other.
func baseName(sha256, unique string, format image.Format) string {
	return basePrefix(sha256) + "-" + unique + "." + string(format)
}

// markerName names the volume whose existence says that the base image with
// this checksum was uploaded whole and verified, and which copy it is: the
// marker is an empty overlay over that copy. A storage pool has no rename, so a
// volume under its final name proves nothing by itself, while creating the
// marker is one atomic step that fails if the copy is not there.
func markerName(sha256 string) string { return basePrefix(sha256) + ".complete" }

// MACAddress derives an instance's MAC address from where it lives and its
// name, so that a replaced machine keeps its DHCP lease. 52:54:00 is the
// prefix QEMU and libvirt use for the MAC addresses they make up.
func MACAddress(host, instance string) string {
	sum := sha256.Sum256([]byte(host + "/" + instance))
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", sum[0], sum[1], sum[2])
}

// ValidateName tells whether an instance can have this name: it becomes the
// domain's name and the guest's host name, so it must be a DNS label (RFC
// 1123, section 2.1) in lower case.
func ValidateName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the name is empty")
	case len(name) > 63:
		return fmt.Errorf("the name has %d characters; a host name has at most 63", len(name))
	case !dnsLabel.MatchString(name):
		return fmt.Errorf("%q is not a host name: use lower-case letters, digits and hyphens, starting with a letter and ending with a letter or digit", name)
	}
	return nil
}

var dnsLabel = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)

// instanceID is the NoCloud instance-id: cloud-init configures a machine once
// for each, so another configuration is another one.
func instanceID(spec egress.Spec) string {
	return spec.ID.Name + "-" + spec.ConfigHash()[:16]
}
