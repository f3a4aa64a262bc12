package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// point is one call that goes wrong in one way.
type point struct {
	procedure uint32
	nth       int
	fault     wire.Fault
}

func (p point) String() string {
	return fmt.Sprintf("%s/%d/%s", wire.Name(p.procedure), p.nth, p.fault)
}

func (p point) rule() wire.Rule {
	return wire.Rule{Procedure: p.procedure, Nth: p.nth, Fault: p.fault, Error: wire.Error{Code: 1, Message: "injected failure"}}
}

// timeout bounds the operation under the fault: an answer that never comes
// must not be waited for any longer.
func (p point) timeout() time.Duration {
	if p.fault == wire.Hang || p.fault == wire.HangReply {
		return 5 * time.Second
	}
	return time.Minute
}

var allFaults = []wire.Fault{wire.ErrorReply, wire.DropBefore, wire.DropAfter, wire.Hang, wire.HangReply}

// repeats is how many occurrences of one call are tried: those of a loop are
// all alike.
const repeats = 3

// pointsOf lists the points of an operation that made these calls: each of them
// with each of the faults.
func pointsOf(calls map[uint32]int, faults ...wire.Fault) []point {
	var out []point
	for _, procedure := range slices.Sorted(maps.Keys(calls)) {
		if procedure == wire.ProcConnectClose { // the farewell; nobody waits for its answer
			continue
		}
		for nth := 1; nth <= min(calls[procedure], repeats); nth++ {
			for _, fault := range faults {
				out = append(out, point{procedure, nth, fault})
			}
		}
	}
	return out
}

// added is how many calls were made since before.
func added(before, after map[uint32]int) map[uint32]int {
	out := map[uint32]int{}
	for procedure, n := range after {
		if n > before[procedure] {
			out[procedure] = n - before[procedure]
		}
	}
	return out
}

// runPoints runs all points and prints how many held.
func runPoints(t *testing.T, suite string, points []point, run func(t testing.TB, name string, p point)) {
	var held atomic.Int64
	t.Run("points", func(t *testing.T) {
		for i, p := range points {
			t.Run(p.String(), func(t *testing.T) {
				t.Parallel()
				untilTried(t, fmt.Sprintf("%s-%03d", suite, i), func(t testing.TB, name string) { run(t, name, p) })
				if !t.Failed() {
					held.Add(1)
				}
			})
		}
	})
	fmt.Printf("faults-%s: %d points, %d held\n", suite, len(points), held.Load())
}

func TestFaultInCreateNeverKeepsTheNextApplyFromConverging(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "create-clean")
	want := spec(t, "create-clean", guest.TinyIdle, true)
	mustCreate(t, w.backend, want)
	points := pointsOf(w.link.Calls(), allFaults...)
	mustDelete(t, w.backend, want.ID)

	runPoints(t, "create", points, func(t testing.TB, name string, p point) {
		w := newWorld(t)
		plantLease(t, name)
		want := spec(t, name, guest.TinyIdle, true)
		w.link.Inject(p.rule())
		ctx, cancel := context.WithTimeout(t.Context(), p.timeout())
		began := time.Now()
		made, err := w.backend.Create(ctx, want)
		cancel()
		if took := time.Since(began); took > p.timeout()+15*time.Second {
			t.Errorf("the failed create took %s", took)
		}
		w.link.Heal()
		if err == nil {
			checkMade(t, w.backend, want)
			mustDelete(t, w.backend, want.ID)
			checkNothingLeft(t, want)
			return
		}
		if fault := new(egress.Fault); !errors.As(err, &fault) || fault.Doing == "" || fault.Host != "lab" {
			t.Errorf("the error does not say what was done where: %v", err)
		}
		// What comes next is another process. Terraform keeps what was
		// returned as tainted, and replaces it; what was not, it makes anew.
		next := newBackend(t, w)
		checkFindable(t, next, want)
		if made.ID.IsZero() {
			checkNothingLeft(t, want)
		} else {
			mustDelete(t, next, made.ID)
		}
		mustCreate(t, next, want)
		checkMade(t, next, want)
		mustDelete(t, next, want.ID)
		checkNothingLeft(t, want)
	})
}

func TestFaultInDeleteLeavesNothingBehindAfterTheNextOne(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "delete-clean")
	want := spec(t, "delete-clean", guest.TinyIdle, false)
	mustCreate(t, w.backend, want)
	before := w.link.Calls()
	mustDelete(t, w.backend, want.ID)
	points := pointsOf(added(before, w.link.Calls()), allFaults...)

	runPoints(t, "delete", points, func(t testing.TB, name string, p point) {
		w := newWorld(t)
		plantLease(t, name)
		want := spec(t, name, guest.TinyIdle, false)
		mustCreate(t, w.backend, want)
		w.link.Inject(p.rule())
		ctx, cancel := context.WithTimeout(t.Context(), p.timeout())
		err := w.backend.Delete(ctx, want.ID, "")
		cancel()
		w.link.Heal()
		if err == nil {
			checkNothingLeft(t, want)
			return
		}
		next := newBackend(t, w)
		checkFindable(t, next, want)
		mustDelete(t, next, want.ID)
		checkNothingLeft(t, want)
	})
}

