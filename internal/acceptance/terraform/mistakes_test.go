package terraform

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
)

func TestMistakeIsOneClearErrorBeforeAnythingIsMade(t *testing.T) {
	instance, _ := newTiny(t, "mistaken", guest.TinyIdle)
	vmdk := filepath.Join(t.TempDir(), "disk.vmdk")
	if err := os.WriteFile(vmdk, append([]byte("KDMV"), make([]byte, 1<<16)...), 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(t.TempDir(), "large.img") // a sparse disk of 2 GiB
	content, err := os.ReadFile(instance.Image)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 2<<30); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(instance.Image))))
	t.Cleanup(server.Close)

	edit := func(part, instead string) func(string) string {
		return func(config string) string {
			if !strings.Contains(config, part) {
				t.Fatalf("the configuration has no %q", part)
			}
			return strings.Replace(config, part, instead, 1)
		}
	}
	proxy := `user_data    = "#cloud-config\n{}\n"`
	for name, test := range map[string]struct {
		edit     func(string) string
		instance func(*tiny)
		says     []string
	}{
		"unknown-host":         {edit(`host = "lab", machine`, `host = "hv9", machine`), nil, []string{"hv9", "lab", "kvm.hosts"}},
		"unknown-machine-type": {edit(`machine_type = "tiny"`, `machine_type = "huge"`), nil, []string{"huge", "tiny", "machine_types"}},
		"unknown-image":        {edit(`image = "tiny"`, `image = "debian99"`), nil, []string{"debian99", "tiny", "images"}},
		"image-404":            {nil, func(i *tiny) { i.Image = server.URL + "/missing.qcow2" }, []string{"404", "missing.qcow2"}},
		"wrong-sha256":         {nil, func(i *tiny) { i.SHA256 = strings.Repeat("0", 64) }, []string{strings.Repeat("0", 64), instance.SHA256}},
		"unsupported-format":   {nil, func(i *tiny) { i.Image = vmdk }, []string{"VMDK", "qemu-img convert"}},
		"name-no-host-name":    {nil, func(i *tiny) { i.Name = "Not_A_Host" }, []string{"Not_A_Host", "lower-case letters"}},
		"disk-too-small":       {nil, func(i *tiny) { i.Image, i.SHA256 = large, strings.Repeat("1", 64) }, []string{"disk_gib", "2147483648", "2 or more"}},
		"no-such-pool":         {edit(`pool = "egressproxy"`, `pool = "nvme"`), nil, []string{"nvme", "virsh pool-list"}},
		"no-such-network":      {edit(`network = "egressproxy"`, `network = "dmz"`), nil, []string{"dmz", "virsh net-list"}},
		"public-listener":      {edit(proxy, `proxy = { clients = {}, policy = { allow_domains = ["www.allowed.test"] } }`), nil, []string{"clients"}},
	} {
		t.Run(name, func(t *testing.T) {
			mistaken, config := instance, tinyInstance
			if test.instance != nil {
				test.instance(&mistaken)
			}
			if test.edit != nil {
				config = test.edit(config)
			}
			before := volumes(t, "")
			w := newWorkspace(t)
			w.render(config, mistaken)
			r := w.apply()
			if r.code != 1 {
				t.Fatalf("apply ended with code %d:\n%s", r.code, r.out)
			}
			if n := strings.Count(r.out, "Error: "); n != 1 {
				t.Errorf("there are %d errors, want one:\n%s", n, r.out)
			}
			flat := unwrap(r.out)
			for _, part := range test.says {
				if !strings.Contains(flat, part) {
					t.Errorf("the error does not say %q:\n%s", part, r.out)
				}
			}
			if attributes, _ := w.instance(); attributes != nil {
				t.Errorf("the state holds %v", attributes)
			}
			if after := volumes(t, ""); !slices.Equal(after, before) {
				t.Errorf("the volumes in pool %s were %q and are %q", hypervisor.Pool, before, after)
			}
			checkNothingLeft(t, mistaken.Name)
		})
	}
}

// unwrap joins the lines that the CLI broke an error text into.
func unwrap(out string) string {
	var words []string
	for line := range strings.Lines(out) {
		words = append(words, strings.Fields(strings.TrimLeft(line, "│╷╵ "))...)
	}
	return strings.Join(words, " ")
}
