package faults

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// noticeWithin is how soon after a guest's death the wait must have ended.
const noticeWithin = 5 * time.Second

func TestGuestThatDiesEndsTheWaitWithItsReasonAndLastLines(t *testing.T) {
	for name, test := range map[string]struct {
		kind guest.Kind
		// die makes the guest die, or waits until it has.
		die    func(t *testing.T, name string)
		reason string
	}{
		"powers-off": {guest.TinyPowersOff, func(t *testing.T, name string) {
			await(t, "the guest to power off", func() bool { return domainState(t, name) == "shut off (shutdown)" })
		}, "shut off (the guest powered off)"},
		"panics": {guest.TinyPanics, func(t *testing.T, name string) {
			await(t, "the guest to run", func() bool { return domainState(t, name) == "running (booted)" })
		}, "Kernel panic - not syncing"},
		// QEMU stops a machine so when KVM gives up on it.
		"stopped-by-qemu": {guest.TinyIdle, func(t *testing.T, name string) {
			await(t, "the guest to run", func() bool { return domainState(t, name) == "running (booted)" })
			virsh(t, "qemu-monitor-command", name, "--hmp", "stop")
		}, "paused (QEMU stopped it"},
		"ended-by-a-person": {guest.TinyIdle, func(t *testing.T, name string) {
			await(t, "the guest to run", func() bool { return domainState(t, name) == "running (booted)" })
			virsh(t, "destroy", name)
		}, "shut off (destroyed)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			want := spec(t, "dies-"+name, test.kind, false)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := w.backend.Create(ctx, want)
				ended <- err
			}()
			test.die(t, want.ID.Name)
			died := time.Now()
			err := <-ended
			if took := time.Since(died); took > noticeWithin {
				t.Errorf("noticed after %s", took)
			}
			var fault *egress.Fault
			if !errors.As(err, &fault) {
				t.Fatalf("got %v, want a fault", err)
			}
			if !strings.Contains(fault.Error(), test.reason) {
				t.Errorf("%q does not say %q", fault.Error(), test.reason)
			}
			if name != "ended-by-a-person" && len(fault.Console) == 0 {
				t.Errorf("no console lines beside: %v", err)
			}
			mustDelete(t, w.backend, want.ID)
			checkNothingLeft(t, want)
		})
	}
}

func TestWaitThatIsGivenUpSaysWhatWasSeenLast(t *testing.T) {
	w := newWorld(t)
	want := spec(t, "never-ready", guest.TinyIdle, false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		// Two rounds of questions for an address.
		if reached(ctx, func() bool { return w.link.Calls()[wire.ProcDomainInterfaceAddresses] >= 6 }) {
			cancel()
		}
	}()
	made, err := w.backend.Create(ctx, want)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want that it was given up", err)
	}
	for _, part := range []string{"it has no address", "guest agent: ", "DHCP lease: none yet", "ARP: "} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if made.ID != want.ID || made.KVM == nil || made.KVM.UUID == "" || !made.Unfinished {
		t.Errorf("what was made came back as %+v", made)
	}
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}
