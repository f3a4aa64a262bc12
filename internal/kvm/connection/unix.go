package connection

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// unixTransport reaches a daemon on this machine.
type unixTransport struct{ sockets []string }

// open connects to the first socket that takes it.
func (t *unixTransport) open(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	var failures []error
	for _, path := range t.sockets {
		conn, err := dialer.DialContext(ctx, "unix", path)
		if err == nil {
			return conn, nil
		}
		failures = append(failures, socketError(path, err))
	}
	return nil, unixFault(failures)
}

func (t *unixTransport) close() {}

// socketError names the path and the bare reason, which the dialer's own error
// buries in its own words.
func socketError(path string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	return fmt.Errorf("%s: %w", path, err)
}

func unixFault(failures []error) error {
	f := &egress.Fault{Kind: egress.ErrUnreachable, Cause: joined(failures)}
	f.Remedy = "Start the daemon on this machine (`systemctl start libvirtd`, or virtqemud; for a session daemon run `virsh -c qemu:///session list`)," +
		" or name its socket: qemu+unix:///system?socket=/path."
	for _, failure := range failures {
		if errors.Is(failure, fs.ErrPermission) {
			f.Kind = egress.ErrPermanent
			f.Remedy = "This user may not open the socket: add it to the group that may (usually `usermod -aG libvirt USER`, then log in again)."
		}
	}
	return f
}

// joined gives one error on one line for several.
func joined(failures []error) error {
	texts := make([]string, len(failures))
	args := make([]any, len(failures))
	for i, failure := range failures {
		texts[i], args[i] = "%w", failure
	}
	return fmt.Errorf(strings.Join(texts, "; "), args...)
}
