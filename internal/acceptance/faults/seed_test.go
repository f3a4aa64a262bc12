package faults

import (
	"crypto/rand"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/cloudinit"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
)

// readSeed reads the files of a seed, and its label, with xorriso, which shares no
// code with what wrote it.
func readSeed(t testing.TB, image string) (label string, files map[string]string) {
	t.Helper()
	out := t.TempDir()
	extract := exec.CommandContext(t.Context(), "xorriso", "-osirrox", "on", "-abort_on", "WARNING", "-indev", image, "-extract", "/", out)
	if text, err := extract.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(out, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = string(text)
	}
	// The label is in the primary volume descriptor, in sector 16 (ECMA-119, 8.4.7).
	text, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	return string(text[16*2048+40 : 16*2048+46]), files
}

func TestSeedInThePoolHoldsWhatCloudInitIsToRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const own = "#!/bin/sh\n# a person's own\n"
	for name, change := range map[string]func(*egress.Spec) (vendorData string){
		"seed-plain": func(*egress.Spec) string { return string(cloudinit.DefaultVendorData()) },
		"seed-full": func(s *egress.Spec) string {
			s.KVM.VendorData = own
			s.KVM.Interfaces = append(s.KVM.Interfaces, egress.Interface{Network: hypervisor.Network,
				Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24"), netip.MustParsePrefix("2001:db8::7/64")}})
			return own
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := spec(t, name, guest.TinyIdle, false)
			vendorData := change(&want)
			plantLease(t, name)
			made := mustCreate(t, w.backend, want)
			seeds := volumes(t, "egressproxy-"+name+"-seed-")
			if len(seeds) != 1 {
				t.Fatalf("there are %q", seeds)
			}
			label, files := readSeed(t, filepath.Join(hv.PoolDir, seeds[0]))
			if label != cloudinit.VolumeLabel {
				t.Errorf("the label is %q", label)
			}
			if diff := cmp.Diff(map[string]string{
				"meta-data":      "instance-id: \"" + name + "-" + made.ConfigHash[:16] + "\"\nlocal-hostname: " + name + "\n",
				"user-data":      want.UserData.Reveal(),
				"vendor-data":    vendorData,
				"network-config": string(cloudinit.NetworkConfig(want.KVM.Interfaces, kvm.InterfaceMACs("lab", name, want.KVM.Interfaces))),
			}, files); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			mustDelete(t, w.backend, want.ID)
			checkNothingLeft(t, want)
		})
	}
}

func TestSeedOfAnySizeIsReadByAnotherReader(t *testing.T) {
	t.Parallel()
	random := make([]byte, 3<<20+1)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, 31, 32, 33, 2047, 2048, 2049, 4096, 1 << 20, len(random)} {
		content, vendorData := random[:size], random[len(random)-size:]
		image, err := cloudinit.Seed{InstanceID: "i", UserData: content, VendorData: vendorData, NetworkConfig: []byte("version: 2\n")}.ISO()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "seed.iso")
		if err := os.WriteFile(file, image, 0o600); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"meta-data": "instance-id: \"i\"\n", "user-data": string(content), "network-config": "version: 2\n"}
		if size > 0 {
			want["vendor-data"] = string(vendorData)
		}
		label, files := readSeed(t, file)
		if label != cloudinit.VolumeLabel || !maps.Equal(files, want) {
			t.Errorf("of %d bytes: label %q and files of other contents", size, label)
		}
	}
}
