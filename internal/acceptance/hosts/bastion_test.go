package hosts_test

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/opensshd"
)

// behind is a hypervisor that only a bastion knows by name.
type behind struct {
	*hypervisor
	bastion *opensshd.Server
	host    connection.Host
}

const insideName = "hv1.inside.test"

func startBehind(t *testing.T, change func(o *opensshd.Options, line, target string)) *behind {
	t.Helper()
	key, line := plainKey(t)
	bastionKey, bastionLine := plainKey(t)
	b := &behind{hypervisor: startHypervisor(t, func(o *opensshd.Options) { o.AuthorizedKeys = []string{line} })}
	port := b.Address[strings.LastIndex(b.Address, ":"):]
	b.bastion = startServer(t, func(o *opensshd.Options) {
		o.AuthorizedKeys = []string{bastionLine}
		o.Hosts = map[string]netip.Addr{insideName: netip.MustParseAddr("127.0.0.1")}
		if change != nil {
			change(o, bastionLine, insideName+port)
		}
	})
	b.host = connection.Host{Name: "hv1", URI: b.uri(insideName + port), SSH: connection.SSH{
		PrivateKeyFile: key,
		HostKey:        string(ssh.MarshalAuthorizedKey(b.HostKeys[0])),
		Bastions: []connection.Bastion{{
			Host: "127.0.0.1", Port: portOf(t, b.bastion.Address), PrivateKeyFile: bastionKey,
			HostKey: string(ssh.MarshalAuthorizedKey(b.bastion.HostKeys[0])),
		}},
	}}
	return b
}

func TestAHostBehindAnOpenSSHBastionIsReachedByItsNameThere(t *testing.T) {
	b := startBehind(t, func(o *opensshd.Options, line, target string) {
		// no more than it takes
		o.AuthorizedKeys = []string{`restrict,port-forwarding,permitopen="` + target + `" ` + line}
		o.Lines = []string{"AllowStreamLocalForwarding no"}
	})
	pool := connection.New(b.host)
	defer closePool(t, pool)
	for _, drop := range []func(){b.DropAll, b.bastion.DropAll, func() {}} {
		if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Fatal(err)
		}
		drop()
	}
	direct := b.host
	direct.SSH.Bastions = nil
	refused(t, read(t, direct), egress.ErrUnreachable, "", "lookup "+insideName)
}

func TestAnOpenSSHBastionsRefusalsAreExplained(t *testing.T) {
	for name, tc := range map[string]struct {
		change    func(o *opensshd.Options, line, target string)
		host      func(h *connection.Host)
		kind      error
		attribute string
		says      []string
	}{
		"AllowTcpForwarding no": {
			change:    func(o *opensshd.Options, _, _ string) { o.Lines = []string{"AllowTcpForwarding no"} },
			kind:      egress.ErrPermanent,
			attribute: "ssh.bastions.0",
			says:      []string{"the bastion forbids forwarding to " + insideName, "AllowTcpForwarding yes"},
		},
		"PermitOpen for others": {
			change:    func(o *opensshd.Options, _, _ string) { o.Lines = []string{"PermitOpen other.inside.test:22"} },
			kind:      egress.ErrPermanent,
			attribute: "ssh.bastions.0",
			says:      []string{"the bastion forbids forwarding to " + insideName, "PermitOpen"},
		},
		"a restricted key": {
			change:    func(o *opensshd.Options, line, _ string) { o.AuthorizedKeys = []string{"restrict " + line} },
			kind:      egress.ErrPermanent,
			attribute: "ssh.bastions.0",
			says:      []string{"the bastion forbids forwarding to " + insideName, "restrict, permitopen"},
		},
		"a name it does not know": {
			change: func(o *opensshd.Options, _, _ string) { o.Hosts = nil },
			kind:   egress.ErrUnreachable,
			says:   []string{"the bastion could not connect to " + insideName, "is looked up on the bastion"},
		},
		"a port without a server": {
			host: func(h *connection.Host) {
				h.URI = "qemu+ssh://root@" + insideName + ":9/system"
			},
			kind: egress.ErrUnreachable,
			says: []string{"the bastion could not connect to " + insideName + ":9: ", "ssh-keyscan -p 9 " + insideName},
		},
		"a key of its own that it refuses": {
			change:    func(o *opensshd.Options, _, _ string) { o.AuthorizedKeys = nil },
			kind:      egress.ErrPermanent,
			attribute: "ssh.bastions.0",
			says:      []string{"logging in as root", "was refused by the server"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := startBehind(t, tc.change)
			if tc.host != nil {
				tc.host(&b.host)
			}
			refused(t, read(t, b.host), tc.kind, tc.attribute, append(tc.says, "bastion 1, root@127.0.0.1:")...)
		})
	}
}
