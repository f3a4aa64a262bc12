package kvm

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/image"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

const exampleUUID = "0b5e9f2c-1d3a-4c6b-8e7f-0a1b2c3d4e5f"

func exampleVolumes() volumeNames {
	return namesFor("ci-egress-1", "5d1f6b1e-0000-4000-8000-c0ffee000001", exampleUUID)
}

// exampleSpec is an instance with everything set.
func exampleSpec() egress.Spec {
	return egress.Spec{
		ID:   egress.ProviderID{Backend: egress.KVM, Location: "hv1", Name: "ci-egress-1"},
		Tags: egress.Tags{"env": "prod", "owner": `"Platform" <platform@example.com> & friends`},
		Proxy: &egress.Proxy{
			HTTPPort: 3128,
			Clients:  map[string]egress.Client{"ci": {Password: egress.NewSecret("s3cret-pass"), PasswordVersion: 2, AllowDomains: []string{".github.com"}}},
			Policy:   egress.Policy{Default: egress.Deny, AllowDomains: []string{".example.org"}, AllowPorts: []int{80, 443}},
		},
		HealthCheck: egress.HealthCheck{Target: "example.org:443", From: egress.FromClient, Interval: 2 * time.Second},
		UserData:    egress.NewSecret("#!/bin/sh\n"), UserDataVersion: 3,
		KVM: &egress.KVMSpec{
			VCPUs: 1, MemoryMiB: 512, DiskGiB: 4, Pool: "default", Interfaces: []egress.Interface{{Network: "default"}},
			Image: egress.Image{Name: "debian12", Source: "https://images.example.com/debian-12.qcow2", SHA256: strings.Repeat("ab", 32)},
		},
	}
}

func TestDomainXMLMatchesGoldenFile(t *testing.T) {
	for name, edit := range map[string]func(*machine){
		"kvm-x86_64":  func(m *machine) {},
		"qemu-x86_64": func(m *machine) { m.Platform.VirtType, m.Platform.CPUMode = "qemu", "maximum" },
		"kvm-aarch64": func(m *machine) {
			m.Platform.Arch, m.Platform.Machine, m.Platform.Firmware = "aarch64", "virt", "efi"
		},
		"efi":         func(m *machine) { m.Platform.Firmware = "efi" },
		"secure-boot": func(m *machine) { m.Platform.Firmware, m.Spec.SecureBoot = "efi", true },
		"console-log": func(m *machine) { m.Spec.ConsoleLog = "/var/log/egress/ci-egress-1.log" },
		"described":   func(m *machine) { m.Description = `the "first" <proxy> & its note` },
		"interfaces": func(m *machine) {
			m.Spec.Interfaces = []egress.Interface{
				{Network: "lan", Portgroup: "proxies", MTU: 1400},
				{Bridge: "br0", VLAN: 42, Model: "e1000e", MAC: "52:54:00:AA:BB:CC"},
				{Macvtap: "eno1"},
			}
			m.MACs = InterfaceMACs("hv1", m.Name, m.Spec.Interfaces)
		},
		"logical-disks": func(m *machine) { m.Overlay = disk{Path: "/dev/vg0/root", Block: true} },
	} {
		t.Run(name, func(t *testing.T) {
			spec := exampleSpec()
			meta, err := newMetadata(spec, exampleVolumes(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)).encode()
			if err != nil {
				t.Fatal(err)
			}
			m := machine{
				Name: spec.ID.Name, UUID: exampleUUID, Spec: *spec.KVM, MACs: []string{MACAddress("hv1", spec.ID.Name)}, MetadataXML: meta,
				Platform: platform{VirtType: "kvm", Arch: "x86_64", Machine: "q35", CPUMode: "host-passthrough", Firmware: "bios"},
				Overlay:  disk{Path: "/var/lib/libvirt/images/" + exampleVolumes().Root},
				Seed:     disk{Path: "/var/lib/libvirt/images/" + exampleVolumes().Seed},
			}
			edit(&m)
			got, err := domainXML(m)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, "domain-"+name+".xml", got+"\n")
		})
	}
}

func TestVolumeXMLMatchesGoldenFile(t *testing.T) {
	overlay, err := volumeXML("egressproxy-ci-root.qcow2", "qcow2", 4<<30, &baseImage{Path: "/pool/base.qcow2", Format: image.QCOW2, Capacity: 2 << 30})
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "volume-overlay.xml", overlay+"\n")
	seed, err := volumeXML("egressproxy-ci-seed.iso", "raw", 374784, nil)
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "volume-seed.xml", seed+"\n")
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-golden +got):\n%s", name, diff)
	}
}

