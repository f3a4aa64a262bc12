package kvm

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/image"
)

// All volumes of ours carry this prefix, so that a pool shared with other
// machines shows at once what belongs here.
const volumePrefix = "egressproxy-"

// volumeNames are the names of an instance's own volumes.
type volumeNames struct {
	// Root is the overlay over the base image.
	Root string
	// Seed is the disk that cloud-init reads.
	Seed string
}

// namesFor names the volumes of one incarnation of an instance. Digits of its
// host's and its own UUID are in them: a machine that replaces another of the
// same name, or is made by another run or on another host that shares the pool,
// never has the other's volumes under its own names.
func namesFor(instance, hostUUID, uuid string) volumeNames {
	own := strings.ReplaceAll(uuid, "-", "")
	mark := hostMark(hostUUID) + own[:min(8, len(own))]
	return volumeNames{Root: volumePrefix + instance + "-root-" + mark + ".qcow2", Seed: volumePrefix + instance + "-seed-" + mark + ".iso"}
}

// hostMark is what the names of volumes carry of their host. It is hashed: the
// first digits of a host's UUID are often those of its maker.
func hostMark(hostUUID string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(hostUUID)))
	return hex.EncodeToString(sum[:2])
}

// isVolumeOf tells whether a name is that of an own volume of any incarnation of
// an instance on a host.
func isVolumeOf(instance, hostUUID, name string) bool {
	rest, ok := strings.CutPrefix(name, volumePrefix+instance+"-")
	if !ok {
		return false
	}
	parts := ownVolume.FindStringSubmatch(rest)
	return len(parts) == 2 && parts[1] == hostMark(hostUUID)
}

var ownVolume = regexp.MustCompile(`^(?:root|seed)-([0-9a-f]{4})[0-9a-f]{8}\.(?:qcow2|iso)$`)

// newUUID gives a random UUID (RFC 9562, section 5.4), the identity that libvirt
// and we tell one domain from all others by.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand documentation)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

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

// InterfaceMACs gives the MAC addresses of an instance's interfaces, in their
// order: those that are wanted, and for the others such as follow from where the
// instance lives, its name and the interface's place. The first is MACAddress's.
func InterfaceMACs(host, instance string, interfaces []egress.Interface) []string {
	macs := make([]string, len(interfaces))
	for i, nic := range interfaces {
		switch {
		case nic.MAC != "":
			macs[i] = strings.ToLower(nic.MAC)
		case i == 0:
			macs[i] = MACAddress(host, instance)
		default:
			macs[i] = MACAddress(host, instance+"/"+strconv.Itoa(i))
		}
	}
	return macs
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
