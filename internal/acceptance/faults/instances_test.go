package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

func TestManyInstancesAtOnceFetchTheirImageOnce(t *testing.T) {
	const instances = 6
	w := newWorld(t)
	first := spec(t, "many-0", guest.TinyIdle, true)
	var fetched atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fetched.Add(1)
		http.ServeFile(rw, r, first.KVM.Image.Source)
	}))
	defer server.Close()

	var group sync.WaitGroup
	errs := make([]error, instances)
	specs := make([]egress.Spec, instances)
	for i := range instances {
		name := fmt.Sprintf("many-%d", i)
		plantLease(t, name)
		specs[i] = first
		specs[i].ID.Name = name
		machine := *first.KVM
		machine.Image.Source = server.URL + "/tiny.raw"
		specs[i].KVM = &machine
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			_, errs[i] = w.backend.Create(ctx, specs[i])
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("the image was fetched %d times", n)
	}
	found, err := w.backend.List(t.Context(), egress.Tags{"test": t.Name()})
	if err != nil || len(found) != instances {
		t.Errorf("listed %d instances, %v", len(found), err)
	}
	if none, err := w.backend.List(t.Context(), egress.Tags{"test": "another"}); err != nil || len(none) != 0 {
		t.Errorf("listed %v, %v for another tag", none, err)
	}
	for _, s := range specs {
		mustDelete(t, w.backend, s.ID)
		checkNothingLeft(t, s)
	}
}

func TestSameNameTwiceAtOnceGivesOneInstanceAndOneClearError(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "twice")
	want := spec(t, "twice", guest.TinyIdle, false)
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			_, err := w.backend.Create(ctx, want)
			errs <- err
		}()
	}
	a, b := <-errs, <-errs
	if (a == nil) == (b == nil) || !errors.Is(errors.Join(a, b), egress.ErrAlreadyExists) {
		t.Errorf("got %v and %v, want one success and one already exists", a, b)
	}
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}

func TestTwoProcessesUploadingOneImageEndUpWithOneCopy(t *testing.T) {
	specs := [2]egress.Spec{}
	errs := make(chan error, 2)
	w := [2]world{newWorld(t), newWorld(t)}
	shared := spec(t, "uploads", guest.TinyIdle, true)
	for i := range specs {
		name := fmt.Sprintf("uploads-%d", i)
		plantLease(t, name)
		specs[i] = shared
		specs[i].ID.Name = name
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			_, err := w[i].backend.Create(ctx, specs[i])
			errs <- err
		}()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Fatal(err)
	}
	// Whichever came second may still have its copy; the next upload or none
	// removes it. What counts is that both stand on a whole one.
	if got := volumes(t, shared.KVM.Image.SHA256); len(got) < 2 || len(got) > 3 {
		t.Errorf("the image has volumes %q", got)
	}
	for i := range specs {
		checkRuns(t, specs[i].ID.Name)
		mustDelete(t, w[i].backend, specs[i].ID)
	}
}

func TestBaseImageRemovedByHandIsFetchedAgain(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "rebase")
	want := spec(t, "rebase", guest.TinyIdle, true)
	mustCreate(t, w.backend, want)
	mustDelete(t, w.backend, want.ID)
	for _, file := range volumes(t, want.KVM.Image.SHA256) {
		if !strings.HasSuffix(file, ".complete") {
			if err := os.Remove(filepath.Join(hv.PoolDir, file)); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustCreate(t, w.backend, want)
	checkRuns(t, want.ID.Name)
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}

func TestBaseImageStaysWhileItsMarkerIsLostAndOverlaysStandOnIt(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "marker-a")
	plantLease(t, "marker-b")
	first := spec(t, "marker-a", guest.TinyIdle, true)
	mustCreate(t, w.backend, first)
	virsh(t, "vol-delete", "--pool", hypervisor.Pool, "egressproxy-base-"+first.KVM.Image.SHA256+".complete")
	second := first
	second.ID.Name = "marker-b"
	mustCreate(t, w.backend, second)
	if got := volumes(t, first.KVM.Image.SHA256); len(got) != 3 {
		t.Errorf("the image has volumes %q, want the copy in use, the new copy and its marker", got)
	}
	for _, s := range []egress.Spec{first, second} {
		virsh(t, "destroy", s.ID.Name)
		if _, err := w.backend.Update(t.Context(), s.ID, s); err != nil {
			t.Errorf("starting %s on its base image again: %v", s.ID.Name, err)
		}
		mustDelete(t, w.backend, s.ID)
	}
}