func TestDefinitionIsReadBackAsTheInstanceItWasMadeFrom(t *testing.T) {
	spec := exampleSpec()
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	meta, err := newMetadata(spec, exampleVolumes(), created).encode()
	if err != nil {
		t.Fatal(err)
	}
	text, err := domainXML(machine{Name: spec.ID.Name, UUID: exampleUUID, Spec: *spec.KVM, MACs: []string{"52:54:00:AA:BB:CC"}, MetadataXML: meta, Platform: platform{VirtType: "kvm", Arch: "x86_64", Machine: "q35", CPUMode: "host-model", Firmware: "bios"}})
	if err != nil {
		t.Fatal(err)
	}
	var definition libvirtxml.Domain
	if err := definition.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	parsed, err := parseMetadata(definition.Metadata.XML)
	if err != nil {
		t.Fatal(err)
	}
	got := describe(spec.ID, observation{domain: domain{Domain: definition, meta: parsed}, state: domainState{State: 1}, diskGiB: 4, pool: "default", autostart: true})
	proxy := *spec.Proxy
	proxy.Clients = map[string]egress.Client{"ci": {PasswordVersion: 2, AllowDomains: []string{".github.com"}}}
	want := egress.Instance{
		ID: spec.ID, UID: exampleUUID, State: egress.Provisioning, Unfinished: true, Tags: spec.Tags, ConfigHash: spec.ConfigHash(),
		Proxy: &proxy, HealthCheck: spec.HealthCheck, UserDataVersion: 3, CreatedAt: created,
		KVM: &egress.KVMInstance{UUID: exampleUUID, CPUMode: "host-model", Firmware: "bios", Autostart: true, MAC: "52:54:00:aa:bb:cc", VCPUs: 1, MemoryMiB: 512, DiskGiB: 4, Image: "debian12",
			ImageSHA256: spec.KVM.Image.SHA256, Pool: "default", Interfaces: []egress.Interface{{Network: "default", MAC: "52:54:00:aa:bb:cc"}}, VirtType: "kvm"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(egress.Secret{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestMetadataHoldsNoPassword(t *testing.T) {
	text, err := newMetadata(exampleSpec(), exampleVolumes(), time.Now()).encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "s3cret-pass") {
		t.Errorf("the password is in the metadata: %s", text)
	}
}

func TestMetadataIsFoundAmongThatOfOtherTools(t *testing.T) {
	ours, err := newMetadata(exampleSpec(), exampleVolumes(), time.Now()).encode()
	if err != nil {
		t.Fatal(err)
	}
	prefixed := strings.NewReplacer("<instance xmlns=", "<egressproxy:instance xmlns:egressproxy=", "</instance>", "</egressproxy:instance>",
		"<created>", "<egressproxy:created>", "</created>", "</egressproxy:created>").Replace(ours)
	other := `<libosinfo:libosinfo xmlns:libosinfo="http://libosinfo.org/xmlns/libvirt/domain/1.0"><libosinfo:os id="x"/></libosinfo:libosinfo>`
	for name, content := range map[string]string{
		"alone":        ours,
		"after others": other + "\n  " + ours,
		"prefixed":     other + prefixed,
	} {
		got, err := parseMetadata(content)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got.CreatedAt.IsZero() || (name != "prefixed" && got.ConfigHash != exampleSpec().ConfigHash()) {
			t.Errorf("%s: read as %+v", name, got)
		}
	}
	for name, content := range map[string]string{"empty": "", "others only": other, "same name, other namespace": `<instance xmlns="https://example.com"/>`} {
		if _, err := parseMetadata(content); !errors.Is(err, errForeign) {
			t.Errorf("%s: got %v, want errForeign", name, err)
		}
	}
}

func TestMetadataRefusesTagsXMLCannotCarry(t *testing.T) {
	for _, value := range []string{"bell\a", "bad\xffutf8", "line\nbreak"} {
		spec := exampleSpec()
		spec.Tags = egress.Tags{"note": value}
		_, err := newMetadata(spec, exampleVolumes(), time.Now()).encode()
		var fault *egress.Fault
		if !errors.As(err, &fault) || fault.Attribute != "tags" {
			t.Errorf("%q: got %v, want a fault of attribute tags", value, err)
		}
	}
}

func FuzzParseMetadataNeverPanics(f *testing.F) {
	text, err := newMetadata(exampleSpec(), exampleVolumes(), time.Now()).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("<a><b/></a>")
	f.Fuzz(func(t *testing.T, content string) {
		meta, err := parseMetadata(content)
		if err != nil {
			return
		}
		again, err := meta.encode()
		if err != nil {
			return
		}
		if _, err := parseMetadata(again); err != nil {
			t.Errorf("what was read cannot be read again: %v", err)
		}
	})
}

func TestValidateNameRefusesWhatIsNoHostName(t *testing.T) {
	for _, name := range []string{"a", "ci-egress-1", strings.Repeat("a", 63)} {
		if err := ValidateName(name); err != nil {
			t.Errorf("%q refused: %v", name, err)
		}
	}
	for _, name := range []string{"", "-a", "a-", "1a", "Upper", "a.b", "a/b", "a b", "../x", "a\n", "ü", strings.Repeat("a", 64)} {
		if err := ValidateName(name); err == nil {
			t.Errorf("%q accepted", name)
		}
	}
}

func TestMACAddressIsStableAndDiffersByHostAndName(t *testing.T) {
	a := MACAddress("hv1", "ci-1")
	if a != MACAddress("hv1", "ci-1") || a == MACAddress("hv2", "ci-1") || a == MACAddress("hv1", "ci-2") {
		t.Errorf("not a function of host and name: %s", a)
	}
	if !strings.HasPrefix(a, "52:54:00:") || len(a) != 17 {
		t.Errorf("%q is not a MAC address of QEMU's", a)
	}
}
