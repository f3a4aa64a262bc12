package kvm

import "testing"

func TestVolumesAreToldApartByInstanceHostAndIncarnation(t *testing.T) {
	const host, uuid = "5d1f6b1e-0000-4000-8000-c0ffee000001", "0b5e9f2c-1d3a-4c6b-8e7f-0a1b2c3d4e5f"
	names := namesFor("ci", host, uuid)
	if names.Root == names.Seed {
		t.Error("both volumes have one name")
	}
	for what, other := range map[string]volumeNames{
		"instance": namesFor("ci-2", host, uuid), "host": namesFor("ci", "other", uuid),
		"incarnation": namesFor("ci", host, "1b5e9f2c-1d3a-4c6b-8e7f-0a1b2c3d4e5f"),
	} {
		if other.Root == names.Root || other.Seed == names.Seed {
			t.Errorf("another %s has the same volumes: %+v", what, other)
		}
	}
	for _, name := range []string{names.Root, names.Seed} {
		if !isVolumeOf("ci", host, name) {
			t.Errorf("%s is not known as the instance's own", name)
		}
		if isVolumeOf("ci", "other", name) || isVolumeOf("c", host, name) {
			t.Errorf("%s is taken for another's", name)
		}
	}
	// "ci-root" is an instance's name too.
	for _, name := range []string{namesFor("ci-root", host, uuid).Root, "egressproxy-ci-root.qcow2", "egressproxy-ci-notes.txt", names.Root + ".snap"} {
		if isVolumeOf("ci", host, name) {
			t.Errorf("%s is taken for a volume of ci", name)
		}
	}
}