func TestForeignDomainIsRefusedAndLeftAlone(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "foreign.xml")
	if err := os.WriteFile(file, []byte(`<domain type='`+hv.VirtType+`'><name>foreign</name><memory unit='MiB'>64</memory><os><type>hvm</type></os></domain>`), 0o600); err != nil {
		t.Fatal(err)
	}
	virsh(t, "define", file)
	want := spec(t, "foreign", guest.TinyIdle, false)
	made, err := w.backend.Create(t.Context(), want)
	if !errors.Is(err, egress.ErrAlreadyExists) || !strings.Contains(err.Error(), "was not made by this provider") {
		t.Errorf("create: got %v, want already exists", err)
	}
	if !made.ID.IsZero() {
		t.Errorf("the foreign domain came back as made: %+v", made)
	}
	if err := w.backend.Delete(t.Context(), want.ID, ""); !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("delete: got %v, want a permanent failure", err)
	}
	if state := domainState(t, "foreign"); state == "" {
		t.Error("the foreign domain is gone")
	}
	got, err := w.backend.Get(t.Context(), want.ID)
	if err != nil || got.State != egress.Stopped || got.KVM.MemoryMiB != 64 || got.ConfigHash != "" {
		t.Errorf("get: %+v, %v", got, err)
	}
	listed, err := w.backend.List(t.Context(), nil)
	if err != nil || slices.ContainsFunc(listed, func(i egress.Instance) bool { return i.ID == want.ID }) {
		t.Errorf("list: %+v, %v", listed, err)
	}
	virsh(t, "undefine", "foreign")
}

func TestTagsChangeInPlaceWithoutARestart(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "tagged")
	want := spec(t, "tagged", guest.TinyIdle, false)
	made := mustCreate(t, w.backend, want)
	run := virsh(t, "domid", "tagged") // each start of a domain gets another
	want.Tags = egress.Tags{"env": "prod", "note": `<&">`}
	updated, err := w.backend.Update(t.Context(), want.ID, want)
	if err != nil {
		t.Fatal(err)
	}
	if updated.Tags["note"] != `<&">` || len(updated.Tags) != 2 || updated.ConfigHash != made.ConfigHash || !updated.CreatedAt.Equal(made.CreatedAt) {
		t.Errorf("updated to %+v from %+v", updated, made)
	}
	if now := virsh(t, "domid", "tagged"); now != run {
		t.Errorf("the machine was restarted: its ID was %s and is %s", run, now)
	}
	mustDelete(t, w.backend, want.ID)
}

func TestMachineIsStartedAgainFromEveryStateItCanBeLeftIn(t *testing.T) {
	for name, leave := range map[string][][]string{
		"shut-off":      {{"destroy"}},
		"suspended":     {{"suspend"}},
		"saved-to-disk": {{"managedsave"}},
		"stopped-qemu":  {{"qemu-monitor-command", "--hmp", "stop"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			want := spec(t, "left-"+name, guest.TinyIdle, false)
			plantLease(t, want.ID.Name)
			mustCreate(t, w.backend, want)
			for _, args := range leave {
				virsh(t, append([]string{args[0], want.ID.Name}, args[1:]...)...)
			}
			stopped, err := w.backend.Get(t.Context(), want.ID)
			if err != nil || stopped.State != egress.Stopped {
				t.Fatalf("left as %+v, %v", stopped, err)
			}
			started, err := w.backend.Update(t.Context(), want.ID, want)
			if err != nil || started.State != egress.Running {
				t.Errorf("started as %+v, %v", started, err)
			}
			for _, args := range leave {
				virsh(t, append([]string{args[0], want.ID.Name}, args[1:]...)...)
			}
			mustDelete(t, w.backend, want.ID)
			checkNothingLeft(t, want)
		})
	}
}

func checkRuns(t testing.TB, name string) {
	t.Helper()
	if state := domainState(t, name); !strings.HasPrefix(state, "running") {
		t.Errorf("domain %s is %q", name, state)
	}
}

