package hosts_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/opensshd"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
)

// freeze stops a process or lets it go on.
func freeze(t *testing.T, process *os.Process, stopped bool) {
	t.Helper()
	signal := syscall.SIGCONT
	if stopped {
		signal = syscall.SIGSTOP
	}
	if err := process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

func TestKnownHostsAsOpenSSHsToolsWriteThemAreUnderstood(t *testing.T) {
	key, line := plainKey(t)
	hostKeys := []sshserver.Key{newKey(t, ssh.KeyAlgoED25519), newKey(t, ssh.KeyAlgoECDSA256), newKey(t, ssh.KeyAlgoRSA)}
	h := startHypervisor(t, func(o *opensshd.Options) {
		o.AuthorizedKeys, o.HostKeys = []string{line}, hostKeys
	})
	port := h.Address[strings.LastIndex(h.Address, ":")+1:]
	scan := func(args ...string) string {
		return run(t, "ssh-keyscan", append(append([]string{"-p", port}, args...), "127.0.0.1")...)
	}
	for name, text := range map[string]string{
		"all keys":        scan(),
		"hashed":          scan("-H"),
		"RSA alone":       scan("-t", "rsa"),
		"ECDSA alone":     scan("-t", "ecdsa"),
		"Ed25519 hashed":  scan("-H", "-t", "ed25519"),
		"old key as well": knownLine(h.Address, newKey(t, ssh.KeyAlgoED25519).Public()) + scan("-t", "ed25519"),
		"a pattern":       "[127.0.0.*]:" + port + ",!other " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(hostKeys[0].Public()))) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			if text == "" {
				t.Fatal("ssh-keyscan found no key")
			}
			write(t, h.known, text)
			if err := read(t, h.host(key)); err != nil {
				t.Errorf("%v\nwith\n%s", err, text)
			}
		})
	}
	t.Run("revoked", func(t *testing.T) {
		write(t, h.known, scan("-t", "ed25519")+"@revoked * "+string(ssh.MarshalAuthorizedKey(hostKeys[0].Public())))
		refused(t, read(t, h.host(key)), egress.ErrPermanent, "ssh.host_key", "revokes", ssh.FingerprintSHA256(hostKeys[0].Public()))
	})
	t.Run("the remedy for an unknown key", func(t *testing.T) {
		if err := os.Remove(h.known); err != nil {
			t.Fatal(err)
		}
		err := read(t, h.host(key))
		refused(t, err, egress.ErrPermanent, "ssh.host_key", "the host key is unknown", ssh.FingerprintSHA256(hostKeys[0].Public()), h.known)
		follow(t, err, "ssh-keyscan ")
		if err := read(t, h.host(key)); err != nil {
			t.Errorf("the command of the remedy does not help: %v", err)
		}
	})
	t.Run("the remedy for a changed key", func(t *testing.T) {
		write(t, h.known, knownLine(h.Address, newKey(t, ssh.KeyAlgoED25519).Public()))
		err := read(t, h.host(key))
		refused(t, err, egress.ErrPermanent, "ssh.host_key", "the host key has changed")
		follow(t, err, "ssh-keygen ")
		if err := read(t, h.host(key)); err != nil {
			t.Errorf("the command of the remedy does not help: %v", err)
		}
	})
}

// follow runs the command that a remedy gives.
func follow(t *testing.T, err error, begins string) {
	t.Helper()
	text := remedyOf(t, err)
	_, command, ok := strings.Cut(text, "run `"+begins)
	command, _, _ = strings.Cut(command, "`")
	if !ok {
		t.Fatalf("the remedy has no command %s: %s", begins, text)
	}
	run(t, "sh", "-c", begins+command)
}

func TestAHostCertificateOfOpenSSHIsAccepted(t *testing.T) {
	key, line := plainKey(t)
	ca, caLine := plainKey(t)
	hostKey := newKey(t, ssh.KeyAlgoED25519)
	public := filepath.Join(t.TempDir(), "host.pub")
	write(t, public, string(ssh.MarshalAuthorizedKey(hostKey.Public())))
	run(t, "ssh-keygen", "-q", "-s", ca, "-I", "hv1", "-h", "-n", "127.0.0.1", public)
	h := startHypervisor(t, func(o *opensshd.Options) {
		o.AuthorizedKeys, o.HostKeys = []string{line}, []sshserver.Key{hostKey}
		o.Lines = []string{"HostCertificate " + strings.TrimSuffix(public, ".pub") + "-cert.pub"}
	})
	write(t, h.known, "@cert-authority * "+caLine+"\n")
	if err := read(t, h.host(key)); err != nil {
		t.Error(err)
	}
}

func TestAServerOfOneAlgorithmIsMetByWhatIsKnown(t *testing.T) {
	key, line := plainKey(t)
	hostKeys := []sshserver.Key{newKey(t, ssh.KeyAlgoED25519), newKey(t, ssh.KeyAlgoRSA)}
	h := startHypervisor(t, func(o *opensshd.Options) {
		o.AuthorizedKeys, o.HostKeys = []string{line}, hostKeys
		o.Lines = []string{"HostKeyAlgorithms rsa-sha2-512"}
	})
	write(t, h.known, knownLine(h.Address, hostKeys[1].Public()))
	if err := read(t, h.host(key)); err != nil {
		t.Errorf("rsa-sha2-512 alone: %v", err)
	}
	pinned := h.host(key)
	pinned.SSH.HostKey, pinned.SSH.KnownHostsFile = string(ssh.MarshalAuthorizedKey(hostKeys[1].Public())), "/nonexistent/known_hosts"
	if err := read(t, pinned); err != nil {
		t.Errorf("pinned: %v", err)
	}
	write(t, h.known, knownLine(h.Address, hostKeys[0].Public()))
	refused(t, read(t, h.host(key)), egress.ErrPermanent, "ssh.host_key", "the server has no host key of the type that "+h.known+" holds", "rsa-sha2-512")
}
