package connection

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
)

func TestAHostBehindBastionsIsReachedByTheNamesTheyKnow(t *testing.T) {
	nothingLeft(t)
	c := startChain(t, stallSocket(t, obliging), 2, nil)
	h := c.host(t, c.servers[0].Addr())
	pool := New(h)
	defer closeOrFail(t, pool.Close)
	for range 2 {
		if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Fatal(err)
		}
		if err := pool.Stream(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []struct{ asked, user string }{
		{"jump2.internal:2222", "jumper"}, {"hv1.internal:2222", "jumper"}, {"/run/libvirt/libvirt-sock", "ops"},
	} {
		server := c.servers[i]
		if got := server.Asked()[0]; got != want.asked {
			t.Errorf("server %d was asked for %s, want %s", i+1, got, want.asked)
		}
		if users := server.Users(); !slices.Contains(users, want.user) {
			t.Errorf("at server %d it logged in as %v, want %s", i+1, users, want.user)
		}
		if server.Connections() != 1 {
			t.Errorf("server %d got %d connections, want 1", i+1, server.Connections())
		}
	}
	closeOrFail(t, pool.Close)
	for _, server := range c.servers {
		eventually(t, "every server is left", func() bool { return server.Open() == 0 })
	}
}

func TestWhatABastionLeavesOutIsTheHosts(t *testing.T) {
	nothingLeft(t)
	key := newKey(t, ssh.KeyAlgoED25519)
	c := startChain(t, stallSocket(t, obliging), 1, func(_ int, o *sshserver.Options) {
		o.AuthorizedKeys = []ssh.PublicKey{key.Public()}
	})
	known := filepath.Join(t.TempDir(), "known_hosts")
	writeFile(t, known, knownhosts.Line([]string{c.servers[0].Addr()}, c.hostKeys[0].Public())+"\n"+
		knownhosts.Line([]string{"hv1.internal:2222"}, c.hostKeys[1].Public())+"\n")
	h := c.host(t, c.servers[0].Addr())
	bastion := Bastion{Host: h.SSH.Bastions[0].Host, Port: h.SSH.Bastions[0].Port}
	h.SSH = SSH{PrivateKeyFile: keyFile(t, key), KnownHostsFile: known, Bastions: []Bastion{bastion}}
	if err := read(t, h); err != nil {
		t.Fatal(err)
	}
	if users := c.servers[0].Users(); users[0] != "ops" {
		t.Errorf("it logged in at the bastion as %v, want the URI's user", users)
	}
	// the host's own pinned key says nothing about the bastion
	h.SSH.HostKey = string(ssh.MarshalAuthorizedKey(c.hostKeys[1].Public()))
	if err := read(t, h); err != nil {
		t.Errorf("with a pinned key of the host: %v", err)
	}
	if err := os.Remove(known); err != nil {
		t.Fatal(err)
	}
	err := read(t, h)
	says(t, err, "bastion 1, ops@127.0.0.1:", "the host key is unknown")
}

// TestAFailureNamesTheServerOnTheWay breaks each server of a chain of one
// bastion in each way.
func TestAFailureNamesTheServerOnTheWay(t *testing.T) {
	other := newKey(t, ssh.KeyAlgoED25519)
	otherLine := string(ssh.MarshalAuthorizedKey(other.Public()))
	for name, tc := range map[string]struct {
		options   func(i int, o *sshserver.Options)
		host      func(h *Host)
		kind      error
		attribute string
		says      []string
	}{
		"the bastion's key has changed": {
			host:      func(h *Host) { h.SSH.Bastions[0].HostKey = otherLine },
			kind:      egress.ErrPermanent,
			attribute: "ssh.bastions.0.host_key",
			says:      []string{"bastion 1, jumper@127.0.0.1:", "the host key has changed", "set ssh.bastions[0].host_key"},
		},
		"the host's key has changed": {
			host:      func(h *Host) { h.SSH.HostKey = otherLine },
			kind:      egress.ErrPermanent,
			attribute: "ssh.host_key",
			says:      []string{"the host itself, ops@hv1.internal:2222", "the host key has changed"},
		},
		"the host's key is unknown": {
			host: func(h *Host) {
				h.SSH.HostKey, h.SSH.KnownHostsFile = "", "/nonexistent/known_hosts"
			},
			kind:      egress.ErrPermanent,
			attribute: "ssh.host_key",
			says:      []string{"the host itself, ops@hv1.internal:2222", "the host key is unknown", "jumper@127.0.0.1 ssh-keyscan -p 2222 hv1.internal >> /nonexistent/known_hosts"},
		},
		"the bastion refuses the key": {
			options: func(i int, o *sshserver.Options) {
				if i == 0 {
					o.AuthorizedKeys = nil
				}
			},
			kind:      egress.ErrPermanent,
			attribute: "ssh.bastions.0",
			says:      []string{"bastion 1, jumper@", "logging in as jumper", "private_key: ssh-ed25519 SHA256:", "was refused by the server", "ssh.bastions[0].private_key_file"},
		},
		"the host refuses the key": {
			options: func(i int, o *sshserver.Options) {
				if i == 1 {
					o.AuthorizedKeys = nil
				}
			},
			kind:      egress.ErrPermanent,
			attribute: "ssh",
			says:      []string{"the host itself, ops@hv1.internal:2222", "logging in as ops", "was refused by the server"},
		},
		"the bastion has no key to log in with": {
			host: func(h *Host) {
				h.SSH.Bastions[0].PrivateKey, h.SSH.Bastions[0].PrivateKeyFile = egress.Secret{}, "/nonexistent/key"
			},
			kind:      egress.ErrPermanent,
			attribute: "ssh.bastions.0",
			says:      []string{"bastion 1, jumper@", "there is no key to log in with", "private_key_file /nonexistent/key: the file cannot be read"},
		},
		"the bastion forbids forwarding": {
			options: func(i int, o *sshserver.Options) {
				o.ForbidForwarding = i == 0
			},
			kind:      egress.ErrPermanent,
			attribute: "ssh.bastions.0",
			says:      []string{"bastion 1, jumper@", "forbids forwarding to hv1.internal:2222", "AllowTcpForwarding yes", "PermitOpen"},
		},
		"the bastion does not know the host": {
			options: func(i int, o *sshserver.Options) {
				if i == 0 {
					o.Addresses = nil
				}
			},
			kind: egress.ErrUnreachable,
			says: []string{"bastion 1, jumper@", "could not connect to hv1.internal:2222: Name or service not known", "is looked up on the bastion", "ssh-keyscan -p 2222 hv1.internal"},
		},
		"the host has no daemon": {
			options: func(i int, o *sshserver.Options) {
				if i == 1 {
					o.Sockets = nil
				}
			},
			kind: egress.ErrUnreachable,
			says: []string{"the host itself, ops@hv1.internal:2222", "could not open the daemon's socket"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			nothingLeft(t)
			c := startChain(t, stallSocket(t, obliging), 1, tc.options)
			h := c.host(t, c.servers[0].Addr())
			if tc.host != nil {
				tc.host(&h)
			}
			err := read(t, h)
			if !errors.Is(err, tc.kind) {
				t.Errorf("got %v", err)
			}
			says(t, err, append(tc.says, "looking up domain ci-1 on host hv1", "connecting to ops@hv1.internal:2222 through jumper@127.0.0.1:")...)
			if got, want := fault(t, err).Attribute, "kvm.hosts.hv1."+tc.attribute; got != want && tc.attribute != "" {
				t.Errorf("the attribute is %s, want %s", got, want)
			}
			for _, server := range c.servers {
				eventually(t, "every server is left", func() bool { return server.Open() == 0 })
			}
		})
	}
}

func TestAnyServerThatDiesOnTheWayIsReplaced(t *testing.T) {
	nothingLeft(t)
	c := startChain(t, stallSocket(t, obliging), 2, nil)
	pool := New(c.host(t, c.servers[0].Addr()))
	defer closeOrFail(t, pool.Close)
	for i, server := range slices.Concat(c.servers, c.servers) {
		if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Fatalf("after %d losses: %v", i, err)
		}
		client := pool.transport.(*sshTransport).client
		server.DropAll()
		<-client.gone
	}
	for _, server := range c.servers[:2] {
		eventually(t, "the bastions are left with the host", func() bool { return server.Open() == 0 })
	}
}

