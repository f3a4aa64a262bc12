package connection

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// route is a scripted daemon, a way to it, and the link that the way begins
// with.
type route struct {
	*wire.Daemon
	*link
	socket string // the daemon's
	host   Host
}

// ways makes a route of each kind.
var ways = map[string]func(t *testing.T, r *route, delay time.Duration){
	"unix": func(t *testing.T, r *route, delay time.Duration) {
		r.link = startLink(t, filepath.Join(t.TempDir(), "link"), "unix", r.socket, delay)
		r.host.URI = "qemu+unix:///system?socket=" + r.address
	},
	"tcp": func(t *testing.T, r *route, delay time.Duration) {
		r.link = startLink(t, "", "unix", r.socket, delay)
		r.host.URI = "qemu+tcp://" + r.address + "/system"
	},
	"tls": func(t *testing.T, r *route, delay time.Duration) {
		p := newPKI(t)
		r.link = startLink(t, "", "tcp", startTLS(t, p.serverConfig(t), confirming(r.socket)), delay)
		r.host.URI = "qemu+tls://" + r.address + "/system"
		r.host.TLS = TLS{CA: p.authority.pem, Certificate: p.client.certificate, PrivateKey: egress.NewSecret(p.client.key)}
	},
	"ssh": func(t *testing.T, r *route, delay time.Duration) {
		c := startChain(t, r.socket, 0, nil)
		r.link = startLink(t, "", "tcp", c.servers[0].Addr(), delay)
		r.host = c.host(t, r.address)
	},
	"two bastions": func(t *testing.T, r *route, delay time.Duration) {
		c := startChain(t, r.socket, 2, nil)
		r.link = startLink(t, "", "tcp", c.servers[0].Addr(), delay)
		r.host = c.host(t, r.address)
	},
}

// startRoute starts a daemon and a way to it.
func startRoute(t *testing.T, way string, delay time.Duration, handler func(*scripted) wire.Handler) *route {
	t.Helper()
	r := &route{socket: filepath.Join(t.TempDir(), "sock"), host: Host{Name: "hv1"}}
	s := &scripted{wake: make(chan struct{})}
	var err error
	if s.Daemon, err = wire.StartDaemon(r.socket, handler(s)); err != nil {
		t.Fatal(err)
	}
	r.Daemon = s.Daemon
	t.Cleanup(func() {
		close(s.wake)
		closeOrFail(t, s.Close)
	})
	ways[way](t, r, delay)
	return r
}

// chain is a host's SSH server and the bastions before it. Each server is
// known by its name to the one before alone.
type chain struct {
	servers  []*sshserver.Server // in the order of the way
	hostKeys []sshserver.Key
	userKeys []sshserver.Key
}

// The names in a chain of two bastions; the first has the link's address.
var chainNames = []string{"jump1", "jump2.internal", "hv1.internal"}

// startChain starts the servers; change gets each one's options and place.
func startChain(t *testing.T, socket string, bastions int, change func(i int, o *sshserver.Options)) *chain {
	t.Helper()
	c := &chain{
		servers:  make([]*sshserver.Server, bastions+1),
		hostKeys: make([]sshserver.Key, bastions+1),
		userKeys: make([]sshserver.Key, bastions+1),
	}
	names := chainNames[len(chainNames)-1-bastions:]
	for i := bastions; i >= 0; i-- {
		c.hostKeys[i], c.userKeys[i] = newKey(t, ssh.KeyAlgoED25519), newKey(t, ssh.KeyAlgoED25519)
		options := sshserver.Options{
			HostKeys:       []ssh.Signer{c.hostKeys[i].Signer},
			AuthorizedKeys: []ssh.PublicKey{c.userKeys[i].Public()},
		}
		if i == bastions {
			options.Sockets = map[string]string{"/run/libvirt/libvirt-sock": socket}
		} else {
			options.Addresses = map[string]string{names[i+1] + ":2222": c.servers[i+1].Addr()}
		}
		if change != nil {
			change(i, &options)
		}
		server, err := sshserver.Start(options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeOrFail(t, server.Close) })
		c.servers[i] = server
	}
	return c
}

// host gives a host behind the chain, whose first server is at an address.
func (c *chain) host(t *testing.T, first string) Host {
	t.Helper()
	line := func(i int) string { return string(ssh.MarshalAuthorizedKey(c.hostKeys[i].Public())) }
	last := len(c.servers) - 1
	h := Host{Name: "hv1", SSH: SSH{PrivateKey: secretPEM(t, c.userKeys[last]), HostKey: line(last)}}
	target := first
	names := chainNames[len(chainNames)-1-last:]
	for i := range last {
		b := Bastion{Host: names[i], Port: 2222, User: "jumper", PrivateKey: secretPEM(t, c.userKeys[i]), HostKey: line(i)}
		if i == 0 {
			host, port, err := net.SplitHostPort(first)
			if err != nil {
				t.Fatal(err)
			}
			b.Host, b.Port = host, portNumber(t, port)
		}
		h.SSH.Bastions = append(h.SSH.Bastions, b)
		target = names[last] + ":2222"
	}
	h.URI = "qemu+ssh://ops@" + target + "/system"
	return h
}
