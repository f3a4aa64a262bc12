package squidns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// inside marks the process that runs in the namespaces.
const inside = "EGRESSPROXY_SQUIDNS_INSIDE"

// Run runs the tests (testing.M's Run) in namespaces of their own, by
// executing the test binary once more, and gives the exit code. What cannot
// be set up is printed and ends in a code other than 0.
func Run(tests func() int) int {
	if os.Getenv(inside) == "" {
		return reexec()
	}
	if err := enter(); err != nil {
		fmt.Fprintln(os.Stderr, "squidns:", err)
		return 1
	}
	return tests()
}

func reexec() int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "squidns: these tests make network namespaces, which needs root: run them with sudo")
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "squidns: finding the test binary:", err)
		return 1
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// With a process namespace, no Squid outlives the tests.
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	default:
		fmt.Fprintln(os.Stderr, "squidns: running the tests in namespaces:", err)
		return 1
	}
}

// enter makes the namespaces the process is in look like a machine on the
// made-up internet.
func enter() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting the namespace's /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/etc/squid", "/var/log/squid"} {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mounting an empty file system on %s (is squid installed?): %w", dir, err)
		}
	}
	if err := chownLike("/var/log/squid", "/var/spool/squid"); err != nil {
		return err
	}
	for path, content := range map[string]string{
		"/etc/hosts":       "127.0.0.1 localhost\n",
		"/etc/resolv.conf": "nameserver 127.0.0.1\n",
	} {
		fake := filepath.Join("/run", filepath.Base(path))
		if err := os.WriteFile(fake, []byte(content), 0o644); err != nil {
			return fmt.Errorf("writing the namespace's %s: %w", path, err)
		}
		if err := syscall.Mount(fake, path, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting the namespace's %s: %w", path, err)
		}
	}
	// A local route to everywhere makes the machine answer for every address.
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"-4", "route", "add", "local", "default", "dev", "lo"},
		{"-6", "route", "add", "local", "default", "dev", "lo"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("setting up the namespace's network: ip %v: %w: %s", args, err, out)
		}
	}
	return nil
}

// chownLike gives dir the owner of model.
func chownLike(dir, model string) error {
	info, err := os.Stat(model)
	if err != nil {
		return fmt.Errorf("finding Squid's user (is squid installed?): %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("finding the owner of %s: not a Unix file system", model)
	}
	if err := os.Chown(dir, int(stat.Uid), int(stat.Gid)); err != nil {
		return fmt.Errorf("giving %s to Squid: %w", dir, err)
	}
	return nil
}
