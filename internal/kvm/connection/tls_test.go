package connection

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// tlsHost gives a host that believes and shows what p has.
func tlsHost(p pki, address string) Host {
	return Host{Name: "hv1", URI: "qemu+tls://" + address + "/system", TLS: TLS{
		CA: p.authority.pem, Certificate: p.client.certificate, PrivateKey: egress.NewSecret(p.client.key),
	}}
}

func TestEveryWayToGiveCertificatesConnects(t *testing.T) {
	p := newPKI(t)
	ca := filepath.Join(t.TempDir(), "cacert.pem")
	writeFile(t, ca, p.authority.pem)
	certificate, key := p.client.files(t)
	for name, s := range map[string]TLS{
		"inline":            {CA: p.authority.pem, Certificate: p.client.certificate, PrivateKey: egress.NewSecret(p.client.key)},
		"files":             {CAFile: ca, CertificateFile: certificate, PrivateKeyFile: key},
		"some of each":      {CA: p.authority.pem, CertificateFile: certificate, PrivateKey: egress.NewSecret(p.client.key)},
		"a name of its own": {CA: p.authority.pem, CertificateFile: certificate, PrivateKeyFile: key, ServerName: "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			nothingLeft(t)
			h := tlsHost(p, startTLS(t, p.serverConfig(t), confirming(stallSocket(t, obliging))))
			h.TLS = s
			if err := read(t, h); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCertificatesAreFoundWhereLibvirtsClientsLook(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	place := func(has pki, authority, own bool) pkiDirectory {
		dir := t.TempDir()
		d := pkiDirectory{filepath.Join(dir, "cacert.pem"), filepath.Join(dir, "clientcert.pem"), filepath.Join(dir, "clientkey.pem")}
		if authority {
			writeFile(t, d.authorities, has.authority.pem)
		}
		if own {
			writeFile(t, d.certificate, has.client.certificate)
			writeFile(t, d.key, has.client.key)
		}
		return d
	}
	for name, places := range map[string][]pkiDirectory{
		"the only place":                                {place(p, true, true)},
		"the user's before the machine's":               {place(p, true, true), place(other, true, true)},
		"the machine's for want of others":              {place(p, false, false), place(p, true, true)},
		"the authority from one, the rest from another": {place(p, false, true), place(p, true, false)},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := loadCredentialsFrom(Host{Name: "hv1"}, places)
			if err != nil {
				t.Fatal(err)
			}
			if c.own == nil || !bytes.Equal(c.own.Certificate[0], p.client.pair(t).Certificate[0]) {
				t.Errorf("the client's certificate is another: %s", c.shown())
			}
			pool := x509.NewCertPool()
			pool.AddCert(p.authority.certificate)
			if !c.authorities.Equal(pool) {
				t.Error("the authority is another")
			}
		})
	}
	t.Run("no certificate of its own is needed", func(t *testing.T) {
		c, err := loadCredentialsFrom(Host{Name: "hv1"}, []pkiDirectory{place(p, true, false)})
		if err != nil || c.own != nil || !strings.Contains(c.shown(), "clientcert.pem: no such file or directory") {
			t.Errorf("got %v, %s", err, c.shown())
		}
	})
	t.Run("an authority is", func(t *testing.T) {
		places := []pkiDirectory{place(p, false, false), place(p, false, true)}
		_, err := loadCredentialsFrom(Host{Name: "hv1"}, places)
		says(t, err, places[0].authorities+": no such file", places[1].authorities+": no such file", "tls.ca_file")
	})

	t.Setenv("HOME", "/home/ops")
	user := "/home/ops/.pki/libvirt/cacert.pem"
	if got := pkiDirectories(false); got[0].authorities != user || got[1].key != "/etc/pki/libvirt/private/clientkey.pem" {
		t.Errorf("a user's places are %v", got)
	}
	if got := pkiDirectories(true); len(got) != 1 || got[0].authorities != "/etc/pki/CA/cacert.pem" || got[0].certificate != "/etc/pki/libvirt/clientcert.pem" {
		t.Errorf("root's places are %v", got)
	}
}

func TestFaultsOfTLSAreExplained(t *testing.T) {
	p, stranger := newPKI(t), newPKI(t)
	named := func(change func(*x509.Certificate)) func(*testing.T, *tls.Config) {
		return func(t *testing.T, c *tls.Config) {
			c.Certificates = []tls.Certificate{p.authority.issue(t, "hv1", change).pair(t)}
		}
	}
	for name, tc := range map[string]struct {
		server    func(t *testing.T, c *tls.Config)
		serve     func(net.Conn)
		client    func(t *testing.T, s *TLS)
		kind      error
		attribute string
		says      []string
	}{
		"the authority is unknown": {
			client:    func(_ *testing.T, s *TLS) { s.CA = stranger.authority.pem },
			kind:      egress.ErrPermanent,
			attribute: ".ca_file",
			says:      []string{"the server's certificate (CN=hv1) is issued by CN=lab authority", "the attribute tls.ca has no such authority", "Set tls.ca_file"},
		},
		"the server's certificate has expired": {
			server: named(func(c *x509.Certificate) {
				c.NotBefore, c.NotAfter = time.Unix(0, 0), time.Unix(86400, 0)
			}),
			kind: egress.ErrPermanent,
			says: []string{"(CN=hv1) is valid from 1970-01-01 00:00:00 to 1970-01-02 00:00:00 UTC, and it is 20", "Renew", "clock"},
		},
		"the server's certificate is for another name": {
			server: named(func(c *x509.Certificate) {
				c.IPAddresses, c.DNSNames = nil, []string{"hv1.example.com", "hv1"}
			}),
			kind:      egress.ErrPermanent,
			attribute: ".server_name",
			says:      []string{"is for hv1.example.com, hv1, not for 127.0.0.1", "tls.server_name"},
		},
		"the server's certificate has a common name alone": {
			server:    named(func(c *x509.Certificate) { c.IPAddresses = nil }),
			client:    func(_ *testing.T, s *TLS) { s.ServerName = "hv1" },
			kind:      egress.ErrPermanent,
			attribute: ".server_name",
			says:      []string{`for no name (its common name "hv1" does not count)`, "subject alternative name"},
		},
		"the client's certificate is of another authority": {
			client: func(_ *testing.T, s *TLS) {
				s.Certificate, s.PrivateKey = stranger.client.certificate, egress.NewSecret(stranger.client.key)
			},
			kind:      egress.ErrPermanent,
			attribute: ".certificate_file",
			says:      []string{"the daemon refuses this client (certificate CN=terraform, issued by CN=lab authority, valid until ", "tls_allowed_dn_list"},
		},
		"the client has no certificate": {
			client: func(_ *testing.T, s *TLS) { *s = TLS{CA: s.CA} },
			kind:   egress.ErrPermanent, attribute: ".certificate_file",
			says: []string{"the daemon refuses this client (no client certificate was shown: "},
		},
		"the client's name is not on the daemon's list": {
			serve: func(conn net.Conn) { _ = conn.(*tls.Conn).HandshakeContext(context.Background()) }, // then it hangs up
			kind:  egress.ErrPermanent, attribute: ".certificate_file",
			says: []string{"the daemon refuses this client (certificate CN=terraform", "hung up after the handshake", "tls_allowed_dn_list"},
		},
		"the daemon says no": {
			serve: func(conn net.Conn) { _, _ = conn.Write([]byte{0}) },
			kind:  egress.ErrPermanent, attribute: ".certificate_file",
			says: []string{"the daemon refuses this client"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			nothingLeft(t)
			t.Setenv("HOME", t.TempDir()) // no certificates there
			config := p.serverConfig(t)
			if tc.server != nil {
				tc.server(t, config)
			}
			serve := tc.serve
			if serve == nil {
				serve = confirming("/nonexistent")
			}
			address := startTLS(t, config, serve)
			h := tlsHost(p, address)
			if tc.client != nil {
				tc.client(t, &h.TLS)
			}
			if h.TLS.Certificate == "" && hasMachinePKI() {
				t.Fatal("this machine has a client certificate in /etc/pki/libvirt, which is taken where none is given: move it away to run this")
			}
			err := read(t, h)
			if !errors.Is(err, tc.kind) {
				t.Errorf("got %v", err)
			}
			says(t, err, append(slices.Clone(tc.says), "looking up domain ci-1 on host hv1", "connecting to "+address+" by TLS")...)
			if got, want := fault(t, err).Attribute, "kvm.hosts.hv1.tls"+tc.attribute; got != want {
				t.Errorf("the attribute is %s, want %s", got, want)
			}
		})
	}
}

func hasMachinePKI() bool {
	_, err := os.Stat(pkiDirectories(true)[0].certificate)
	return err == nil
}

func TestUnreadableCertificatesAreExplained(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	certificate, key := p.client.files(t)
	_, otherKey := other.client.files(t)
	empty := filepath.Join(t.TempDir(), "empty.pem")
	writeFile(t, empty, "hunter2")
	encrypted := filepath.Join(t.TempDir(), "encrypted.pem")
	writeFile(t, encrypted, string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("hunter2")})))
	for name, tc := range map[string]struct {
		tls       TLS
		attribute string
		says      string
	}{
		"no file of authorities":     {TLS{CAFile: "/nonexistent/ca"}, "ca_file", "/nonexistent/ca: no such file or directory"},
		"no certificate in the file": {TLS{CAFile: empty}, "ca_file", empty + " holds no certificate in PEM format"},
		"no client certificate":      {TLS{CA: p.authority.pem, CertificateFile: "/nonexistent/c", PrivateKeyFile: key}, "certificate_file", "/nonexistent/c: no such file or directory"},
		"no private key":             {TLS{CA: p.authority.pem, CertificateFile: certificate, PrivateKeyFile: "/nonexistent/k"}, "private_key_file", "/nonexistent/k: no such file or directory"},
		"another's private key":      {TLS{CA: p.authority.pem, CertificateFile: certificate, PrivateKeyFile: otherKey}, "certificate_file", "private key does not match public key"},
		"an encrypted private key":   {TLS{CA: p.authority.pem, CertificateFile: certificate, PrivateKeyFile: encrypted}, "certificate_file", "do not serve"},
	} {
		t.Run(name, func(t *testing.T) {
			h := Host{Name: "hv1", URI: "qemu+tls://127.0.0.1/system", TLS: tc.tls}
			err := read(t, h)
			if !errors.Is(err, egress.ErrPermanent) {
				t.Errorf("got %v", err)
			}
			says(t, err, "looking up domain ci-1 on host hv1", tc.says)
			if got, want := fault(t, err).Attribute, "kvm.hosts.hv1.tls."+tc.attribute; got != want {
				t.Errorf("the attribute is %s, want %s", got, want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error repeats a secret: %v", err)
			}
		})
	}
}

