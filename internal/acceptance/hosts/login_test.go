package hosts_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/opensshd"
)

const passphrase = "correct horse"

// kindsOfKeys are what ssh-keygen makes, and the server's rule for each.
var kindsOfKeys = map[string]struct{ args, accepted []string }{
	"ed25519":                   {[]string{"-t", "ed25519"}, []string{"ssh-ed25519"}},
	"ecdsa":                     {[]string{"-t", "ecdsa"}, []string{"ecdsa-sha2-nistp256"}},
	"ecdsa 521":                 {[]string{"-t", "ecdsa", "-b", "521"}, []string{"ecdsa-sha2-nistp521"}},
	"rsa with sha2-512":         {[]string{"-t", "rsa", "-b", "2048"}, []string{"rsa-sha2-512"}},
	"rsa with sha2-256, in PEM": {[]string{"-t", "rsa", "-b", "2048", "-m", "PEM"}, []string{"rsa-sha2-256"}},
	"ecdsa, in PKCS 8":          {[]string{"-t", "ecdsa", "-m", "PKCS8"}, []string{"ecdsa-sha2-nistp256"}},
}

func TestOpenSSHLetsInEveryKindOfKeyGivenInEveryWay(t *testing.T) {
	points := 0
	for kind, key := range kindsOfKeys {
		plain, plainLine := keygen(t, append(slices.Clone(key.args), "-N", "")...)
		// PKCS 8 with a passphrase has a refusal of its own
		locked, lockedLine := keygen(t, append(strings.Fields(strings.Replace(strings.Join(key.args, " "), "PKCS8", "RFC4716", 1)), "-N", passphrase)...)
		h := startHypervisor(t, func(o *opensshd.Options) {
			o.AuthorizedKeys = []string{plainLine, lockedLine}
			o.Lines = []string{"PubkeyAcceptedAlgorithms " + strings.Join(key.accepted, ",")}
		})
		for way, s := range map[string]connection.SSH{
			"file":                       {PrivateKeyFile: plain},
			"inline":                     {PrivateKey: egress.NewSecret(content(t, plain))},
			"file with a passphrase":     {PrivateKeyFile: locked, Passphrase: egress.NewSecret(passphrase)},
			"inline with a passphrase":   {PrivateKey: egress.NewSecret(content(t, locked)), Passphrase: egress.NewSecret(passphrase)},
			"agent":                      {},
			"agent, beside a wrong file": {PrivateKeyFile: locked},
		} {
			points++
			t.Run(kind+"/"+way, func(t *testing.T) {
				if strings.HasPrefix(way, "agent") {
					startAgent(t, plain)
				}
				s.KnownHostsFile = h.known
				if err := read(t, connection.Host{Name: "hv1", URI: h.uri(h.Address), SSH: s}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	t.Logf("logins: %d points", points)
}

// startAgent runs OpenSSH's own agent with a key, and names it in the
// environment.
func startAgent(t *testing.T, key string) {
	t.Helper()
	socket := filepath.Join(shortDir(t), "agent")
	cmd := exec.CommandContext(t.Context(), "ssh-agent", "-D", "-a", socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Setenv("SSH_AUTH_SOCK", socket)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	run(t, "ssh-add", "-q", key)
}

func TestOpenSSHsRefusalOfKeysIsExplained(t *testing.T) {
	key, line := plainKey(t)
	wrong, _ := plainKey(t)
	other, _ := plainKey(t)
	pkcs8, _ := keygen(t, "-t", "ecdsa", "-m", "PKCS8", "-N", passphrase)
	locked, lockedLine := keygen(t, "-t", "ed25519", "-N", passphrase)
	for name, tc := range map[string]struct {
		options func(*opensshd.Options)
		ssh     connection.SSH
		agent   string
		says    []string
	}{
		"wrong key": {
			ssh:  connection.SSH{PrivateKeyFile: wrong},
			says: []string{"logging in as root", "private_key_file " + wrong + ": ssh-ed25519 " + fingerprint(t, wrong) + " was refused by the server", "SSH agent: SSH_AUTH_SOCK is not set", "authorized_keys of root on 127.0.0.1"},
		},
		"two wrong keys": {
			ssh: connection.SSH{PrivateKeyFile: wrong}, agent: other,
			says: []string{"private_key_file " + wrong, "was refused by the server; SSH agent: ssh-ed25519 "},
		},
		"no passphrase": {
			ssh:  connection.SSH{PrivateKeyFile: locked},
			says: []string{"it is encrypted and no passphrase is set"},
		},
		"a passphrase of PKCS 8": {
			ssh:  connection.SSH{PrivateKeyFile: pkcs8, Passphrase: egress.NewSecret(passphrase)},
			says: []string{"encrypted in the form of PKCS #8", "`ssh-keygen -p`"},
		},
		"wrong passphrase": {
			ssh:  connection.SSH{PrivateKeyFile: locked, Passphrase: egress.NewSecret("wrong horse")},
			says: []string{"the passphrase does not open it"},
		},
		"a second factor": {
			options: func(o *opensshd.Options) {
				o.Lines = []string{"AuthenticationMethods publickey,password", "PasswordAuthentication yes"}
			},
			ssh:  connection.SSH{PrivateKeyFile: key},
			says: []string{"was accepted by the server, which wants a password or a second factor beside it"},
		},
		"too many keys before the right one": {
			options: func(o *opensshd.Options) { o.Lines = []string{"MaxAuthTries 1"} },
			ssh:     connection.SSH{PrivateKeyFile: wrong}, agent: key,
			says: []string{"Too many authentication failures", "was not offered", "it goes before the agent's"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHypervisor(t, func(o *opensshd.Options) {
				o.AuthorizedKeys = []string{line, lockedLine}
				if tc.options != nil {
					tc.options(o)
				}
			})
			if tc.agent != "" {
				startAgent(t, tc.agent)
			}
			tc.ssh.KnownHostsFile = h.known
			err := read(t, connection.Host{Name: "hv1", URI: h.uri(h.Address), SSH: tc.ssh})
			refused(t, err, egress.ErrPermanent, "ssh", tc.says...)
			if text := err.Error(); strings.Contains(text, passphrase) || strings.Contains(text, "PRIVATE KEY") {
				t.Errorf("the error repeats a secret: %s", text)
			}
		})
	}
}

func fingerprint(t *testing.T, key string) string {
	t.Helper()
	return strings.Fields(run(t, "ssh-keygen", "-l", "-f", key))[1]
}

func TestOpenSSHsRefusalToForwardIsExplained(t *testing.T) {
	key, line := plainKey(t)
	for name, tc := range map[string]struct {
		options func(*opensshd.Options)
		socket  string
		says    []string
	}{
		"AllowStreamLocalForwarding no": {
			options: func(o *opensshd.Options) { o.Lines = []string{"AllowStreamLocalForwarding no"} },
			says:    []string{"AllowStreamLocalForwarding yes"},
		},
		"DisableForwarding": {
			options: func(o *opensshd.Options) { o.Lines = []string{"DisableForwarding yes"} },
			says:    []string{"AllowStreamLocalForwarding yes"},
		},
		"a restricted key": {
			options: func(o *opensshd.Options) { o.AuthorizedKeys = []string{"restrict " + line} },
			says:    []string{"authorized_keys (restrict, no-port-forwarding)"},
		},
		"no socket": {socket: "/nonexistent/sock", says: []string{"/nonexistent/sock: ", "See that libvirtd (or virtqemud) runs on 127.0.0.1", "?socket=/path"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHypervisor(t, func(o *opensshd.Options) {
				o.AuthorizedKeys = []string{line}
				if tc.options != nil {
					tc.options(o)
				}
			})
			if tc.socket != "" {
				h.socket = tc.socket
			}
			err := read(t, h.host(key))
			kind := egress.ErrUnreachable // OpenSSH does not tell a socket that is absent from one it forbids
			if strings.Contains(err.Error(), "forbids") {
				kind = egress.ErrPermanent
			}
			refused(t, err, kind, "", append(tc.says, h.socket)...)
		})
	}
}

func TestASilentOpenSSHIsGivenUp(t *testing.T) {
	key, line := plainKey(t)
	h := startHypervisor(t, func(o *opensshd.Options) { o.AuthorizedKeys = []string{line} })
	process, err := os.FindProcess(h.PID())
	if err != nil {
		t.Fatal(err)
	}
	host := h.host(key)
	pool := connection.New(host)
	defer closePool(t, pool)
	if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
		t.Fatal(err)
	}
	freeze(t, process, true) // the kernel goes on accepting for it
	host.SSH.Timeout = 300 * time.Millisecond
	refused(t, read(t, host), egress.ErrUnreachable, "", "waiting for the SSH handshake: timed out after 300ms", "ssh -p ")
	freeze(t, process, false)
	host.SSH.Timeout = 0
	if err := read(t, host); err != nil {
		t.Error(err)
	}
	h.DropAll()
	if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
		t.Errorf("after the session was killed: %v", err)
	}
}
