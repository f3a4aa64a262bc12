package terraform

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// tinyInstance is an instance that is a boot sector: it runs, and does nothing.
const tinyInstance = `
terraform {
  required_providers { egressproxy = { source = "egressproxy/egressproxy" } }
}
provider "egressproxy" {
  kvm = {
    hosts         = { lab = { uri = {{ printf "%q" .URI }} } }
    machine_types = { tiny = { vcpus = 1, memory_mib = 128, disk_gib = 1 } }
    images        = { tiny = { source = {{ printf "%q" .Image }}, sha256 = {{ printf "%q" .SHA256 }} } }
  }
}
resource "egressproxy_instance" "ci" {
  name         = {{ printf "%q" .Name }}
  kvm          = { host = "lab", machine_type = "tiny", image = "tiny", pool = "egressproxy", network = "egressproxy", virt_type = {{ printf "%q" .VirtType }} }
  user_data    = "#cloud-config\n{}\n"
  health_check = { from = "none" }
  timeouts     = { create = "3m", delete = "1m" }
}
`

// tiny is what fills in tinyInstance.
type tiny struct {
	Name, URI, Image, SHA256, VirtType string
}

// newTiny makes an instance with an image of its own, so that its upload is
// part of the test, behind a link that can be broken.
func newTiny(t *testing.T, name string, kind guest.Kind) (tiny, *wire.Proxy) {
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
	path, err := guest.Tiny(kind, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content = append(content, []byte(name+strings.Repeat(" ", 512-len(name)))...)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return tiny{Name: name, URI: "qemu+unix:///system?socket=" + socket, Image: path, SHA256: hex.EncodeToString(sum[:]), VirtType: hv.VirtType}, link
}

var leases struct {
	sync.Mutex
	entries []map[string]any
}

// plantLease gives a guest that cannot ask for one a DHCP lease, by writing the
// file in which libvirt looks for those of its networks.
func plantLease(t *testing.T, name string) {
	t.Helper()
	leases.Lock()
	defer leases.Unlock()
	leases.entries = append(leases.entries, map[string]any{
		"ip-address": "198.18.0." + string(rune('1'+len(leases.entries)%9)), "mac-address": kvm.MACAddress("lab", name), "expiry-time": time.Now().Add(time.Hour).Unix(),
	})
	content, err := json.Marshal(leases.entries)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(labDir, "hv", "lib", "dnsmasq", "lab-lab.status")
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// virsh asks the daemon past the provider.
func virsh(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
	virsh(t, "pool-refresh", hypervisor.Pool) // what is on the disk counts, not what libvirt remembers
	var found []string
	for line := range strings.Lines(virsh(t, "vol-list", hypervisor.Pool)) {
		if fields := strings.Fields(line); len(fields) > 0 && strings.Contains(fields[0], text) {
			found = append(found, fields[0])
		}
	}
	return found
}

// domains names all domains with this name: none or one.
func domains(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	for _, field := range strings.Fields(virsh(t, "list", "--all", "--name")) {
		if field == name {
			found = append(found, field)
		}
	}
	return found
}

// checkNothingLeft wants no domain, overlay or seed of an instance.
func checkNothingLeft(t *testing.T, name string) {
	t.Helper()
	if left := domains(t, name); len(left) != 0 {
		t.Errorf("domain %s is left", name)
	}
	if left := volumes(t, "egressproxy-"+name+"-"); len(left) != 0 {
		t.Errorf("volumes %q are left", left)
	}
}

// await waits for a condition, for a minute.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited a minute for %s", what)
		}
	}
}
