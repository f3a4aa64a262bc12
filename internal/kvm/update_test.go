package kvm

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// madeFrom gives the domain that libvirt would hand back for spec.
func madeFrom(t *testing.T, spec egress.Spec) domain {
	t.Helper()
	m := machine{Name: spec.ID.Name, UUID: exampleUUID, Description: spec.Description, Spec: *spec.KVM, MACs: InterfaceMACs("hv1", spec.ID.Name, spec.KVM.Interfaces),
		Platform: platform{VirtType: "kvm", Arch: "x86_64", Machine: "q35", CPUMode: spec.KVM.CPUMode, Firmware: firmwareBIOS}}
	meta := newMetadata(spec, exampleVolumes(), time.Now())
	var err error
	if m.MetadataXML, err = meta.encode(); err != nil {
		t.Fatal(err)
	}
	text, err := domainXML(m)
	if err != nil {
		t.Fatal(err)
	}
	d := domain{meta: meta}
	if err := d.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDefinitionChangesOnlyInWhatIsWantedOtherwise(t *testing.T) {
	is := exampleSpec()
	is.KVM.CPUMode = "host-model"
	log, none, note := "/var/log/egress/ci.log", "", "the first"
	for name, test := range map[string]struct {
		edit func(*egress.Spec)
		want domainChange
	}{
		"nothing":        {func(*egress.Spec) {}, domainChange{}},
		"tags":           {func(s *egress.Spec) { s.Tags = egress.Tags{"a": "b"} }, domainChange{}},
		"disk":           {func(s *egress.Spec) { s.KVM.DiskGiB = 40 }, domainChange{}}, // no part of the definition
		"memory":         {func(s *egress.Spec) { s.KVM.MemoryMiB = 1024 }, domainChange{MemoryMiB: 1024}},
		"CPUs":           {func(s *egress.Spec) { s.KVM.VCPUs = 4 }, domainChange{VCPUs: 4}},
		"CPU mode":       {func(s *egress.Spec) { s.KVM.CPUMode = "maximum" }, domainChange{CPUMode: "maximum"}},
		"description":    {func(s *egress.Spec) { s.Description = note }, domainChange{Description: &note}},
		"console log":    {func(s *egress.Spec) { s.KVM.ConsoleLog = log }, domainChange{ConsoleLog: &log}},
		"no console log": {func(s *egress.Spec) { s.KVM.ConsoleLog = none }, domainChange{}},
	} {
		t.Run(name, func(t *testing.T) {
			want := is
			machine := *is.KVM
			want.KVM = &machine
			test.edit(&want)
			if diff := cmp.Diff(test.want, changeTo(madeFrom(t, is), want)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestMachineOfOthersBecomesOursByItsFirstUpdateAndKeepsItsConfiguration(t *testing.T) {
	spec := exampleSpec()
	adopted := updatedMetadata(metadata{}, true, spec)
	if !adopted.Adopted || adopted.Unfinished || adopted.ConfigHash != spec.ConfigHash() || adopted.Image.Name != "debian12" || adopted.Tags["env"] != "prod" {
		t.Errorf("adopted as %+v", adopted)
	}
	if adopted.Volumes != (volumeNames{}) || adopted.Pool != "" {
		t.Errorf("the volumes of others count as ours: %+v", adopted)
	}
	// From then on its configuration is known, and another one is a replacement.
	other := exampleSpec()
	other.Proxy.HTTPPort, other.Tags = 8080, egress.Tags{"env": "test"}
	again := updatedMetadata(adopted, false, other)
	if again.ConfigHash != spec.ConfigHash() || again.Proxy.HTTPPort != 3128 || again.Tags["env"] != "test" || !again.Adopted {
		t.Errorf("updated to %+v", again)
	}
}

func TestUpdateEndsTheUnfinishedMarkAndItsBeat(t *testing.T) {
	spec := exampleSpec()
	meta := newMetadata(spec, exampleVolumes(), time.Now())
	meta.Beat = "1f2e3d4c"
	got := updatedMetadata(meta, false, spec)
	text, err := got.encode()
	if err != nil {
		t.Fatal(err)
	}
	if got.Unfinished || strings.Contains(text, "beat") || strings.Contains(text, "unfinished") {
		t.Errorf("stored as %s", text)
	}
	if got.Volumes != meta.Volumes || got.Pool != meta.Pool || !got.CreatedAt.Equal(meta.CreatedAt) {
		t.Errorf("the machine's own volumes or age changed: %+v, was %+v", got, meta)
	}
}
