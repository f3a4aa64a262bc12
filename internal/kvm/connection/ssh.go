package connection

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// An SSH connection is asked at each interval whether it is alive, and given up
// when an answer takes keepaliveMisses intervals: on a slow link it has to
// queue behind an upload's data.
const (
	keepaliveInterval = 15 * time.Second
	keepaliveMisses   = 3
)

// sshTransport reaches a daemon through an SSH server that forwards to the
// daemon's unix socket (direct-streamlocal@openssh.com). All connections to a
// host share one SSH connection, and the bastions' before it.
type sshTransport struct {
	endpoint endpoint
	// ticks gives the moments at which to ask whether the server is alive
	ticks func() (ticks <-chan time.Time, stop func())

	dialling chan struct{} // held by the one that logs in

	mu     sync.Mutex
	closed bool
	client *sshClient // nil when there is none
}

func newSSHTransport(e endpoint) *sshTransport {
	return &sshTransport{
		endpoint: e,
		dialling: make(chan struct{}, 1),
		ticks: func() (<-chan time.Time, func()) {
			ticker := time.NewTicker(keepaliveInterval)
			return ticker.C, ticker.Stop
		},
	}
}

// open forwards to the first of the daemon's sockets that takes the
// connection.
func (t *sshTransport) open(ctx context.Context) (net.Conn, error) {
	client, reused, err := t.login(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := t.forward(ctx, client)
	var broken *brokenError
	if reused && errors.As(err, &broken) {
		// it broke while nobody used it, which no one needs to hear of
		if client, _, err = t.login(ctx); err != nil {
			return nil, err
		}
		conn, err = t.forward(ctx, client)
	}
	return conn, err
}

// close ends the SSH connection, and all that it carries.
func (t *sshTransport) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.client != nil {
		_ = t.client.Close()
		t.client = nil
	}
}

