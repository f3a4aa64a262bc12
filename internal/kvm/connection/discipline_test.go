package connection

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// onEveryWay runs a test on each way to a daemon.
func onEveryWay(t *testing.T, test func(t *testing.T, way string)) {
	t.Helper()
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		t.Run(way, func(t *testing.T) { test(t, way) })
	}
}

func TestEveryWayLeavesNothingBehind(t *testing.T) {
	once := func(pool *Pool, ctx context.Context) error {
		return pool.Read(ctx, "looking up domain ci-1", lookup)
	}
	unanswered := on(wire.ProcDomainLookupByName, func(*scripted, int) *wire.Error { return wire.Silence })
	for name, tc := range map[string]struct {
		handler func(*scripted) wire.Handler
		run     func(t *testing.T, r *route, pool *Pool) error
		want    error // nil for success
	}{
		"after success": {obliging, func(t *testing.T, _ *route, pool *Pool) error {
			stream := pool.Stream(t.Context(), "uploading volume base", func(lv *libvirt.Libvirt) error {
				return lv.StorageVolUpload(libvirt.StorageVol{}, bytes.NewReader(make([]byte, 1<<20)), 0, 1<<20, 0)
			})
			return errors.Join(stream, once(pool, t.Context()))
		}, nil},
		"after the daemon's refusal": {on(wire.ProcConnectOpen, func(*scripted, int) *wire.Error {
			return &wire.Error{Code: uint32(libvirt.ErrAuthFailed), Message: "no"}
		}), func(t *testing.T, _ *route, pool *Pool) error { return once(pool, t.Context()) }, egress.ErrPermanent},
		"after a loss": {on(wire.ProcDomainLookupByName, func(*scripted, int) *wire.Error { return wire.Drop }),
			func(t *testing.T, _ *route, pool *Pool) error { return once(pool, t.Context()) }, egress.ErrUnreachable},
		"after a call without an answer": {unanswered, func(t *testing.T, _ *route, pool *Pool) error {
			pool.callTimeout = 50 * time.Millisecond
			return once(pool, t.Context())
		}, egress.ErrUnreachable},
		"with a call under way": {unanswered, func(t *testing.T, r *route, pool *Pool) error {
			running := make(chan error, 1)
			go func() { running <- pool.Write(t.Context(), "looking up domain ci-1", lookup) }()
			eventually(t, "the call is under way", func() bool { return r.Calls()[wire.ProcDomainLookupByName] == 1 })
			closeOrFail(t, pool.Close)
			return <-running
		}, egress.ErrUnreachable},
		"after a stall before the first byte": {obliging, func(t *testing.T, r *route, pool *Pool) error {
			r.freeze()
			pool.dialTimeout = 50 * time.Millisecond
			return once(pool, t.Context())
		}, egress.ErrUnreachable},
		"closed while it connects": {obliging, func(t *testing.T, r *route, pool *Pool) error {
			r.freeze()
			running := make(chan error, 1)
			go func() { running <- once(pool, t.Context()) }()
			eventually(t, "it connects", func() bool { return r.accepted.Load() == 1 })
			closeOrFail(t, pool.Close)
			return <-running
		}, errPoolClosed},
		"closed on a link that has gone dead": {obliging, func(t *testing.T, r *route, pool *Pool) error {
			if err := once(pool, t.Context()); err != nil {
				return err
			}
			r.freeze()
			return nil
		}, nil},
		"after a cancelled upload on a link that has gone dead": {obliging, func(t *testing.T, r *route, pool *Pool) error {
			ctx, cancel := context.WithCancel(t.Context())
			return pool.Stream(ctx, "uploading volume base", func(lv *libvirt.Libvirt) error {
				r.freeze()
				time.AfterFunc(20*time.Millisecond, cancel)
				return lv.StorageVolUpload(libvirt.StorageVol{}, bytes.NewReader(make([]byte, 64<<20)), 0, 64<<20, 0)
			})
		}, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			onEveryWay(t, func(t *testing.T, way string) {
				r := startRoute(t, way, 0, tc.handler)
				nothingLeft(t) // what serves the client stays up meanwhile
				pool := New(r.host)
				t.Cleanup(func() {
					closeOrFail(t, pool.Close)
					if r.frozen() {
						r.revive() // the end of a connection arrives as everything else does
					}
					eventually(t, "the client's connections are closed", func() bool { return r.connections() == 0 })
				})
				err := tc.run(t, r, pool)
				if (err == nil) != (tc.want == nil) || (tc.want != nil && !errors.Is(err, tc.want)) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			})
		})
	}
}