func TestKeepalivesReachThroughBastions(t *testing.T) {
	nothingLeft(t)
	c := startChain(t, stallSocket(t, obliging), 1, nil)
	pool := New(c.host(t, c.servers[0].Addr()))
	defer closeOrFail(t, pool.Close)
	ticks := ticking(pool)
	if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
		t.Fatal(err)
	}
	c.servers[1].SetStall(sshserver.AtKeepalive)
	ticks <- time.Time{}
	for range keepaliveMisses {
		ticks <- time.Time{}
	}
	for _, server := range c.servers {
		eventually(t, "every server is left", func() bool { return server.Open() == 0 })
	}
}

func TestTheWayIsNamedInOrder(t *testing.T) {
	e, err := parseEndpoint(Host{Name: "hv1", URI: "qemu+ssh://ops@hv1/system", SSH: SSH{Bastions: []Bastion{
		{Host: "jump", User: "j"}, {Host: "2001:db8::1", Port: 2222},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := e.String(), "ops@hv1:22 through j@jump:22, then ops@[2001:db8::1]:2222"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := e.hops[2].command("true"), "ssh -J j@jump:22,ops@[2001:db8::1]:2222 -p 22 ops@hv1 true"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !strings.HasPrefix(e.hops[0].command("true"), "ssh -p 22 j@jump") {
		t.Errorf("got %q", e.hops[0].command("true"))
	}
}
