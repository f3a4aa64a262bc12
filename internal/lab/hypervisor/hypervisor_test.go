package hypervisor

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/namespace"
)

func TestMain(m *testing.M) { os.Exit(namespace.Run(m.Run)) }

func start(t *testing.T, options Options) *Hypervisor {
	t.Helper()
	h, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test's own context has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := h.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return h
}

func virsh(t *testing.T, h *Hypervisor, args ...string) string {
	t.Helper()
	out, err := h.Virsh(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// guestXML is a machine without disks: it never ends by itself.
const guestXML = `<domain type='qemu'><name>guest</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os>
<devices><interface type='network'><source network='egressproxy'/></interface></devices></domain>`

func startGuest(t *testing.T, h *Hypervisor) (pid int) {
	t.Helper()
	file := filepath.Join(h.options.Dir, "guest.xml")
	if err := os.WriteFile(file, []byte(guestXML), 0o600); err != nil {
		t.Fatal(err)
	}
	virsh(t, h, "create", file)
	text, err := os.ReadFile(filepath.Join(h.options.Dir, "run", "qemu", "guest.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestHypervisorHasItsNetworkAndPoolRunning(t *testing.T) {
	h := start(t, Options{Dir: t.TempDir(), Hosts: map[string]netip.Addr{"www.allowed.test": netip.MustParseAddr("203.0.113.10")}})
	if got := virsh(t, h, "net-list", "--name"); got != Network {
		t.Errorf("active networks %q, want %q", got, Network)
	}
	if got := virsh(t, h, "pool-list", "--name"); got != Pool {
		t.Errorf("active pools %q, want %q", got, Pool)
	}
	if got := virsh(t, h, "net-dumpxml", Network); !strings.Contains(got, "<hostname>www.allowed.test</hostname>") {
		t.Errorf("the network's DNS does not know the name it was given:\n%s", got)
	}
}

func TestRestartKeepsGuestsRunningAndStopEndsThem(t *testing.T) {
	h := start(t, Options{Dir: t.TempDir()})
	pid := startGuest(t, h)
	if err := h.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := virsh(t, h, "domstate", "guest"); got != "running" {
		t.Errorf("after a restart the guest is %q, want running", got)
	}
	if err := h.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.owns(pid) {
		t.Error("the guest's process is still there after Stop")
	}
	if err := h.Stop(t.Context()); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

func TestStopEndsGuestsOfADaemonThatDied(t *testing.T) {
	h := start(t, Options{Dir: t.TempDir()})
	pid := startGuest(t, h)
	h.libvirtd.kill()
	if err := h.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for h.owns(pid) { // a killed process is seen until it is reaped
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the guest's process is still there after Stop")
		}
	}
}

func TestDaemonThatDiesIsStartedAgainAndCounted(t *testing.T) {
	h := start(t, Options{Dir: t.TempDir()})
	startGuest(t, h)
	if err := syscall.Kill(h.PID(), syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for h.Deaths() == 0 {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("its death was not seen")
		}
	}
	_ = h.PID() // known once it runs again
	if got := virsh(t, h, "domstate", "guest"); got != "running" || h.Deaths() != 1 {
		t.Errorf("after %d deaths the guest is %q, want running after 1", h.Deaths(), got)
	}
}

func TestHypervisorsSideBySideDoNotSeeEachOther(t *testing.T) {
	one := start(t, Options{Dir: t.TempDir(), Name: "one"})
	two := start(t, Options{Dir: t.TempDir(), Name: "two", Subnet: netip.MustParsePrefix("192.168.198.0/24")})
	startGuest(t, one)
	if got := virsh(t, two, "list", "--name"); got != "" {
		t.Errorf("the second hypervisor lists %q", got)
	}
	hostUUID := func(h *Hypervisor) string {
		_, after, _ := strings.Cut(virsh(t, h, "capabilities"), "<uuid>")
		id, _, _ := strings.Cut(after, "<")
		return id
	}
	if a, b := hostUUID(one), hostUUID(two); a == b {
		t.Errorf("both hypervisors have the host UUID %s", a)
	}
}

func TestStartRefusesWhatCannotWork(t *testing.T) {
	for name, options := range map[string]Options{
		"name too long for a bridge":    {Dir: "/tmp/x", Name: "elevenchars"},
		"subnet too small":              {Dir: "/tmp/x", Subnet: netip.MustParsePrefix("192.168.1.0/30")},
		"path too long for unix socket": {Dir: "/tmp/" + strings.Repeat("x", 90)},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Start(t.Context(), options); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestStartGivesUpWhenItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Options{Dir: t.TempDir()}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
}

func TestKVMNeedsTheCPUsOwnExtension(t *testing.T) {
	for name, c := range map[string]struct {
		cpuinfo string
		want    bool
	}{
		"Intel":                  {"processor\t: 0\nflags\t\t: fpu vmx sse\n", true},
		"AMD":                    {"flags\t\t: fpu svm\n", true},
		"guest without nesting":  {"flags\t\t: fpu sse hypervisor\n", false},
		"a flag with vmx inside": {"flags\t\t: fpu\nvmx flags\t: vnmi\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := virtualises(c.cpuinfo); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