// login gives the SSH connection, and makes it where there is none; reused
// tells which.
func (t *sshTransport) login(ctx context.Context) (client *sshClient, reused bool, err error) {
	select {
	case t.dialling <- struct{}{}:
		defer func() { <-t.dialling }()
	case <-ctx.Done():
		return nil, false, timedOut(ctx, t.server(), "waiting for another login to end")
	}
	t.mu.Lock()
	client = t.client
	t.mu.Unlock()
	if client != nil && !client.isGone() {
		return client, true, nil
	}
	raw, root, err := t.dial(ctx)
	if err != nil {
		return nil, false, err
	}
	client = &sshClient{Client: raw, root: root, gone: make(chan struct{}), answered: make(chan error, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = root.Close()
		return nil, false, errPoolClosed
	}
	t.client = client
	go client.watch()
	go client.keepAlive(t.ticks())
	return client, false, nil
}

// forward opens a channel to the daemon's socket.
func (t *sshTransport) forward(ctx context.Context, client *sshClient) (net.Conn, error) {
	var failures []error
	for _, path := range t.endpoint.sockets {
		conn, err := client.DialContext(ctx, "unix", path)
		var refused *ssh.OpenChannelError
		switch {
		case err == nil:
			client.carry()
			return &forwardedConn{Conn: conn, client: client}, nil
		case errors.As(err, &refused) && refused.Reason == ssh.Prohibited:
			return nil, at(t.server(), &egress.Fault{
				Kind:   egress.ErrPermanent,
				Cause:  fmt.Errorf("the SSH server forbids forwarding to %s: %w", path, err),
				Remedy: forwardingRemedy,
			})
		case errors.As(err, &refused):
			failures = append(failures, fmt.Errorf("%s: %s", path, refused.Message))
		default:
			t.drop(client)
			if ctx.Err() != nil {
				return nil, timedOut(ctx, t.server(), "waiting for the SSH server to open "+path)
			}
			return nil, at(t.server(), &egress.Fault{
				Kind:  egress.ErrUnreachable,
				Cause: &brokenError{path: path, cause: err},
			})
		}
	}
	user := t.server().user
	return nil, at(t.server(), &egress.Fault{
		Kind:  egress.ErrUnreachable,
		Cause: fmt.Errorf("the SSH server could not open the daemon's socket: %w", joined(failures)),
		// OpenSSH gives the same answer for all three (serverloop.c)
		Remedy: fmt.Sprintf("See that libvirtd (or virtqemud) runs on %s and that %s may open its socket (usually `usermod -aG libvirt %s`), or name the socket: ?socket=/path in the URI. "+
			"If all that is so, the SSH server may forbid it: %s", t.endpoint.host, user, user, forwardingRemedy),
	})
}

const forwardingRemedy = "Set `AllowStreamLocalForwarding yes` in that machine's sshd_config, and see that the key's options in authorized_keys (restrict, no-port-forwarding) allow forwarding."

// server gives the host's own SSH server.
func (t *sshTransport) server() hop { return t.endpoint.hops[len(t.endpoint.hops)-1] }

// brokenError says that the SSH connection broke while it was to open a
// channel.
type brokenError struct {
	path  string
	cause error
}

func (e *brokenError) Error() string {
	return fmt.Sprintf("the SSH connection broke while opening %s: %v", e.path, e.cause)
}
func (e *brokenError) Unwrap() error { return e.cause }

// drop keeps new connections off an SSH connection that did not do its work,
// and ends it as soon as nothing else runs over it.
func (t *sshTransport) drop(client *sshClient) {
	t.mu.Lock()
	if t.client == client {
		t.client = nil
	}
	t.mu.Unlock()
	client.retire()
}

// sshClient is an SSH connection that knows when it ended and what it carries.
type sshClient struct {
	*ssh.Client
	root     io.Closer     // the first connection on the way, which carries all others
	gone     chan struct{} // closed when the connection has ended
	answered chan error    // what came of the last keepalive; empty while it is under way

	mu      sync.Mutex
	carried int
	retired bool
}

func (c *sshClient) isGone() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// Close ends the connection and those to the bastions before it, without a
// word to anybody: on a stalled link a word takes for ever.
func (c *sshClient) Close() error { return c.root.Close() }

func (c *sshClient) watch() {
	_ = c.Wait() // it ends with an error always; what matters is that it ended
	close(c.gone)
	_ = c.Close() // the bastions' have not ended with it
}

// keepAlive asks the server at each tick whether it is there, as OpenSSH's
// ServerAliveInterval does, and ends the connection when an answer stays out.
// Any answer counts: servers refuse the request, which shows that they live.
func (c *sshClient) keepAlive(ticks <-chan time.Time, stop func()) {
	defer stop()
	c.answered <- nil
	for missed := 0; missed < keepaliveMisses; {
		select {
		case <-ticks:
		case <-c.gone:
			return
		}
		select {
		case err := <-c.answered:
			if err != nil {
				_ = c.Close()
				return
			}
			missed = 0
			go func() {
				_, _, err := c.SendRequest("keepalive@openssh.com", true, nil)
				c.answered <- err
			}()
		default:
			missed++
		}
	}
	_ = c.Close()
}

func (c *sshClient) carry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.carried++
}

func (c *sshClient) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.carried--
	if c.retired && c.carried == 0 {
		_ = c.Close()
	}
}

func (c *sshClient) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = true
	if c.carried == 0 {
		_ = c.Close()
	}
}

// forwardedConn is a channel to a daemon's socket.
type forwardedConn struct {
	net.Conn
	client *sshClient
	once   sync.Once
}

// Close closes the channel without waiting: the message that closes it has to
// queue behind what is being sent, which on a stalled link takes until the
// keepalive ends the SSH connection.
func (c *forwardedConn) Close() error {
	c.once.Do(func() {
		go func() {
			_ = c.Conn.Close()
			c.client.release()
		}()
	})
	return nil
}