func TestDiskOfARenamedDomainIsNeverDeleted(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "renamed")
	want := spec(t, "renamed", guest.TinyIdle, false)
	made := mustCreate(t, w.backend, want)
	virsh(t, "destroy", "renamed")
	virsh(t, "domrename", "renamed", "kept")
	virsh(t, "start", "kept")
	if err := w.backend.Delete(t.Context(), want.ID, made.UID); !errors.Is(err, egress.ErrPermanent) || !strings.Contains(err.Error(), "domain kept uses it") {
		t.Errorf("delete: got %v, want that domain kept uses the disk", err)
	}
	mustCreate(t, w.backend, want) // the name is free
	if got := volumes(t, "egressproxy-renamed-"); len(got) != 4 {
		t.Errorf("of two machines' volumes there are %q", got)
	}
	mustDelete(t, w.backend, want.ID)
	checkRuns(t, "kept")
	if got := volumes(t, "egressproxy-renamed-"); len(got) != 2 {
		t.Errorf("of the running machine's volumes %q are left", got)
	}
	virsh(t, "destroy", "kept")
	virsh(t, "domrename", "kept", "renamed")
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}

func TestDeleteWithAnInactivePoolFailsBeforeTheMachineIsStopped(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "pool.xml")
	if err := os.WriteFile(file, []byte("<pool type='dir'><name>other</name><target><path>"+dir+"</path></target></pool>"), 0o600); err != nil {
		t.Fatal(err)
	}
	virsh(t, "pool-define", file)
	virsh(t, "pool-start", "other")
	w := newWorld(t)
	plantLease(t, "inactive")
	want := spec(t, "inactive", guest.TinyIdle, false)
	want.KVM.Pool = "other"
	mustCreate(t, w.backend, want)
	virsh(t, "pool-destroy", "other")
	if err := w.backend.Delete(t.Context(), want.ID, ""); !errors.Is(err, egress.ErrPermanent) || !strings.Contains(err.Error(), "not active") {
		t.Errorf("got %v, want that the pool is not active", err)
	}
	checkRuns(t, "inactive")
	virsh(t, "pool-start", "other")
	mustDelete(t, w.backend, want.ID)
	left, err := filepath.Glob(filepath.Join(dir, "egressproxy-inactive-*"))
	if err != nil || len(left) != 0 || domainState(t, "inactive") != "" {
		t.Errorf("%q and domain state %q are left, %v", left, domainState(t, "inactive"), err)
	}
	virsh(t, "pool-destroy", "other")
	virsh(t, "pool-undefine", "other")
}

func TestUnreadableMetadataHidesOneInstanceAndNoOther(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "corrupt")
	plantLease(t, "sound")
	corrupt, sound := spec(t, "corrupt", guest.TinyIdle, false), spec(t, "sound", guest.TinyIdle, false)
	mustCreate(t, w.backend, corrupt)
	mustCreate(t, w.backend, sound)
	virsh(t, "metadata", "corrupt", "--config", "--uri", "https://github.com/egressproxy/terraform-provider-egressproxy/instance/v1",
		"--key", "egressproxy", "--set", "<instance><created>yesterday</created></instance>")
	found, err := w.backend.List(t.Context(), egress.Tags{"test": t.Name()})
	if err != nil || len(found) != 1 || found[0].ID != sound.ID {
		t.Errorf("listed %+v, %v", found, err)
	}
	if _, err := w.backend.Get(t.Context(), corrupt.ID); !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("get: %v, want a permanent failure", err)
	}
	mustDelete(t, w.backend, corrupt.ID)
	mustDelete(t, w.backend, sound.ID)
	checkNothingLeft(t, corrupt)
}

func TestListThatRunsOutOfTimeIsAnError(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "slow-list")
	want := spec(t, "slow-list", guest.TinyIdle, false)
	mustCreate(t, w.backend, want)
	w.link.Inject(wire.Rule{Procedure: wire.ProcDomainInterfaceAddresses, Fault: wire.Hang})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if found, err := w.backend.List(ctx, nil); err == nil {
		t.Errorf("listed %+v without an error", found)
	}
	w.link.Heal()
	mustDelete(t, newBackend(t, w), want.ID)
}
