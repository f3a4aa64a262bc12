package squidns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/proxy"
)

// startTimeout bounds how long Squid may take until it listens; it takes 0.2 s
// on an idle machine.
const startTimeout = 30 * time.Second

// AccessLog is where the rendered configuration has Squid log requests.
const AccessLog = "/var/log/squid/access.log"

// Squid is a running Squid. Only one runs at a time, since the rendered
// configuration names its files by absolute paths.
type Squid struct {
	// Addr is where it listens.
	Addr netip.AddrPort
	cmd  *exec.Cmd
	out  bytes.Buffer
	// ended is closed when the process has ended and err is set.
	ended chan struct{}
	err   error
}

// Install writes the files of a set-up as a machine would have them.
func Install(files []proxy.File) error {
	for _, f := range files {
		uid, gid, err := lookUp(f.Owner)
		if err != nil {
			return fmt.Errorf("finding the owner of %s: %w", f.Path, err)
		}
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return fmt.Errorf("making the directory of %s: %w", f.Path, err)
		}
		if err := os.WriteFile(f.Path, []byte(f.Content), os.FileMode(f.Mode)); err != nil {
			return fmt.Errorf("writing %s: %w", f.Path, err)
		}
		if err := errors.Join(os.Chmod(f.Path, os.FileMode(f.Mode)), os.Chown(f.Path, uid, gid)); err != nil {
			return fmt.Errorf("setting the owner and mode of %s: %w", f.Path, err)
		}
	}
	return nil
}

func lookUp(owner string) (uid, gid int, err error) {
	name, group, _ := strings.Cut(owner, ":")
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, err
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, 0, err
	}
	uid, err = strconv.Atoi(u.Uid)
	if err != nil {
		return 0, 0, err
	}
	gid, err = strconv.Atoi(g.Gid)
	return uid, gid, err
}

// complaint matches what Squid says of a configuration beside the notice that
// switching Via off deviates from the HTTP standard.
var complaint = regexp.MustCompile(`(WARNING|ERROR|FATAL|Bungled)`)

const viaNotice = "HTTP requires the use of Via"

// Parse runs "squid -k parse" on the installed configuration. Any warning
// counts as an error.
func Parse(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "squid", "-k", "parse", "-f", proxy.ConfigPath).CombinedOutput()
	if err != nil {
		return fmt.Errorf("squid refuses the configuration: %w\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if complaint.MatchString(line) && !strings.Contains(line, viaNotice) {
			return fmt.Errorf("squid complains about the configuration: %s", line)
		}
	}
	return nil
}

// Start runs Squid with the installed configuration until Stop, and returns
// when it listens on port.
func Start(ctx context.Context, port int) (*Squid, error) {
	for _, left := range []string{"/run/squid.pid", AccessLog} {
		if err := os.Remove(left); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("removing what an earlier squid left: %w", err)
		}
	}
	s := &Squid{
		Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)),
		cmd:   exec.Command("squid", "-N", "-f", proxy.ConfigPath),
		ended: make(chan struct{}),
	}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.cmd.WaitDelay = startTimeout
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting squid: %w", err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr.String()); err == nil {
			return s, conn.Close()
		}
		select {
		case <-s.ended:
			return nil, fmt.Errorf("squid ended at its start: %w\n%s", s.err, s.out.String())
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("squid does not listen on %s", s.Addr), s.Stop())
		case <-ticker.C:
		}
	}
}

func localhost(port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)) //nolint:gosec // a port is at most 65535
}

// Stop ends Squid at once; its helpers end when their input does. Stopping it
// again does nothing.
func (s *Squid) Stop() error {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping squid: %w", err)
	}
	<-s.ended
	return nil
}
