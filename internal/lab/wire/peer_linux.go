package wire

import (
	"fmt"
	"net"
	"syscall"
)

// peerPID gives the process at the other end of a unix socket (SO_PEERCRED,
// unix(7)). Behind an SSH forward that is the SSH server's process.
func peerPID(conn net.Conn) (int, error) {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("no peer process on a %T", conn)
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("finding the peer's process: %w", err)
	}
	var cred *syscall.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err == nil {
		err = credErr
	}
	if err != nil {
		return 0, fmt.Errorf("finding the peer's process: %w", err)
	}
	return int(cred.Pid), nil
}