func TestASlowLinkIsWaitedForOnEveryWay(t *testing.T) {
	const roundTrip = 200 * time.Millisecond
	onEveryWay(t, func(t *testing.T, way string) {
		if way == "unix" || way == "tcp" {
			return // they are what the others are made of
		}
		t.Parallel()
		r := startRoute(t, way, roundTrip/2, obliging)
		pool := New(r.host)
		defer closeOrFail(t, pool.Close)
		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() {
				if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		err := pool.Stream(t.Context(), "uploading volume base", func(lv *libvirt.Libvirt) error {
			return lv.StorageVolUpload(libvirt.StorageVol{}, bytes.NewReader(make([]byte, 1<<20)), 0, 1<<20, 0)
		})
		if err != nil || r.StreamBytes() != 1<<20 {
			t.Errorf("the upload gave %v after %d bytes", err, r.StreamBytes())
		}
		ctx, cancel := context.WithTimeout(t.Context(), roundTrip/4)
		defer cancel()
		if err := pool.Read(ctx, "looking up domain ci-1", lookup); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call without time for an answer gave %v", err)
		}
		if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Errorf("the call after it gave %v", err)
		}
	})
}

func TestALinkThatGoesDeadEndsCallsAndIsReplaced(t *testing.T) {
	onEveryWay(t, func(t *testing.T, way string) {
		r := startRoute(t, way, 0, obliging)
		pool := New(r.host)
		defer closeOrFail(t, pool.Close)
		if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Fatal(err)
		}
		r.freeze()
		pool.callTimeout, pool.dialTimeout = 50*time.Millisecond, 50*time.Millisecond
		err := pool.Write(t.Context(), "destroying domain ci-1", destroy)
		if !errors.Is(err, egress.ErrUnreachable) {
			t.Errorf("a bounded call gave %v", err)
		}
		says(t, err, "destroying domain ci-1 on host hv1", "gave up after")
		pool.callTimeout, pool.dialTimeout = patience, patience
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := make(chan error, 1)
		go func() { cancelled <- pool.Read(ctx, "looking up domain ci-1", lookup) }()
		cancel()
		if err := <-cancelled; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled call gave %v", err)
		}
		r.revive()
		if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
			t.Errorf("after the link is back: %v", err)
		}
	})
}

func TestADaemonRestartedInBetweenIsReconnectedTo(t *testing.T) {
	onEveryWay(t, func(t *testing.T, way string) {
		r := startRoute(t, way, 0, obliging)
		pool := New(r.host)
		defer closeOrFail(t, pool.Close)
		write := func() error { return pool.Write(t.Context(), "destroying domain ci-1", destroy) }
		if err := write(); err != nil {
			t.Fatal(err)
		}
		lost := pool.current.wire.lost
		closeOrFail(t, r.Close)
		<-lost
		if err := write(); !errors.Is(err, egress.ErrUnreachable) {
			t.Errorf("without a daemon: %v", err)
		}
		again, err := wire.StartDaemon(r.socket, obliging(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer closeOrFail(t, again.Close)
		if err := write(); err != nil {
			t.Errorf("with the daemon back: %v", err)
		}
		if got := again.Calls()[wire.ProcDomainDestroy]; got != 1 {
			t.Errorf("the new daemon got %d calls, want 1", got)
		}
	})
}

func TestALossUnderACallRepeatsReadsOnceAndWritesNever(t *testing.T) {
	onEveryWay(t, func(t *testing.T, way string) {
		drop := func(s *scripted) wire.Handler {
			return func(procedure uint32, _ []byte) ([]byte, *wire.Error) {
				if procedure == wire.ProcDomainLookupByName || procedure == wire.ProcDomainDestroy {
					return nil, wire.Drop
				}
				return nil, nil
			}
		}
		r := startRoute(t, way, 0, drop)
		pool := New(r.host)
		defer closeOrFail(t, pool.Close)
		for name, call := range map[string]error{
			"read":  pool.Read(t.Context(), "looking up domain ci-1", lookup),
			"write": pool.Write(t.Context(), "destroying domain ci-1", destroy),
		} {
			if !errors.Is(call, egress.ErrUnreachable) {
				t.Errorf("the %s gave %v", name, call)
			}
		}
		if calls := r.Calls(); calls[wire.ProcDomainLookupByName] != 2 || calls[wire.ProcDomainDestroy] != 1 {
			t.Errorf("the daemon got %d reads and %d writes, want 2 and 1", calls[wire.ProcDomainLookupByName], calls[wire.ProcDomainDestroy])
		}
	})
}

// A daemon with max_client_requests = 1 reads no more from a client until it
// has answered.
func TestADaemonThatServesOneCallAtATimeServesTenCallers(t *testing.T) {
	onEveryWay(t, func(t *testing.T, way string) {
		var serving sync.Mutex
		r := startRoute(t, way, 0, func(s *scripted) wire.Handler {
			others := obliging(s)
			return func(procedure uint32, arguments []byte) ([]byte, *wire.Error) {
				serving.Lock()
				defer serving.Unlock()
				return others(procedure, arguments)
			}
		})
		pool := New(r.host)
		defer closeOrFail(t, pool.Close)
		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() {
				if err := pool.Read(t.Context(), "looking up domain ci-1", lookup); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		if got := r.Calls()[wire.ProcDomainLookupByName]; got != 10 {
			t.Errorf("the daemon got %d calls, want 10", got)
		}
		if got := r.Connections(); got != 1 {
			t.Errorf("%d connections, want 1", got)
		}
	})
}
