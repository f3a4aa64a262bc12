package faults

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// changed is an instance that is to be otherwise in all that an update changes.
func changed(was egress.Spec) egress.Spec {
	machine := *was.KVM
	was.KVM = &machine
	was.Description, was.Tags = "changed", egress.Tags{"changed": "yes"}
	was.KVM.MemoryMiB, was.KVM.DiskGiB, was.KVM.Autostart = 72, 2, true
	return was
}

// checkChanged checks that the instance is the same one, and as it is wanted.
func checkChanged(t testing.TB, backend *kvm.Backend, made egress.Instance, want egress.Spec) {
	t.Helper()
	got, err := backend.Get(t.Context(), want.ID)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	if got.UID != made.UID || got.State != egress.Running || got.Unfinished || got.Description != want.Description || !maps.Equal(got.Tags, want.Tags) ||
		got.KVM.MemoryMiB != want.KVM.MemoryMiB || got.KVM.DiskGiB != want.KVM.DiskGiB || got.KVM.Autostart != want.KVM.Autostart || got.ConfigHash != made.ConfigHash {
		t.Errorf("it is %+v %+v", got, got.KVM)
	}
	if actual := virsh(t, "dommemstat", want.ID.Name); !strings.Contains(actual, "actual 73728") {
		t.Errorf("the machine runs with %s", actual)
	}
}

func TestFaultInUpdateNeverKeepsTheNextApplyFromConverging(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "update-clean")
	was := spec(t, "update-clean", guest.TinyIdle, false)
	made := mustCreate(t, w.backend, was)
	before := w.link.Calls()
	mustUpdate(t, w.backend, changed(was))
	points := pointsOf(added(before, w.link.Calls()), allFaults...)
	checkChanged(t, w.backend, made, changed(was))
	mustDelete(t, w.backend, was.ID)

	runPoints(t, "update", points, func(t testing.TB, name string, p point) {
		w := newWorld(t)
		plantLease(t, name)
		was := spec(t, name, guest.TinyIdle, false)
		made := mustCreate(t, w.backend, was)
		want := changed(was)
		w.link.Inject(p.rule())
		ctx, cancel := context.WithTimeout(t.Context(), p.timeout())
		began := time.Now()
		got, err := w.backend.Update(ctx, want.ID, want)
		cancel()
		if took := time.Since(began); took > p.timeout()+15*time.Second {
			t.Errorf("the failed update took %s", took)
		}
		w.link.Heal()
		if err != nil {
			if fault := new(egress.Fault); !errors.As(err, &fault) || fault.Doing == "" || fault.Host != "lab" {
				t.Errorf("the error does not say what was done where: %v", err)
			}
			if errors.Is(err, egress.ErrNotFound) {
				t.Errorf("the instance counts as gone: %v", err)
			}
			if !got.ID.IsZero() && got.UID != made.UID {
				t.Errorf("another instance is handed back: %+v", got)
			}
			mustUpdate(t, newBackend(t, w), want)
		}
		next := newBackend(t, w)
		checkChanged(t, next, made, want)
		mustDelete(t, next, want.ID)
		checkNothingLeft(t, want)
	})
}

func TestFaultInListIsAnErrorAndNeverAShorterList(t *testing.T) {
	w := newWorld(t)
	mark := egress.Tags{"listed": "both"}
	for _, name := range []string{"list-one", "list-two"} {
		want := spec(t, name, guest.TinyIdle, false)
		want.Tags, want.Stopped = mark, true
		mustCreate(t, w.backend, want)
	}
	before := w.link.Calls()
	if found, err := w.backend.List(t.Context(), mark); err != nil || len(found) != 2 {
		t.Fatalf("listed %d, %v", len(found), err)
	}
	points := pointsOf(added(before, w.link.Calls()), allFaults...)
	points = append(points, pointsOf(map[uint32]int{wire.ProcAuthList: 1, wire.ProcConnectOpen: 1}, allFaults...)...)
	runPoints(t, "list", points, func(t testing.TB, _ string, p point) {
		w := newWorld(t)
		w.link.Inject(p.rule())
		ctx, cancel := context.WithTimeout(t.Context(), p.timeout())
		defer cancel()
		found, err := w.backend.List(ctx, mark)
		if err == nil && len(found) != 2 {
			t.Errorf("listed %+v", found)
		}
		if errors.Is(err, egress.ErrNotFound) {
			t.Errorf("taken for not found: %v", err)
		}
	})
	for _, name := range []string{"list-one", "list-two"} {
		mustDelete(t, w.backend, egress.ProviderID{Backend: egress.KVM, Location: "lab", Name: name})
	}
}

func TestFaultInAdoptionLeavesTheMachineAsItWasOrOurs(t *testing.T) {
	adopt := func(found egress.Instance) egress.Spec {
		return egress.Spec{ID: found.ID, UID: found.UID, Description: found.Description, Stopped: true, Tags: egress.Tags{"adopted": "yes"},
			HealthCheck: egress.HealthCheck{From: egress.FromNone},
			KVM:         &egress.KVMSpec{MemoryMiB: 72, VCPUs: 1, DiskGiB: 1, CPUMode: found.KVM.CPUMode, Interfaces: found.KVM.Interfaces}}
	}
	w := newWorld(t)
	id := egress.ProviderID{Backend: egress.KVM, Location: "lab", Name: "adopt-clean"}
	defineForeign(t, id.Name)
	found, err := w.backend.Get(t.Context(), id) // the import
	if err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, w.backend, adopt(found))
	points := pointsOf(w.link.Calls(), allFaults...)
	if err := w.backend.Delete(t.Context(), id, found.UID); err != nil {
		t.Fatal(err)
	}

	runPoints(t, "adopt", points, func(t testing.TB, name string, p point) {
		w := newWorld(t)
		id := egress.ProviderID{Backend: egress.KVM, Location: "lab", Name: name}
		defineForeign(t, name)
		w.link.Inject(p.rule())
		ctx, cancel := context.WithTimeout(t.Context(), p.timeout())
		found, err := w.backend.Get(ctx, id)
		if err == nil {
			_, err = w.backend.Update(ctx, id, adopt(found))
		}
		cancel()
		w.link.Heal()
		next := newBackend(t, w)
		if errors.Is(err, egress.ErrNotFound) {
			t.Errorf("taken for not found: %v", err)
		}
		if err != nil {
			if found, err = next.Get(t.Context(), id); err != nil {
				t.Fatalf("the next import: %v", err)
			}
			mustUpdate(t, next, adopt(found))
		}
		got, err := next.Get(t.Context(), id)
		if err != nil || got.Foreign || got.KVM.MemoryMiB != 72 || got.Tags["adopted"] != "yes" {
			t.Errorf("adopted as %+v, %v", got, err)
		}
		text := virsh(t, "dumpxml", "--security-info", name)
		for _, kept := range []string{"<shares>100</shares>", "sesame", "qemu:arg value='-name'", "https://example.com/app"} {
			if !strings.Contains(text, kept) {
				t.Errorf("the definition lost %s:\n%s", kept, text)
			}
		}
		if err := next.Delete(t.Context(), id, found.UID); err != nil {
			t.Error(err)
		}
		if left := volumes(t, name+".qcow2"); len(left) != 0 || domainState(t, name) != "" {
			t.Errorf("volumes %q or domain %q are left", left, domainState(t, name))
		}
	})
}
