package connection

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

func TestCallsShareOneConnection(t *testing.T) {
	s := start(t, obliging)
	if s.Connections() != 0 {
		t.Error("New connected")
	}
	for range 3 {
		if err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Fatal(err)
		}
		if err := s.pool.Write(t.Context(), "destroying domain ci-1", destroy); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Connections(); got != 1 {
		t.Errorf("6 calls took %d connections, want 1", got)
	}
}

func TestConcurrentCallersShareOneDial(t *testing.T) {
	s := start(t, on(wire.ProcAuthList, func(s *scripted, _ int) *wire.Error {
		<-s.wake
		return nil
	}))
	var calls sync.WaitGroup
	for range maxInFlight {
		calls.Go(func() {
			if err := s.pool.Write(t.Context(), "destroying domain ci-1", destroy); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all callers wait for the dial", func() bool {
		s.pool.mu.Lock()
		defer s.pool.mu.Unlock()
		return s.pool.dialling != nil && s.pool.dialling.waiting == maxInFlight
	})
	s.wake <- struct{}{}
	calls.Wait()
	if got := s.Connections(); got != 1 {
		t.Errorf("%d callers took %d connections, want 1", maxInFlight, got)
	}
}

func TestALibvirtErrorKeepsTheConnection(t *testing.T) {
	s := start(t, on(wire.ProcDomainLookupByName, func(*scripted, int) *wire.Error {
		return &wire.Error{Code: uint32(libvirt.ErrNoDomain), Message: "Domain not found"}
	}))
	for range 2 {
		err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup)
		var answer libvirt.Error
		if !errors.As(err, &answer) || answer.Code != uint32(libvirt.ErrNoDomain) {
			t.Fatalf("got %v, want libvirt's error", err)
		}
		if want := "looking up domain ci-1 on host hv1: Domain not found"; err.Error() != want {
			t.Errorf("the text is %q, want %q", err, want)
		}
	}
	if s.Connections() != 1 || s.Calls()[wire.ProcDomainLookupByName] != 2 {
		t.Errorf("%d connections and %d calls, want 1 and 2", s.Connections(), s.Calls()[wire.ProcDomainLookupByName])
	}
}

func TestAnErrorOfTheCallersOwnKeepsTheConnection(t *testing.T) {
	s := start(t, obliging)
	// the end of an HTTP body must not be taken for the daemon's
	for range 2 {
		err := s.pool.Read(t.Context(), "reading", func(*libvirt.Libvirt) error { return io.ErrUnexpectedEOF })
		if !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, egress.ErrUnreachable) {
			t.Errorf("got %v", err)
		}
	}
	if got := s.Connections(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
}

func TestAConnectionLostBetweenCallsIsReplacedUnseen(t *testing.T) {
	s := start(t, obliging)
	if err := s.pool.Write(t.Context(), "destroying domain ci-1", destroy); err != nil {
		t.Fatal(err)
	}
	wire := s.pool.current.wire
	s.DropAll()
	<-wire.lost
	if err := s.pool.Write(t.Context(), "destroying domain ci-1", destroy); err != nil {
		t.Errorf("the call after the loss failed: %v", err)
	}
	if got := s.Connections(); got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
}

func TestReadIsRepeatedOnceAfterALoss(t *testing.T) {
	for drops, wantCalls := range map[int]int{1: 2, 2: 2} {
		s := start(t, on(wire.ProcDomainLookupByName, func(_ *scripted, nth int) *wire.Error {
			if nth <= drops {
				return wire.Drop
			}
			return nil
		}))
		err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup)
		if failed := err != nil; failed != (drops > 1) {
			t.Errorf("after %d losses Read gave %v", drops, err)
		}
		if got := s.Calls()[wire.ProcDomainLookupByName]; got != wantCalls {
			t.Errorf("after %d losses the daemon got %d calls, want %d", drops, got, wantCalls)
		}
	}
}

