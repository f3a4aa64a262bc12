package connection

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// hop is one SSH server on the way to a daemon: a bastion, or the host's own.
type hop struct {
	user, host, port string
	ssh              SSH    // how to log in there; what was left out is filled in
	attribute        string // where it is configured: kvm.hosts.hv1.ssh.bastions.0
	setting          string // the same for a person: ssh.bastions[0]
	via              []hop  // the bastions before it
	bastion          bool
}

// hops gives the SSH servers on the way to a host, in order.
func hops(h Host, name, host, port string) []hop {
	at := "kvm.hosts." + h.Name + "."
	var chain []hop
	for i, b := range h.SSH.Bastions {
		bastion := bastionHop(h.SSH, b, name)
		bastion.attribute, bastion.setting = fmt.Sprintf("%sssh.bastions.%d", at, i), fmt.Sprintf("ssh.bastions[%d]", i)
		bastion.via = slices.Clone(chain)
		chain = append(chain, bastion)
	}
	return append(chain, hop{user: name, host: host, port: port, ssh: h.SSH, attribute: at + "ssh", setting: "ssh", via: slices.Clone(chain)})
}

// bastionHop fills in from the host's settings what a bastion leaves out. A key
// and its passphrase belong together; and a host key is one machine's alone.
func bastionHop(of SSH, b Bastion, name string) hop {
	s := SSH{
		PrivateKeyFile: b.PrivateKeyFile,
		PrivateKey:     b.PrivateKey,
		Passphrase:     b.Passphrase,
		HostKey:        b.HostKey,
		KnownHostsFile: b.KnownHostsFile,
	}
	if s.PrivateKeyFile == "" && s.PrivateKey.IsZero() {
		s.PrivateKeyFile, s.PrivateKey, s.Passphrase = of.PrivateKeyFile, of.PrivateKey, of.Passphrase
	}
	if s.KnownHostsFile == "" {
		s.KnownHostsFile = of.KnownHostsFile
	}
	if b.User != "" {
		name = b.User
	}
	port := "22"
	if b.Port != 0 {
		port = strconv.Itoa(b.Port)
	}
	return hop{user: name, host: b.Host, port: port, ssh: s, bastion: true}
}

// address gives host:port of the server.
func (h hop) address() string { return net.JoinHostPort(h.host, h.port) }

// String names the server for error texts.
func (h hop) String() string { return h.user + "@" + h.address() }

// command gives what a person types to run something on the server.
func (h hop) command(run string) string {
	jumps := make([]string, len(h.via))
	for i, bastion := range h.via {
		jumps[i] = bastion.String()
	}
	jump := ""
	if len(jumps) > 0 {
		jump = "-J " + strings.Join(jumps, ",") + " "
	}
	return fmt.Sprintf("ssh %s-p %s %s@%s %s", jump, h.port, h.user, h.host, run)
}

// from gives what a person types to run something where the server is seen
// from: on the bastion before it, or here.
func (h hop) from(run string) string {
	if len(h.via) == 0 {
		return run
	}
	return h.via[len(h.via)-1].command(run)
}

// named puts the server's name before an error where there are several on the
// way.
func (h hop) named(cause error) error {
	switch {
	case h.bastion:
		return fmt.Errorf("bastion %d, %s: %w", len(h.via)+1, h, cause)
	case len(h.via) > 0:
		return fmt.Errorf("the host itself, %s: %w", h, cause)
	}
	return cause
}
