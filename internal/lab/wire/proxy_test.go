package wire_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// patience is how long a test waits for what must come; it is never waited
// out in a test that passes.
const patience = 10 * time.Second

// behind starts a scripted daemon with a proxy in front and gives both.
func behind(t *testing.T, handler wire.Handler) (*wire.Daemon, *wire.Proxy, string) {
	t.Helper()
	dir := t.TempDir()
	daemon, err := wire.StartDaemon(filepath.Join(dir, "daemon"), handler)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOrFail(t, daemon.Close) })
	path := filepath.Join(dir, "proxy")
	proxy, err := wire.Listen(path, filepath.Join(dir, "daemon"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOrFail(t, proxy.Close) })
	return daemon, proxy, path
}

func closeOrFail(t *testing.T, closing func() error) {
	t.Helper()
	if err := closing(); err != nil {
		t.Error(err)
	}
}

func client(t *testing.T, path string) *libvirt.Libvirt {
	t.Helper()
	lv := libvirt.NewWithDialer(dialers.NewLocal(dialers.WithSocket(path)))
	if err := lv.Connect(); err != nil {
		t.Fatal(err)
	}
	return lv
}

func oneDomain(procedure uint32, _ []byte) ([]byte, *wire.Error) {
	switch procedure {
	case wire.ProcDomainLookupByName:
		return wire.DomainResult("ci-1", [16]byte{1}, 7), nil
	case wire.ProcDomainGetXMLDesc:
		return wire.StringResult("<domain/>"), nil
	}
	return nil, nil
}

func TestProxyPassesCallsThroughAndCountsThem(t *testing.T) {
	daemon, proxy, path := behind(t, oneDomain)
	lv := client(t, path)
	dom, err := lv.DomainLookupByName("ci-1")
	if err != nil || dom.Name != "ci-1" || dom.ID != 7 {
		t.Fatalf("lookup gave %+v, %v", dom, err)
	}
	if text, err := lv.DomainGetXMLDesc(dom, 0); err != nil || text != "<domain/>" {
		t.Fatalf("XML is %q, %v", text, err)
	}
	want := map[uint32]int{
		wire.ProcAuthList: 1, wire.ProcConnectOpen: 1,
		wire.ProcDomainLookupByName: 1, wire.ProcDomainGetXMLDesc: 1,
	}
	if got := proxy.Calls(); !reflect.DeepEqual(got, want) {
		t.Errorf("proxy counted %v, want %v", got, want)
	}
	if got := daemon.Calls(); !reflect.DeepEqual(got, want) {
		t.Errorf("daemon counted %v, want %v", got, want)
	}
	if proxy.Connections() != 1 || proxy.Open() != 1 {
		t.Errorf("%d connections, %d open; want 1 and 1", proxy.Connections(), proxy.Open())
	}
}

func TestProxyInjectsFaults(t *testing.T) {
	for _, tc := range []struct {
		fault      wire.Fault
		daemonSees int
		check      func(error) bool
	}{
		{wire.ErrorReply, 1, func(err error) bool {
			var answer libvirt.Error
			return errors.As(err, &answer) && answer.Code == 38 && answer.Message == "no space left"
		}},
		{wire.DropBefore, 1, func(err error) bool { return errors.Is(err, libvirt.ErrInterrupted) }},
		{wire.DropAfter, 2, func(err error) bool { return errors.Is(err, libvirt.ErrInterrupted) }},
		{wire.None, 2, func(err error) bool { return err == nil }},
	} {
		t.Run(tc.fault.String(), func(t *testing.T) {
			daemon, proxy, path := behind(t, oneDomain)
			proxy.Inject(wire.Rule{
				Procedure: wire.ProcDomainLookupByName, Nth: 2, Fault: tc.fault,
				Error: wire.Error{Code: 38, Message: "no space left"},
			})
			lv := client(t, path)
			if _, err := lv.DomainLookupByName("ci-1"); err != nil {
				t.Fatalf("the first call failed: %v", err)
			}
			if _, err := lv.DomainLookupByName("ci-1"); !tc.check(err) {
				t.Errorf("the second call gave %v", err)
			}
			if got := daemon.Calls()[wire.ProcDomainLookupByName]; got != tc.daemonSees {
				t.Errorf("the daemon saw %d calls, want %d", got, tc.daemonSees)
			}
			if got := proxy.Calls()[wire.ProcDomainLookupByName]; got != 2 {
				t.Errorf("the proxy counted %d calls, want 2", got)
			}
		})
	}
}

