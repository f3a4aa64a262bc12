package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// on gives steps that run virsh with a command's first word, the machine's name
// and the command's other words.
func on(commands ...string) func(t *testing.T, name string) {
	return func(t *testing.T, name string) {
		t.Helper()
		for _, command := range commands {
			words := strings.Fields(command)
			virsh(t, append([]string{words[0], name}, words[1:]...)...)
		}
	}
}

func TestMachineIsDeletedWholeWhateverHasBeenDoneToIt(t *testing.T) {
	for name, test := range map[string]struct {
		// hinder does what is in the deletion's way, to a machine that runs.
		hinder func(t *testing.T, name string)
		// proof is what one sees of it: a command and a part of what it prints.
		proof, prints string
	}{
		"internal-snapshot":          {on("snapshot-create-as one"), "snapshot-list", "one"},
		"internal-snapshots-off":     {on("destroy", "snapshot-create-as one", "snapshot-create-as two"), "snapshot-list --tree", "two"},
		"external-snapshot":          {on("snapshot-create-as one --disk-only"), "domblklist", ".one"},
		"external-snapshots-chain":   {on("snapshot-create-as one --disk-only", "snapshot-create-as two --disk-only", "snapshot-create-as three --disk-only"), "domblklist", ".three"},
		"external-snapshots-off":     {on("destroy", "snapshot-create-as one --disk-only", "snapshot-create-as two --disk-only --no-metadata"), "domblklist", ".two"},
		"external-after-internal":    {on("snapshot-create-as one", "snapshot-create-as two --disk-only"), "snapshot-list --tree", "two"},
		"checkpoint":                 {on("checkpoint-create-as one"), "checkpoint-list", "one"},
		"managed-save":               {on("managedsave"), "domstate --reason", "shut off (saved)"},
		"managed-save-and-snapshot":  {on("snapshot-create-as one", "managedsave"), "snapshot-list", "one"},
		"autostart":                  {on("autostart"), "dominfo", "enable"},
		"paused":                     {on("suspend"), "domstate", "paused"},
		"undefined-while-it-runs":    {on("undefine"), "dominfo", "Persistent:     no"},
		"undefined-with-a-snapshot":  {on("snapshot-create-as one --disk-only --no-metadata", "undefine"), "domblklist", ".one"},
		"undefined-while-it-is-held": {on("suspend", "undefine"), "domstate", "paused"},
		"seed-ejected": {func(t *testing.T, name string) {
			virsh(t, "detach-disk", name, "vdb", "--config")
		}, "domblklist --inactive", "vda"},
		"seed-missing": {func(t *testing.T, name string) { removeFile(t, name, "-seed-") }, "domblklist", "vda"},
		"root-missing": {func(t *testing.T, name string) { removeFile(t, name, "-root-") }, "domblklist", "vda"},
		"both-missing": {func(t *testing.T, name string) {
			removeFile(t, name, "-root-")
			removeFile(t, name, "-seed-")
		}, "domblklist", "vda"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			want := spec(t, "hindered-"+name, guest.TinyIdle, false)
			plantLease(t, want.ID.Name)
			made := mustCreate(t, w.backend, want)
			test.hinder(t, want.ID.Name)
			words := strings.Fields(test.proof)
			if said := virsh(t, append([]string{words[0], want.ID.Name}, words[1:]...)...); !strings.Contains(said, test.prints) {
				t.Fatalf("nothing is in the way: %s says\n%s", test.proof, said)
			}
			if err := w.backend.Delete(t.Context(), want.ID, made.UID); err != nil {
				t.Error(err)
			}
			checkNothingLeft(t, want)
			checkNoTraceIn(t, want, "run", "lib", "etc")
		})
	}
}

// removeFile removes the files of a machine in the pool whose names contain part,
// behind libvirt's back.
func removeFile(t testing.TB, name, part string) {
	t.Helper()
	found := volumes(t, "egressproxy-"+name+part)
	if len(found) != 1 {
		t.Fatalf("of %s there are %q", part, found)
	}
	if err := os.Remove(filepath.Join(hv.PoolDir, found[0])); err != nil {
		t.Fatal(err)
	}
}

