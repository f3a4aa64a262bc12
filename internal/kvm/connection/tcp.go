package connection

import (
	"context"
	"fmt"
	"net"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// dialTCP connects, with the kernel's keepalives on: they end a connection to
// a machine that is gone after about a minute.
func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepaliveInterval, Interval: keepaliveInterval, Count: keepaliveMisses,
	}}
	return dialer.DialContext(ctx, "tcp", address)
}

// tcpTransport reaches a daemon that listens for plain TCP.
type tcpTransport struct{ address string }

func (t *tcpTransport) open(ctx context.Context) (net.Conn, error) {
	conn, err := dialTCP(ctx, t.address)
	if err != nil {
		return nil, remoteFault(ctx, err, "`listen_tcp = 1`", "virtproxyd-tcp.socket")
	}
	return conn, nil
}

func (t *tcpTransport) close() {}

// remoteFault says why no connection came about to a daemon that should listen
// on a network itself.
func remoteFault(ctx context.Context, err error, setting, unit string) error {
	f := &egress.Fault{Kind: egress.ErrUnreachable, Cause: err}
	if ctx.Err() != nil {
		f.Cause = fmt.Errorf("waiting for the TCP connection: %w", context.Cause(ctx))
	}
	f.Remedy = fmt.Sprintf("See that the machine is up, that its daemon listens there (%s in libvirtd.conf and libvirtd started with --listen, or the socket unit %s) and that no firewall is between.", setting, unit)
	return f
}
