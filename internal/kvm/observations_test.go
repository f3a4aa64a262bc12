package kvm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/digitalocean/go-libvirt"
	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

func TestPlatformFollowsTheHost(t *testing.T) {
	caps := func(arch string, types ...string) libvirtxml.Caps {
		guest := libvirtxml.CapsGuest{OSType: "hvm", Arch: libvirtxml.CapsGuestArch{Name: arch}}
		for _, virtType := range types {
			guest.Arch.Domains = append(guest.Arch.Domains, libvirtxml.CapsGuestDomain{Type: virtType})
		}
		return libvirtxml.Caps{Host: libvirtxml.CapsHost{CPU: &libvirtxml.CapsHostCPU{Arch: arch}}, Guests: []libvirtxml.CapsGuest{guest}}
	}
	for _, test := range []struct {
		name string
		caps libvirtxml.Caps
		want string
		got  platform
	}{
		{"kvm where the host has it", caps("x86_64", "qemu", "kvm"), "", platform{"kvm", "x86_64", "q35", "host-passthrough", "bios"}},
		{"emulation elsewhere", caps("x86_64", "qemu"), "", platform{"qemu", "x86_64", "q35", "maximum", "bios"}},
		{"emulation when asked for", caps("x86_64", "qemu", "kvm"), "qemu", platform{"qemu", "x86_64", "q35", "maximum", "bios"}},
		{"arm", caps("aarch64", "qemu", "kvm"), "", platform{"kvm", "aarch64", "virt", "host-passthrough", "efi"}},
	} {
		got, err := choosePlatform(test.caps, test.want)
		if err != nil || got != test.got {
			t.Errorf("%s: got %+v, %v; want %+v", test.name, got, err, test.got)
		}
	}
	for name, test := range map[string]struct {
		caps libvirtxml.Caps
		want string
	}{
		"kvm asked for and missing": {caps("x86_64", "qemu"), "kvm"},
		"no hypervisor at all":      {caps("x86_64"), ""},
	} {
		if got, err := choosePlatform(test.caps, test.want); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}

func TestStatesAreToldApart(t *testing.T) {
	for _, test := range []struct {
		state domainState
		want  egress.State
		dead  bool
		text  string
	}{
		{domainState{libvirt.DomainRunning, int32(libvirt.DomainRunningBooted)}, egress.Running, false, "running"},
		{domainState{libvirt.DomainBlocked, 0}, egress.Running, false, "idle"},
		{domainState{libvirt.DomainNostate, 0}, egress.Provisioning, false, "no state"},
		{domainState{libvirt.DomainPaused, int32(libvirt.DomainPausedUser)}, egress.Stopped, false, "paused (by a person)"},
		{domainState{libvirt.DomainPaused, int32(libvirt.DomainPausedIoerror)}, egress.Stopped, true, "paused (I/O error on a disk)"},
		{domainState{libvirt.DomainPaused, int32(libvirt.DomainPausedUnknown)}, egress.Stopped, true, "paused (QEMU stopped it, possibly after a KVM internal error)"},
		{domainState{libvirt.DomainPaused, int32(libvirt.DomainPausedMigration)}, egress.Stopped, false, "paused"},
		{domainState{libvirt.DomainPaused, int32(libvirt.DomainPausedSnapshot)}, egress.Stopped, false, "paused"},
		{domainState{libvirt.DomainShutdown, 0}, egress.Stopped, false, "in shutdown"},
		{domainState{libvirt.DomainShutoff, int32(libvirt.DomainShutoffShutdown)}, egress.Stopped, true, "shut off (the guest powered off)"},
		{domainState{libvirt.DomainShutoff, int32(libvirt.DomainShutoffCrashed)}, egress.Stopped, true, "shut off (QEMU crashed)"},
		{domainState{libvirt.DomainCrashed, int32(libvirt.DomainCrashedPanicked)}, egress.Stopped, true, "crashed (kernel panic)"},
		{domainState{libvirt.DomainPmsuspended, 0}, egress.Stopped, false, "pmsuspended"},
	} {
		if got := test.state.instanceState(false); got != test.want {
			t.Errorf("%v: state %s, want %s", test.state, got, test.want)
		}
		if got := test.state.dead(); got != test.dead {
			t.Errorf("%v: dead %t, want %t", test.state, got, test.dead)
		}
		if got := test.state.String(); got != test.text {
			t.Errorf("%v: got %q, want %q", test.state.State, got, test.text)
		}
	}
	if got := (domainState{State: libvirt.DomainRunning}).instanceState(true); got != egress.Provisioning {
		t.Errorf("an unfinished machine that runs is %s, want provisioning", got)
	}
}

func TestUsableAddressesAreThoseClientsCanDial(t *testing.T) {
	const mac = "52:54:00:0a:0b:0c"
	iface := func(hw string, addrs ...string) libvirt.DomainInterface {
		out := libvirt.DomainInterface{Name: "eth0"}
		if hw != "" {
			out.Hwaddr = libvirt.OptString{hw}
		}
		for _, a := range addrs {
			out.Addrs = append(out.Addrs, libvirt.DomainIPAddr{Addr: a})
		}
		return out
	}
	for name, test := range map[string]struct {
		reported []libvirt.DomainInterface
		want     string
	}{
		"nothing":                         {nil, "[]"},
		"interface without addresses":     {[]libvirt.DomainInterface{iface(mac)}, "[]"},
		"as the agent answers":            {[]libvirt.DomainInterface{iface("00:00:00:00:00:00", "127.0.0.1", "::1"), iface(mac, "fe80::1", "192.0.2.7")}, "[192.0.2.7]"},
		"upper-case MAC":                  {[]libvirt.DomainInterface{iface("52:54:00:0A:0B:0C", "192.0.2.7")}, "[192.0.2.7]"},
		"interface the guest made itself": {[]libvirt.DomainInterface{iface("02:42:00:00:00:01", "172.17.0.1"), iface("", "10.8.0.1")}, "[]"},
		"never usable":                    {[]libvirt.DomainInterface{iface(mac, "0.0.0.0", "::", "169.254.3.4", "224.0.0.1", "ff02::1", "not an address")}, "[]"},
		"mapped and zoned":                {[]libvirt.DomainInterface{iface(mac, "::ffff:192.0.2.7", "2001:db8::7%eth0")}, "[192.0.2.7 2001:db8::7]"},
	} {
		if got := fmt.Sprint(usableAddresses(test.reported, []nic{{mac: mac}})); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

func TestAddressesAreOrderedTheSameWhoeverReportsThem(t *testing.T) {
	parse := func(texts ...string) (out []netip.Addr) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	want := parse("192.0.2.7", "198.51.100.1", "2001:db8::7")
	for _, reported := range [][]netip.Addr{
		parse("192.0.2.7", "198.51.100.1", "2001:db8::7"),
		parse("2001:db8::7", "198.51.100.1", "192.0.2.7", "192.0.2.7"),
	} {
		if got := orderAddresses(reported); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func TestConsoleKeepsTheLastLinesAsText(t *testing.T) {
	c := new(console)
	for i := range 30 {
		fmt.Fprintf(c, "\x1b[0;32mline %d\x1b[0m\r\n", i)
	}
	fmt.Fprint(c, "unfini")
	fmt.Fprint(c, "shed \xff")
	want := []string{}
	for i := 10; i < 30; i++ {
		want = append(want, fmt.Sprintf("line %d", i))
	}
	if diff := cmp.Diff(append(want, "unfinished ?"), c.tail()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestConsoleIsBoundedWhenNoLineEnds(t *testing.T) {
	c := new(console)
	for range 10_000 {
		fmt.Fprint(c, strings.Repeat("x", 100))
	}
	total := 0
	for _, line := range c.tail() {
		total += len(line)
	}
	if total > (consoleLines+2)*(consoleLineLength+100) {
		t.Errorf("the console keeps %d bytes", total)
	}
}

func TestConsoleReportsAPanicOnce(t *testing.T) {
	var reported []string
	c := &console{panicked: func(line string) { reported = append(reported, line) }}
	fmt.Fprint(c, "[    1.0] Run /init as init process\r\n[    1.1] Kernel panic - not sync")
	fmt.Fprint(c, "ing: Attempted to kill init!\r\n[    1.2] Kernel panic - not syncing: again\r\n")
	if diff := cmp.Diff([]string{"[    1.1] Kernel panic - not syncing: Attempted to kill init!"}, reported); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestKindsFollowTheDaemonsCodes(t *testing.T) {
	for _, test := range []struct {
		err  error
		want error
	}{
		{libvirt.Error{Code: uint32(libvirt.ErrNoDomain)}, egress.ErrNotFound},
		{libvirt.Error{Code: uint32(libvirt.ErrStorageVolExist)}, egress.ErrAlreadyExists},
		{libvirt.Error{Code: uint32(libvirt.ErrXMLError)}, egress.ErrPermanent},
		{libvirt.Error{Code: uint32(libvirt.ErrSystemError), Message: "cannot fill file: No space left on device"}, egress.ErrQuotaExceeded},
		{libvirt.Error{Code: uint32(libvirt.ErrInternalError), Message: "boom"}, egress.ErrTransient},
		{fmt.Errorf("wrapped: %w", libvirt.Error{Code: uint32(libvirt.ErrNoStorageVol)}), egress.ErrNotFound},
		{context.DeadlineExceeded, egress.ErrTransient},
		{errors.New("broken pipe"), egress.ErrUnreachable},
		// go-libvirt's own texts for a lost connection must never pass for "not found".
		{libvirt.ErrInterrupted, egress.ErrUnreachable},
	} {
		if got := kindOf(test.err); !errors.Is(got, test.want) {
			t.Errorf("%v: kind %v, want %v", test.err, got, test.want)
		}
	}
}
