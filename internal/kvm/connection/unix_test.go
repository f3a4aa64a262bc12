package connection

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

func TestLocalSocketsAreTriedInOrder(t *testing.T) {
	dir := t.TempDir()
	paths := socketsIn(filepath.Join(dir, "run"), dir)
	daemon, err := wire.StartDaemon(filepath.Join(dir, "virtqemud-sock"), obliging(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer closeOrFail(t, daemon.Close)
	pool := New(Host{Name: "hv1", URI: "qemu:///system"})
	defer closeOrFail(t, pool.Close)
	pool.transport = &unixTransport{sockets: paths}
	if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
		t.Fatal(err)
	}

	// the full daemon's socket goes before the QEMU daemon's own
	full, err := wire.StartDaemon(filepath.Join(dir, "libvirt-sock"), obliging(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer closeOrFail(t, full.Close)
	err = pool.Stream(t.Context(), "looking up domain ci-1", lookup)
	if err != nil || full.Connections() != 1 {
		t.Errorf("got %v and %d connections to libvirt-sock, want 1", err, full.Connections())
	}
}

func TestEverySocketTriedIsReported(t *testing.T) {
	dir := t.TempDir()
	pool := New(Host{Name: "hv1", URI: "qemu:///system"})
	defer closeOrFail(t, pool.Close)
	paths := socketsIn(dir)
	pool.transport = &unixTransport{sockets: paths}
	err := pool.Read(t.Context(), "looking up domain ci-1", lookup)
	if !errors.Is(err, egress.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
	says(t, err, paths[0]+": no such file or directory", paths[1]+": no such file or directory", "systemctl start libvirtd")
}
