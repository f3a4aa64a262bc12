package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// errandVariable holds the errand of a process of its own that this program is
// started again as, to be killed.
const errandVariable = "EGRESSPROXY_FAULTS_ERRAND"

// errand is one operation on one instance.
type errand struct {
	Operation, Socket, UID, Description string
	ID                                  egress.ProviderID
	Tags                                egress.Tags
	HealthCheck                         egress.HealthCheck
	KVM                                 *egress.KVMSpec
	UserData                            string
}

// errandFor is an operation on the instance that is wanted.
func errandFor(operation, uid string, want egress.Spec) errand {
	return errand{Operation: operation, UID: uid, Description: want.Description, ID: want.ID, Tags: want.Tags, HealthCheck: want.HealthCheck, KVM: want.KVM,
		UserData: want.UserData.Reveal()}
}

// runErrand does what the environment asks for, in the process that is killed.
func runErrand(text string) int {
	var e errand
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	want := egress.Spec{ID: e.ID, Description: e.Description, Tags: e.Tags, HealthCheck: e.HealthCheck, KVM: e.KVM, UserData: egress.NewSecret(e.UserData)}
	backend := kvm.New(kvm.Config{Hosts: map[string]connection.Host{"lab": {Name: "lab", URI: "qemu+unix:///system?socket=" + e.Socket}},
		ShutdownGrace: time.Millisecond, BeatInterval: 500 * time.Millisecond})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	switch e.Operation {
	case "create":
		_, err = backend.Create(ctx, want)
	case "update":
		_, err = backend.Update(ctx, want.ID, want)
	case "delete":
		err = backend.Delete(ctx, want.ID, e.UID)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// killedAt runs an operation in a process that is killed once the daemon has
// answered a call.
func killedAt(t testing.TB, w world, p point, e errand) {
	t.Helper()
	e.Socket = w.socket
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	killed := make(chan struct{})
	rule := wire.Rule{Procedure: p.procedure, Nth: p.nth, StreamEnd: p.procedure == wire.ProcStorageVolUpload, Hook: func(pid int) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("killing the process: %v", err)
		}
		close(killed)
	}}
	w.link.Inject(rule)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), errandVariable+"="+string(text))
	out, err := cmd.CombinedOutput()
	w.link.Heal()
	select {
	case <-killed:
	case <-time.After(10 * time.Second): // the hook may end after the process does
		t.Fatalf("the process was not killed and ended as %v: %s", err, out)
	}
}

func TestProcessKilledAfterAnyCallOfCreateIsMadeGoodByTheNextApply(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "kill-create-clean")
	want := spec(t, "kill-create-clean", guest.TinyIdle, true)
	mustCreate(t, w.backend, want)
	points := pointsOf(w.link.Calls(), wire.None)
	mustDelete(t, w.backend, want.ID)

	runPoints(t, "kill-create", points, func(t testing.TB, name string, p point) {
		w := newWorld(t)
		plantLease(t, name)
		want := spec(t, name, guest.TinyIdle, true)
		killedAt(t, w, p, errandFor("create", "", want))
		next := newBackend(t, w)
		checkFindable(t, next, want)
		if _, err := next.Create(t.Context(), want); err != nil && !errors.Is(err, egress.ErrAlreadyExists) {
			t.Errorf("the next create: %v", err)
		}
		checkMade(t, next, want)
		mustDelete(t, next, want.ID)
		checkNothingLeft(t, want)
	})
}

func TestProcessKilledAfterAnyCallOfUpdateIsMadeGoodByTheNextApply(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "kill-update-clean")
	was := spec(t, "kill-update-clean", guest.TinyIdle, false)
	mustCreate(t, w.backend, was)
	other := newWorld(t)
	mustUpdate(t, other.backend, changed(was))
	points := pointsOf(other.link.Calls(), wire.None)
	mustDelete(t, w.backend, was.ID)

	runPoints(t, "kill-update", points, func(t testing.TB, name string, p point) {
		w := newWorld(t)
		plantLease(t, name)
		was := spec(t, name, guest.TinyIdle, false)
		made := mustCreate(t, w.backend, was)
		want := changed(was)
		killedAt(t, w, p, errandFor("update", made.UID, want))
		next := newBackend(t, w)
		mustUpdate(t, next, want)
		checkChanged(t, next, made, want)
		mustDelete(t, next, want.ID)
		checkNothingLeft(t, want)
	})
}

func TestProcessKilledAfterAnyCallOfDeleteIsMadeGoodByTheNextApply(t *testing.T) {
	w := newWorld(t)
	plantLease(t, "kill-delete-clean")
	want := spec(t, "kill-delete-clean", guest.TinyIdle, false)
	made := mustCreate(t, w.backend, want)
	other := newWorld(t)
	if err := other.backend.Delete(t.Context(), want.ID, made.UID); err != nil {
		t.Fatal(err)
	}
	points := pointsOf(other.link.Calls(), wire.None)

	runPoints(t, "kill-delete", points, func(t testing.TB, name string, p point) {
		w := newWorld(t)
		plantLease(t, name)
		want := spec(t, name, guest.TinyIdle, false)
		made := mustCreate(t, w.backend, want)
		killedAt(t, w, p, errandFor("delete", made.UID, want))
		next := newBackend(t, w)
		checkFindable(t, next, want)
		if err := next.Delete(t.Context(), want.ID, made.UID); err != nil {
			t.Errorf("the next delete: %v", err)
		}
		checkNothingLeft(t, want)
	})
}
