package connection

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
)

func TestAllConnectionsToAHostShareOneLogin(t *testing.T) {
	r := startRemote(t, nil)
	pool := New(r.host(t))
	defer closeOrFail(t, pool.Close)
	for range 2 {
		if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Fatal(err)
		}
		const size = 3 << 20
		err := pool.Stream(t.Context(), "uploading volume base", func(lv *libvirt.Libvirt) error {
			return lv.StorageVolUpload(libvirt.StorageVol{}, bytes.NewReader(make([]byte, size)), 0, size, 0)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if r.Connections() != 1 || r.daemon.Connections() != 3 {
		t.Errorf("%d SSH and %d libvirt connections, want 1 and 3", r.Connections(), r.daemon.Connections())
	}
	if users := r.Users(); !slices.Contains(users, "ops") {
		t.Errorf("logged in as %v, want ops", users)
	}
	eventually(t, "the streams' channels are closed", func() bool { return r.Channels() == 1 })
}

func TestTheQEMUDaemonsSocketIsTriedAfterTheFullOne(t *testing.T) {
	r := startRemote(t, func(o *sshserver.Options) {
		o.Sockets = map[string]string{"/run/libvirt/virtqemud-sock": o.Sockets["/run/libvirt/libvirt-sock"]}
	})
	if err := read(t, r.host(t)); err != nil {
		t.Fatal(err)
	}
	want := []string{"/run/libvirt/libvirt-sock", "/var/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock"}
	if got := r.Asked(); !slices.Equal(got, want) {
		t.Errorf("asked for %v, want %v", got, want)
	}
}

func TestTheURIsSocketIsTheOnlyOneTried(t *testing.T) {
	r := startRemote(t, func(o *sshserver.Options) {
		o.Sockets["/srv/libvirt-sock"] = o.Sockets["/run/libvirt/libvirt-sock"]
	})
	h := r.host(t)
	h.URI += "?socket=/srv/libvirt-sock"
	if err := read(t, h); err != nil {
		t.Fatal(err)
	}
	if got := r.Asked(); !slices.Equal(got, []string{"/srv/libvirt-sock"}) {
		t.Errorf("asked for %v", got)
	}
}

func TestAHostWithoutADaemonIsUnreachable(t *testing.T) {
	r := startRemote(t, func(o *sshserver.Options) { o.Sockets = nil })
	err := read(t, r.host(t))
	if !errors.Is(err, egress.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
	says(t, err, "ops@"+r.Addr(), "/run/libvirt/libvirt-sock: open failed", "/run/libvirt/virtqemud-sock: open failed", "usermod -aG libvirt ops", "AllowStreamLocalForwarding yes")
}

func TestAForbiddenForwardIsPermanent(t *testing.T) {
	r := startRemote(t, func(o *sshserver.Options) { o.ForbidForwarding = true })
	err := read(t, r.host(t))
	if !errors.Is(err, egress.ErrPermanent) {
		t.Errorf("got %v", err)
	}
	says(t, err, "forbids forwarding", "AllowStreamLocalForwarding yes", "authorized_keys")
}

func TestACancelledLoginReturnsAtOnce(t *testing.T) {
	r := startRemote(t, func(o *sshserver.Options) { o.Stall = sshserver.AtBanner })
	pool := New(r.host(t))
	defer closeOrFail(t, pool.Close)
	ctx, cancel := context.WithCancel(t.Context())
	reading := make(chan error, 1)
	go func() { reading <- pool.Read(ctx, "looking up domain ci-1", lookup) }()
	eventually(t, "the server is reached", func() bool { return r.Connections() == 1 })
	cancel()
	if err := <-reading; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	// nobody waits for the login any more
	eventually(t, "the SSH connection is closed", func() bool { return r.Open() == 0 })
}

func TestABrokenSSHConnectionIsReplacedUnseen(t *testing.T) {
	r := startRemote(t, nil)
	pool := New(r.host(t))
	defer closeOrFail(t, pool.Close)
	for range 5 {
		if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Fatal(err)
		}
		r.DropAll()
	}
}

// ticking replaces the clock of a pool's keepalives.
func ticking(pool *Pool) chan<- time.Time {
	ticks := make(chan time.Time)
	pool.transport.(*sshTransport).ticks = func() (<-chan time.Time, func()) { return ticks, func() {} }
	return ticks
}

func TestAServerThatStopsAnsweringKeepalivesIsGivenUp(t *testing.T) {
	r := startRemote(t, nil)
	pool := New(r.host(t))
	defer closeOrFail(t, pool.Close)
	ticks := ticking(pool)
	if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
		t.Fatal(err)
	}
	r.SetStall(sshserver.AtKeepalive)
	ticks <- time.Time{} // asks
	for range keepaliveMisses {
		if r.Open() != 1 {
			t.Error("given up before its time")
		}
		ticks <- time.Time{} // finds no answer
	}
	eventually(t, "the SSH connection is closed", func() bool { return r.Open() == 0 })
}

func TestAServerThatAnswersKeepalivesIsKept(t *testing.T) {
	r := startRemote(t, nil)
	pool := New(r.host(t))
	defer closeOrFail(t, pool.Close)
	ticks := ticking(pool)
	if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
		t.Fatal(err)
	}
	client := pool.transport.(*sshTransport).client
	for asked := 1; asked <= 5; asked++ {
		ticks <- time.Time{}
		eventually(t, "the keepalive is answered", func() bool { return r.Requests() == asked && len(client.answered) == 1 })
	}
	if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil || r.Connections() != 1 {
		t.Errorf("got %v after %d SSH connections, want 1", err, r.Connections())
	}
}

func TestAStalledChannelSparesTheOthers(t *testing.T) {
	r := startRemote(t, nil)
	h := r.host(t)
	h.SSH.Timeout = 100 * time.Millisecond
	pool := New(h)
	defer closeOrFail(t, pool.Close)
	entered, release := make(chan struct{}), make(chan struct{})
	neighbour := make(chan error, 1)
	go func() {
		neighbour <- pool.Write(t.Context(), "destroying domain ci-2", func(lv *libvirt.Libvirt) error {
			close(entered)
			<-release
			return destroy(lv)
		})
	}()
	<-entered
	r.SetStall(sshserver.AtChannel)
	if err := pool.Stream(t.Context(), "uploading volume base", lookup); !errors.Is(err, egress.ErrUnreachable) {
		t.Errorf("the stream got %v", err)
	}
	close(release)
	if err := <-neighbour; err != nil {
		t.Errorf("the neighbour got %v", err)
	}
}

func TestAPortWithoutAServerIsUnreachable(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	closeOrFail(t, listener.Close)
	r := startRemote(t, nil)
	h := r.host(t)
	h.URI = "qemu+ssh://ops@" + address + "/system"
	err = read(t, h)
	if !errors.Is(err, egress.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
	says(t, err, "ops@"+address, "connection refused", "firewall")
}
