package faults

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
)

func mustUpdate(t testing.TB, backend *kvm.Backend, want egress.Spec) egress.Instance {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := backend.Update(ctx, want.ID, want)
	if err != nil {
		t.Fatalf("update: %v", err)
	}
	return got
}

// edit changes a domain's definition as a person does with virsh edit.
func edit(t testing.TB, name string, pairs ...string) {
	t.Helper()
	text := virsh(t, "dumpxml", "--inactive", "--security-info", name)
	edited := strings.NewReplacer(pairs...).Replace(text)
	if edited == text {
		t.Fatalf("nothing of %q is in the definition:\n%s", pairs, text)
	}
	define(t, edited)
}

func define(t testing.TB, definition string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "domain.xml")
	if err := os.WriteFile(file, []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	virsh(t, "define", file)
}

func TestSizesChangeInPlaceAndWhatAPersonAddedStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "resized", guest.TinyIdle, false)
	plantLease(t, want.ID.Name)
	made := mustCreate(t, w.backend, want)
	edit(t, want.ID.Name, "<vcpu placement='static'>1</vcpu>", "<vcpu placement='static'>1</vcpu><cputune><shares>512</shares></cputune>",
		"<metadata>", "<metadata><note:n xmlns:note='https://example.com/note'>keep &amp; me</note:n>",
		"</devices>", "<watchdog model='i6300esb' action='poweroff'/></devices>")
	want.UID = made.UID
	want.Description = `Changed & "described"`
	want.KVM.MemoryMiB, want.KVM.VCPUs, want.KVM.CPUMode = 96, 2, "host-model"
	want.KVM.ConsoleLog = filepath.Join(t.TempDir(), "console.log")
	before := virsh(t, "domid", want.ID.Name)
	got := mustUpdate(t, w.backend, want)
	if got.KVM.MemoryMiB != 96 || got.KVM.VCPUs != 2 || got.KVM.CPUMode != "host-model" || got.Description != want.Description || got.KVM.ConsoleLog != want.KVM.ConsoleLog {
		t.Errorf("updated to %+v %+v", got, got.KVM)
	}
	if got.UID != made.UID || got.KVM.MAC != made.KVM.MAC || got.Addresses[0] != made.Addresses[0] || !got.Ready {
		t.Errorf("another machine came of it: %+v, was %+v", got, made)
	}
	if after := virsh(t, "domid", want.ID.Name); after == before {
		t.Error("the machine was not restarted")
	}
	running := virsh(t, "dumpxml", want.ID.Name)
	for _, kept := range []string{"<shares>512</shares>", "keep &amp; me", "i6300esb", "<memory unit='KiB'>98304</memory>", "<vcpu placement='static'>2</vcpu>"} {
		if !strings.Contains(running, kept) {
			t.Errorf("the running machine's definition lacks %s:\n%s", kept, running)
		}
	}
	if _, err := os.Stat(want.KVM.ConsoleLog); err != nil {
		t.Error(err)
	}
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}

func TestSizesOfAMachineSavedToDiskChangeToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "saved-resized", guest.TinyIdle, false)
	plantLease(t, want.ID.Name)
	mustCreate(t, w.backend, want)
	virsh(t, "managedsave", want.ID.Name)
	want.KVM.MemoryMiB = 80
	mustUpdate(t, w.backend, want)
	if got := virsh(t, "dommemstat", want.ID.Name); !strings.Contains(got, "actual 81920") {
		t.Errorf("the machine runs with %s", got)
	}
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}

func TestContradictionInTheDefinitionIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "topology", guest.TinyIdle, false)
	plantLease(t, want.ID.Name)
	mustCreate(t, w.backend, want)
	edit(t, want.ID.Name, "</cpu>", "<topology sockets='1' dies='1' cores='1' threads='1'/></cpu>",
		"check='none'/>", "check='none'><topology sockets='1' dies='1' cores='1' threads='1'/></cpu>",
		"check='none' migratable='on'/>", "check='none'><topology sockets='1' dies='1' cores='1' threads='1'/></cpu>")
	before := virsh(t, "dumpxml", want.ID.Name)
	want.KVM.VCPUs = 2
	_, err := w.backend.Update(t.Context(), want.ID, want)
	var fault *egress.Fault
	if !errors.As(err, &fault) || fault.Attribute != "kvm.vcpus" || !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("got %v, want a fault of kvm.vcpus", err)
	}
	if after := virsh(t, "dumpxml", want.ID.Name); after != before {
		t.Errorf("the machine is now:\n%s", after)
	}
	mustDelete(t, w.backend, want.ID)
}