func TestStallsOfTLSAndTCPAreBoundedAndCancellable(t *testing.T) {
	p := newPKI(t)
	reached := make(chan struct{}, 64)
	mute := func(conn net.Conn) {
		if _, err := conn.Read(make([]byte, 1)); err == nil { // the client waits for an answer
			reached <- struct{}{}
			silent(conn)
		}
	}
	for name, tc := range map[string]struct {
		start func(t *testing.T) Host
		says  string
	}{
		"silent before the TLS handshake": {
			func(t *testing.T) Host { return tlsHost(p, startTCP(t, mute)) }, "waiting for the TLS handshake",
		},
		"no word about the certificate": {
			func(t *testing.T) Host {
				return tlsHost(p, startTLS(t, p.serverConfig(t), func(conn net.Conn) {
					if conn.(*tls.Conn).HandshakeContext(context.Background()) == nil {
						reached <- struct{}{}
						silent(conn)
					}
				}))
			}, "waiting for the daemon to accept this client's certificate",
		},
		"silent daemon behind TLS": {
			func(t *testing.T) Host {
				return tlsHost(p, startTLS(t, p.serverConfig(t), func(conn net.Conn) {
					if _, err := conn.Write([]byte{1}); err == nil {
						mute(conn)
					}
				}))
			}, "did not answer",
		},
		"silent daemon behind TCP": {
			func(t *testing.T) Host { return Host{Name: "hv1", URI: "qemu+tcp://" + startTCP(t, mute) + "/system"} }, "did not answer",
		},
	} {
		for _, ending := range []string{"time-out", "cancellation"} {
			t.Run(name+"/"+ending, func(t *testing.T) {
				nothingLeft(t)
				for len(reached) > 0 {
					<-reached
				}
				pool := New(tc.start(t))
				defer closeOrFail(t, pool.Close)
				stalled := func() bool { return len(reached) > 0 }
				if ending == "cancellation" {
					expectCancelled(t, pool, stalled)
					return
				}
				timeOutOnce(pool, stalled)
				err := pool.Read(t.Context(), "looking up domain ci-1", lookup)
				if !errors.Is(err, egress.ErrUnreachable) {
					t.Errorf("got %v", err)
				}
				if strings.HasSuffix(tc.says, "certificate") && strings.Contains(err.Error(), "TLS handshake") {
					return // the client's half of the handshake may end later than the server's
				}
				says(t, err, "looking up domain ci-1 on host hv1", tc.says, "timed out after 42s", "virsh list")
			})
		}
	}
}

