package faults

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
)

// kvmTestdata are the definitions that internal/kvm's own tests hold for right.
const kvmTestdata = "../../kvm/testdata"

// fitted makes a definition of internal/kvm one that this hypervisor can have
// under the given name, and gives its UUID too.
func fitted(t testing.TB, file, name string) (definition, uuid string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Name string `xml:"name"`
		UUID string `xml:"uuid"`
	}
	if err := xml.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	uuid = strings.TrimSpace(newUUID(t))
	pairs := []string{"<name>" + d.Name + "</name>", "<name>" + name + "</name>"}
	if d.UUID != "" {
		pairs = append(pairs, "<uuid>"+d.UUID+"</uuid>", "<uuid>"+uuid+"</uuid>")
	}
	if hv.VirtType != "kvm" {
		pairs = append(pairs, "<domain type=\"kvm\"", "<domain type=\""+hv.VirtType+"\"", "<domain type='kvm'", "<domain type='"+hv.VirtType+"'",
			"host-passthrough\"", "maximum\"", "host-passthrough'", "maximum'", " migratable='on'", "")
	}
	return strings.NewReplacer(pairs...).Replace(string(text)), uuid
}

// newUUID gives a random UUID, of the kernel's.
func newUUID(t testing.TB) string {
	t.Helper()
	uuid, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		t.Fatal(err)
	}
	return string(uuid)
}

// defineStrictly defines a domain that also has to follow libvirt's schema.
func defineStrictly(t testing.TB, definition string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "domain.xml")
	if err := os.WriteFile(file, []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := hv.Virsh(t.Context(), "define", "--validate", file)
	return err
}

func TestEveryDefinitionIsValidAndReadBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files, err := filepath.Glob(filepath.Join(kvmTestdata, "*-*.xml"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range files {
		kind, rest, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".xml"), "-")
		if kind != "domain" && kind != "foreign" && kind != "edited" {
			continue
		}
		seen++
		t.Run(kind+" "+rest, func(t *testing.T) {
			name := "definition-" + strings.ReplaceAll(kind+"-"+rest, "_", "-")
			definition, uuid := fitted(t, file, name)
			err := defineStrictly(t, definition)
			if strings.Contains(definition, "aarch64") {
				// The schema is looked at before the emulator, which is not there.
				if err == nil || strings.Contains(err.Error(), "schema") || !strings.Contains(err.Error(), "emulator") {
					t.Errorf("got %v, want it to be right but for the emulator", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer virsh(t, "undefine", "--nvram", name)
			first, err := w.backend.Get(t.Context(), egress.ProviderID{Backend: egress.KVM, Location: "lab", Name: name})
			if err != nil {
				t.Fatal(err)
			}
			if kind == "domain" && (first.UID != uuid || first.Foreign) {
				t.Errorf("read as %+v", first)
			}
			want := map[string]func(k egress.KVMInstance) bool{
				"domain-efi":         func(k egress.KVMInstance) bool { return k.Firmware == "efi" && !k.SecureBoot },
				"domain-secure-boot": func(k egress.KVMInstance) bool { return k.Firmware == "efi" && k.SecureBoot },
				"domain-kvm-x86_64":  func(k egress.KVMInstance) bool { return k.Firmware == "bios" && k.MemoryMiB == 512 && k.VCPUs == 1 },
				"domain-console-log": func(k egress.KVMInstance) bool { return k.ConsoleLog == "/var/log/egress/ci-egress-1.log" },
				"domain-interfaces": func(k egress.KVMInstance) bool {
					n := k.Interfaces
					return len(n) == 3 && n[0].Network == "lan" && n[0].Portgroup == "proxies" && n[0].MTU == 1400 && n[0].Model == "" &&
						n[1].Bridge == "br0" && n[1].VLAN == 42 && n[1].Model == "e1000e" && n[1].MAC == "52:54:00:aa:bb:cc" && n[2].Macvtap == "eno1"
				},
				"foreign-virt-install": func(k egress.KVMInstance) bool { return k.MemoryMiB == 2048 && k.VCPUs == 1 && len(k.Interfaces) == 3 },
				"foreign-efi": func(k egress.KVMInstance) bool {
					return k.Firmware == "efi" && k.CPUMode == "custom" && k.Interfaces == nil
				},
				"edited-foreign-virt-install": func(k egress.KVMInstance) bool {
					return k.MemoryMiB == 3072 && k.VCPUs == 2 && k.CPUMode == "host-model" && strings.Contains(k.ConsoleLog, `"new" & <log>`)
				},
			}[kind+"-"+rest]
			if want != nil && !want(*first.KVM) {
				t.Errorf("read as %+v", first.KVM)
			}
		})
	}
	if seen < 12 {
		t.Errorf("only %d definitions were found in %s", seen, kvmTestdata)
	}
}

func TestFirmwareIsAsWantedAndItsVariablesGoWithTheMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, secure := range map[string]bool{"efi-open": false, "efi-secure": true} {
		t.Run(name, func(t *testing.T) {
			want := spec(t, name, guest.TinyIdle, false)
			want.KVM.MemoryMiB, want.KVM.Firmware, want.KVM.SecureBoot = 256, "efi", secure
			plantLease(t, name)
			made := mustCreate(t, w.backend, want)
			if made.KVM.Firmware != "efi" || made.KVM.SecureBoot != secure {
				t.Errorf("made with firmware %s, secure boot %t", made.KVM.Firmware, made.KVM.SecureBoot)
			}
			definition := virsh(t, "dumpxml", name)
			_, variables, _ := strings.Cut(definition, "<nvram")
			_, variables, _ = strings.Cut(variables, ">")
			variables, _, _ = strings.Cut(variables, "</nvram>")
			variables = filepath.Base(variables)
			if !strings.Contains(definition, `secure='yes'`) == secure || !slices.Contains(nvram(t), variables) {
				t.Errorf("the machine has variables %q of %q and runs as\n%s", variables, nvram(t), definition)
			}
			// Redefined, it is still the same machine.
			want.UID, want.KVM.MemoryMiB = made.UID, 272
			changed := mustUpdate(t, w.backend, want)
			if changed.KVM.Firmware != "efi" || changed.KVM.SecureBoot != secure || changed.KVM.MemoryMiB != 272 || changed.UID != made.UID {
				t.Errorf("changed to %+v", changed.KVM)
			}
			if again := virsh(t, "dumpxml", name); !strings.Contains(again, variables) {
				t.Errorf("the machine lost its variables %s:\n%s", variables, again)
			}
			mustDelete(t, w.backend, want.ID)
			checkNothingLeft(t, want)
			if slices.Contains(nvram(t), variables) {
				t.Errorf("%s is left", variables)
			}
		})
	}
}

// nvram names the files in which libvirt keeps machines' firmware variables.
func nvram(t testing.TB) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(filepath.Dir(hv.PoolDir), "lib", "qemu", "nvram"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