func TestDiskGrowsWhetherTheMachineRunsOrNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "grown", guest.TinyIdle, false)
	plantLease(t, want.ID.Name)
	mustCreate(t, w.backend, want)
	id := virsh(t, "domid", want.ID.Name)
	want.KVM.DiskGiB = 2
	if got := mustUpdate(t, w.backend, want); got.KVM.DiskGiB != 2 {
		t.Errorf("grown to %d GiB", got.KVM.DiskGiB)
	}
	if virsh(t, "domid", want.ID.Name) != id {
		t.Error("the machine was restarted")
	}
	want.Stopped = true
	if got := mustUpdate(t, w.backend, want); got.State != egress.Stopped || got.Ready {
		t.Errorf("stopped as %+v", got)
	}
	want.KVM.DiskGiB = 3
	if got := mustUpdate(t, w.backend, want); got.KVM.DiskGiB != 3 || got.State != egress.Stopped {
		t.Errorf("grown to %d GiB, %s", got.KVM.DiskGiB, got.State)
	}
	want.Stopped = false
	if got := mustUpdate(t, w.backend, want); got.KVM.DiskGiB != 3 || got.State != egress.Running {
		t.Errorf("started with %d GiB, %s", got.KVM.DiskGiB, got.State)
	}
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}

func TestMachineThatIsNotToRunIsMadeAndLeftOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "left-off", guest.TinyIdle, false)
	want.Stopped = true
	want.KVM.Autostart = true
	made := mustCreate(t, w.backend, want)
	if made.State != egress.Stopped || made.Ready || made.Unfinished || !made.KVM.Autostart {
		t.Errorf("made as %+v", made)
	}
	if got := domainState(t, want.ID.Name); !strings.HasPrefix(got, "shut off") {
		t.Errorf("it is %s", got)
	}
	if got := virsh(t, "dominfo", want.ID.Name); !strings.Contains(got, "Autostart:      enable") {
		t.Errorf("dominfo says\n%s", got)
	}
	want.KVM.Autostart = false
	if got := mustUpdate(t, w.backend, want); got.KVM.Autostart || got.State != egress.Stopped {
		t.Errorf("updated to %+v", got)
	}
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}

func TestMissingDisksAreReportedAndTheSeedIsMadeAgain(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, file string){
		"behind-libvirts-back": func(t *testing.T, file string) {
			if err := os.Remove(filepath.Join(hv.PoolDir, file)); err != nil {
				t.Fatal(err)
			}
		},
		"with-virsh": func(t *testing.T, file string) { virsh(t, "vol-delete", "--pool", hypervisor.Pool, file) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			want := spec(t, "lacks-"+name, guest.TinyIdle, false)
			plantLease(t, want.ID.Name)
			mustCreate(t, w.backend, want)
			of := volumes(t, "egressproxy-"+want.ID.Name+"-")
			take(t, of[1])
			got, err := w.backend.Get(t.Context(), want.ID)
			if err != nil || strings.Join(got.KVM.MissingVolumes, " ") != "seed" || got.State != egress.Running {
				t.Fatalf("without its seed it is read as %+v, %v", got, err)
			}
			if got := mustUpdate(t, w.backend, want); len(got.KVM.MissingVolumes) != 0 {
				t.Errorf("after the repair %q are missing", got.KVM.MissingVolumes)
			}
			if now := volumes(t, "egressproxy-"+want.ID.Name+"-"); len(now) != 2 || now[1] != of[1] {
				t.Errorf("after the repair there are %q", now)
			}
			virsh(t, "destroy", want.ID.Name)
			mustUpdate(t, w.backend, want) // it starts with the new seed
			virsh(t, "destroy", want.ID.Name)
			take(t, of[0])
			got, err = w.backend.Get(t.Context(), want.ID)
			if err != nil || strings.Join(got.KVM.MissingVolumes, " ") != "root" {
				t.Errorf("without its root disk it is read as %+v, %v", got, err)
			}
			mustDelete(t, w.backend, want.ID)
			checkNothingLeft(t, want)
		})
	}
}

