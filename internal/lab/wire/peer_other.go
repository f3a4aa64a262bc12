//go:build !linux

package wire

import (
	"errors"
	"net"
)

// peerPID fails: SO_PEERCRED is Linux's.
func peerPID(net.Conn) (int, error) {
	return 0, errors.New("finding the peer's process: needs Linux")
}
