package terraform

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

func TestProviderKilledAfterAnyStepOfCreateConvergesOnTheNextApply(t *testing.T) {
	for name, step := range map[string]wire.Rule{
		"base-half-uploaded": {Procedure: wire.ProcStorageVolUpload, Nth: 1},
		"base-uploaded":      {Procedure: wire.ProcStorageVolUpload, Nth: 1, StreamEnd: true},
		"base-marked":        {Procedure: wire.ProcStorageVolCreateXML, Nth: 2},
		"overlay-made":       {Procedure: wire.ProcStorageVolCreateXML, Nth: 3},
		"seed-half-uploaded": {Procedure: wire.ProcStorageVolUpload, Nth: 2},
		"seed-uploaded":      {Procedure: wire.ProcStorageVolUpload, Nth: 2, StreamEnd: true},
		"define":             {Procedure: wire.ProcDomainDefineXMLFlags, Nth: 1},
		"start":              {Procedure: wire.ProcDomainCreateWithFlags, Nth: 1},
		"wait":               {Procedure: wire.ProcDomainInterfaceAddresses, Nth: 1},
		"mark-cleared":       {Procedure: wire.ProcDomainSetMetadata, Nth: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			instance, link := newTiny(t, "killed-"+name, guest.TinyIdle)
			plantLease(t, instance.Name)
			w := newWorkspace(t)
			w.render(tinyInstance, instance)

			killed := make(chan struct{})
			step.Hook = func(pid int) {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Errorf("killing the provider: %v", err)
				}
				close(killed)
			}
			link.Inject(step)
			if r := w.apply(); r.code == 0 {
				t.Fatalf("apply succeeded without its provider:\n%s", r.out)
			}
			select {
			case <-killed:
			default:
				t.Fatal("the provider was not killed: the step was never reached")
			}
			link.Heal()

			r := w.apply()
			if name == "mark-cleared" {
				// The instance is whole and Terraform does not know it: the
				// error must name the way to adopt it.
				if id := "kvm://lab/" + instance.Name; r.code == 0 || !strings.Contains(unwrap(r.out), "terraform import") || !strings.Contains(r.out, id) {
					t.Fatalf("apply ended with code %d and does not name import ID %s:\n%s", r.code, id, r.out)
				}
				w.must("import", "-no-color", "egressproxy_instance.ci", "kvm://lab/"+instance.Name)
				w.mustApply()
			} else if r.code != 0 {
				t.Fatalf("the next apply ended with code %d:\n%s", r.code, r.out)
			}
			if state := domainState(t, instance.Name); state != "running (booted)" {
				t.Errorf("the domain is %q", state)
			}
			if got := volumes(t, "egressproxy-"+instance.Name+"-"); len(got) != 2 || !strings.HasSuffix(got[0], ".qcow2") || !strings.HasSuffix(got[1], ".iso") {
				t.Errorf("the instance has volumes %q, want one root disk and one seed", got)
			}
			if got := volumes(t, instance.SHA256); len(got) != 2 {
				t.Errorf("the image has volumes %q, want one copy and its marker", got)
			}
			w.mustPlanNothing("the second apply")
			w.must("destroy", "-auto-approve", "-no-color")
			checkNothingLeft(t, instance.Name)
		})
	}
}

func TestInterruptedApplyLeavesATaintedStateThatTheNextApplyReplaces(t *testing.T) {
	instance, link := newTiny(t, "interrupted", guest.TinyIdle)
	w := newWorkspace(t)
	w.render(tinyInstance, instance)

	cmd := w.command("apply", "-auto-approve", "-no-color")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the wait for an address", func() bool { return link.Calls()[wire.ProcDomainInterfaceAddresses] >= 6 })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatalf("the interrupted apply succeeded:\n%s", out.String())
	}
	attributes, tainted := w.instance()
	if attributes == nil || !tainted {
		t.Fatalf("the state holds %v, tainted %t:\n%s", attributes, tainted, out.String())
	}
	machine, _ := attributes["kvm"].(map[string]any)
	for name, got := range map[string]any{
		"id": attributes["id"], "name": attributes["name"], "config_hash": attributes["config_hash"], "created_at": attributes["created_at"],
		"kvm.uuid": machine["uuid"], "kvm.mac": machine["mac"], "kvm.image_sha256": machine["image_sha256"], "kvm.memory_mib": machine["memory_mib"],
	} {
		if got == nil || got == "" {
			t.Errorf("%s is known and not in the state: %v", name, attributes)
		}
	}
	if strings.Contains(out.String(), "bug in the provider") {
		t.Errorf("the CLI blames the provider:\n%s", out.String())
	}

	plantLease(t, instance.Name)
	if p, _ := w.plan(); p.actions("egressproxy_instance.ci") != "delete,create" {
		t.Errorf("the next plan does %s", p.actions("egressproxy_instance.ci"))
	}
	w.mustApply()
	if after, tainted := w.instance(); tainted || after["kvm"].(map[string]any)["uuid"] == machine["uuid"] {
		t.Errorf("the machine was not replaced: %v", after)
	}
	w.mustPlanNothing("the replacement")
	w.must("destroy", "-auto-approve", "-no-color")
	checkNothingLeft(t, instance.Name)
}

func TestConnectionLostDuringRefreshIsAnErrorAndKeepsTheState(t *testing.T) {
	instance, link := newTiny(t, "lost", guest.TinyIdle)
	plantLease(t, instance.Name)
	w := newWorkspace(t)
	w.render(tinyInstance, instance)
	w.mustApply()
	before := w.read("terraform.tfstate")

	for _, procedure := range []uint32{wire.ProcConnectOpen, wire.ProcDomainLookupByName, wire.ProcDomainGetXMLDesc, wire.ProcDomainGetState, wire.ProcDomainInterfaceAddresses} {
		link.Inject(wire.Rule{Procedure: procedure, Fault: wire.DropBefore})
		r := w.run("plan", "-no-color")
		if r.code != 1 || strings.Contains(r.out, "will be created") {
			t.Errorf("%s dropped: the plan ended with code %d:\n%s", wire.Name(procedure), r.code, r.out)
		}
		if r := w.run("apply", "-refresh-only", "-auto-approve", "-no-color"); r.code != 1 {
			t.Errorf("%s dropped: the refresh ended with code %d:\n%s", wire.Name(procedure), r.code, r.out)
		}
		if w.read("terraform.tfstate") != before {
			t.Errorf("%s dropped: the state changed", wire.Name(procedure))
		}
		link.Heal()
	}
	// Once is survived.
	link.Inject(wire.Rule{Procedure: wire.ProcDomainGetXMLDesc, Nth: 1, Fault: wire.DropAfter})
	w.mustPlanNothing("one lost connection")

	// Only the daemon's own word removes it.
	virsh(t, "destroy", instance.Name)
	virsh(t, "undefine", instance.Name)
	if p, _ := w.plan(); p.actions("egressproxy_instance.ci") != "create" {
		t.Errorf("with the domain gone the plan does %s", p.actions("egressproxy_instance.ci"))
	}
	w.must("destroy", "-auto-approve", "-no-color")
}