func TestAnotherMachineOfTheNameIsNeitherChangedNorDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "namesake", guest.TinyIdle, false)
	plantLease(t, want.ID.Name)
	first := mustCreate(t, w.backend, want)
	mustDelete(t, w.backend, want.ID)
	second := mustCreate(t, w.backend, want)
	if second.UID == first.UID {
		t.Fatal("two machines have one UID")
	}
	stale := want
	stale.UID, stale.Tags = first.UID, egress.Tags{"changed": "yes"}
	if _, err := w.backend.Update(t.Context(), want.ID, stale); !errors.Is(err, egress.ErrNotFound) {
		t.Errorf("update: got %v, want not found", err)
	}
	if err := w.backend.Delete(t.Context(), want.ID, first.UID); err != nil {
		t.Errorf("delete: %v", err)
	}
	checkMade(t, w.backend, want)
	if err := w.backend.Delete(t.Context(), want.ID, second.UID); err != nil {
		t.Errorf("delete: %v", err)
	}
	checkNothingLeft(t, want)
}

func TestVolumesOfAMachineUndefinedByHandGoWithTheNextOfItsName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "undefined-remade", guest.TinyIdle, false)
	plantLease(t, want.ID.Name)
	mustCreate(t, w.backend, want)
	left := volumes(t, "egressproxy-"+want.ID.Name+"-")
	virsh(t, "destroy", want.ID.Name)
	virsh(t, "undefine", want.ID.Name)
	kept := "egressproxy-" + want.ID.Name + "-notes.raw" // not named as ours are
	virsh(t, "vol-create-as", hypervisor.Pool, kept, "1M")
	mustCreate(t, w.backend, want)
	now := volumes(t, "egressproxy-"+want.ID.Name+"-")
	if len(now) != 3 || slices.ContainsFunc(left, func(name string) bool { return slices.Contains(now, name) }) || !slices.Contains(now, kept) {
		t.Errorf("first there were %q, then %q", left, now)
	}
	virsh(t, "vol-delete", "--pool", hypervisor.Pool, kept)
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}

func TestVolumesOfAMachineUndefinedByHandStayWhileAnotherDomainHasThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "undefined-renamed", guest.TinyIdle, false)
	plantLease(t, want.ID.Name)
	first := mustCreate(t, w.backend, want)
	left := volumes(t, "egressproxy-"+want.ID.Name+"-")
	virsh(t, "destroy", want.ID.Name)
	virsh(t, "domrename", want.ID.Name, "kept-by-a-person")
	mustCreate(t, w.backend, want)
	now := volumes(t, "egressproxy-"+want.ID.Name+"-")
	for _, name := range left {
		if !slices.Contains(now, name) {
			t.Errorf("%s of the renamed machine is gone", name)
		}
	}
	mustDelete(t, w.backend, want.ID)
	virsh(t, "undefine", "kept-by-a-person")
	if err := w.backend.Delete(t.Context(), want.ID, first.UID); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, want)
}

func TestRunInProgressIsNotTakenOverAndADeadOneIs(t *testing.T) {
	t.Parallel()
	alive, other := newWorld(t), newWorld(t)
	want := spec(t, "contended", guest.TinyIdle, false)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := alive.backend.Create(ctx, want)
		ended <- err
	}()
	await(t, "the machine to run", func() bool { return strings.HasPrefix(domainState(t, want.ID.Name), "running") })
	made, err := other.backend.Create(t.Context(), want)
	if !errors.Is(err, egress.ErrAlreadyExists) || !strings.Contains(err.Error(), "another run is creating") || !made.ID.IsZero() {
		t.Errorf("the second run got %+v, %v", made, err)
	}
	_ = alive.link.Close() // as a machine that loses its network, or its power
	cancel()
	if err := <-ended; err == nil {
		t.Fatal("the first run succeeded without a link")
	}
	plantLease(t, want.ID.Name)
	mustCreate(t, other.backend, want)
	checkMade(t, other.backend, want)
	mustDelete(t, other.backend, want.ID)
	checkNothingLeft(t, want)
}

func TestInstanceThatIsTakenAwayWhileItIsMadeFailsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "taken-away", guest.TinyIdle, false)
	ended := make(chan error, 1)
	go func() {
		_, err := w.backend.Create(t.Context(), want)
		ended <- err
	}()
	await(t, "the machine to run", func() bool { return strings.HasPrefix(domainState(t, want.ID.Name), "running") })
	mustDelete(t, newWorld(t).backend, want.ID)
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "removed while") {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it still waits")
	}
	checkNothingLeft(t, want)
}