func TestProxyHangsOneCallAndServesOthers(t *testing.T) {
	for fault, daemonSees := range map[wire.Fault]int{wire.Hang: 0, wire.HangReply: 1} {
		t.Run(fault.String(), func(t *testing.T) {
			daemon, proxy, path := behind(t, oneDomain)
			proxy.Inject(wire.Rule{Procedure: wire.ProcDomainLookupByName, Nth: 1, Fault: fault})
			lv := client(t, path)
			hung := make(chan error, 1)
			go func() {
				_, err := lv.DomainLookupByName("ci-1")
				hung <- err
			}()
			eventually(t, "the call reaches the proxy", func() bool { return proxy.Calls()[wire.ProcDomainLookupByName] == 1 })
			if _, err := lv.DomainGetXMLDesc(libvirt.Domain{}, 0); err != nil {
				t.Fatalf("a neighbour's call failed: %v", err)
			}
			eventually(t, "the daemon has seen what it may", func() bool {
				return daemon.Calls()[wire.ProcDomainLookupByName] == daemonSees
			})
			select {
			case err := <-hung:
				t.Fatalf("the call came back: %v", err)
			default:
			}
			proxy.DropAll()
			if err := <-hung; !errors.Is(err, libvirt.ErrInterrupted) {
				t.Errorf("after the drop the call gave %v", err)
			}
		})
	}
}

func TestHookRunsBeforeTheReplyWithTheClientsProcess(t *testing.T) {
	_, proxy, path := behind(t, oneDomain)
	var pid atomic.Int64
	proxy.Inject(wire.Rule{
		Procedure: wire.ProcDomainLookupByName, Nth: 1,
		Hook: func(peer int) { pid.Store(int64(peer)) },
	})
	if _, err := client(t, path).DomainLookupByName("ci-1"); err != nil {
		t.Fatal(err)
	}
	if got := int(pid.Load()); got != os.Getpid() {
		t.Errorf("the hook got process %d, want %d", got, os.Getpid())
	}
}

func TestStreamEndMovesAFaultToTheEndOfAnUpload(t *testing.T) {
	daemon, proxy, path := behind(t, oneDomain)
	proxy.Inject(wire.Rule{Procedure: wire.ProcStorageVolUpload, Nth: 1, Fault: wire.DropAfter, StreamEnd: true})
	err := client(t, path).StorageVolUpload(libvirt.StorageVol{}, bytes.NewReader(make([]byte, 1<<20)), 0, 0, 0)
	if !errors.Is(err, libvirt.ErrInterrupted) {
		t.Errorf("the upload gave %v, want an interruption", err)
	}
	if got := daemon.StreamBytes(); got != 1<<20 {
		t.Errorf("the daemon got %d bytes, want all", got)
	}
}

func TestDropStreamBreaksAnUploadHalfway(t *testing.T) {
	daemon, proxy, path := behind(t, oneDomain)
	proxy.Inject(wire.Rule{Procedure: wire.ProcStorageVolUpload, Nth: 1, Fault: wire.DropStream, AfterBytes: 5 << 20})
	err := client(t, path).StorageVolUpload(libvirt.StorageVol{}, bytes.NewReader(make([]byte, 16<<20)), 0, 0, 0)
	if err == nil {
		t.Fatal("the upload succeeded")
	}
	if got := daemon.StreamBytes(); got > 5<<20 {
		t.Errorf("the daemon got %d bytes, more than the rule lets pass", got)
	}
}

func TestHealedProxyPassesUploadsThrough(t *testing.T) {
	daemon, proxy, path := behind(t, oneDomain)
	proxy.Inject(wire.Rule{Procedure: wire.ProcStorageVolUpload, Fault: wire.DropBefore})
	proxy.Heal()
	err := client(t, path).StorageVolUpload(libvirt.StorageVol{}, bytes.NewReader(make([]byte, 9<<20)), 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := daemon.StreamBytes(); got != 9<<20 {
		t.Errorf("the daemon got %d bytes, want %d", got, 9<<20)
	}
}

func TestLatencyDelaysEachWay(t *testing.T) {
	_, proxy, path := behind(t, oneDomain)
	lv := client(t, path)
	const latency = 30 * time.Millisecond
	proxy.SetLatency(latency)
	began := time.Now()
	if _, err := lv.DomainLookupByName("ci-1"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*latency {
		t.Errorf("the round trip took %s, want at least %s", took, 2*latency)
	}
}

func TestLatencyKeepsTheOrderOfAStream(t *testing.T) {
	daemon, proxy, path := behind(t, oneDomain)
	lv := client(t, path)
	proxy.SetLatency(5 * time.Millisecond)
	// a FINISH that overtook data would be confirmed before the data came
	err := lv.StorageVolUpload(libvirt.StorageVol{}, smallReads{bytes.NewReader(make([]byte, 64<<10))}, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := daemon.StreamBytes(); got != 64<<10 {
		t.Errorf("the daemon had %d bytes when the upload was confirmed, want %d", got, 64<<10)
	}
}

// smallReads makes one packet of each KiB.
type smallReads struct{ r *bytes.Reader }

func (s smallReads) Read(b []byte) (int, error) { return s.r.Read(b[:min(len(b), 1<<10)]) }

func TestProxyOfADeadDaemonHangsUp(t *testing.T) {
	dir := t.TempDir()
	proxy, err := wire.Listen(filepath.Join(dir, "proxy"), filepath.Join(dir, "nobody"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeOrFail(t, proxy.Close)
	lv := libvirt.NewWithDialer(dialers.NewLocal(dialers.WithSocket(filepath.Join(dir, "proxy"))))
	if err := lv.Connect(); err == nil {
		t.Error("connecting succeeded")
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
	}
}
