package egress

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Spec is what an instance is wanted to be.
type Spec struct {
	// ID says where the instance is to live and under which name.
	ID ProviderID
	// UID is Instance.UID of the object to change, as it was last seen; empty
	// on creation, and where it is not known.
	UID string
	// Description is a person's note on the instance; may be empty.
	Description string
	// Stopped wants the machine there and not running.
	Stopped bool
	// Tags are stored on the object, the provider's default tags included.
	Tags Tags
	// Proxy is the proxy's configuration; nil when UserData alone configures
	// the machine.
	Proxy *Proxy
	// UserData is a person's own cloud-init user-data, sent beside the part
	// that configures the proxy; may be secret.
	UserData Secret
	// UserDataVersion is user_data_wo_version; 0 when UserData was not given
	// by the write-only attribute.
	UserDataVersion int64
	// HealthCheck says when the instance counts as ready.
	HealthCheck HealthCheck
	// KVM is set when ID.Backend is KVM.
	KVM *KVMSpec
}

// Proxy is the configuration of the proxy on an instance. Its JSON form is
// stored on the object and read back by import; it carries no secret.
type Proxy struct {
	// HTTPPort is the TCP port of the HTTP and CONNECT listener.
	HTTPPort int `json:"http_port"`
	// Clients are those who may use the proxy, by user name. Never empty: a
	// listener without clients would be open to everyone.
	Clients map[string]Client `json:"clients"`
	// Policy holds for every client.
	Policy Policy `json:"policy"`
}

// Client is one user of the proxy.
type Client struct {
	// Password is what the client authenticates with. Known only while a
	// configuration is at hand, never on refresh.
	Password Secret `json:"-"`
	// PasswordVersion is password_wo_version.
	PasswordVersion int64 `json:"password_version"`
	// AllowDomains are reachable for this client beside the policy's.
	AllowDomains []string `json:"allow_domains,omitempty"`
}

// Policy says who may go where.
type Policy struct {
	// Default is the verdict on a destination that no list names.
	Default Verdict `json:"default"`
	// AllowDomains are host names: "a.example.org" is exactly that host,
	// ".example.org" is that domain and everything below it.
	AllowDomains []string `json:"allow_domains,omitempty"`
	// AllowPorts are the destination TCP ports; others are refused whatever
	// the domain.
	AllowPorts []int `json:"allow_ports,omitempty"`
}

// Verdict is a policy's answer.
type Verdict string

// The verdicts.
const (
	Deny  Verdict = "deny"
	Allow Verdict = "allow"
)

// HealthCheck says how an instance proves that it forwards.
type HealthCheck struct {
	// Target is the HOST:PORT that must be reachable through the proxy.
	Target string `json:"target,omitempty"`
	// From is where the probe runs.
	From ProbeFrom `json:"from"`
	// Interval is the time between two probes while waiting.
	Interval time.Duration `json:"interval"`
}

// ProbeFrom is where a probe runs.
type ProbeFrom string

// Where a probe can run.
const (
	// FromClient probes from the machine Terraform runs on.
	FromClient ProbeFrom = "client"
	// FromNone does not probe: the instance counts as ready once it runs and
	// has an address.
	FromNone ProbeFrom = "none"
)

// KVMSpec is the machine wanted on a libvirt host.
type KVMSpec struct {
	// VCPUs is the number of virtual CPUs.
	VCPUs int
	// MemoryMiB is the memory in MiB.
	MemoryMiB int
	// DiskGiB is the root disk's size in GiB; the disk is never smaller than
	// the image.
	DiskGiB int
	// Image is the base image under the root disk.
	Image Image
	// Pool is the storage pool for base image, overlay and seed.
	Pool string
	// Interfaces are the machine's network interfaces, at least one. Clients
	// dial the addresses of the first before those of the others.
	Interfaces []Interface
	// VirtType is "kvm", "qemu", or "" to choose by what the host can do.
	VirtType string
	// CPUMode is libvirt's: "host-passthrough", "host-model", "maximum", or ""
	// for the best that VirtType can do.
	CPUMode string
	// Firmware is "bios", "efi", or "" for what is usual on the host's
	// architecture.
	Firmware string
	// SecureBoot is for firmware "efi" only.
	SecureBoot bool
	// Autostart starts the machine when its host starts.
	Autostart bool
	// ConsoleLog is the path on the host of a file that gets what the machine
	// writes to its serial console; empty for none.
	ConsoleLog string
	// VendorData is cloud-init vendor-data to give instead of the provider's
	// own; empty for the provider's own, which installs the guest agent.
	VendorData string
}

