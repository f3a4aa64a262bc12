// Package faults breaks the link to a real libvirt daemon at every call the KVM
// backend makes, and looks at what is left. Its guests are boot sectors that
// start in a second. It needs root.
package faults

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/namespace"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// hv is the hypervisor that all tests share; labDir is where it keeps itself.
var (
	hv     *hypervisor.Hypervisor
	labDir string
)

func TestMain(m *testing.M) {
	os.Exit(namespace.Run(func() int {
		dir, err := os.MkdirTemp("", "egressproxy-faults-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a leftover in the temporary directory at worst
		labDir = dir
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if hv, err = hypervisor.Start(ctx, hypervisor.Options{Dir: filepath.Join(dir, "hv")}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		if err := hv.Stop(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}))
}

// world is one backend on the hypervisor, behind a link that can be broken.
type world struct {
	socket  string
	link    *wire.Proxy
	backend *kvm.Backend
}

func newWorld(t *testing.T) world {
	t.Helper()
	dir, err := os.MkdirTemp("", "link-") // t.TempDir is too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "sock")
	link, err := wire.Listen(socket, hv.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = link.Close() })
	w := world{socket: socket, link: link}
	w.backend = newBackend(t, w)
	return w
}

// spec is an instance of a boot sector. unique makes its image one of its own,
// so that the upload is part of what is tested.
func spec(t *testing.T, name string, kind guest.Kind, unique bool) egress.Spec {
	t.Helper()
	path, sum := tinyImage(t, kind, map[bool]string{true: name, false: ""}[unique])
	return egress.Spec{
		ID:          egress.ProviderID{Backend: egress.KVM, Location: "lab", Name: name},
		Tags:        egress.Tags{"test": t.Name()},
		UserData:    egress.NewSecret("#cloud-config\n{}\n"),
		HealthCheck: egress.HealthCheck{From: egress.FromNone, Interval: 200 * time.Millisecond},
		KVM: &egress.KVMSpec{VCPUs: 1, MemoryMiB: 64, DiskGiB: 1, Pool: hypervisor.Pool, Network: hypervisor.Network, VirtType: hv.VirtType,
			Image: egress.Image{Name: "tiny", Source: path, SHA256: sum}},
	}
}

// leases gives guests that cannot ask for one a DHCP lease, by writing the file
// in which libvirt looks for those of its networks.
var leases struct {
	sync.Mutex
	entries []map[string]any
}

func plantLease(t *testing.T, name string) netip.Addr {
	t.Helper()
	leases.Lock()
	defer leases.Unlock()
	n := len(leases.entries)
	addr := netip.AddrFrom4([4]byte{198, 18, byte(n / 250), byte(n%250 + 1)})
	leases.entries = append(leases.entries, map[string]any{
		"ip-address": addr.String(), "mac-address": kvm.MACAddress("lab", name), "expiry-time": time.Now().Add(time.Hour).Unix(),
	})
	content, err := json.Marshal(leases.entries)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(labDir, "hv", "lib", "dnsmasq", "lab-lab.status")
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return addr
}

// virsh asks the daemon past the link.
func virsh(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := hv.Virsh(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// volumes names the volumes in the pool that contain text.
func volumes(t *testing.T, text string) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(virsh(t, "vol-list", hypervisor.Pool)) {
		if fields := strings.Fields(line); len(fields) > 0 && strings.Contains(fields[0], text) {
			found = append(found, fields[0])
		}
	}
	return found
}

func domainExists(t *testing.T, name string) bool {
	t.Helper()
	for line := range strings.Lines(virsh(t, "list", "--all", "--name")) {
		if strings.TrimSpace(line) == name {
			return true
		}
	}
	return false
}

// poolFiles names the files in the pool's directory that contain text.
func poolFiles(t *testing.T, text string) []string {
	t.Helper()
	entries, err := os.ReadDir(hv.PoolDir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		if strings.Contains(entry.Name(), "egressproxy-"+text+"-") {
			found = append(found, entry.Name())
		}
	}
	return found
}

// domainState gives a domain's state with its reason, as in "running (booted)",
// or nothing while there is no such domain.
func domainState(name string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := hv.Virsh(ctx, "domstate", "--reason", name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

// await waits for a condition, for a minute.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if !reached(ctx, condition) {
		t.Fatalf("waited a minute for %s", what)
	}
}

// reached waits for a condition until ctx ends, and tells whether it came true.
func reached(ctx context.Context, condition func() bool) bool {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// tinyImage writes a boot sector as an image; another mark makes it another
// image.
func tinyImage(t *testing.T, kind guest.Kind, mark string) (path, sum string) {
	t.Helper()
	path, err := guest.Tiny(kind, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content = append(content, fmt.Appendf(nil, "%-512s", mark)...)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(content)
	return path, hex.EncodeToString(digest[:])
}
