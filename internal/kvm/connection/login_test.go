package connection

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
)

func TestEveryWayToGiveAKeyLogsIn(t *testing.T) {
	for name, give := range map[string]func(t *testing.T, key sshserver.Key, s *SSH){
		"inline": func(t *testing.T, key sshserver.Key, s *SSH) { s.PrivateKey = secretPEM(t, key) },
		"file":   func(t *testing.T, key sshserver.Key, s *SSH) { s.PrivateKeyFile = keyFile(t, key) },
		"file in the home directory": func(t *testing.T, key sshserver.Key, s *SSH) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			writeFile(t, filepath.Join(home, "key"), secretPEM(t, key).Reveal())
			s.PrivateKeyFile = "~/key"
		},
		"agent": func(t *testing.T, key sshserver.Key, _ *SSH) { startAgent(t, key) },
		"agent, beside a file that cannot be read": func(t *testing.T, key sshserver.Key, s *SSH) {
			startAgent(t, key)
			s.PrivateKeyFile = "/nonexistent/key"
		},
	} {
		for _, algorithm := range []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoRSA} {
			t.Run(name+"/"+algorithm, func(t *testing.T) {
				key := newKey(t, algorithm)
				r := startRemote(t, func(o *sshserver.Options) { o.AuthorizedKeys = []ssh.PublicKey{key.Public()} })
				h := r.host(t)
				h.SSH.PrivateKey = egress.Secret{}
				give(t, key, &h.SSH)
				if err := read(t, h); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestAnEncryptedKeyLogsInWithItsPassphrase(t *testing.T) {
	text := encryptedKey(t)
	signer, err := ssh.ParsePrivateKeyWithPassphrase([]byte(text), []byte("hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]SSH{
		"inline": {PrivateKey: egress.NewSecret(text)},
		"file":   {PrivateKeyFile: encryptedKeyFile},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRemote(t, func(o *sshserver.Options) { o.AuthorizedKeys = []ssh.PublicKey{signer.PublicKey()} })
			h := r.host(t)
			s.Passphrase, s.KnownHostsFile = egress.NewSecret("hunter2"), r.known
			h.SSH = s
			if err := read(t, h); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTheKeyOfTheConfigurationGoesBeforeTheAgents(t *testing.T) {
	// OpenSSH's server hangs up after six refused keys
	r := startRemote(t, nil)
	var others []sshserver.Key
	for range 8 {
		others = append(others, newKey(t, ssh.KeyAlgoED25519))
	}
	startAgent(t, others...)
	if err := read(t, r.host(t)); err != nil {
		t.Error(err)
	}
}

func TestAKeyThatCannotBeHadIsExplained(t *testing.T) {
	for name, tc := range map[string]struct {
		give func(t *testing.T, s *SSH)
		says []string
	}{
		"nothing at all": {
			func(*testing.T, *SSH) {},
			[]string{"there is no key to log in with", "SSH agent: SSH_AUTH_SOCK is not set"},
		},
		"no file": {
			func(_ *testing.T, s *SSH) { s.PrivateKeyFile = "/nonexistent/key" },
			[]string{"private_key_file /nonexistent/key: the file cannot be read: no such file or directory"},
		},
		"no passphrase": {
			func(t *testing.T, s *SSH) { s.PrivateKey = egress.NewSecret(encryptedKey(t)) },
			[]string{"private_key: it is encrypted and no passphrase is set"},
		},
		"wrong passphrase": {
			func(t *testing.T, s *SSH) {
				s.PrivateKey, s.Passphrase = egress.NewSecret(encryptedKey(t)), egress.NewSecret("hunter3")
			},
			[]string{"private_key: the passphrase does not open it"},
		},
		"a file of something else": {
			func(t *testing.T, s *SSH) {
				s.PrivateKeyFile = filepath.Join(t.TempDir(), "key")
				writeFile(t, s.PrivateKeyFile, "hunter2")
			},
			[]string{"it is not a private key that can be read"},
		},
		"an agent that is gone": {
			func(t *testing.T, _ *SSH) { t.Setenv("SSH_AUTH_SOCK", "/nonexistent/agent") },
			[]string{"SSH agent: /nonexistent/agent: no such file or directory"},
		},
		"an agent without keys": {
			func(t *testing.T, _ *SSH) { startAgent(t) },
			[]string{"SSH agent: it holds no key"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRemote(t, nil)
			h := r.host(t)
			h.SSH.PrivateKey = egress.Secret{}
			tc.give(t, &h.SSH)
			err := read(t, h)
			if !errors.Is(err, egress.ErrPermanent) {
				t.Errorf("got %v", err)
			}
			says(t, err, append(tc.says, "looking up domain ci-1 on host hv1", "ops@"+r.Addr(), "authorized_keys of ops")...)
			if text := err.Error(); strings.Contains(text, "hunter") || strings.Contains(text, "PRIVATE KEY") {
				t.Errorf("the error repeats a secret: %s", text)
			}
			if got := r.Connections(); got != 0 {
				t.Errorf("%d connections without a key, want none", got)
			}
		})
	}
}

func TestRefusedKeysAreNamed(t *testing.T) {
	r := startRemote(t, nil)
	inline, inAgent := newKey(t, ssh.KeyAlgoECDSA256), newKey(t, ssh.KeyAlgoED25519)
	startAgent(t, inAgent)
	h := r.host(t)
	h.SSH.PrivateKey = secretPEM(t, inline)
	err := read(t, h)
	if !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("got %v", err)
	}
	says(t, err, "logging in as ops", "the SSH server let no key in",
		"private_key: ecdsa-sha2-nistp256 "+ssh.FingerprintSHA256(inline.Public())+" was refused by the server",
		"SSH agent: ssh-ed25519 "+ssh.FingerprintSHA256(inAgent.Public())+" was refused by the server")
	if got, want := fault(t, err).Attribute, "kvm.hosts.hv1.ssh"; got != want {
		t.Errorf("the attribute is %s, want %s", got, want)
	}
}

func TestASilentAgentLeavesTimeForTheOtherKeys(t *testing.T) {
	serveAgent(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	agent := askAgent(ctx, os.Getenv("SSH_AUTH_SOCK"))
	defer agent.close()
	keys := loadKeys(SSH{PrivateKey: secretPEM(t, newKey(t, ssh.KeyAlgoED25519))}, agent)
	if ctx.Err() != nil {
		t.Error("the agent used up all the time")
	}
	if got := len(keys.signers()); got != 1 {
		t.Errorf("%d keys, want the configured one", got)
	}
	says(t, keys.fault(hop{}, ""), "it did not give its keys in")
}
