package connection

import (
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// DefaultCallTimeout bounds one call where Host says nothing else.
const DefaultCallTimeout = 60 * time.Second

// DefaultDialTimeout bounds the way to an open connection where SSH says
// nothing else.
const DefaultDialTimeout = 30 * time.Second

// Host is how one hypervisor is reached.
type Host struct {
	// Name is the host's key in the provider's configuration; error texts
	// name the host by it.
	Name string
	// URI is a libvirt URI: qemu:///system, qemu:///session,
	// qemu+unix:///system?socket=/path or
	// qemu+ssh://user@host:port/system?socket=/path.
	URI string
	// SSH is read for qemu+ssh URIs only. The zero value means the keys of
	// the running agent and the user's known_hosts file.
	SSH SSH
	// CallTimeout bounds each call of Pool.Read and Pool.Write, whatever
	// their context allows. Zero means DefaultCallTimeout.
	CallTimeout time.Duration
}

// SSH is how a host is reached over SSH. ~/.ssh/config is not read.
type SSH struct {
	// PrivateKeyFile is the path of a private key; a leading "~/" means the
	// home directory.
	PrivateKeyFile string
	// PrivateKey is a private key itself, in OpenSSH's or a PEM format.
	PrivateKey egress.Secret
	// Passphrase opens PrivateKeyFile and PrivateKey where they are
	// encrypted.
	Passphrase egress.Secret
	// HostKey is the only host key to accept, as a line of a .pub file:
	// "ssh-ed25519 AAAA...". Empty means that KnownHostsFile decides.
	HostKey string
	// KnownHostsFile is the file of known host keys, ~/.ssh/known_hosts by
	// default.
	KnownHostsFile string
	// Timeout bounds TCP connect, SSH handshake and the opening of the
	// libvirt connection together, for local sockets too. Zero means
	// DefaultDialTimeout.
	Timeout time.Duration
}

// Validate checks what can be checked without talking to anybody: the URI, the
// shape of keys, the durations. Its error is an *egress.Fault of kind
// egress.ErrPermanent.
func Validate(h Host) error {
	if _, err := parseEndpoint(h); err != nil {
		return err
	}
	return validateSSH(h)
}

// invalid makes the fault for a mistake in one attribute of the host.
func invalid(h Host, attribute string, cause error, remedy string) error {
	return &egress.Fault{
		Kind:      egress.ErrPermanent,
		Doing:     "reading the configuration of host " + h.Name,
		Cause:     cause,
		Remedy:    remedy,
		Attribute: "kvm.hosts." + h.Name + "." + attribute,
	}
}
