package connection

import (
	"net"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// DefaultCallTimeout bounds one call where Host says nothing else.
const DefaultCallTimeout = 60 * time.Second

// DefaultDialTimeout bounds the way to an open connection where SSH and TLS say
// nothing else.
const DefaultDialTimeout = 30 * time.Second

// Host is how one hypervisor is reached.
type Host struct {
	// Name is the host's key in the provider's configuration; error texts
	// name the host by it.
	Name string
	// URI is a libvirt URI: qemu:///system, qemu:///session,
	// qemu+unix:///system?socket=/path,
	// qemu+ssh://user@host:port/system?socket=/path,
	// qemu+tls://host:port/system (or qemu://host:port/system) or
	// qemu+tcp://host:port/system.
	URI string
	// SSH is for qemu+ssh URIs. The zero value means the keys of the running
	// agent and the user's known_hosts file.
	SSH SSH
	// TLS is for qemu+tls URIs. The zero value means libvirt's own places for
	// certificates.
	TLS TLS
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
	// Bastions are the SSH servers to go through, in order: the first is
	// reached from here, each next one and then the host from the one before.
	Bastions []Bastion
	// Timeout bounds TCP connect, SSH handshakes with all bastions and the
	// host, and the opening of the libvirt connection together; for local
	// sockets and TCP too. Zero means DefaultDialTimeout.
	Timeout time.Duration
}

// Bastion is an SSH server on the way to a host. What it leaves out is as in
// the host's SSH; but its host key is its own.
type Bastion struct {
	// Host is a name or an address, as seen from the bastion before.
	Host string
	// Port is 22 where it is zero.
	Port int
	// User is the URI's where it is empty.
	User string
	// PrivateKeyFile, PrivateKey and Passphrase are as in SSH. Where there is
	// neither a file nor a key, all three are the host's.
	PrivateKeyFile string
	PrivateKey     egress.Secret
	Passphrase     egress.Secret
	// HostKey is the only host key to accept of the bastion. Empty means that
	// KnownHostsFile decides.
	HostKey string
	// KnownHostsFile is the host's where it is empty.
	KnownHostsFile string
}

// TLS is how a host's daemon is reached over TLS. Certificates and keys are in
// PEM format, each in a file or inline. What is left out is looked for where
// libvirt's own clients do (libvirt.org/kbase/tlscerts.html): in
// ~/.pki/libvirt, unless root asks, then in /etc/pki.
type TLS struct {
	// CAFile and CA hold the certificates of the authorities to believe.
	CAFile string
	CA     string
	// CertificateFile, Certificate, PrivateKeyFile and PrivateKey are what
	// this client shows of itself.
	CertificateFile string
	Certificate     string
	PrivateKeyFile  string
	PrivateKey      egress.Secret
	// ServerName is the name to find in the server's certificate, the URI's
	// host by default.
	ServerName string
	// Timeout bounds TCP connect, TLS handshake and the opening of the
	// libvirt connection together. Zero means DefaultDialTimeout.
	Timeout time.Duration
}

// Unencrypted tells whether what is said to the host crosses a network that
// others can read and change.
func Unencrypted(h Host) bool {
	e, err := parseEndpoint(h)
	if err != nil || e.way != byTCP || e.host == "localhost" {
		return false
	}
	ip := net.ParseIP(e.host)
	return ip == nil || !ip.IsLoopback()
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
