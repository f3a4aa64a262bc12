package hosts_test

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/opensshd"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/packages"
)

// libvirtd is a real daemon that listens for TCP and TLS at its usual ports.
type libvirtd struct {
	socket string
	log    string
	cmd    *exec.Cmd
}

// mountAndExec gives the daemon directories of its own, then becomes it.
const mountAndExec = `set -eu
for pair in etc:/etc/libvirt lib:/var/lib/libvirt run:/run/libvirt log:/var/log/libvirt cache:/var/cache/libvirt; do
	mkdir -p "$1/${pair%%:*}" "${pair#*:}"
	mount --bind "$1/${pair%%:*}" "${pair#*:}"
done
exec libvirtd --listen --config "$1/libvirtd.conf" --pid-file "$1/pid"`

// startLibvirtd starts a daemon whose TCP needs no authentication; lines go into
// its configuration.
func startLibvirtd(t *testing.T, certificates *pki, lines ...string) *libvirtd {
	t.Helper()
	if err := packages.Require(packages.Hypervisor); err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	d := &libvirtd{socket: filepath.Join(dir, "run", "libvirt-sock"), log: filepath.Join(dir, "daemon.log")}
	config := append([]string{
		`auth_unix_ro = "none"`, `auth_unix_rw = "none"`, `listen_addr = "127.0.0.1"`, `listen_tcp = 1`,
		`host_uuid = "8f2f0d3c-5b1e-4f43-9a57-3f6c1a1f0b01"`, `log_outputs = "3:stderr"`,
	}, lines...)
	if certificates != nil {
		config = append(config, `listen_tls = 1`,
			fmt.Sprintf("ca_file = %q", certificates.file(t, dir, "ca.pem", certificates.authority)),
			fmt.Sprintf("cert_file = %q", certificates.file(t, dir, "cert.pem", certificates.server.certificate)),
			fmt.Sprintf("key_file = %q", certificates.file(t, dir, "key.pem", certificates.server.key)))
	} else {
		config = append(config, `listen_tls = 0`)
	}
	if !strings.Contains(strings.Join(lines, "\n"), "auth_tcp") {
		config = append(config, `auth_tcp = "none"`)
	}
	write(t, filepath.Join(dir, "libvirtd.conf"), strings.Join(config, "\n")+"\n")
	d.start(t, dir)
	return d
}

func (d *libvirtd) start(t *testing.T, dir string) {
	t.Helper()
	log, err := os.Create(d.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	d.cmd = exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-c", mountAndExec, "sh", dir)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.stop(t) })
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(60 * time.Second); ; <-tick.C {
		// TCP comes last
		conn, err := net.Dial("tcp", "127.0.0.1:16509")
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("libvirtd does not listen: %v\n%s", err, content(t, d.log))
		}
	}
}

func (d *libvirtd) stop(t *testing.T) {
	if d.cmd.ProcessState != nil {
		return
	}
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
	if t.Failed() {
		t.Logf("the log of libvirtd:\n%s", content(t, d.log))
	}
}

// version asks a real daemon for something.
func version(lv *libvirt.Libvirt) error {
	_, err := lv.ConnectGetLibVersion()
	return err
}

// ask makes one call to a real daemon through a new pool.
func ask(t *testing.T, h connection.Host) error {
	t.Helper()
	pool := connection.New(h)
	defer closePool(t, pool)
	return pool.Read(t.Context(), "looking up domain ci-1", version)
}