// Interface is a network interface of a machine. Exactly one of Network, Bridge
// and Macvtap is set.
type Interface struct {
	// Network is a libvirt network's name.
	Network string `json:"network,omitempty"`
	// Bridge is a bridge of the host.
	Bridge string `json:"bridge,omitempty"`
	// Macvtap is a network device of the host, shared in macvtap's bridge mode.
	Macvtap string `json:"macvtap,omitempty"`
	// Portgroup is one of Network's; empty for its default.
	Portgroup string `json:"portgroup,omitempty"`
	// VLAN is a VLAN ID from 1 to 4094; 0 for none.
	VLAN int `json:"vlan,omitempty"`
	// MTU is in bytes; 0 for the host's choice.
	MTU int `json:"mtu,omitempty"`
	// Model is the device's model; empty for "virtio".
	Model string `json:"model,omitempty"`
	// MAC is written "52:54:00:12:34:56"; empty to have it follow from host,
	// name and the interface's place.
	MAC string `json:"mac,omitempty"`
	// Addresses are static, with their prefix lengths; none means DHCP.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Gateways are the default routes of the static addresses, at most one for
	// each address family.
	Gateways []netip.Addr `json:"gateways,omitempty"`
	// Nameservers are the DNS servers beside static addresses.
	Nameservers []netip.Addr `json:"nameservers,omitempty"`
}

// Image is a disk image that machines start from.
type Image struct {
	// Name is the image's key in the provider's images.
	Name string
	// Source is an https:// or http:// URL, the path of a local file, or
	// "volume:NAME" for a volume that is in the pool already.
	Source string
	// SHA256 is the checksum of the file as it is at Source, in lower-case
	// hexadecimal. Empty for a volume, and where ChecksumURL is to tell.
	SHA256 string
	// ChecksumURL is the https:// or http:// URL of a list of checksums, as
	// sha256sum writes it, that tells SHA256 where that is empty.
	ChecksumURL string
}

// volumePrefix starts the Source of an image that is a volume.
const volumePrefix = "volume:"

// Volume gives the name of the volume that the image is, or "" when it is a
// file.
func (i Image) Volume() string {
	name, ok := strings.CutPrefix(i.Source, volumePrefix)
	if !ok {
		return ""
	}
	return name
}

// ConfigHash identifies what configures the machine on its first boot: the
// proxy, the user-data and a person's own vendor-data. It is stored on the object, so that a changed
// configuration shows as drift without reading anything back from the guest.
//
// No secret enters it: passwords and write-only user-data count by their
// version alone. It hashes the inputs, not what is rendered from them, so a
// newer provider does not replace machines. It is empty where nothing configures
// the machine.
func (s Spec) ConfigHash() string {
	if s.Proxy == nil && s.UserData.IsZero() && s.UserDataVersion == 0 && (s.KVM == nil || s.KVM.VendorData == "") {
		return ""
	}
	in := struct {
		Proxy           *Proxy `json:"proxy"`
		UserData        string `json:"user_data"`
		UserDataVersion int64  `json:"user_data_version"`
		VendorData      string `json:"vendor_data,omitempty"`
	}{Proxy: s.Proxy.canonical(), UserDataVersion: s.UserDataVersion}
	if s.UserDataVersion == 0 {
		in.UserData = s.UserData.Reveal()
	}
	if s.KVM != nil {
		in.VendorData = s.KVM.VendorData
	}
	text, err := json.Marshal(in)
	if err != nil {
		panic(fmt.Sprintf("encoding the configuration for its hash: %v", err)) // strings and numbers only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// canonical returns p with its lists, whose order means nothing, in one order.
func (p *Proxy) canonical() *Proxy {
	if p == nil {
		return nil
	}
	c := Proxy{HTTPPort: p.HTTPPort, Clients: make(map[string]Client, len(p.Clients)), Policy: Policy{
		Default:      p.Policy.Default,
		AllowDomains: sorted(p.Policy.AllowDomains),
		AllowPorts:   sorted(p.Policy.AllowPorts),
	}}
	for name, client := range p.Clients {
		c.Clients[name] = Client{PasswordVersion: client.PasswordVersion, AllowDomains: sorted(client.AllowDomains)}
	}
	return &c
}

func sorted[T ~string | ~int](in []T) []T {
	out := slices.Clone(in)
	slices.Sort(out)
	return slices.Compact(out)
}
