package connection

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
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

// keyring is the keys to log in with at one server, in the order in which they
// are offered, and what became of those that could not be had. Keys that the
// configuration names come before the agent's: a server hangs up after a few
// refusals.
type keyring struct{ entries []*keyEntry }

// keyEntry is one place where a key was looked for.
type keyEntry struct {
	from    string     // "private_key_file /root/key"
	signer  ssh.Signer // nil when there is none
	problem error      // why there is none
	fate    *keyFate   // what became of it
}

// loadKeys looks in all places. Problems are kept, not returned: another
// place may have the key that works.
func loadKeys(s SSH, agent *agentKeys) *keyring {
	k := &keyring{}
	add := func(from string, text []byte, err error) {
		var signer ssh.Signer
		if err == nil {
			signer, err = parseKey(text, s.Passphrase)
		}
		k.entries = append(k.entries, &keyEntry{from: from, signer: signer, problem: err})
	}
	if !s.PrivateKey.IsZero() {
		add("private_key", []byte(s.PrivateKey.Reveal()), nil)
	}
	if s.PrivateKeyFile != "" {
		text, err := os.ReadFile(expandHome(s.PrivateKeyFile))
		if err != nil {
			err = fmt.Errorf("the file cannot be read: %w", reasonOf(err))
		}
		add("private_key_file "+s.PrivateKeyFile, text, err)
	}
	for _, e := range agent.entries {
		k.entries = append(k.entries, &keyEntry{from: e.from, signer: e.signer, problem: e.problem})
	}
	return k
}

// parseKey reads a private key. Its errors never repeat any of it.
func parseKey(text []byte, passphrase egress.Secret) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey(text)
	var missing *ssh.PassphraseMissingError
	switch {
	case err == nil:
		return signer, nil
	case bytes.Contains(text, []byte("BEGIN ENCRYPTED PRIVATE KEY")):
		return nil, errors.New("it is encrypted in the form of PKCS #8, which cannot be read: `ssh-keygen -p` on its file gives it OpenSSH's")
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

// agentKeys is what the SSH agent gave; the servers on a way share it.
type agentKeys struct {
	entries []keyEntry

	once sync.Once
	conn net.Conn // signs until it is closed; nil without an agent
}

// askAgent asks the agent that listens at path for its keys.
func askAgent(ctx context.Context, path string) *agentKeys {
	k := &agentKeys{}
	problem := func(err error) { k.entries = append(k.entries, keyEntry{from: "SSH agent", problem: err}) }
	if path == "" {
		problem(errors.New("SSH_AUTH_SOCK is not set"))
		return k
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
		return k
	}
	k.conn = conn
	stop := context.AfterFunc(ctx, k.close) // whoever asked may give up, too
	signers, err := agent.NewClient(conn).Signers()
	switch {
	case !stop():
		problem(fmt.Errorf("%s: it did not give its keys in %s", path, bound.Round(time.Millisecond)))
		return k
	case err != nil:
		problem(fmt.Errorf("%s: it did not give its keys: %w", path, err))
	case len(signers) == 0:
		problem(errors.New("it holds no key"))
	}
	for _, signer := range signers {
		// its signatures may wait for a person; the login's own deadline holds
		k.entries = append(k.entries, keyEntry{from: "SSH agent", signer: signer})
	}
	return k
}

// close ends the connection to the agent. It may be called more than once.
func (k *agentKeys) close() {
	k.once.Do(func() {
		if k.conn != nil {
			_ = k.conn.Close()
		}
	})
}

// usable tells whether there is any key to offer.
func (k *keyring) usable() bool {
	return slices.ContainsFunc(k.entries, func(e *keyEntry) bool { return e.signer != nil })
}

// signers gives the keys that can sign, and notes from then on what becomes of
// each.
func (k *keyring) signers() []ssh.Signer {
	var signers, again []ssh.Signer
	for _, e := range k.entries {
		if e.signer == nil {
			continue
		}
		e.fate = &keyFate{}
		signers = append(signers, observed(e.signer, e.fate))
		if isRSA(e.signer) {
			again = append(again, rsaSHA256Signer{observedSigner{Signer: e.signer, fate: e.fate}})
		}
	}
	return append(signers, again...)
}

// fault says that no key worked, and of each place what came of it.
func (k *keyring) fault(server hop, summary string) *egress.Fault {
	var tried []string
	for _, e := range k.entries {
		if e.signer == nil {
			tried = append(tried, fmt.Sprintf("%s: %v", e.from, e.problem))
			continue
		}
		public := e.signer.PublicKey()
		tried = append(tried, fmt.Sprintf("%s: %s %s %s", e.from, public.Type(), ssh.FingerprintSHA256(public), e.fate))
	}
	return &egress.Fault{
		Kind:  egress.ErrPermanent,
		Cause: fmt.Errorf("logging in as %s: %s (%s)", server.user, summary, strings.Join(tried, "; ")),
		Remedy: fmt.Sprintf("Set %[1]s.private_key_file or %[1]s.private_key, or load a key into the SSH agent, that is in the authorized_keys of %[2]s on %[3]s.",
			server.setting, server.user, server.host),
		Attribute: server.attribute,
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
