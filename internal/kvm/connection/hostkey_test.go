package connection

import (
	"crypto/rand"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
)

func TestAnUnknownHostKeyIsRefusedWithItsFingerprint(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, r *remote){
		"another host's file": func(t *testing.T, r *remote) {
			r.know(t, knownhosts.Line([]string{"other.example.com"}, r.hostKey.Public()))
		},
		"no file": func(t *testing.T, r *remote) {
			if err := os.Remove(r.known); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRemote(t, nil)
			prepare(t, r)
			err := read(t, r.host(t))
			if !errors.Is(err, egress.ErrPermanent) {
				t.Errorf("got %v", err)
			}
			_, port, _ := strings.Cut(r.Addr(), ":")
			says(t, err, "the host key is unknown", "ssh-ed25519 "+ssh.FingerprintSHA256(r.hostKey.Public()), r.known, r.Addr(),
				"ssh-keyscan -p "+port+" 127.0.0.1 >> "+r.known,
				"host_key = \"ssh-ed25519 AAAA")
			if got, want := fault(t, err).Attribute, "kvm.hosts.hv1.ssh.host_key"; got != want {
				t.Errorf("the attribute is %s, want %s", got, want)
			}
			if r.Logins() != 0 || len(r.Users()) != 0 {
				t.Error("a key was offered to a server that is not known")
			}
		})
	}
}

func TestAChangedHostKeyIsRefused(t *testing.T) {
	r := startRemote(t, nil)
	old := newKey(t, ssh.KeyAlgoED25519)
	r.know(t, knownhosts.Line([]string{r.Addr()}, old.Public()))
	err := read(t, r.host(t))
	if !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("got %v", err)
	}
	says(t, err, "the host key has changed", ssh.FingerprintSHA256(old.Public()), ssh.FingerprintSHA256(r.hostKey.Public()),
		r.known, "ssh-keygen -f "+r.known+" -R '[127.0.0.1]:")
}

func TestAHostThatLostItsKnownTypeIsExplained(t *testing.T) {
	r := startRemote(t, nil)
	r.know(t, knownhosts.Line([]string{r.Addr()}, newKey(t, ssh.KeyAlgoECDSA256).Public()))
	err := read(t, r.host(t))
	if !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("got %v", err)
	}
	says(t, err, "the server has no host key of the type that "+r.known+" holds", "ssh-ed25519")
}

func TestARevokedHostKeyIsRefused(t *testing.T) {
	r := startRemote(t, nil)
	line := knownhosts.Line([]string{r.Addr()}, r.hostKey.Public())
	r.know(t, line+"\n@revoked "+line)
	err := read(t, r.host(t))
	if !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("got %v", err)
	}
	says(t, err, "revokes")
}

func TestAHashedKnownHostsLineIsFound(t *testing.T) {
	r := startRemote(t, nil)
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(r.hostKey.Public())))
	r.know(t, knownhosts.HashHostname(knownhosts.Normalize(r.Addr()))+" "+key)
	if err := read(t, r.host(t)); err != nil {
		t.Error(err)
	}
}

func TestTheServerIsAskedForTheKindOfKeyThatIsKnown(t *testing.T) {
	for _, algorithm := range []string{ssh.KeyAlgoRSA, ssh.KeyAlgoECDSA256, ssh.KeyAlgoED25519} {
		for _, pinned := range []bool{false, true} {
			keys := map[string]sshserver.Key{}
			r := startRemote(t, func(o *sshserver.Options) {
				o.HostKeys = nil
				for _, a := range []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoRSA} {
					keys[a] = newKey(t, a)
					o.HostKeys = append(o.HostKeys, keys[a].Signer)
				}
			})
			known := keys[algorithm].Public()
			h := r.host(t)
			if pinned {
				h.SSH.HostKey = string(ssh.MarshalAuthorizedKey(known))
				h.SSH.KnownHostsFile = "/nonexistent/known_hosts"
			} else {
				r.know(t, knownhosts.Line([]string{r.Addr()}, known))
			}
			if err := read(t, h); err != nil {
				t.Errorf("%s, pinned %v: %v", algorithm, pinned, err)
			}
		}
	}
}

func TestAPinnedKeyDecidesAlone(t *testing.T) {
	r := startRemote(t, nil) // known_hosts holds the server's key
	pinned := newKey(t, ssh.KeyAlgoED25519)
	h := r.host(t)
	h.SSH.HostKey = string(ssh.MarshalAuthorizedKey(pinned.Public()))
	err := read(t, h)
	if !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("got %v", err)
	}
	says(t, err, "the host key has changed", "the attribute host_key",
		ssh.FingerprintSHA256(pinned.Public()), ssh.FingerprintSHA256(r.hostKey.Public()))
}

func TestACertificateAuthorityVouchesForAHost(t *testing.T) {
	authority, key := newKey(t, ssh.KeyAlgoED25519), newKey(t, ssh.KeyAlgoECDSA256)
	certificate := &ssh.Certificate{
		Key: key.Public(), CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"}, ValidBefore: ssh.CertTimeInfinity,
	}
	if err := certificate.SignCert(rand.Reader, authority.Signer); err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewCertSigner(certificate, key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	r := startRemote(t, func(o *sshserver.Options) { o.HostKeys = []ssh.Signer{signer} })
	r.know(t, "@cert-authority "+knownhosts.Line([]string{r.Addr()}, authority.Public()))
	if err := read(t, r.host(t)); err != nil {
		t.Error(err)
	}
}

func TestAnUnreadableKnownHostsFileIsPermanent(t *testing.T) {
	r := startRemote(t, nil)
	h := r.host(t)
	h.SSH.KnownHostsFile = t.TempDir() // a directory
	err := read(t, h)
	if !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("got %v", err)
	}
	says(t, err, "reading the known_hosts file "+h.SSH.KnownHostsFile)
}

