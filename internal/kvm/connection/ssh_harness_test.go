package connection

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// remote is a scripted daemon behind an SSH server.
type remote struct {
	*sshserver.Server
	daemon  *wire.Daemon
	hostKey sshserver.Key // the first of the server's keys
	userKey sshserver.Key // what the server lets in
	known   string        // a known_hosts file that holds hostKey
}

// startRemote starts a daemon and an SSH server. No agent runs.
func startRemote(t *testing.T, change func(*sshserver.Options)) *remote {
	t.Helper()
	nothingLeft(t)
	t.Setenv("SSH_AUTH_SOCK", "")
	dir := t.TempDir()
	r := &remote{hostKey: newKey(t, ssh.KeyAlgoED25519), userKey: newKey(t, ssh.KeyAlgoED25519)}
	socket := filepath.Join(dir, "sock")
	var err error
	if r.daemon, err = wire.StartDaemon(socket, obliging(nil)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOrFail(t, r.daemon.Close) })
	options := sshserver.Options{
		HostKeys:       []ssh.Signer{r.hostKey.Signer},
		AuthorizedKeys: []ssh.PublicKey{r.userKey.Public()},
		Sockets:        map[string]string{"/run/libvirt/libvirt-sock": socket},
	}
	if change != nil {
		change(&options)
	}
	if r.Server, err = sshserver.Start(options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOrFail(t, r.Close) })
	r.known = filepath.Join(dir, "known_hosts")
	r.know(t, knownhosts.Line([]string{r.Addr()}, r.hostKey.Public()))
	return r
}

// know writes the known_hosts file.
func (r *remote) know(t *testing.T, lines string) {
	t.Helper()
	writeFile(t, r.known, lines+"\n")
}

// host gives a host that logs in with the right key.
func (r *remote) host(t *testing.T) Host {
	t.Helper()
	return Host{
		Name: "hv1",
		URI:  "qemu+ssh://ops@" + r.Addr() + "/system",
		SSH:  SSH{PrivateKey: secretPEM(t, r.userKey), KnownHostsFile: r.known},
	}
}

// read makes one call through a new pool.
func read(t *testing.T, h Host) error {
	t.Helper()
	pool := New(h)
	defer closeOrFail(t, pool.Close)
	return pool.Read(t.Context(), "looking up domain ci-1", lookup)
}

func newKey(t *testing.T, algorithm string) sshserver.Key {
	t.Helper()
	key, err := sshserver.NewKey(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func secretPEM(t *testing.T, key sshserver.Key) egress.Secret {
	t.Helper()
	text, err := key.PEM()
	if err != nil {
		t.Fatal(err)
	}
	return egress.NewSecret(text)
}

// keyFile writes a private key to a file.
func keyFile(t *testing.T, key sshserver.Key) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	writeFile(t, path, secretPEM(t, key).Reveal())
	return path
}

// encryptedKeyFile holds a key made for these tests alone, by ssh-keygen with
// one round of key derivation (-a 1): the usual 16 take seconds under the race
// detector. Its passphrase is "hunter2".
const encryptedKeyFile = "testdata/encrypted_key"

func encryptedKey(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(encryptedKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// startAgent runs an SSH agent that holds keys, and names it in the
// environment.
func startAgent(t *testing.T, keys ...sshserver.Key) {
	t.Helper()
	keyring := agent.NewKeyring()
	for _, key := range keys {
		if err := keyring.Add(agent.AddedKey{PrivateKey: key.Private}); err != nil {
			t.Fatal(err)
		}
	}
	serveAgent(t, func(conn net.Conn) { _ = agent.ServeAgent(keyring, conn) })
}

// serveAgent lets f answer whoever connects to the agent's socket.
func serveAgent(t *testing.T, f func(net.Conn)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOrFail(t, listener.Close) })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				f(conn)
				_ = conn.Close()
			}()
		}
	}()
	t.Setenv("SSH_AUTH_SOCK", path)
}
