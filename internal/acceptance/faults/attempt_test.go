package faults

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

// attempt is a test of something that may have to be tried again: its failures
// are kept until it is known that they count.
type attempt struct {
	testing.TB
	mu       sync.Mutex
	failures []string
}

// attempts is how often a point is tried whose daemon dies of itself.
const attempts = 3

// untilTried runs a point, and runs it again under another name when libvirtd
// itself died meanwhile: what then fails says nothing about us. libvirtd 9.0 does
// so in hundreds of broken connections ("corrupted double-linked list", from
// malloc). Each time is printed, and a point that never has a daemon that lives
// fails.
func untilTried(t *testing.T, name string, run func(t testing.TB, name string)) {
	t.Helper()
	for n := 1; ; n++ {
		before := hv.Deaths()
		a := &attempt{TB: t}
		ended := make(chan struct{})
		go func() { // which FailNow can end
			defer close(ended)
			run(a, name)
		}()
		<-ended
		if len(a.failures) == 0 || n == attempts || !diedSince(before) {
			for _, failure := range a.failures {
				t.Error(failure)
			}
			return
		}
		fmt.Fprintf(os.Stderr, "%s is tried again, since libvirtd died meanwhile; it said: %q\n", t.Name(), a.failures)
		name += "-again"
	}
}

// diedSince tells whether libvirtd has died since it had done so before times. It
// waits a moment, since a lost connection is seen sooner than its reason, and
// until there is a daemon again.
func diedSince(before int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	died := reached(ctx, func() bool { return hv.Deaths() > before })
	_ = hv.PID() // which is known once it runs
	return died
}

func (a *attempt) fail(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failures = append(a.failures, text)
}

// Failed tells whether it has failed so far.
func (a *attempt) Failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.failures) > 0
}

func (a *attempt) Error(args ...any)            { a.fail(fmt.Sprint(args...)) }
func (a *attempt) Errorf(f string, args ...any) { a.fail(fmt.Sprintf(f, args...)) }
func (a *attempt) Fatal(args ...any)            { a.Error(args...); a.FailNow() }
func (a *attempt) Fatalf(f string, args ...any) { a.Errorf(f, args...); a.FailNow() }

// FailNow ends the attempt.
func (a *attempt) FailNow() {
	if !a.Failed() {
		a.fail("failed")
	}
	runtime.Goexit()
}