func TestFaultInGetIsNeverTakenForNotFound(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "get-clean")
	want := spec(t, "get-clean", guest.TinyIdle, false)
	mustCreate(t, w.backend, want)
	before := w.link.Calls()
	if _, err := w.backend.Get(t.Context(), want.ID); err != nil {
		t.Fatal(err)
	}
	points := pointsOf(added(before, w.link.Calls()), allFaults...)
	points = append(points, pointsOf(map[uint32]int{wire.ProcAuthList: 1, wire.ProcConnectOpen: 1}, allFaults...)...)

	runPoints(t, "get", points, func(t testing.TB, _ string, p point) {
		w := newWorld(t)
		w.link.Inject(p.rule())
		ctx, cancel := context.WithTimeout(t.Context(), p.timeout())
		defer cancel()
		got, err := w.backend.Get(ctx, want.ID)
		if errors.Is(err, egress.ErrNotFound) {
			t.Errorf("taken for not found: %v", err)
		}
		// A source of addresses that fails by the daemon's own word is passed over.
		silenced := p.procedure == wire.ProcDomainInterfaceAddresses && p.fault == wire.ErrorReply
		if err == nil && (got.ID != want.ID || got.ConfigHash != want.ConfigHash() || (len(got.Addresses) != 1 && !silenced)) {
			t.Errorf("read as %+v", got)
		}
	})
	mustDelete(t, w.backend, want.ID)
}

// newBackend is what another process would use on the same link.
func newBackend(t testing.TB, w world) *kvm.Backend {
	t.Helper()
	backend := kvm.New(kvm.Config{
		Hosts:         map[string]connection.Host{"lab": {Name: "lab", URI: "qemu+unix:///system?socket=" + w.socket}},
		ShutdownGrace: time.Millisecond, // these guests do not listen to the power button

		PasswordPatience: 2 * time.Second,
		BeatInterval:     500 * time.Millisecond,
	})
	t.Cleanup(func() { _ = backend.Close() })
	return backend
}

func mustCreate(t testing.TB, backend *kvm.Backend, want egress.Spec) egress.Instance {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	made, err := backend.Create(ctx, want)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return made
}

func mustDelete(t testing.TB, backend *kvm.Backend, id egress.ProviderID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := backend.Delete(ctx, id, ""); err != nil {
		t.Fatalf("delete: %v", err)
	}
}

// checkMade checks that the instance is there, whole, once.
func checkMade(t testing.TB, backend *kvm.Backend, want egress.Spec) {
	t.Helper()
	got, err := backend.Get(t.Context(), want.ID)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	if got.State != egress.Running || got.Unfinished || got.ConfigHash != want.ConfigHash() || !maps.Equal(got.Tags, want.Tags) || len(got.Addresses) != 1 {
		t.Errorf("made as %+v", got)
	}
	of := volumes(t, "egressproxy-"+want.ID.Name+"-")
	if len(of) != 2 || !strings.HasPrefix(of[0], "egressproxy-"+want.ID.Name+"-root-") || !strings.HasPrefix(of[1], "egressproxy-"+want.ID.Name+"-seed-") {
		t.Errorf("the instance has volumes %q", of)
	}
	if got := volumes(t, want.KVM.Image.SHA256); len(got) != 2 {
		t.Errorf("the image has volumes %q, want one copy and its marker", got)
	}
	if _, err := backend.Create(t.Context(), want); !errors.Is(err, egress.ErrAlreadyExists) {
		t.Errorf("creating it again: %v, want already exists", err)
	}
}

// checkFindable wants an instance to be found for as long as anything of it is
// left: Terraform forgets what a refresh does not find.
func checkFindable(t testing.TB, backend *kvm.Backend, want egress.Spec) {
	t.Helper()
	if _, err := backend.Get(t.Context(), want.ID); errors.Is(err, egress.ErrNotFound) {
		checkNothingLeft(t, want)
	} else if err != nil {
		t.Errorf("get: %v", err)
	}
}

func checkNothingLeft(t testing.TB, want egress.Spec) {
	t.Helper()
	if state := domainState(t, want.ID.Name); state != "" {
		t.Errorf("domain %s is left, %s", want.ID.Name, state)
	}
	if left := volumes(t, "egressproxy-"+want.ID.Name+"-"); len(left) != 0 {
		t.Errorf("volumes %q are left", left)
	}
}