func TestAPortOfAnotherServiceIsRecognised(t *testing.T) {
	p := newPKI(t)
	greeting := func(conn net.Conn) {
		_, _ = conn.Write([]byte("SSH-2.0-OpenSSH_9.2p1\r\n"))
		silent(conn)
	}
	nothingLeft(t)
	address := startTCP(t, greeting)
	says(t, read(t, tlsHost(p, address)), "does not speak TLS", "qemu+tcp://")
	says(t, read(t, Host{Name: "hv1", URI: "qemu+tcp://" + address + "/system"}), "does not speak libvirt's protocol")
}

func TestADaemonThatListensNowhereIsUnreachable(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	closeOrFail(t, listener.Close)
	for uri, want := range map[string][]string{
		"qemu+tls://" + address + "/system": {address + " by TLS", "connection refused", "listen_tls = 1", "--listen", "virtproxyd-tls.socket"},
		"qemu+tcp://" + address + "/system": {address + " by TCP", "connection refused", "listen_tcp = 1", "virtproxyd-tcp.socket"},
	} {
		h := Host{Name: "hv1", URI: uri}
		if strings.Contains(uri, "tls") {
			h.TLS.CA = newAuthority(t, "lab authority").pem
		}
		err := read(t, h)
		if !errors.Is(err, egress.ErrUnreachable) {
			t.Errorf("%s: got %v", uri, err)
		}
		says(t, err, want...)
	}
}

func TestADaemonThatWantsSASLIsExplained(t *testing.T) {
	for way, setting := range map[string]string{"tcp": "auth_tcp", "tls": "auth_tls", "unix": "auth_unix_rw"} {
		r := startRoute(t, way, 0, on(wire.ProcConnectOpen, func(*scripted, int) *wire.Error {
			return &wire.Error{Code: uint32(libvirt.ErrRPC), Message: "authentication required"}
		}))
		err := read(t, r.host)
		if !errors.Is(err, egress.ErrPermanent) {
			t.Errorf("%s: got %v", way, err)
		}
		says(t, err, "SASL", "authentication required", setting+` = "none"`, "qemu+ssh")
	}
}
