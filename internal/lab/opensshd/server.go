// Package opensshd runs a real OpenSSH server, with keys, accounts and a
// configuration of its own, for tests of what logs in over SSH. The machine's
// own SSH server is neither used nor touched.
//
// It needs root, and should run inside the namespaces of package namespace,
// with which everything it starts ends.
package opensshd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/packages"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/sshserver"
)

// Options say what a server is to be.
type Options struct {
	// Dir is where everything of the server is kept; it is made if need be.
	Dir string
	// Address is the host:port to listen at. Empty means a free port of
	// 127.0.0.1.
	Address string
	// HostKeys identify the server. None means a fresh Ed25519 key.
	HostKeys []sshserver.Key
	// AuthorizedKeys are the lines of an authorized_keys file, options
	// included, for every user.
	AuthorizedKeys []string
	// Hosts are names that the server knows, and this process does not.
	Hosts map[string]netip.Addr
	// Lines go before the rest of sshd_config, so that they win over it.
	Lines []string
}

// Server is a running OpenSSH server. Root can log in at it.
type Server struct {
	// Address is the host:port it listens at.
	Address string
	// HostKeys are what it identifies itself with.
	HostKeys []ssh.PublicKey

	log     string
	process *os.Process
	exited  chan struct{} // closed once the process has been waited for
}

// tools is what a server needs.
var tools = []packages.Tool{{Path: "sshd", Package: "openssh-server"}, {Path: "unshare", Package: "util-linux"}}

// startDeadline is how long a server may take until it greets.
const startDeadline = 30 * time.Second

// Start starts a server and returns when it greets who connects. Beside an
// error nothing is left running. Without the package openssh-server the error
// is of kind packages.ErrMissing.
//
// sshd wants the directory /run/sshd, which is made as the system's own start
// of it would, and stays.
func Start(ctx context.Context, options Options) (*Server, error) {
	s, err := start(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("starting an SSH server in %s: %w", options.Dir, err)
	}
	return s, nil
}

func start(ctx context.Context, options Options) (*Server, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("logging users in needs root: run this with sudo")
	}
	if err := packages.Require(tools); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, err
	}
	options.Dir = dir
	if len(options.HostKeys) == 0 {
		key, err := sshserver.NewKey(ssh.KeyAlgoED25519)
		if err != nil {
			return nil, err
		}
		options.HostKeys = []sshserver.Key{key}
	}
	for _, place := range []string{dir, "/run/sshd"} {
		if err := os.MkdirAll(place, 0o755); err != nil {
			return nil, err
		}
	}
	free := options.Address == ""
	for attempt := 1; ; attempt++ {
		if free {
			if options.Address, err = freeAddress(); err != nil {
				return nil, err
			}
		}
		s, err := startAt(ctx, options)
		// somebody else may have taken the port meanwhile
		if err != nil && free && attempt < 5 && strings.Contains(err.Error(), "Address already in use") {
			continue
		}
		return s, err
	}
}

func startAt(ctx context.Context, options Options) (*Server, error) {
	if err := writeFiles(options); err != nil {
		return nil, err
	}
	s := &Server{Address: options.Address, log: filepath.Join(options.Dir, "log"), exited: make(chan struct{})}
	for _, key := range options.HostKeys {
		s.HostKeys = append(s.HostKeys, key.Public())
	}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", mountAndExec, "sh", options.Dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	// Not in the terminal's group: Ctrl-C must reach it through Stop alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.process = cmd.Process
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(s.exited)
	}()
	if err := s.ready(ctx); err != nil {
		s.Stop()
		return nil, fmt.Errorf("%w; its log:\n%s", err, s.Log())
	}
	return s, nil
}

// mountAndExec gives the server accounts and names of its own, then becomes
// it. sshd must be started by its absolute path: it starts itself again for
// each connection.
const mountAndExec = `set -eu
mount --bind "$1/shadow" /etc/shadow
mount --bind "$1/hosts" /etc/hosts
exec "$(command -v sshd)" -D -e -f "$1/sshd_config"`

// ready waits until the server greets.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if s.greets(ctx) {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.exited:
			return errors.New("it ended while starting")
		case <-ctx.Done():
			return fmt.Errorf("waiting for its greeting: %w", ctx.Err())
		}
	}
}

func (s *Server) greets(ctx context.Context) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Address)
	if err != nil {
		return false
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && strings.HasPrefix(line, "SSH-2.0-OpenSSH")
}

// PID gives the process ID of the server.
func (s *Server) PID() int { return s.process.Pid }

// Log gives what the server has logged so far.
func (s *Server) Log() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Stop ends the server and the sessions at it, and returns when it is gone. It
// may be called more than once.
func (s *Server) Stop() {
	select {
	case <-s.exited:
		return
	default:
	}
	s.DropAll()
	_ = s.process.Kill() // it may have ended just now
	<-s.exited
}

// DropAll ends the sessions at the server, as a broken network path does.
func (s *Server) DropAll() {
	for _, session := range children(s.process.Pid) {
		for _, process := range append(children(session), session) {
			_ = syscall.Kill(process, syscall.SIGKILL) // it may have ended by itself
		}
	}
}

// freeAddress gives an address nobody listens at.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
