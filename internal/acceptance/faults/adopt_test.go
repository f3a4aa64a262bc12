package faults

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
)

// defineForeign makes a machine as a person does with virsh, and returns the
// file of its disk.
func defineForeign(t testing.TB, name string) (disk string) {
	t.Helper()
	virsh(t, "vol-create-as", hypervisor.Pool, name+".qcow2", "1G", "--format", "qcow2")
	disk = filepath.Join(hv.PoolDir, name+".qcow2")
	define(t, `<domain type='`+hv.VirtType+`' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>`+name+`</name>
  <title>By hand</title>
  <description>An old proxy</description>
  <metadata><app:x xmlns:app='https://example.com/app'>1</app:x></metadata>
  <memory unit='MiB'>64</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <cputune><shares>100</shares></cputune>
  <devices>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='`+disk+`'/><target dev='sda' bus='sata'/></disk>
    <interface type='network'><source network='`+hypervisor.Network+`'/><model type='e1000'/></interface>
    <serial type='pty'/>
    <graphics type='vnc' passwd='sesame'/>
  </devices>
  <qemu:commandline><qemu:arg value='-name'/><qemu:arg value='x'/></qemu:commandline>
</domain>`)
	return disk
}

func TestForeignMachineIsReadChangedInPlaceAndDeletedWhenItsUIDIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	disk := defineForeign(t, "by-hand")
	id := egress.ProviderID{Backend: egress.KVM, Location: "lab", Name: "by-hand"}
	found, err := w.backend.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	k := found.KVM
	if !found.Foreign || found.Description != "An old proxy" || found.State != egress.Stopped || found.ConfigHash != "" ||
		k.MemoryMiB != 64 || k.VCPUs != 1 || k.DiskGiB != 1 || k.Pool != hypervisor.Pool || k.Firmware != "bios" || k.Autostart ||
		len(k.Interfaces) != 1 || k.Interfaces[0].Network != hypervisor.Network || k.Interfaces[0].Model != "e1000" || k.MAC == "" || len(k.MissingVolumes) != 0 {
		t.Errorf("read as %+v %+v", found, k)
	}
	want := egress.Spec{ID: id, UID: found.UID, Description: found.Description, Stopped: true, Tags: egress.Tags{"adopted": "yes"},
		HealthCheck: egress.HealthCheck{From: egress.FromNone},
		KVM:         &egress.KVMSpec{MemoryMiB: 72, VCPUs: 1, DiskGiB: 1, CPUMode: k.CPUMode, Interfaces: k.Interfaces}}
	got := mustUpdate(t, w.backend, want)
	if got.Foreign || got.KVM.MemoryMiB != 72 || got.Tags["adopted"] != "yes" || got.KVM.Pool != hypervisor.Pool {
		t.Errorf("adopted as %+v %+v", got, got.KVM)
	}
	text := virsh(t, "dumpxml", "--security-info", "by-hand")
	for _, kept := range []string{"<shares>100</shares>", "sesame", "qemu:arg value='-name'", "https://example.com/app", "<title>By hand</title>", "type='e1000'"} {
		if !strings.Contains(text, kept) {
			t.Errorf("the definition lost %s:\n%s", kept, text)
		}
	}
	if listed, err := w.backend.List(t.Context(), egress.Tags{"adopted": "yes"}); err != nil || len(listed) != 1 {
		t.Errorf("listed as %+v, %v", listed, err)
	}
	if err := w.backend.Delete(t.Context(), id, found.UID); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(disk); !errors.Is(err, os.ErrNotExist) || domainState(t, "by-hand") != "" {
		t.Errorf("its disk (%v) or domain %q is left", err, domainState(t, "by-hand"))
	}
}

func TestDiskThatOthersUseOutlivesAnAdoptedMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	disk := defineForeign(t, "template")
	virsh(t, "vol-create-as", hypervisor.Pool, "on-template.qcow2", "1G", "--format", "qcow2", "--backing-vol", "template.qcow2", "--backing-vol-format", "qcow2")
	id := egress.ProviderID{Backend: egress.KVM, Location: "lab", Name: "template"}
	found, err := w.backend.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.backend.Delete(t.Context(), id, found.UID); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(disk); err != nil || domainState(t, "template") != "" {
		t.Errorf("the disk under another one: %v; domain %q", err, domainState(t, "template"))
	}
	virsh(t, "vol-delete", "--pool", hypervisor.Pool, "on-template.qcow2")
	virsh(t, "vol-delete", "--pool", hypervisor.Pool, "template.qcow2")
}

func TestExternalSnapshotsAreDeletedWithTheirMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "snapshots", guest.TinyIdle, false)
	plantLease(t, want.ID.Name)
	mustCreate(t, w.backend, want)
	for _, name := range []string{"one", "two"} {
		virsh(t, "snapshot-create-as", want.ID.Name, name, "--disk-only", "--no-metadata", "--diskspec", "vdb,snapshot=no")
	}
	if got := volumes(t, "egressproxy-"+want.ID.Name+"-"); len(got) != 4 {
		t.Fatalf("there are %q", got)
	}
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}