func TestARealDaemonIsReachedOnEveryWay(t *testing.T) {
	p := newPKI(t)
	d := startLibvirtd(t, &p)
	key, line := plainKey(t)
	server := startServer(t, func(o *opensshd.Options) { o.AuthorizedKeys = []string{line} })
	known := filepath.Join(t.TempDir(), "known_hosts")
	write(t, known, knownLine(server.Address, server.HostKeys[0]))
	ssh := connection.SSH{PrivateKeyFile: key, KnownHostsFile: known}
	behind := ssh
	behind.Bastions = []connection.Bastion{{Host: "127.0.0.1", Port: portOf(t, server.Address)}}
	for name, h := range map[string]connection.Host{
		"unix":                 {URI: "qemu+unix:///system?socket=" + d.socket},
		"ssh":                  {URI: "qemu+ssh://root@" + server.Address + "/system?socket=" + d.socket, SSH: ssh},
		"ssh through itself":   {URI: "qemu+ssh://root@" + server.Address + "/system?socket=" + d.socket, SSH: behind},
		"tls":                  {URI: "qemu+tls://127.0.0.1/system", TLS: p.client()},
		"tls is the default":   {URI: "qemu://127.0.0.1/system", TLS: p.client()},
		"tcp":                  {URI: "qemu+tcp://127.0.0.1/system"},
		"another of its kinds": {URI: "test+tls://127.0.0.1/default", TLS: p.client()},
	} {
		t.Run(name, func(t *testing.T) {
			h.Name = "hv1"
			pool := connection.New(h)
			defer closePool(t, pool)
			if err := pool.Read(t.Context(), "asking for the version", version); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(h.URI, "test") {
				return
			}
			roundTrip(t, pool)
		})
	}
}