func TestWriteIsNeverRepeated(t *testing.T) {
	s := start(t, on(wire.ProcDomainDestroy, func(*scripted, int) *wire.Error { return wire.Drop }))
	err := s.pool.Write(t.Context(), "destroying domain ci-1", destroy)
	if !errors.Is(err, egress.ErrUnreachable) {
		t.Errorf("got %v, want unreachable", err)
	}
	says(t, err, "destroying domain ci-1 on host hv1", "connection lost")
	if got := s.Calls()[wire.ProcDomainDestroy]; got != 1 {
		t.Errorf("the daemon got %d calls, want 1", got)
	}
}

func TestAnEndedContextFreesABlockedCallAndSparesItsNeighbours(t *testing.T) {
	s := start(t, on(wire.ProcDomainLookupByName, func(s *scripted, _ int) *wire.Error {
		<-s.wake
		return nil
	}))
	entered, release := make(chan struct{}), make(chan struct{})
	neighbour := make(chan error, 1)
	go func() {
		neighbour <- s.pool.Write(t.Context(), "destroying domain ci-2", func(lv *libvirt.Libvirt) error {
			close(entered)
			<-release
			return destroy(lv)
		})
	}()
	<-entered

	ctx, cancel := context.WithCancel(t.Context())
	blocked := make(chan error, 1)
	go func() { blocked <- s.pool.Read(ctx, "looking up domain ci-1", lookup) }()
	eventually(t, "the call reaches the daemon", func() bool { return s.Calls()[wire.ProcDomainLookupByName] == 1 })
	cancel()
	err := <-blocked
	if !errors.Is(err, context.Canceled) || errors.Is(err, egress.ErrUnreachable) {
		t.Errorf("the cancelled call gave %v", err)
	}
	says(t, err, "looking up domain ci-1 on host hv1", "gave up after")

	// the next call does not use the connection that has gone quiet
	if err := s.pool.Write(t.Context(), "destroying domain ci-3", destroy); err != nil {
		t.Errorf("the next call failed: %v", err)
	}
	if got := s.Connections(); got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
	close(release)
	if err := <-neighbour; err != nil {
		t.Errorf("the neighbour failed: %v", err)
	}
	eventually(t, "the retired connection is closed", func() bool { return s.Open() == 1 })
}

func TestARetiredConnectionIsClosedAfterItsGrace(t *testing.T) {
	s := start(t, on(wire.ProcDomainLookupByName, func(*scripted, int) *wire.Error { return wire.Silence }))
	s.pool.grace = 20 * time.Millisecond
	neighbour := make(chan error, 1)
	go func() { neighbour <- s.pool.Write(t.Context(), "looking up domain ci-2", lookup) }()
	eventually(t, "the neighbour's call is under way", func() bool { return s.Calls()[wire.ProcDomainLookupByName] == 1 })
	if err := s.pool.Write(soon(t), "looking up domain ci-1", lookup); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	err := <-neighbour
	if !errors.Is(err, egress.ErrUnreachable) {
		t.Errorf("the neighbour got %v", err)
	}
	says(t, err, "looking up domain ci-2", "another call went unanswered")
}

func TestACallIsBoundedWithoutADeadline(t *testing.T) {
	s := start(t, on(wire.ProcDomainLookupByName, func(*scripted, int) *wire.Error { return wire.Silence }))
	s.pool.callTimeout = 50 * time.Millisecond
	err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup)
	if !errors.Is(err, egress.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want unreachable and not the caller's deadline", err)
	}
	says(t, err, "looking up domain ci-1 on host hv1", "the limit for one call", "virsh list")
	if got := s.Calls()[wire.ProcDomainLookupByName]; got != 1 {
		t.Errorf("an unanswered read was made %d times, want 1", got)
	}
}

