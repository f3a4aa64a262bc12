package faults

import (
	"context"
	"errors"
	"slices"
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
		// kill makes a guest die that does not by itself.
		kill   []string
		reason string
	}{
		"powers-off": {guest.TinyPowersOff, nil, "shut off (the guest powered off)"},
		"panics":     {guest.TinyPanics, nil, "Kernel panic - not syncing"},
		// QEMU stops a machine so when KVM gives up on it.
		"stopped-by-qemu":   {guest.TinyIdle, []string{"qemu-monitor-command", "--hmp", "stop"}, "paused (QEMU stopped it"},
		"ended-by-a-person": {guest.TinyIdle, []string{"destroy"}, "shut off (destroyed)"},
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
			var err error
			var lastRunning time.Time
			await(t, "the create to end", func() bool {
				if strings.HasPrefix(domainState(t, want.ID.Name), "running") {
					if lastRunning.IsZero() && test.kill != nil {
						virsh(t, append([]string{test.kill[0], want.ID.Name}, test.kill[1:]...)...)
					}
					lastRunning = time.Now()
				}
				select {
				case err = <-ended:
					return true
				default:
					return false
				}
			})
			if lastRunning.IsZero() {
				t.Fatalf("the guest was never seen running: %v", err)
			}
			if took := time.Since(lastRunning); took > noticeWithin {
				t.Errorf("noticed %s after the guest was last seen running", took)
			}
			var fault *egress.Fault
			if !errors.As(err, &fault) {
				t.Fatalf("got %v, want a fault", err)
			}
			if !strings.Contains(fault.Error(), test.reason) {
				t.Errorf("%q does not say %q", fault.Error(), test.reason)
			}
			// One that is killed from outside may not have said anything yet.
			if test.kill == nil && !slices.Contains(fault.Console, test.kind.Line()) {
				t.Errorf("the console's lines are %q beside: %v", fault.Console, err)
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
