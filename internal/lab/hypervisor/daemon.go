package hypervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// daemon is a running virtlogd or libvirtd.
type daemon struct {
	name    string
	process *os.Process
	socket  string
	log     string
	exited  chan struct{} // closed once the process has been waited for
	state   string        // how it ended; set before exited is closed
	ending  atomic.Bool   // it was told to end
}

// mountAndExec gives a process directories of its own in place of the
// system's, then becomes the daemon: $1 is the program, then pairs follow.
const mountAndExec = `set -eu
program=$1 pidfile=$2; shift 2
while [ $# -gt 0 ]; do
	mkdir -p "$2"
	mount --bind "$1" "$2"
	shift 2
done
exec "$program" --pid-file "$pidfile"`

// startDaemon starts a daemon over the hypervisor's directories, in a mount
// namespace of its own so that several do not see each other.
func (h *Hypervisor) startDaemon(name, socket string) (*daemon, error) {
	d := &daemon{name: name, socket: socket, log: filepath.Join(h.options.Dir, name+".log"), exited: make(chan struct{})}
	// A socket that a killed daemon left behind would look like a new one's.
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := []string{"--mount", "--propagation", "private", "sh", "-c", mountAndExec, "sh", name, filepath.Join(h.options.Dir, name+".pid")}
	for dir, place := range directories {
		args = append(args, filepath.Join(h.options.Dir, dir), place)
	}
	cmd := exec.Command("unshare", args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	// Not in the terminal's group: Ctrl-C must reach it through Stop alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	d.process = cmd.Process
	go func() {
		d.state = "ended"
		if err := cmd.Wait(); err != nil {
			d.state = err.Error()
		}
		if !d.ending.Load() {
			// Whatever fails from now on fails for that.
			fmt.Fprintf(os.Stderr, "%s ended by itself: %s; the end of %s:\n%s\n", d.name, d.state, d.log, tail(d.log))
		}
		close(d.exited)
	}()
	return d, nil
}

// startDeadline is how long a daemon may take until its socket accepts.
// libvirtd first asks QEMU what it can do, which takes seconds when the
// machine is busy.
const startDeadline = 60 * time.Second

// await waits until a daemon's socket accepts connections.
func (h *Hypervisor) await(ctx context.Context, d *daemon) error {
	if err := d.ready(ctx); err != nil {
		return err
	}
	mounts, err := mountNamespace(d.process.Pid)
	if err != nil {
		return err
	}
	h.mounts[mounts] = true
	return nil
}

func (d *daemon) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", d.socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-tick.C:
		case <-d.exited:
			return fmt.Errorf("%s ended while starting: %s; the end of %s:\n%s", d.name, d.state, d.log, tail(d.log))
		case <-ctx.Done():
			return fmt.Errorf("waiting for the socket %s of %s: %w; the end of %s:\n%s", d.socket, d.name, ctx.Err(), d.log, tail(d.log))
		}
	}
}

// alive tells whether the daemon was started and runs.
func (d *daemon) alive() bool {
	if d == nil {
		return false
	}
	select {
	case <-d.exited:
		return false
	default:
		return true
	}
}

// stop asks the daemon to end and kills it when ctx ends first.
func (d *daemon) stop(ctx context.Context) {
	if !d.alive() {
		return
	}
	d.ending.Store(true)
	_ = d.process.Signal(syscall.SIGTERM) // it may have ended just now
	select {
	case <-d.exited:
	case <-ctx.Done():
		d.kill()
	}
}

// kill ends the daemon at once and returns when it is gone.
func (d *daemon) kill() {
	if !d.alive() {
		return
	}
	d.ending.Store(true)
	_ = d.process.Kill() // it may have ended just now
	<-d.exited
}

// killLeftovers kills the processes whose PID files match a pattern in the
// hypervisor's directory: those a libvirtd that was killed, or never came up,
// left behind.
func (h *Hypervisor) killLeftovers(pattern string) error {
	files, err := filepath.Glob(filepath.Join(h.options.Dir, pattern))
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // removed by its owner meanwhile
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || !h.owns(pid) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("killing process %d of %s: %w", pid, file, err))
		}
	}
	return errors.Join(errs...)
}

// owns tells whether a process is in the mount namespace of one of this
// hypervisor's daemons: PIDs are used again, and a PID file may be old.
func (h *Hypervisor) owns(pid int) bool {
	mounts, err := mountNamespace(pid)
	return err == nil && h.mounts[mounts]
}

func mountNamespace(pid int) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
}

// tail returns the last lines of a file, for an error text.
func tail(path string) string {
	const length = 2000
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-length):]))
}
