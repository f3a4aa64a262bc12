package cloudinit

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kdomanski/iso9660"
	"go.yaml.in/yaml/v3"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// open gives a seed image's label and files.
func open(t *testing.T, image []byte) (label string, files map[string]string) {
	t.Helper()
	img, err := iso9660.OpenImage(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	label, err = img.Label()
	if err != nil {
		t.Fatal(err)
	}
	root, err := img.RootDir()
	if err != nil {
		t.Fatal(err)
	}
	children, err := root.GetChildren()
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for _, f := range children {
		text, err := io.ReadAll(f.Reader())
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name()] = string(text)
	}
	return label, files
}

func TestISOHoldsWhatNoCloudReads(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	big := string(bytes.Repeat([]byte("#cloud-config\n"), 1000))
	for name, c := range map[string]struct {
		seed Seed
		want map[string]string
	}{
		"least": {
			Seed{InstanceID: "i-1", UserData: []byte("#cloud-config\n")},
			map[string]string{"meta-data": "instance-id: \"i-1\"\n", "user-data": "#cloud-config\n"},
		},
		"all": {
			Seed{InstanceID: "123", Hostname: "ci-1", UserData: []byte(big), NetworkConfig: []byte("version: 2\n"), VendorData: []byte("#!/bin/sh\n")},
			map[string]string{
				"meta-data": "instance-id: \"123\"\nlocal-hostname: ci-1\n", "user-data": big,
				"network-config": "version: 2\n", "vendor-data": "#!/bin/sh\n",
			},
		},
		"no user-data": {Seed{InstanceID: "i"}, map[string]string{"meta-data": "instance-id: \"i\"\n", "user-data": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			image, err := c.seed.ISO()
			if err != nil {
				t.Fatal(err)
			}
			if len(image)%2048 != 0 {
				t.Errorf("the image has %d bytes, not whole sectors", len(image))
			}
			label, files := open(t, image)
			if label != "cidata" {
				t.Errorf("label %q", label)
			}
			if diff := cmp.Diff(c.want, files); diff != "" {
				t.Error(diff)
			}
		})
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

func TestSecretIsNeverInTheStagingDirectory(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	secret := "#cloud-config\n# the-secret-of-this-test\n"
	ended := make(chan error, 1)
	go func() {
		for range 200 {
			if _, err := (Seed{InstanceID: "i", UserData: []byte(secret)}).ISO(); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	seen := 0
	for {
		files, err := filepath.Glob(filepath.Join(temp, "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if content, err := os.ReadFile(file); err == nil && len(content) == len(secret) {
				seen++
				if bytes.Contains(content, []byte("the-secret-of-this-test")) {
					t.Fatalf("%s holds the secret", file)
				}
			}
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			if seen == 0 {
				t.Error("nothing staged was seen: this test proves nothing")
			}
			return
		default:
		}
	}
}

func TestISONeedsAnInstanceID(t *testing.T) {
	if _, err := (Seed{UserData: []byte("#cloud-config\n")}).ISO(); err == nil {
		t.Error("no error")
	}
}

func TestISOSaysThatItCannotStage(t *testing.T) {
	t.Setenv("TMPDIR", "/nonexistent")
	if _, err := (Seed{InstanceID: "i"}).ISO(); err == nil {
		t.Error("no error")
	}
}

func TestNetworkConfigDHCPMatchesTheInterfaceByMAC(t *testing.T) {
	var got any
	if err := yaml.Unmarshal(NetworkConfig([]egress.Interface{{}}, []string{"52:54:00:AA:00:11"}), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"version": 2, "ethernets": map[string]any{"primary": map[string]any{
		"match": map[string]any{"macaddress": "52:54:00:aa:00:11"}, "dhcp4": true, "dhcp6": false, "dhcp-identifier": "mac",
	}}}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Error(diff)
	}
}
