package connection

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// session is one open connection to a daemon. The pool's mutex guards
// everything but lv and wire.
type session struct {
	lv   *libvirt.Libvirt
	wire *wireConn

	inFlight int         // calls whose callers still wait
	retired  bool        // no new calls
	grace    *time.Timer // closes a retired session; nil before
}

// openSession does libvirt's handshake on conn: authentication, then the
// opening of the driver. It owns conn, also when it fails.
func openSession(ctx context.Context, conn net.Conn, e endpoint) (*session, error) {
	wire := newWireConn(conn)
	lv := libvirt.NewWithDialer(wire)
	opened := make(chan error, 1)
	go func() {
		err := lv.ConnectToURI(e.uri)
		close(wire.settled)
		opened <- err
	}()
	select {
	case err := <-opened:
		if err == nil {
			return &session{lv: lv, wire: wire}, nil
		}
		return nil, openFault(e, wire, err)
	case <-ctx.Done():
		_ = wire.Close()
		return nil, &egress.Fault{
			Kind:   egress.ErrUnreachable,
			Cause:  fmt.Errorf("the daemon accepted the connection but did not answer: %w", context.Cause(ctx)),
			Remedy: "See whether the daemon hangs: run `virsh list` on that machine.",
		}
	}
}

// openFault explains a failed handshake.
func openFault(e endpoint, wire *wireConn, err error) error {
	f := &egress.Fault{Kind: egress.ErrUnreachable, Cause: fmt.Errorf("opening %s: %w", e.uri, err)}
	var answer libvirt.Error
	switch {
	case errors.As(err, &answer) && wantsPassword(answer):
		f.Kind = egress.ErrPermanent
		f.Cause = fmt.Errorf("opening %s: the daemon wants a user and a password (SASL), which this provider does not speak: %w", e.uri, err)
		f.Remedy = fmt.Sprintf("Set `%s = \"none\"` in libvirtd.conf (virtproxyd.conf) on that machine and restart its daemon, or reach it by qemu+ssh.", authSettings[e.way])
	case errors.As(err, &answer):
		f.Remedy, f.Kind = refusal(answer)
	case wire.isLost():
		f.Cause = fmt.Errorf("opening %s: the daemon closed the connection: %w", e.uri, wire.cause)
		f.Remedy = "See the daemon's log on that machine: it may be at its limit of clients, or restarting."
	}
	_ = wire.Close()
	return f
}

// authSettings are the settings of a daemon that say how its clients prove who
// they are.
var authSettings = map[way]string{byUnix: "auth_unix_rw", bySSH: "auth_unix_rw", byTLS: "auth_tls", byTCP: "auth_tcp"}

// wantsPassword tells a daemon that goes on only after SASL: it refuses the
// first call that needs a proven client (virNetServerProgramDispatchCall in
// src/rpc/virnetserverprogram.c).
func wantsPassword(answer libvirt.Error) bool {
	return libvirt.ErrorNumber(answer.Code) == libvirt.ErrRPC && strings.Contains(answer.Message, "authentication required")
}

// refusal gives the remedy and the kind for a daemon's refusal to open a
// connection.
func refusal(answer libvirt.Error) (remedy string, kind error) {
	switch libvirt.ErrorNumber(answer.Code) {
	case libvirt.ErrAuthFailed, libvirt.ErrAuthCancelled, libvirt.ErrAuthUnavailable, libvirt.ErrAccessDenied:
		return "Add the user to the group that may use the socket (usually libvirt: `usermod -aG libvirt USER`), or allow org.libvirt.unix.manage in polkit.", egress.ErrPermanent
	case libvirt.ErrNoSupport, libvirt.ErrNoConnect, libvirt.ErrConfigUnsupported:
		return "The daemon has no QEMU driver for this URI: install it (package libvirt-daemon-driver-qemu) and restart the daemon.", egress.ErrPermanent
	default:
		return "See the daemon's log on that machine.", egress.ErrUnreachable
	}
}

// sayGoodbye tells the daemon that the client leaves, within a bound, so that
// its log does not fill with "end of file while reading data".
func (s *session) sayGoodbye(bound time.Duration) {
	if s.wire.isLost() {
		return
	}
	done := make(chan struct{})
	go func() {
		_ = s.lv.ConnectClose() // the connection is closed either way
		close(done)
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