// checkNoTraceIn wants no file named after a machine in these directories of the
// hypervisor: definitions, saved states, snapshots' and checkpoints' records.
func checkNoTraceIn(t testing.TB, want egress.Spec, directories ...string) {
	t.Helper()
	for _, dir := range directories {
		err := filepath.WalkDir(filepath.Join(filepath.Dir(hv.PoolDir), dir), func(path string, entry os.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && strings.HasPrefix(entry.Name(), want.ID.Name+".") {
				t.Errorf("%s is left", path)
			}
			return nil // others' files come and go meanwhile
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestHalfMadeMachineIsDeletedWhole(t *testing.T) {
	plantLease(t, "half-of-what")
	base := spec(t, "half-of-what", guest.TinyIdle, false) // its image is there from now on
	w := newWorld(t)
	mustCreate(t, w.backend, base)
	mustDelete(t, w.backend, base.ID)

	for name, test := range map[string]struct {
		rule    wire.Rule
		volumes int
		runs    bool
	}{
		"name-claimed":   {wire.Rule{Procedure: wire.ProcStorageVolCreateXML, Nth: 1, Fault: wire.DropBefore}, 0, false},
		"root-made":      {wire.Rule{Procedure: wire.ProcStorageVolCreateXML, Nth: 2, Fault: wire.DropBefore}, 1, false},
		"seed-empty":     {wire.Rule{Procedure: wire.ProcStorageVolUpload, Nth: 1, Fault: wire.DropBefore}, 2, false},
		"seed-written":   {wire.Rule{Procedure: wire.ProcDomainDefineXMLFlags, Nth: 2, Fault: wire.DropBefore}, 2, false},
		"disks-attached": {wire.Rule{Procedure: wire.ProcDomainCreateWithFlags, Nth: 1, Fault: wire.DropBefore}, 2, false},
		"started":        {wire.Rule{Procedure: wire.ProcDomainCreateWithFlags, Nth: 1, Fault: wire.DropAfter}, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			want := spec(t, "half-"+name, guest.TinyIdle, false)
			w.link.Inject(test.rule)
			made, err := w.backend.Create(t.Context(), want)
			if err == nil || made.ID != want.ID || !made.Unfinished {
				t.Fatalf("made %+v, %v", made, err)
			}
			if got := volumes(t, "egressproxy-"+want.ID.Name+"-"); len(got) != test.volumes {
				t.Errorf("half of it is made, and it has volumes %q", got)
			}
			if state := domainState(t, want.ID.Name); strings.HasPrefix(state, "running") != test.runs || state == "" {
				t.Errorf("half of it is made, and the domain is %q", state)
			}
			w.link.Heal()
			if err := newBackend(t, w).Delete(t.Context(), want.ID, made.UID); err != nil {
				t.Error(err)
			}
			checkNothingLeft(t, want)
		})
	}
}

func TestMachineWhosePoolIsGoneIsDeleted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	virsh(t, "pool-define-as", "short-lived", "dir", "--target", dir)
	virsh(t, "pool-start", "short-lived")
	w := newWorld(t)
	plantLease(t, "poolless")
	want := spec(t, "poolless", guest.TinyIdle, false)
	want.KVM.Pool = "short-lived"
	made := mustCreate(t, w.backend, want)
	virsh(t, "pool-destroy", "short-lived")
	virsh(t, "pool-undefine", "short-lived")
	if err := w.backend.Delete(t.Context(), want.ID, made.UID); err != nil {
		t.Error(err)
	}
	if state := domainState(t, want.ID.Name); state != "" {
		t.Errorf("the domain is left, %s", state)
	}
}

func TestMachineWithSnapshotsIsDeletedFromAPoolThatIsBusy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := spec(t, "busy-pool", guest.TinyIdle, false)
	plantLease(t, want.ID.Name)
	mustCreate(t, w.backend, want)
	on("snapshot-create-as one --disk-only")(t, want.ID.Name)
	// What libvirt says while a volume of the pool is written.
	w.link.Inject(wire.Rule{Procedure: wire.ProcStoragePoolRefresh, Nth: 1, Fault: wire.ErrorReply,
		Error: wire.Error{Code: 1, Message: "internal error: pool 'egressproxy' has asynchronous jobs running."}})
	mustDelete(t, w.backend, want.ID)
	checkNothingLeft(t, want)
}