func TestADaemonThatNeverOpensIsBounded(t *testing.T) {
	for name, procedure := range map[string]uint32{"authentication": wire.ProcAuthList, "open": wire.ProcConnectOpen} {
		t.Run(name, func(t *testing.T) {
			s := start(t, on(procedure, func(*scripted, int) *wire.Error { return wire.Silence }))
			s.pool.dialTimeout = 50 * time.Millisecond
			err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup)
			if !errors.Is(err, egress.ErrUnreachable) {
				t.Errorf("got %v", err)
			}
			says(t, err, "looking up domain ci-1", "did not answer", "timed out after 50ms")
			// a failed dial is forgotten: the next call tries again
			if err := s.pool.Read(soon(t), "looking up domain ci-1", lookup); err == nil || s.Connections() != 2 {
				t.Errorf("the next call gave %v after %d connections, want a second attempt", err, s.Connections())
			}
		})
	}
}

func TestADaemonsRefusalToOpenIsExplained(t *testing.T) {
	for _, tc := range []struct {
		code libvirt.ErrorNumber
		kind error
		says string
	}{
		{libvirt.ErrAuthUnavailable, egress.ErrPermanent, "usermod -aG libvirt"},
		{libvirt.ErrNoConnect, egress.ErrPermanent, "libvirt-daemon-driver-qemu"},
		{libvirt.ErrSystemError, egress.ErrUnreachable, "daemon's log"},
	} {
		s := start(t, on(wire.ProcConnectOpen, func(*scripted, int) *wire.Error {
			return &wire.Error{Code: uint32(tc.code), Message: "said the daemon"}
		}))
		err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup)
		if !errors.Is(err, tc.kind) {
			t.Errorf("code %d is of kind %v", tc.code, fault(t, err).Kind)
		}
		says(t, err, "opening qemu:///system: said the daemon", tc.says)
	}
}

func TestADaemonThatHangsUpWhileOpeningIsUnreachable(t *testing.T) {
	for _, procedure := range []uint32{wire.ProcAuthList, wire.ProcConnectOpen} {
		s := start(t, on(procedure, func(*scripted, int) *wire.Error { return wire.Drop }))
		err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup)
		if !errors.Is(err, egress.ErrUnreachable) {
			t.Errorf("got %v", err)
		}
		says(t, err, "the daemon closed the connection")
	}
}

