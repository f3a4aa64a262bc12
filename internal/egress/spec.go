package egress

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Spec is what an instance is wanted to be.
type Spec struct {
	// ID says where the instance is to live and under which name.
	ID ProviderID
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
	// Network is the libvirt network the machine is on.
	Network string
	// VirtType is "kvm", "qemu", or "" to choose by what the host can do.
	VirtType string
}

// Image is a disk image that machines start from.
type Image struct {
	// Name is the image's key in the provider's images.
	Name string
	// Source is an https:// or http:// URL, or the path of a local file.
	Source string
	// SHA256 is the checksum of the file as it is at Source, in lower-case
	// hexadecimal.
	SHA256 string
}

// ConfigHash identifies what configures the machine on its first boot: the
// proxy and the user-data. It is stored on the object, so that a changed
// configuration shows as drift without reading anything back from the guest.
//
// No secret enters it: passwords and write-only user-data count by their
// version alone. It hashes the inputs, not what is rendered from them, so a
// newer provider does not replace machines.
func (s Spec) ConfigHash() string {
	in := struct {
		Proxy           *Proxy `json:"proxy"`
		UserData        string `json:"user_data"`
		UserDataVersion int64  `json:"user_data_version"`
	}{Proxy: s.Proxy.canonical(), UserDataVersion: s.UserDataVersion}
	if s.UserDataVersion == 0 {
		in.UserData = s.UserData.Reveal()
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
