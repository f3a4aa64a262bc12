// Package namespace runs a program in network, mount and PID namespaces of
// its own, so that what it does to interfaces, addresses and mounts stays
// inside, and everything it starts ends with it, even when it is killed.
//
// The program is started again, twice: the first process is PID 1 of the new
// PID namespace (see pid_namespaces(7)) and only reaps orphans; the second is
// the program proper. So the program can wait for its own children as usual.
package namespace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageVariable tells a process started again which part it plays.
const stageVariable = "EGRESSPROXY_LAB_STAGE"

// The parts a process can play.
const (
	stageInit   = "init"
	stageInside = "inside"
)

// Run calls fn inside new namespaces and returns its result as the exit code.
// It belongs into main or TestMain, as in os.Exit(namespace.Run(m.Run)):
// outside, it starts the program again with the same arguments, environment,
// directory and standard streams and returns that process's exit code.
//
// The loopback interface is up; there is no other. Signals that end a program
// are passed on. Run needs root; without it the result is 1 and standard error
// says why.
func Run(fn func() int) int {
	switch os.Getenv(stageVariable) {
	case stageInside:
		// What the program starts again is outside for its own purposes.
		if err := os.Unsetenv(stageVariable); err != nil {
			return fail(err)
		}
		return fn()
	case stageInit:
		return runInit()
	}
	if os.Geteuid() != 0 {
		return fail(errors.New("network and mount namespaces need root: run this with sudo"))
	}
	cmd := Command(os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Killing this process kills the namespaces. The signal is tied to the
	// thread that starts the child, see PR_SET_PDEATHSIG in prctl(2).
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fail(fmt.Errorf("starting in new namespaces: %w", err))
	}
	defer forward(cmd.Process)()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return fail(fmt.Errorf("running in new namespaces: %w", err))
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		return exitCode(status)
	}
	return cmd.ProcessState.ExitCode()
}

// Command returns a command that starts this program with args inside new
// namespaces, for callers that want to detach it or to know its PID: it is
// that of the namespaces' PID 1 as seen from here, so killing it ends all. The
// program must reach Run when it is called with args. Command needs root.
func Command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), stageVariable+"="+stageInit)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
	}
	return cmd
}

// runInit is the life of PID 1: it prepares the namespaces, starts the program
// proper, and reaps until that ends. When PID 1 returns, the kernel kills
// whatever is left in the PID namespace.
func runInit() int {
	if err := prepare(); err != nil {
		return fail(err)
	}
	if err := os.Setenv(stageVariable, stageInside); err != nil {
		return fail(err)
	}
	proc, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fail(fmt.Errorf("starting the program in its namespaces: %w", err))
	}
	defer forward(proc)()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fail(fmt.Errorf("waiting for the program: %w", err))
		case pid == proc.Pid:
			return exitCode(status)
		}
	}
}

// prepare makes the mounts private, shows the new namespaces in /proc and
// /sys, and brings the loopback interface up.
func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	// /sys/class/net shows the network namespace that mounted it.
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mounting /sys: %w", err)
	}
	if err := raiseLoopback(); err != nil {
		return fmt.Errorf("bringing the loopback interface up: %w", err)
	}
	return nil
}

// raiseLoopback sets IFF_UP on lo, see netdevice(7).
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// forward passes the signals that end or interrupt a program on to proc until
// the returned function is called.
func forward(proc *os.Process) (stop func()) {
	signals := make(chan os.Signal, 8)
	done := make(chan struct{})
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = proc.Signal(s) // it may have ended just now
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// exitCode is the shell's convention for how a process ended.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "namespace:", err)
	return 1
}
