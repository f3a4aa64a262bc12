package connection

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// agentBound is how long an SSH agent may take to say which keys it has, where
// that is less than half of the time that the login has left.
const agentBound = 5 * time.Second

// keyring is the keys to log in with, in the order in which they are offered,
// and what became of those that could not be had. Keys that the configuration
// names come before the agent's: a server hangs up after a few refusals.
type keyring struct {
	entries []keyEntry

	once  sync.Once
	agent net.Conn // signs until it is closed; nil without an agent
}

// keyEntry is one place where a key was looked for.
type keyEntry struct {
	from    string     // "private_key_file /root/key"
	signer  ssh.Signer // nil when there is none
	problem error      // why there is none
}

// loadKeys looks in all places. Problems are kept, not returned: another
// place may have the key that works.
func loadKeys(ctx context.Context, s SSH) *keyring {
	k := &keyring{}
	if !s.PrivateKey.IsZero() {
		signer, err := parseKey([]byte(s.PrivateKey.Reveal()), s.Passphrase)
		k.entries = append(k.entries, keyEntry{"private_key", signer, err})
	}
	if s.PrivateKeyFile != "" {
		var signer ssh.Signer
		text, err := os.ReadFile(expandHome(s.PrivateKeyFile))
		if err == nil {
			signer, err = parseKey(text, s.Passphrase)
		} else {
			err = fmt.Errorf("the file cannot be read: %w", reasonOf(err))
		}
		k.entries = append(k.entries, keyEntry{"private_key_file " + s.PrivateKeyFile, signer, err})
	}
	k.askAgent(ctx, os.Getenv("SSH_AUTH_SOCK"))
	return k
}

// parseKey reads a private key. Its errors never repeat any of it.
func parseKey(text []byte, passphrase egress.Secret) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey(text)
	var missing *ssh.PassphraseMissingError
	switch {
	case err == nil:
		return signer, nil
	case !errors.As(err, &missing):
		return nil, errors.New("it is not a private key that can be read (OpenSSH or PEM format)")
	case passphrase.IsZero():
		return nil, errors.New("it is encrypted and no passphrase is set")
	}
	signer, err = ssh.ParsePrivateKeyWithPassphrase(text, []byte(passphrase.Reveal()))
	if err != nil {
		return nil, errors.New("the passphrase does not open it")
	}
	return signer, nil
}

// askAgent adds the keys of the agent that listens at path.
func (k *keyring) askAgent(ctx context.Context, path string) {
	problem := func(err error) { k.entries = append(k.entries, keyEntry{from: "SSH agent", problem: err}) }
	if path == "" {
		problem(errors.New("SSH_AUTH_SOCK is not set"))
		return
	}
	bound := agentBound
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		problem(socketError(path, err))
		return
	}
	k.agent = conn
	deadline, _ := ctx.Deadline() // always set
	if err := conn.SetDeadline(deadline); err != nil {
		problem(err)
		return
	}
	signers, err := agent.NewClient(conn).Signers()
	switch {
	case err != nil:
		problem(fmt.Errorf("%s: it did not give its keys: %w", path, err))
	case len(signers) == 0:
		problem(errors.New("it holds no key"))
	}
	for _, signer := range signers {
		k.entries = append(k.entries, keyEntry{from: "SSH agent", signer: signer})
	}
	// its signatures may wait for a person; the login's own deadline holds
	if err := conn.SetDeadline(time.Time{}); err != nil {
		k.close()
	}
}

// signers gives the keys that can sign.
func (k *keyring) signers() []ssh.Signer {
	var signers []ssh.Signer
	for _, e := range k.entries {
		if e.signer != nil {
			signers = append(signers, e.signer)
		}
	}
	return signers
}

// close ends the connection to the agent. It may be called more than once.
func (k *keyring) close() {
	k.once.Do(func() {
		if k.agent != nil {
			_ = k.agent.Close()
		}
	})
}

// fault says that no key worked, and of each place what came of it.
func (k *keyring) fault(h Host, e endpoint, summary string) error {
	var tried []string
	for _, entry := range k.entries {
		if entry.signer == nil {
			tried = append(tried, fmt.Sprintf("%s: %v", entry.from, entry.problem))
			continue
		}
		public := entry.signer.PublicKey()
		tried = append(tried, fmt.Sprintf("%s: %s %s was refused by the server",
			entry.from, public.Type(), ssh.FingerprintSHA256(public)))
	}
	return &egress.Fault{
		Kind:  egress.ErrPermanent,
		Cause: fmt.Errorf("logging in as %s: %s (%s)", e.user, summary, strings.Join(tried, "; ")),
		Remedy: fmt.Sprintf("Set ssh.private_key_file or ssh.private_key, or load a key into the SSH agent, that is in the authorized_keys of %s on %s.",
			e.user, e.host),
		Attribute: "kvm.hosts." + h.Name + ".ssh",
	}
}

// reasonOf gives the bare reason of a file error, whose path is named already.
func reasonOf(err error) error {
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// expandHome replaces a leading "~/" by the home directory.
func expandHome(path string) string {
	rest, ok := strings.CutPrefix(path, "~/")
	if !ok {
		return path
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return path
	}
	return filepath.Join(home, rest)
}

// validateSSH checks the settings that need nobody's answer.
func validateSSH(h Host) error {
	s := h.SSH
	if s.HostKey != "" {
		if _, err := parseHostKey(s.HostKey); err != nil {
			return invalid(h, "ssh.host_key", err,
				"Give the line of the host's public key, as in /etc/ssh/ssh_host_ed25519_key.pub: \"ssh-ed25519 AAAA...\".")
		}
	}
	if !s.PrivateKey.IsZero() {
		if block, _ := pem.Decode([]byte(s.PrivateKey.Reveal())); block == nil || !strings.Contains(block.Type, "PRIVATE KEY") {
			return invalid(h, "ssh.private_key", errors.New("the text is not a private key in OpenSSH or PEM format"),
				"Give the whole private key, from its BEGIN line to its END line.")
		}
	}
	if s.Timeout < 0 {
		return invalid(h, "ssh.timeout", fmt.Errorf("the time-out %s is negative", s.Timeout), "Give a positive duration.")
	}
	if h.CallTimeout < 0 {
		return invalid(h, "call_timeout", fmt.Errorf("the time-out %s is negative", h.CallTimeout), "Give a positive duration.")
	}
	return nil
}