func TestHostKeyAlgorithms(t *testing.T) {
	for name, tc := range map[string]struct {
		types []string
		byCA  bool
		want  []string
	}{
		"nothing known asks for all plain keys": {nil, false, algorithmPreference},
		"RSA never with SHA-1":                  {[]string{ssh.KeyAlgoRSA}, false, []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}},
		"newest first": {
			[]string{ssh.KeyAlgoRSA, ssh.KeyAlgoED25519}, false,
			[]string{ssh.KeyAlgoED25519, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256},
		},
		"certificates before plain keys": {
			[]string{ssh.KeyAlgoED25519}, true, append(slices.Clone(certificateAlgorithms), ssh.KeyAlgoED25519),
		},
	} {
		if got := hostKeyAlgorithms(tc.types, tc.byCA); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}

func TestAHostWithoutTheCertificateThatIsKnownIsExplained(t *testing.T) {
	r := startRemote(t, nil)
	r.know(t, "@cert-authority "+knownhosts.Line([]string{r.Addr()}, newKey(t, ssh.KeyAlgoED25519).Public()))
	err := read(t, r.host(t))
	if !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("got %v", err)
	}
	says(t, err, "the server has no host key of the type that "+r.known+" holds", "it has ssh-ed25519")
}

func TestACertificateThatDoesNotCountIsExplained(t *testing.T) {
	for name, tc := range map[string]struct {
		principal string
		trusted   bool
	}{
		"for another name":     {"other.example.com", true},
		"of another authority": {"127.0.0.1", false},
	} {
		t.Run(name, func(t *testing.T) {
			signing, known, key := newKey(t, ssh.KeyAlgoED25519), newKey(t, ssh.KeyAlgoED25519), newKey(t, ssh.KeyAlgoECDSA256)
			if tc.trusted {
				known = signing
			}
			certificate := &ssh.Certificate{
				Key: key.Public(), CertType: ssh.HostCert, ValidPrincipals: []string{tc.principal}, ValidBefore: ssh.CertTimeInfinity,
			}
			if err := certificate.SignCert(rand.Reader, signing.Signer); err != nil {
				t.Fatal(err)
			}
			signer, err := ssh.NewCertSigner(certificate, key.Signer)
			if err != nil {
				t.Fatal(err)
			}
			r := startRemote(t, func(o *sshserver.Options) { o.HostKeys = []ssh.Signer{signer} })
			r.know(t, "@cert-authority "+knownhosts.Line([]string{r.Addr()}, known.Public()))
			err = read(t, r.host(t))
			if !errors.Is(err, egress.ErrPermanent) {
				t.Errorf("got %v", err)
			}
			says(t, err, "the server showed the certificate", "which "+r.known+" does not make acceptable", "127.0.0.1", "host_key")
		})
	}
}

func TestAHostWithACertificateShowsItsPlainKeyToWhoKnowsNoAuthority(t *testing.T) {
	key := newKey(t, ssh.KeyAlgoECDSA256)
	certificate := &ssh.Certificate{Key: key.Public(), CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"}, ValidBefore: ssh.CertTimeInfinity}
	if err := certificate.SignCert(rand.Reader, newKey(t, ssh.KeyAlgoED25519).Signer); err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewCertSigner(certificate, key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	r := startRemote(t, func(o *sshserver.Options) { o.HostKeys = []ssh.Signer{signer, key.Signer} })
	r.know(t, "")
	says(t, read(t, r.host(t)), "the host key is unknown", "ecdsa-sha2-nistp256 "+ssh.FingerprintSHA256(key.Public()))
}

func TestEitherOfSeveralKnownKeysIsAccepted(t *testing.T) {
	r := startRemote(t, nil)
	old := newKey(t, ssh.KeyAlgoED25519)
	r.know(t, "a line of a kind to come\n"+knownhosts.Line([]string{r.Addr()}, old.Public())+"\n"+knownhosts.Line([]string{"other.example.com", r.Addr()}, r.hostKey.Public()))
	if err := read(t, r.host(t)); err != nil {
		t.Error(err)
	}
}

func TestAHostKnownWithoutItsPortIsKnownAtAnyPort(t *testing.T) {
	for name, tc := range map[string]struct {
		line    func(own, other string) string
		unknown bool
	}{
		"by its name":          {func(own, _ string) string { return "127.0.0.1 " + own }, false},
		"by a pattern":         {func(own, _ string) string { return "* " + own }, false},
		"hashed":               {func(own, _ string) string { return knownhosts.HashHostname("127.0.0.1") + " " + own }, false},
		"with another key":     {func(_, other string) string { return "127.0.0.1 " + other }, true},
		"not, but its port is": {func(own, other string) string { return "127.0.0.1 " + other + "\nPORT " + own }, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRemote(t, nil)
			line := func(key sshserver.Key) string {
				return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.Public())))
			}
			text := tc.line(line(r.hostKey), line(newKey(t, ssh.KeyAlgoECDSA256)))
			r.know(t, strings.ReplaceAll(text, "PORT", knownhosts.Normalize(r.Addr())))
			err := read(t, r.host(t))
			if tc.unknown {
				says(t, err, "the host key is unknown", ssh.FingerprintSHA256(r.hostKey.Public()))
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}
