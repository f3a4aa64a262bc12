package connection

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/wire"
)

// TestAStallAtAnyStageOfAnyServerIsBoundedAndCancellable lets each server of a
// chain go quiet at each stage of the way to an open connection.
func TestAStallAtAnyStageOfAnyServerIsBoundedAndCancellable(t *testing.T) {
	points := 0
	for _, stage := range []struct {
		name string
		at   sshserver.Stall
		says string // %s is what the server was to connect to
	}{
		{"TCP accepted and silent", sshserver.AtBanner, "waiting for the SSH handshake"},
		{"silent after the banner", sshserver.AtKeyExchange, "waiting for the SSH handshake"},
		{"silent after the key exchange", sshserver.AfterKeyExchange, "waiting for the SSH server to ask for a key"},
		{"silent when shown a key", sshserver.AtAuth, "waiting for the SSH server to accept a key"},
		{"silent after the login", sshserver.AfterAuth, "%s"},
		{"channel left unopened", sshserver.AtChannel, "%s"},
	} {
		for place, server := range []struct{ name, hop, next string }{
			{"first bastion", "bastion 1, jumper@127.0.0.1:", "waiting for the bastion to connect to jump2.internal:2222"},
			{"second bastion", "bastion 2, jumper@jump2.internal:2222", "waiting for the bastion to connect to hv1.internal:2222"},
			{"host", "the host itself, ops@hv1.internal:2222", "waiting for the SSH server to open /run/libvirt/libvirt-sock"},
		} {
			for _, ending := range []string{"time-out", "cancellation"} {
				points++
				t.Run(fmt.Sprintf("%s/%s/%s", stage.name, server.name, ending), func(t *testing.T) {
					nothingLeft(t)
					c := startChain(t, stallSocket(t, obliging), 2, func(i int, o *sshserver.Options) {
						if i == place {
							o.Stall = stage.at
						}
					})
					pool := New(c.host(t, c.servers[0].Addr()))
					defer closeOrFail(t, pool.Close)
					if ending == "cancellation" {
						expectCancelled(t, pool, func() bool { return c.servers[place].Stalled() > 0 })
						return
					}
					timeOutOnce(pool, func() bool { return c.servers[place].Stalled() > 0 })
					err := pool.Read(t.Context(), "looking up domain ci-1", lookup)
					if !errors.Is(err, egress.ErrUnreachable) {
						t.Errorf("got %v", err)
					}
					text := stage.says
					if text == "%s" {
						text = server.next
					}
					says(t, err, "looking up domain ci-1 on host hv1", "through jumper@127.0.0.1:", server.hop, text, "timed out after 42s", "ssh ")
				})
			}
		}
	}
	for name, procedure := range map[string]uint32{
		"daemon silent when asked how to authenticate": wire.ProcAuthList,
		"daemon silent when opened":                    wire.ProcConnectOpen,
		"daemon silent after it was opened":            wire.ProcDomainLookupByName,
	} {
		for _, ending := range []string{"time-out", "cancellation"} {
			points++
			t.Run(name+"/"+ending, func(t *testing.T) {
				nothingLeft(t)
				asked := make(chan struct{}, 8)
				c := startChain(t, stallSocket(t, on(procedure, func(*scripted, int) *wire.Error {
					asked <- struct{}{}
					return wire.Silence
				})), 1, nil)
				pool := New(c.host(t, c.servers[0].Addr()))
				defer closeOrFail(t, pool.Close)
				if ending == "cancellation" {
					expectCancelled(t, pool, func() bool { return len(asked) > 0 })
					return
				}
				if procedure == wire.ProcDomainLookupByName {
					pool.callTimeout = 50 * time.Millisecond
				} else {
					timeOutOnce(pool, func() bool { return len(asked) > 0 })
				}
				err := pool.Read(t.Context(), "looking up domain ci-1", lookup)
				if !errors.Is(err, egress.ErrUnreachable) {
					t.Errorf("got %v", err)
				}
				says(t, err, "looking up domain ci-1 on host hv1", "virsh list")
			})
		}
	}
	t.Logf("stalls: %d points", points)
}

// stallSocket starts a daemon and gives its socket.
func stallSocket(t *testing.T, handler func(*scripted) wire.Handler) string {
	t.Helper()
	s := &scripted{path: filepath.Join(t.TempDir(), "sock")}
	var err error
	if s.Daemon, err = wire.StartDaemon(s.path, func(procedure uint32, arguments []byte) ([]byte, *wire.Error) {
		return handler(s)(procedure, arguments)
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOrFail(t, s.Close) })
	return s.path
}

// timeOutOnce lets the time to connect be over when the attempt has come as far
// as it will, however fast this machine is.
func timeOutOnce(pool *Pool, stalled func() bool) {
	pool.within = func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		go func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for !stalled() {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
			cancel(&dialTimeout{42 * time.Second})
		}()
		return ctx, func() { cancel(nil) }
	}
}

// expectCancelled cancels a call once it has come as far as it will, and wants
// it back.
func expectCancelled(t *testing.T, pool *Pool, stalled func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reading := make(chan error, 1)
	go func() { reading <- pool.Read(ctx, "looking up domain ci-1", lookup) }()
	eventually(t, "the call is stalled", stalled)
	cancel()
	select {
	case err := <-reading:
		if !errors.Is(err, context.Canceled) || errors.Is(err, egress.ErrUnreachable) {
			t.Errorf("got %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the cancelled call does not return")
	}
}
