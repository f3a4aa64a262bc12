// Package hosts_test reaches hosts as people have them: through OpenSSH's own
// server, agent and key files, and by libvirtd's own TLS.
package hosts_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/digitalocean/go-libvirt"
	"golang.org/x/crypto/ssh"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/namespace"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/opensshd"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

func TestMain(m *testing.M) {
	_ = os.Unsetenv("SSH_AUTH_SOCK") // whose it is is nobody's business here
	os.Exit(namespace.Run(m.Run))
}

// hypervisor is a scripted daemon behind a real SSH server.
type hypervisor struct {
	*opensshd.Server
	daemon *wire.Daemon
	socket string
	known  string // a known_hosts file with its key
}

// startHypervisor starts both; change gets the server's options.
func startHypervisor(t *testing.T, change func(*opensshd.Options)) *hypervisor {
	t.Helper()
	dir := t.TempDir()
	h := &hypervisor{socket: filepath.Join(shortDir(t), "sock"), known: filepath.Join(dir, "known_hosts")}
	var err error
	if h.daemon, err = wire.StartDaemon(h.socket, func(procedure uint32, _ []byte) ([]byte, *wire.Error) {
		if procedure == wire.ProcDomainLookupByName {
			return wire.DomainResult("ci-1", [16]byte{1}, 7), nil
		}
		return nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.daemon.Close(); err != nil {
			t.Error(err)
		}
	})
	h.Server = startServer(t, change)
	write(t, h.known, knownLine(h.Address, h.HostKeys[0]))
	return h
}

func startServer(t *testing.T, change func(*opensshd.Options)) *opensshd.Server {
	t.Helper()
	options := opensshd.Options{Dir: t.TempDir()}
	if change != nil {
		change(&options)
	}
	server, err := opensshd.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	t.Cleanup(func() {
		if t.Failed() {
			lines := strings.Split(server.Log(), "\n")
			t.Logf("the log of the SSH server at %s ends with:\n%s", server.Address, strings.Join(lines[max(0, len(lines)-8):], "\n"))
		}
	})
	return server
}

// uri reaches the daemon through a server that is called address.
func (h *hypervisor) uri(address string) string {
	return "qemu+ssh://root@" + address + "/system?socket=" + h.socket
}

// host logs in with a key file.
func (h *hypervisor) host(key string) connection.Host {
	return connection.Host{Name: "hv1", URI: h.uri(h.Address), SSH: connection.SSH{PrivateKeyFile: key, KnownHostsFile: h.known}}
}

func lookup(lv *libvirt.Libvirt) error {
	_, err := lv.DomainLookupByName("ci-1")
	return err
}

// read makes one call through a new pool.
func read(t *testing.T, h connection.Host) error {
	t.Helper()
	pool := connection.New(h)
	defer closePool(t, pool)
	return pool.Read(t.Context(), "looking up domain ci-1", lookup)
}

func closePool(t *testing.T, pool *connection.Pool) {
	t.Helper()
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// refused wants a fault of a kind at an attribute of the host, which says all
// of the parts.
func refused(t *testing.T, err, kind error, attribute string, parts ...string) {
	t.Helper()
	var f *egress.Fault
	if !errors.As(err, &f) || !errors.Is(err, kind) {
		t.Fatalf("got %v, want a fault of kind %v", err, kind)
	}
	if want := "kvm.hosts.hv1." + attribute; attribute != "" && f.Attribute != want {
		t.Errorf("the attribute is %s, want %s", f.Attribute, want)
	}
	text := f.Error() + "\n" + f.Remedy
	for _, part := range append(parts, "looking up domain ci-1 on host hv1") {
		if !strings.Contains(text, part) {
			t.Errorf("the error does not say %q:\n%s", part, text)
		}
	}
}

// keygen makes a key pair with OpenSSH's own tool, and gives the private key's
// file and the public key's line.
func keygen(t *testing.T, args ...string) (file, line string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "key")
	run(t, "ssh-keygen", append([]string{"-q", "-f", file, "-a", "1", "-C", "lab"}, args...)...)
	return file, strings.TrimSpace(content(t, file+".pub"))
}

// plainKey makes an Ed25519 key without a passphrase.
func plainKey(t *testing.T) (file, line string) {
	t.Helper()
	return keygen(t, "-t", "ed25519", "-N", "")
}

func newKey(t *testing.T, algorithm string) sshserver.Key {
	t.Helper()
	key, err := sshserver.NewKey(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}

func knownLine(address string, key ssh.PublicKey) string {
	host, port, _ := net.SplitHostPort(address)
	return fmt.Sprintf("[%s]:%s %s", host, port, ssh.MarshalAuthorizedKey(key))
}

func portOf(t *testing.T, address string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// shortDir gives a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hosts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func remedyOf(t *testing.T, err error) string {
	t.Helper()
	var f *egress.Fault
	if !errors.As(err, &f) {
		t.Fatalf("got %v, want a fault", err)
	}
	return f.Remedy
}
