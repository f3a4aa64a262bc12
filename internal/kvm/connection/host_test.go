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
		"qemu://hv1/system":                             {open: "qemu:///system", address: "hv1:16514"},
		"qemu+tls://hv1:7777/system":                    {open: "qemu:///system", address: "hv1:7777"},
		"qemu+tcp://[2001:db8::1]/system":               {open: "qemu:///system", address: "[2001:db8::1]:16509"},
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
		if first := append(e.sockets, "")[0]; string(e.uri) != want.open || first != want.firstSocket {
			t.Errorf("%s opens %s at %s, want %s at %s", uri, e.uri, first, want.open, want.firstSocket)
		}
		if want.address != "" && e.address() != want.address {
			t.Errorf("%s goes to %s, want %s", uri, e.address(), want.address)
		}
		if want.user != "" && e.String() != want.user+"@"+want.address {
			t.Errorf("%s goes to %s, want %s@%s", uri, e, want.user, want.address)
		}
	}
}

func TestTheUserOfAnSSHURIDefaultsToTheCurrentOne(t *testing.T) {
	e, err := parseEndpoint(Host{Name: "hv1", URI: "qemu+ssh://hv1/system"})
	if err != nil || strings.HasPrefix(e.String(), "@") {
		t.Errorf("it goes to %s, %v", e, err)
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
		"another transport":          {Host{URI: "qemu+libssh2://hv1/system"}, "uri", `transport "libssh2"`},
		"TLS to nowhere":             {Host{URI: "qemu+tls:///system"}, "uri", "names no host"},
		"a user over TLS":            {Host{URI: "qemu+tls://root@hv1/system"}, "uri", "qemu+ssh://user@hv1/system"},
		"a socket over TCP":          {Host{URI: "qemu+tcp://hv1/system?socket=/run/sock"}, "uri", "a user or a socket"},
		"a session over TLS":         {Host{URI: "qemu://hv1/session"}, "uri", "qemu+tls://hv1/system"},
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
		"SSH settings over TLS":           {Host{URI: "qemu://hv1/system", SSH: SSH{PrivateKeyFile: "/k"}}, "ssh", "qemu+ssh://user@host/system"},
		"SSH settings for a local socket": {Host{URI: "qemu:///system", SSH: SSH{Bastions: []Bastion{{Host: "jump"}}}}, "ssh", "does not go over SSH"},
		"TLS settings over SSH":           {Host{URI: good, TLS: TLS{CAFile: "/ca"}}, "tls", "qemu+tls://host/system"},
		"a bastion without a host":        {Host{URI: good, SSH: SSH{Bastions: []Bastion{{User: "ops"}}}}, "ssh.bastions.0.host", "empty"},
		"a bastion as one word":           {Host{URI: good, SSH: SSH{Bastions: []Bastion{{Host: "jump"}, {Host: "ops@jump:22"}}}}, "ssh.bastions.1.host", `user = "ops"`},
		"a bastion's port in its name":    {Host{URI: good, SSH: SSH{Bastions: []Bastion{{Host: "jump:22"}}}}, "ssh.bastions.0.host", "port = 2222"},
		"a bastion's port out of range":   {Host{URI: good, SSH: SSH{Bastions: []Bastion{{Host: "jump", Port: 70000}}}}, "ssh.bastions.0.port", "70000"},
		"a bastion's fingerprint":         {Host{URI: good, SSH: SSH{Bastions: []Bastion{{Host: "jump", HostKey: "SHA256:abc"}}}}, "ssh.bastions.0.host_key", "not one public key line"},
		"a bastion's lone passphrase":     {Host{URI: good, SSH: SSH{Bastions: []Bastion{{Host: "jump", Passphrase: egress.NewSecret("hunter2")}}}}, "ssh.bastions.0.passphrase", "no private key of its own"},
		"a certificate without a key":     {Host{URI: "qemu://hv1/system", TLS: TLS{CertificateFile: "/c"}}, "tls", "without its private key"},
		"a key without a certificate":     {Host{URI: "qemu://hv1/system", TLS: TLS{PrivateKeyFile: "/k"}}, "tls", "without its client certificate"},
		"an authority twice":              {Host{URI: "qemu://hv1/system", TLS: TLS{CA: "x", CAFile: "/c"}}, "tls.ca_file", "both"},
		"an authority of no form":         {Host{URI: "qemu://hv1/system", TLS: TLS{CA: "x"}}, "tls.ca", "no certificate in PEM"},
		"a negative TLS time-out":         {Host{URI: "qemu://hv1/system", TLS: TLS{Timeout: -1}}, "tls.timeout", "negative"},
		"a negative time-out":             {Host{URI: good, SSH: SSH{Timeout: -time.Second}}, "ssh.timeout", "negative"},
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

func TestOnlyPlainTCPToAnotherMachineIsUnencrypted(t *testing.T) {
	for uri, want := range map[string]bool{
		"qemu+tcp://hv1/system":       true,
		"qemu+tcp://192.0.2.1/system": true,
		"qemu+tcp://127.0.0.1/system": false,
		"qemu+tcp://[::1]/system":     false,
		"qemu+tcp://localhost/system": false,
		"qemu://hv1/system":           false,
		"qemu+ssh://root@hv1/system":  false,
		"qemu:///system":              false,
	} {
		if got := Unencrypted(Host{Name: "hv1", URI: uri}); got != want {
			t.Errorf("%s: got %v, want %v", uri, got, want)
		}
	}
}