func TestNoMoreCallsInFlightThanTheDaemonServes(t *testing.T) {
	s := start(t, on(wire.ProcDomainLookupByName, func(s *scripted, _ int) *wire.Error {
		<-s.wake
		return nil
	}))
	const callers = 12
	var calls sync.WaitGroup
	for range callers {
		calls.Go(func() {
			if err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "the slots fill", func() bool { return s.Calls()[wire.ProcDomainLookupByName] == maxInFlight })

	err := s.pool.Read(soon(t), "looking up domain ci-2", lookup)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller without a slot got %v", err)
	}
	says(t, err, "waiting for one of 4 other calls")

	for range callers {
		s.wake <- struct{}{}
	}
	calls.Wait()
	if got := s.MaxInFlight(); got > maxInFlight {
		t.Errorf("%d calls were in flight, want at most %d", got, maxInFlight)
	}
}

func TestHostsDoNotWaitForEachOther(t *testing.T) {
	stuck := start(t, on(wire.ProcConnectOpen, func(*scripted, int) *wire.Error { return wire.Silence }))
	well := start(t, obliging)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { waiting <- stuck.pool.Read(ctx, "looking up domain ci-1", lookup) }()
	eventually(t, "the stuck host is being opened", func() bool { return stuck.Calls()[wire.ProcConnectOpen] == 1 })
	if err := well.pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestStreamUsesAConnectionOfItsOwn(t *testing.T) {
	s := start(t, obliging)
	if err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
		t.Fatal(err)
	}
	const size = 9 << 20
	err := s.pool.Stream(t.Context(), "uploading volume base", func(lv *libvirt.Libvirt) error {
		return lv.StorageVolUpload(libvirt.StorageVol{}, bytes.NewReader(make([]byte, size)), 0, size, 0)
	})
	if err != nil || s.StreamBytes() != size {
		t.Errorf("the upload gave %v after %d bytes", err, s.StreamBytes())
	}
	if got := s.Connections(); got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
	eventually(t, "the stream's connection is closed", func() bool { return s.Open() == 1 })
}

func TestACancelledStreamReturnsAtOnce(t *testing.T) {
	s := start(t, obliging)
	source, feed := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	uploading := make(chan error, 1)
	go func() {
		uploading <- s.pool.Stream(ctx, "uploading volume base", func(lv *libvirt.Libvirt) error {
			return lv.StorageVolUpload(libvirt.StorageVol{}, source, 0, 0, 0)
		})
	}()
	if _, err := feed.Write(make([]byte, 1<<10)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-uploading; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	closeOrFail(t, feed.Close) // the source ends with the context
	eventually(t, "the stream's connection is closed", func() bool { return s.Open() == 0 })
}

func TestALostStreamIsUnreachable(t *testing.T) {
	s := start(t, on(wire.ProcStorageVolUpload, func(*scripted, int) *wire.Error { return wire.Drop }))
	err := s.pool.Stream(t.Context(), "uploading volume base", func(lv *libvirt.Libvirt) error {
		return lv.StorageVolUpload(libvirt.StorageVol{}, bytes.NewReader(make([]byte, 1<<20)), 0, 0, 0)
	})
	if !errors.Is(err, egress.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
	says(t, err, "uploading volume base on host hv1")
}

func TestCloseEndsRunningCallsAndRefusesNewOnes(t *testing.T) {
	s := start(t, on(wire.ProcDomainLookupByName, func(*scripted, int) *wire.Error { return wire.Silence }))
	running := make(chan error, 1)
	go func() { running <- s.pool.Write(t.Context(), "looking up domain ci-1", lookup) }()
	eventually(t, "the call is under way", func() bool { return s.Calls()[wire.ProcDomainLookupByName] == 1 })
	closeOrFail(t, s.pool.Close)
	if err := <-running; !errors.Is(err, egress.ErrUnreachable) {
		t.Errorf("the running call got %v", err)
	}
	for name, call := range map[string]func(context.Context, string, func(*libvirt.Libvirt) error) error{
		"Read": s.pool.Read, "Write": s.pool.Write, "Stream": s.pool.Stream,
	} {
		if err := call(t.Context(), "looking up domain ci-1", lookup); !errors.Is(err, errPoolClosed) {
			t.Errorf("%s after Close gave %v", name, err)
		}
	}
}

func TestCloseTakesLeaveOfTheDaemon(t *testing.T) {
	s := start(t, obliging)
	if err := s.pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
		t.Fatal(err)
	}
	closeOrFail(t, s.pool.Close)
	if got := s.Calls()[wire.ProcConnectClose]; got != 1 {
		t.Errorf("the daemon was told %d times, want once", got)
	}
	eventually(t, "the connection is closed", func() bool { return s.Open() == 0 })
}

func TestAnEndedContextConnectsToNobody(t *testing.T) {
	s := start(t, obliging)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.pool.Read(ctx, "looking up domain ci-1", lookup); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := s.Connections(); got != 0 {
		t.Errorf("%d connections, want none", got)
	}
}

func TestAnInvalidHostFailsEveryCall(t *testing.T) {
	pool := New(Host{Name: "hv1", URI: "xen:///system"})
	var called atomic.Bool
	err := pool.Write(t.Context(), "destroying domain ci-1", func(*libvirt.Libvirt) error {
		called.Store(true)
		return nil
	})
	if !errors.Is(err, egress.ErrPermanent) || called.Load() {
		t.Errorf("got %v, called: %v", err, called.Load())
	}
	closeOrFail(t, pool.Close)
}
