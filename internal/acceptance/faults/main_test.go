// Package faults breaks the link to a real libvirt daemon at every call the KVM
// backend makes, and looks at what is left. Its guests are boot sectors that
// start in a second. It needs root.
package faults

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/namespace"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// hv is the hypervisor that all tests share.
var hv *hypervisor.Hypervisor

func TestMain(m *testing.M) {
	if text := os.Getenv(errandVariable); text != "" {
		os.Exit(runErrand(text))
	}
	os.Exit(namespace.Run(func() int {
		dir, err := os.MkdirTemp("", "egressproxy-faults-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a leftover in the temporary directory at worst
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if hv, err = hypervisor.Start(ctx, hypervisor.Options{Dir: filepath.Join(dir, "hv")}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		before := runtime.NumGoroutine()
		code := m.Run()
		if code == 0 && !endedGoroutines(before) {
			code = 1
		}
		if err := hv.Stop(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}))
}

// endedGoroutines tells whether, after the tests, no more goroutines are left
// than there were before: each backend was closed, and every link. What is left
// is printed.
func endedGoroutines(before int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if reached(ctx, func() bool { return runtime.NumGoroutine() <= before }) {
		fmt.Printf("faults: %d goroutines before, %d after\n", before, runtime.NumGoroutine())
		return true
	}
	fmt.Fprintf(os.Stderr, "%d goroutines are left, there were %d:\n", runtime.NumGoroutine(), before)
	_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1) // stderr takes it or nothing does
	return false
}

// world is one backend on the hypervisor, behind a link that can be broken.
type world struct {
	socket  string
	link    *wire.Proxy
	backend *kvm.Backend
}

func newWorld(t testing.TB) world {
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
func spec(t testing.TB, name string, kind guest.Kind, unique bool) egress.Spec {
	t.Helper()
	mark := ""
	if unique {
		mark = name
	}
	path, sum, err := guest.MarkedTiny(kind, mark, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return egress.Spec{
		ID:          egress.ProviderID{Backend: egress.KVM, Location: "lab", Name: name},
		Tags:        egress.Tags{"test": t.Name()},
		UserData:    egress.NewSecret("#cloud-config\n{}\n"),
		HealthCheck: egress.HealthCheck{From: egress.FromNone, Interval: 200 * time.Millisecond},
		KVM: &egress.KVMSpec{VCPUs: 1, MemoryMiB: 64, DiskGiB: 1, Pool: hypervisor.Pool, Interfaces: []egress.Interface{{Network: hypervisor.Network}}, VirtType: hv.VirtType,
			Image: egress.Image{Name: "tiny", Source: path, SHA256: sum}},
	}
}

// leased counts the leases that were planted.
var leased atomic.Uint32

// plantLease gives an instance's guest, which cannot ask for one, an address.
func plantLease(t testing.TB, name string) netip.Addr {
	t.Helper()
	n := leased.Add(1)
	// 198.18.0.0/15 is for tests of network devices (RFC 2544).
	addr := netip.AddrFrom4([4]byte{198, 18, byte(n / 250), byte(n%250 + 1)})
	if err := hv.PlantLease(kvm.MACAddress("lab", name), addr); err != nil {
		t.Fatal(err)
	}
	return addr
}

// virsh asks the daemon past the link.
func virsh(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := hv.Virsh(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// volumes names the files in the pool that contain text.
func volumes(t testing.TB, text string) []string {
	t.Helper()
	found, err := hv.PoolFiles(text)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func domainState(t testing.TB, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	state, err := hv.DomainState(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// await waits for a condition, for a minute.
func await(t testing.TB, what string, condition func() bool) {
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
