package faults

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ulikunitz/xz"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/kvm/connection"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
)

// newStorageBackend is a backend straight on the daemon.
func newStorageBackend(t testing.TB, config kvm.Config) *kvm.Backend {
	t.Helper()
	config.Hosts = map[string]connection.Host{"lab": {Name: "lab", URI: hv.URI}}
	config.BeatInterval, config.ShutdownGrace = time.Second, time.Second
	backend := kvm.New(config)
	t.Cleanup(func() { _ = backend.Close() })
	return backend
}

// imageServer serves files, and counts the requests for each.
type imageServer struct {
	*httptest.Server
	asked atomic.Int32
}

func serveImages(t testing.TB, files map[string][]byte) *imageServer {
	t.Helper()
	s := &imageServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		content, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content)
	}))
	t.Cleanup(s.Close)
	return s
}

// qcow2 converts a boot sector's disk, so that it can be compressed.
func qcow2(t testing.TB, want egress.Spec) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk.qcow2")
	command(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", want.KVM.Image.Source, file)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestCompressedImageWithItsChecksumInAListBoots(t *testing.T) {
	t.Parallel()
	backend := newStorageBackend(t, kvm.Config{})
	files := map[string][]byte{}
	server := serveImages(t, files)
	var wants []egress.Spec
	var list strings.Builder
	for _, name := range []string{"unpacked-gz", "unpacked-xz"} {
		want := spec(t, name, guest.TinyIdle, true)
		var out strings.Builder
		if strings.HasSuffix(name, "gz") {
			w := gzip.NewWriter(&out)
			writeAll(t, w, qcow2(t, want))
		} else {
			w, err := xz.NewWriter(&out)
			if err != nil {
				t.Fatal(err)
			}
			writeAll(t, w, qcow2(t, want))
		}
		files["/"+name] = []byte(out.String())
		fmt.Fprintf(&list, "%s *%s\n", sha256Of([]byte(out.String())), name)
		want.KVM.Image = egress.Image{Name: name, Source: server.URL + "/" + name, ChecksumURL: server.URL + "/SHA256SUMS"}
		wants = append(wants, want)
	}
	files["/SHA256SUMS"] = []byte(list.String())
	for _, want := range wants {
		plantLease(t, want.ID.Name)
		made := mustCreate(t, backend, want)
		sum := sha256Of(files["/"+want.ID.Name])
		if made.KVM.ImageSHA256 != sum {
			t.Errorf("%s: its image's checksum is %q, want that of the list, %s", want.ID.Name, made.KVM.ImageSHA256, sum)
		}
		if read, err := backend.Get(t.Context(), want.ID); err != nil || read.KVM.ImageSHA256 != sum {
			t.Errorf("%s: it is read back with checksum %q, %v", want.ID.Name, read.KVM.ImageSHA256, err)
		}
		// The guest's firmware jumped to what was unpacked.
		if state := domainState(t, want.ID.Name); !strings.HasPrefix(state, "running") {
			t.Errorf("%s is %s", want.ID.Name, state)
		}
		mustDelete(t, backend, want.ID)
	}
	if got := server.asked.Load(); got != 4 {
		t.Errorf("the server was asked %d times, want once for each image and its line in the list", got)
	}
}

