package terraform

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
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
	path, sum, err := guest.MarkedTiny(kind, name, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return tiny{Name: name, URI: "qemu+unix:///system?socket=" + socket, Image: path, SHA256: sum, VirtType: hv.VirtType}, link
}

// leased counts the leases that were planted.
var leased atomic.Uint32

// plantLease gives an instance's guest, which cannot ask for one, an address.
func plantLease(t *testing.T, name string) {
	t.Helper()
	// 198.18.0.0/15 is for tests of network devices (RFC 2544).
	if err := hv.PlantLease(kvm.MACAddress("lab", name), netip.AddrFrom4([4]byte{198, 18, 0, byte(leased.Add(1))})); err != nil {
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

// volumes names the files in the pool that contain text.
func volumes(t *testing.T, text string) []string {
	t.Helper()
	found, err := hv.PoolFiles(text)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func domainState(t *testing.T, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	state, err := hv.DomainState(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// checkNothingLeft wants no domain, overlay or seed of an instance.
func checkNothingLeft(t *testing.T, name string) {
	t.Helper()
	if state := domainState(t, name); state != "" {
		t.Errorf("domain %s is left, %s", name, state)
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
