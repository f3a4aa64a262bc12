package connection

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// patience is how long a test waits for what must come; it is never waited
// out in a test that passes.
const patience = 10 * time.Second

// scripted is a scripted daemon and a pool that reaches it.
type scripted struct {
	*wire.Daemon
	pool *Pool
	path string
	wake chan struct{} // ends the handlers that wait
}

// start starts a daemon and a pool. Its end checks that nothing is left over.
func start(t *testing.T, handler func(s *scripted) wire.Handler) *scripted {
	t.Helper()
	nothingLeft(t)
	s := &scripted{path: filepath.Join(t.TempDir(), "libvirt-sock"), wake: make(chan struct{})}
	var err error
	if s.Daemon, err = wire.StartDaemon(s.path, handler(s)); err != nil {
		t.Fatal(err)
	}
	s.pool = New(Host{Name: "hv1", URI: "qemu+unix:///system?socket=" + s.path})
	t.Cleanup(func() {
		closeOrFail(t, s.pool.Close)
		close(s.wake)
		closeOrFail(t, s.Close)
	})
	return s
}

func closeOrFail(t *testing.T, closing func() error) {
	t.Helper()
	if err := closing(); err != nil {
		t.Error(err)
	}
}

// obliging answers all calls at once.
func obliging(*scripted) wire.Handler {
	return func(procedure uint32, _ []byte) ([]byte, *wire.Error) {
		if procedure == wire.ProcDomainLookupByName {
			return wire.DomainResult("ci-1", [16]byte{1}, 7), nil
		}
		return nil, nil
	}
}

// on answers one procedure with f and all others as obliging does.
func on(procedure uint32, f func(s *scripted, nth int) *wire.Error) func(*scripted) wire.Handler {
	return func(s *scripted) wire.Handler {
		others := obliging(s)
		return func(called uint32, arguments []byte) ([]byte, *wire.Error) {
			if called == procedure {
				if err := f(s, s.Calls()[procedure]); err != nil {
					return nil, err
				}
			}
			return others(called, arguments)
		}
	}
}

func lookup(lv *libvirt.Libvirt) error {
	_, err := lv.DomainLookupByName("ci-1")
	return err
}

func destroy(lv *libvirt.Libvirt) error {
	return lv.DomainDestroy(libvirt.Domain{Name: "ci-1"})
}

// fault gives the *egress.Fault in err.
func fault(t *testing.T, err error) *egress.Fault {
	t.Helper()
	var f *egress.Fault
	if !errors.As(err, &f) {
		t.Fatalf("got %v (%T), want an *egress.Fault", err, err)
	}
	return f
}

// says checks that an error text, its remedy included, holds every part.
func says(t *testing.T, err error, parts ...string) {
	t.Helper()
	f := fault(t, err)
	text := f.Error() + "\n" + f.Remedy
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("the error does not say %q:\n%s", part, text)
		}
	}
}

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

// nothingLeft checks at the test's very end that all goroutines that began
// meanwhile are gone, and shows those that are not.
func nothingLeft(t *testing.T) {
	t.Helper()
	before := goroutines()
	t.Cleanup(func() {
		var left map[string]string
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(patience); ; <-tick.C {
			left = goroutines()
			maps.DeleteFunc(left, func(id, _ string) bool { _, was := before[id]; return was })
			if len(left) == 0 {
				return
			}
			if time.Now().After(deadline) {
				break
			}
		}
		t.Errorf("%d goroutines are left:\n%s", len(left), strings.Join(slices.Collect(maps.Values(left)), "\n\n"))
	})
}

// goroutines gives the stacks of all goroutines but this one and those of the
// testing package, by ID.
func goroutines() map[string]string {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	found := map[string]string{}
	for i, stack := range strings.Split(string(stacks), "\n\n") {
		id, _, ok := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
		if i > 0 && ok && !strings.Contains(stack, "created by testing.") {
			found[id] = stack
		}
	}
	return found
}

// soon gives a context that ends long before patience does.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