func TestWrongImageIsReadOnceHoweverManyInstancesWantIt(t *testing.T) {
	t.Parallel()
	backend := newStorageBackend(t, kvm.Config{})
	first := spec(t, "wrong-sum-1", guest.TinyIdle, true)
	content, err := os.ReadFile(first.KVM.Image.Source)
	if err != nil {
		t.Fatal(err)
	}
	server := serveImages(t, map[string][]byte{"/disk.raw": content})
	errs := make(chan error, 3)
	for i := range cap(errs) {
		want := spec(t, fmt.Sprintf("wrong-sum-%d", i+1), guest.TinyIdle, false)
		want.KVM.Image = egress.Image{Name: "tiny", Source: server.URL + "/disk.raw", SHA256: sha256Of([]byte("another"))}
		go func() {
			_, err := backend.Create(t.Context(), want)
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err == nil || !strings.Contains(err.Error(), "its sha256 is") {
			t.Errorf("got %v", err)
		}
	}
	if got := server.asked.Load(); got != 1 {
		t.Errorf("the image was fetched %d times", got)
	}
	if left := volumes(t, sha256Of([]byte("another"))); len(left) != 0 {
		t.Errorf("volumes %q are left", left)
	}
}

func TestImageGoesWithItsLastInstanceWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	keeping, pruning := newStorageBackend(t, kvm.Config{}), newStorageBackend(t, kvm.Config{PruneImages: true})
	first := spec(t, "pruned-first", guest.TinyIdle, true)
	second := spec(t, "pruned-second", guest.TinyIdle, false)
	second.KVM.Image = first.KVM.Image
	for _, want := range []egress.Spec{first, second} {
		plantLease(t, want.ID.Name)
		mustCreate(t, pruning, want)
	}
	of := func() int { return len(volumes(t, first.KVM.Image.SHA256)) }
	mustDelete(t, pruning, first.ID)
	if got := of(); got != 2 {
		t.Errorf("with an instance on it the image has %d volumes, want its copy and marker", got)
	}
	mustDelete(t, keeping, second.ID)
	if got := of(); got != 2 {
		t.Errorf("unasked, the image has %d volumes, want its copy and marker", got)
	}
	mustCreate(t, pruning, second)
	// A person's own overlay counts as well, though the pool has not seen it.
	base := volumes(t, first.KVM.Image.SHA256+"-")[0]
	mine := filepath.Join(hv.PoolDir, "a-persons.qcow2")
	command(t, "qemu-img", "create", "-f", "qcow2", "-b", filepath.Join(hv.PoolDir, base), "-F", "raw", mine)
	mustDelete(t, pruning, second.ID)
	if got := of(); got != 2 {
		t.Errorf("with a person's disk on it the image has %d volumes", got)
	}
	if err := os.Remove(mine); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, pruning, second)
	mustDelete(t, pruning, second.ID)
	if got := of(); got != 0 {
		t.Errorf("after its last instance the image has %d volumes", got)
	}
	checkNothingLeft(t, second)
}

func TestVolumeOfThePoolIsAnImageAndStays(t *testing.T) {
	t.Parallel()
	backend := newStorageBackend(t, kvm.Config{PruneImages: true})
	want := spec(t, "on-a-volume", guest.TinyIdle, true)
	virsh(t, "vol-create-as", hypervisor.Pool, "golden.raw", "1M", "--format", "raw")
	virsh(t, "vol-upload", "--pool", hypervisor.Pool, "golden.raw", want.KVM.Image.Source)
	want.KVM.Image = egress.Image{Name: "golden", Source: "volume:golden.raw"}
	plantLease(t, want.ID.Name)
	made := mustCreate(t, backend, want)
	if made.KVM.ImageVolume != "golden.raw" || made.KVM.ImageSHA256 != "" {
		t.Errorf("made from volume %q, checksum %q", made.KVM.ImageVolume, made.KVM.ImageSHA256)
	}
	mustDelete(t, backend, want.ID)
	if left := volumes(t, "golden.raw"); len(left) != 1 {
		t.Error("the volume is gone with its instance")
	}
	for name, test := range map[string]struct {
		prepare func()
		volume  string
		says    string
	}{
		"missing": {func() {}, "no-such.raw", "no such volume"},
		"an overlay": {func() {
			virsh(t, "vol-create-as", hypervisor.Pool, "on-golden.qcow2", "2M", "--format", "qcow2", "--backing-vol", "golden.raw", "--backing-vol-format", "raw")
		}, "on-golden.qcow2", "stands on another volume"},
		"another machine's disk": {func() {
			define(t, fmt.Sprintf("<domain type='qemu'><name>has-golden</name><memory unit='MiB'>64</memory><os><type>hvm</type></os><devices><disk type='file' device='disk'><source file='%s'/><target dev='vda'/></disk></devices></domain>",
				filepath.Join(hv.PoolDir, "golden.raw")))
		}, "golden.raw", "domain has-golden has it as its disk"},
	} {
		test.prepare()
		want.KVM.Image.Source = "volume:" + test.volume
		made, err := backend.Create(t.Context(), want)
		var fault *egress.Fault
		if !errors.As(err, &fault) || fault.Attribute != "kvm.image" || !strings.Contains(err.Error(), test.says) || !made.ID.IsZero() {
			t.Errorf("%s: got %+v, %v; want a fault of kvm.image that says %q", name, made, err, test.says)
		}
	}
	checkNothingLeft(t, want)
	virsh(t, "undefine", "has-golden")
}

func TestInactivePoolIsStartedWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	starting, leaving := newStorageBackend(t, kvm.Config{StartPool: true}), newStorageBackend(t, kvm.Config{})
	want := spec(t, "sleeping-pool", guest.TinyIdle, true)
	want.KVM.Pool = "sleeping"
	virsh(t, "pool-define-as", "sleeping", "dir", "--target", t.TempDir())
	plantLease(t, want.ID.Name)
	_, err := leaving.Create(t.Context(), want)
	var fault *egress.Fault
	if !errors.As(err, &fault) || fault.Attribute != "kvm.pool" || !strings.Contains(fault.Remedy, "start_pool") {
		t.Errorf("unasked: got %v, want a fault of kvm.pool whose remedy names start_pool", err)
	}
	mustCreate(t, starting, want)
	virsh(t, "pool-destroy", "sleeping")
	if _, err := starting.Get(t.Context(), want.ID); err != nil {
		t.Errorf("refresh with an inactive pool: %v", err)
	}
	if state := virsh(t, "pool-info", "sleeping"); !strings.Contains(state, "inactive") {
		t.Error("a refresh has started the pool")
	}
	mustDelete(t, starting, want.ID)
	if of := virsh(t, "vol-list", "sleeping"); strings.Contains(of, want.ID.Name) {
		t.Errorf("volumes are left:\n%s", of)
	}
}

func TestFullPoolIsAnErrorWithNumbersThatLeavesNothing(t *testing.T) {
	t.Parallel()
	backend := newStorageBackend(t, kvm.Config{})
	dir := t.TempDir()
	// Where the daemon sees it.
	daemon := "--target=" + strconv.Itoa(hv.PID())
	command(t, "nsenter", daemon, "--mount", "mount", "-t", "tmpfs", "-o", "size=768k", "tmpfs", dir)
	t.Cleanup(func() { command(t, "nsenter", daemon, "--mount", "umount", dir) })
	virsh(t, "pool-create-as", "small", "dir", "--target", dir)
	t.Cleanup(func() { virsh(t, "pool-destroy", "small") })
	want := spec(t, "full-pool", guest.TinyIdle, true)
	want.KVM.Pool = "small"
	known := want.KVM.Image
	for name, image := range map[string]egress.Image{
		"size known":   known,
		"size unknown": serveWithoutLength(t, known),
	} {
		want.KVM.Image = image
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		made, err := backend.Create(ctx, want)
		cancel()
		var fault *egress.Fault
		if !errors.As(err, &fault) || !errors.Is(err, egress.ErrQuotaExceeded) || !strings.Contains(err.Error(), "small") || fault.Remedy == "" || !made.ID.IsZero() {
			t.Errorf("%s: got %+v, %v; want a fault about space in pool small", name, made, err)
		}
		if name == "size known" && !strings.Contains(err.Error(), "the image has 1 MiB, the pool has 0 MiB free") {
			t.Errorf("%s: the numbers are not in %v", name, err)
		}
		if left := strings.TrimSpace(virsh(t, "vol-list", "small")); left != "" {
			t.Errorf("%s: left are\n%s", name, left)
		}
	}
	if found, err := hv.Virsh(t.Context(), "list", "--all", "--name"); err != nil || slices.Contains(strings.Fields(found), want.ID.Name) {
		t.Errorf("domains %q are left, %v", found, err)
	}
}

// serveWithoutLength serves an image as qcow2, in chunks. Nothing of it can be
// left out by the file system.
func serveWithoutLength(t testing.TB, image egress.Image) egress.Image {
	t.Helper()
	want := egress.Spec{KVM: &egress.KVMSpec{Image: image}}
	content := append(qcow2(t, want), make([]byte, 1<<20)...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for len(content) > 0 {
			n := min(len(content), 64<<10)
			if _, err := w.Write(content[:n]); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			content = content[n:]
		}
	}))
	t.Cleanup(server.Close)
	return egress.Image{Name: "chunked", Source: server.URL + "/disk.qcow2", SHA256: sha256Of(content)}
}

func TestPoolWhoseVolumesAreNoFilesIsRefused(t *testing.T) {
	t.Parallel()
	backend := newStorageBackend(t, kvm.Config{})
	want := spec(t, "odd-pool", guest.TinyIdle, false)
	want.KVM.Pool = "odd"
	definition := filepath.Join(t.TempDir(), "pool.xml")
	if err := os.WriteFile(definition, []byte("<pool type='mpath'><name>odd</name><target><path>/dev/mapper</path></target></pool>"), 0o600); err != nil {
		t.Fatal(err)
	}
	virsh(t, "pool-define", definition)
	if _, err := hv.Virsh(t.Context(), "pool-start", "odd"); err != nil {
		t.Fatal(err)
	}
	_, err := backend.Create(t.Context(), want)
	var fault *egress.Fault
	if !errors.As(err, &fault) || fault.Attribute != "kvm.pool" || !strings.Contains(err.Error(), "type mpath") || !strings.Contains(fault.Remedy, "dir, fs, netfs") {
		t.Errorf("got %v", err)
	}
	checkNothingLeft(t, want)
}