// roundTrip moves bytes to a real daemon and back.
func roundTrip(t *testing.T, pool *connection.Pool) {
	t.Helper()
	dir := shortDir(t)
	definition := fmt.Sprintf("<pool type='dir'><name>way</name><target><path>%s</path></target></pool>", dir)
	want := make([]byte, 3<<20+17)
	_, _ = rand.Read(want) // never fails, see its documentation
	var storage libvirt.StoragePool
	var volume libvirt.StorageVol
	err := pool.Write(t.Context(), "creating a pool", func(lv *libvirt.Libvirt) (err error) {
		if storage, err = lv.StoragePoolCreateXML(definition, 0); err != nil {
			return err
		}
		volume, err = lv.StorageVolCreateXML(storage, fmt.Sprintf("<volume><name>v</name><capacity>%d</capacity><target><format type='raw'/></target></volume>", len(want)), 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Stream(t.Context(), "uploading", func(lv *libvirt.Libvirt) error {
		return lv.StorageVolUpload(volume, bytes.NewReader(want), 0, uint64(len(want)), 0)
	}); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := pool.Stream(t.Context(), "downloading", func(lv *libvirt.Libvirt) error {
		return lv.StorageVolDownload(volume, io.Writer(&got), 0, 0, 0)
	}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes came back, want the %d that were sent", got.Len(), len(want))
	}
	if err := pool.Write(t.Context(), "destroying the pool", func(lv *libvirt.Libvirt) error { return lv.StoragePoolDestroy(storage) }); err != nil {
		t.Error(err)
	}
}

func TestARealDaemonsRefusalsAreExplained(t *testing.T) {
	p, stranger := newPKI(t), newPKI(t)
	startLibvirtd(t, &p, `auth_tcp = "sasl"`, `tls_allowed_dn_list = ["CN=terraform"]`)
	unlisted := p.client()
	other := p.issue(t, "somebody", nil)
	unlisted.Certificate, unlisted.PrivateKey = other.certificate, egress.NewSecret(other.key)
	expired := p.client()
	old := p.issue(t, "terraform", func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Unix(0, 0), time.Unix(86400, 0) })
	expired.Certificate, expired.PrivateKey = old.certificate, egress.NewSecret(old.key)
	strange := p.client()
	strange.Certificate, strange.PrivateKey = stranger.client().Certificate, stranger.client().PrivateKey
	untrusting := p.client()
	untrusting.CA = stranger.authority
	misnamed := p.client()
	misnamed.ServerName = "hv9.example.com"
	for name, tc := range map[string]struct {
		host      connection.Host
		attribute string
		says      []string
	}{
		"SASL": {connection.Host{URI: "qemu+tcp://127.0.0.1/system"}, "", []string{"SASL", `auth_tcp = "none"`}},
		"a client that is not on the list": {
			connection.Host{URI: "qemu+tls://127.0.0.1/system", TLS: unlisted}, "tls.certificate_file",
			[]string{"the daemon refuses this client (certificate CN=somebody", "tls_allowed_dn_list"},
		},
		"a client whose certificate has expired": {
			connection.Host{URI: "qemu+tls://127.0.0.1/system", TLS: expired}, "tls.certificate_file",
			[]string{"the daemon refuses this client", "valid until 1970-01-02"},
		},
		"a client of another authority": {
			connection.Host{URI: "qemu+tls://127.0.0.1/system", TLS: strange}, "tls.certificate_file",
			[]string{"the daemon refuses this client (certificate CN=terraform"},
		},
		"a client without a certificate": {
			connection.Host{URI: "qemu+tls://127.0.0.1/system", TLS: connection.TLS{CA: p.authority}}, "tls.certificate_file",
			[]string{"the daemon refuses this client (no client certificate was shown"},
		},
		"a daemon of another authority": {
			connection.Host{URI: "qemu+tls://127.0.0.1/system", TLS: untrusting}, "tls.ca_file",
			[]string{"is issued by CN=lab authority"},
		},
		"a daemon of another name": {
			connection.Host{URI: "qemu+tls://127.0.0.1/system", TLS: misnamed}, "tls.server_name",
			[]string{"is for 127.0.0.1, not for hv9.example.com"},
		},
		"TLS at the port of TCP": {
			connection.Host{URI: "qemu+tls://127.0.0.1:16509/system", TLS: p.client()}, "", []string{"by TLS"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a client without a certificate" {
				t.Setenv("HOME", t.TempDir())
			}
			tc.host.Name = "hv1"
			err := ask(t, tc.host)
			kind := egress.ErrPermanent
			if name == "TLS at the port of TCP" {
				kind = egress.ErrUnreachable // the daemon hangs up at what it takes for a packet
			}
			refused(t, err, kind, tc.attribute, tc.says...)
		})
	}
}

func TestARealDaemonThatServesOneCallAtATimeServesTenCallers(t *testing.T) {
	d := startLibvirtd(t, nil, "max_client_requests = 1")
	pool := connection.New(connection.Host{Name: "hv1", URI: "qemu+unix:///system?socket=" + d.socket})
	defer closePool(t, pool)
	var calls sync.WaitGroup
	for range 10 {
		calls.Go(func() {
			if err := pool.Read(t.Context(), "asking for the version", version); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
}

func TestARealDaemonRestartedInBetweenIsReconnectedTo(t *testing.T) {
	p := newPKI(t)
	d := startLibvirtd(t, &p)
	pools := map[string]*connection.Pool{}
	for name, h := range map[string]connection.Host{
		"unix": {Name: "hv1", URI: "qemu+unix:///system?socket=" + d.socket},
		"tls":  {Name: "hv1", URI: "qemu+tls://127.0.0.1/system", TLS: p.client()},
		"tcp":  {Name: "hv1", URI: "qemu+tcp://127.0.0.1/system"},
	} {
		pools[name] = connection.New(h)
		t.Cleanup(func() { closePool(t, pools[name]) })
	}
	askAll := func(want error) {
		t.Helper()
		for name, pool := range pools {
			if err := pool.Read(t.Context(), "asking for the version", version); !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
	}
	askAll(nil)
	d.stop(t)
	askAll(egress.ErrUnreachable)
	if err := os.Remove(filepath.Join(filepath.Dir(filepath.Dir(d.socket)), "pid")); err != nil {
		t.Error(err)
	}
	d.start(t, filepath.Dir(filepath.Dir(d.socket)))
	askAll(nil)
}
