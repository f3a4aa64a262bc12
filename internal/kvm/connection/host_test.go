package connection

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

func TestURIsThatReachADaemon(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1000")
	for uri, want := range map[string]struct {
		open, address, user, firstSocket string
	}{
		"qemu:///system":                                {open: "qemu:///system", firstSocket: "/run/libvirt/libvirt-sock"},
		"qemu+unix:///system":                           {open: "qemu:///system", firstSocket: "/run/libvirt/libvirt-sock"},
		"qemu:///session":                               {open: "qemu:///session", firstSocket: "/run/user/1000/libvirt/libvirt-sock"},
		"qemu+unix:///system?socket=/srv/lab/sock":      {open: "qemu:///system", firstSocket: "/srv/lab/sock"},
		"qemu:///system?socket=%2Fsrv%2Fa%20b":          {open: "qemu:///system", firstSocket: "/srv/a b"},
		"qemu+ssh://root@hv1.example.com/system":        {"qemu:///system", "hv1.example.com:22", "root", "/run/libvirt/libvirt-sock"},
		"qemu+ssh://ops@[2001:db8::1]:2222/system":      {"qemu:///system", "[2001:db8::1]:2222", "ops", "/run/libvirt/libvirt-sock"},
		"qemu+ssh://ops@hv1/session?socket=/run/u/sock": {"qemu:///session", "hv1:22", "ops", "/run/u/sock"},
		"test+unix:///default?socket=/srv/sock":         {open: "test:///default", firstSocket: "/srv/sock"},
	} {
		h := Host{Name: "hv1", URI: uri}
		if err := Validate(h); err != nil {
			t.Errorf("%s: %v", uri, err)
			continue
		}
		e, err := parseEndpoint(h)
		if err != nil {
			t.Errorf("%s: %v", uri, err)
			continue
		}
		if string(e.uri) != want.open || e.sockets[0] != want.firstSocket {
			t.Errorf("%s opens %s at %s, want %s at %s", uri, e.uri, e.sockets[0], want.open, want.firstSocket)
		}
		if e.ssh && (e.address() != want.address || e.user != want.user) {
			t.Errorf("%s goes to %s@%s, want %s@%s", uri, e.user, e.address(), want.user, want.address)
		}
	}
}

func TestTheUserOfAnSSHURIDefaultsToTheCurrentOne(t *testing.T) {
	e, err := parseEndpoint(Host{Name: "hv1", URI: "qemu+ssh://hv1/system"})
	if err != nil || e.user == "" {
		t.Errorf("the user is %q, %v", e.user, err)
	}
}

func TestQEMUDaemonsSocketComesAfterTheFullOnes(t *testing.T) {
	want := []string{
		"/run/libvirt/libvirt-sock", "/var/run/libvirt/libvirt-sock",
		"/run/libvirt/virtqemud-sock", "/var/run/libvirt/virtqemud-sock",
	}
	if got := systemSockets(); !slices.Equal(got, want) {
		t.Errorf("the order is %v, want %v", got, want)
	}
}

func TestMistakesInAHostAreRefused(t *testing.T) {
	const good = "qemu+ssh://root@hv1/system"
	for name, tc := range map[string]struct {
		host      Host
		attribute string
		says      string
	}{
		"no URI":                     {Host{}, "uri", "empty"},
		"no URI at all":              {Host{URI: "hv1 by ssh\x7f"}, "uri", "cannot be parsed"},
		"another driver":             {Host{URI: "xen:///system"}, "uri", "QEMU driver"},
		"neither system nor session": {Host{URI: "qemu:///"}, "uri", "/system or /session"},
		"TLS":                        {Host{URI: "qemu://hv1/system"}, "uri", "qemu+ssh://hv1/system"},
		"TCP":                        {Host{URI: "qemu+tcp://hv1/system"}, "uri", `transport "tcp"`},
		"a remote unix socket":       {Host{URI: "qemu+unix://hv1/system"}, "uri", "names a host"},
		"SSH to nowhere":             {Host{URI: "qemu+ssh:///system"}, "uri", "names no host"},
		"a port out of range":        {Host{URI: "qemu+ssh://hv1:70000/system"}, "uri", "70000"},
		"a relative socket":          {Host{URI: "qemu:///system?socket=sock"}, "uri", "absolute"},
		"a parameter of another client": {
			Host{URI: good + "?no_verify=1"}, "uri", "no_verify",
		},
		"a remote session without a socket": {Host{URI: "qemu+ssh://root@hv1/session"}, "uri", "?socket="},
		"a password":                        {Host{URI: "qemu+ssh://root:hunter2@hv1/system"}, "uri", "password"},
		"a password in a broken URI":        {Host{URI: "qemu+ssh://root:hunter2@hv1:port/system"}, "uri", "cannot be parsed"},
		"a fingerprint as host key": {
			Host{URI: good, SSH: SSH{HostKey: "SHA256:abcdef"}}, "ssh.host_key", "not one public key line",
		},
		"a public key as private key": {
			Host{URI: good, SSH: SSH{PrivateKey: egress.NewSecret("ssh-ed25519 hunter2")}}, "ssh.private_key", "not a private key",
		},
		"a negative time-out": {Host{URI: good, SSH: SSH{Timeout: -time.Second}}, "ssh.timeout", "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.host.Name = "hv1"
			err := Validate(tc.host)
			if !errors.Is(err, egress.ErrPermanent) {
				t.Fatalf("got %v, want a permanent fault", err)
			}
			if got, want := fault(t, err).Attribute, "kvm.hosts.hv1."+tc.attribute; got != want {
				t.Errorf("the attribute is %s, want %s", got, want)
			}
			says(t, err, "host hv1", tc.says)
			if text := err.Error() + fault(t, err).Remedy; strings.Contains(text, "hunter2") {
				t.Errorf("the error repeats a secret: %s", text)
			}
		})
	}
}
