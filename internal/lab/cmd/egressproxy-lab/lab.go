package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/namespace"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/origin"
)

// lab is one lab, running or not.
type lab struct {
	dir   string // absolute
	cache string
}

// description is what DIR/lab.json says about a running lab.
type description struct {
	// PID is that of the process all of the lab ends with; its namespaces are
	// the lab's.
	PID         int    `json:"pid"`
	URI         string `json:"uri"`
	Socket      string `json:"socket"`
	VirtType    string `json:"virt_type"`
	Network     string `json:"network"`
	Pool        string `json:"pool"`
	ImagePath   string `json:"image_path"`
	ImageSHA256 string `json:"image_sha256"`
}

func (l lab) file() string { return filepath.Join(l.dir, "lab.json") }

// readyFile is written by the holder once all is up.
func (l lab) readyFile() string { return filepath.Join(l.dir, "ready.json") }

// holdCommand is the command of the process that holds the lab.
const holdCommand = "hold"

// image builds the guest image or finds it.
func (l lab) image(ctx context.Context) error {
	path, sum, err := guest.Image(ctx, l.cache, os.Stdout)
	if err != nil {
		return err
	}
	fmt.Printf("guest image: %s\nsha256: %s\n", path, sum)
	return nil
}

// running returns the description of the lab, or an error when it does not
// run.
func (l lab) running() (description, error) {
	var d description
	text, err := os.ReadFile(l.file())
	if errors.Is(err, os.ErrNotExist) {
		return d, fmt.Errorf("no lab runs in %s: start it with \"egressproxy-lab up\"", l.dir)
	} else if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("reading %s: %w", l.file(), err)
	}
	if !l.held(d.PID) {
		return d, fmt.Errorf("the lab in %s has ended: start it again with \"egressproxy-lab up\"", l.dir)
	}
	return d, nil
}

// holderArgs are the arguments of the process that holds the lab.
func (l lab) holderArgs() []string { return []string{"-dir", l.dir, holdCommand} }

// held tells whether a process holds this lab: a PID alone may be somebody
// else's by now.
func (l lab) held(pid int) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.HasSuffix(string(cmdline), strings.Join(l.holderArgs(), "\x00")+"\x00")
}

// startDeadline is how long the holder may take.
const startDeadline = 2 * time.Minute

// up starts the lab unless it runs.
func (l lab) up(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("the lab needs root for its network and its mounts: run this with sudo")
	}
	if _, err := l.running(); err == nil {
		fmt.Println("the lab runs already")
		return nil
	}
	imagePath, imageSum, err := guest.Image(ctx, l.cache, os.Stdout)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	if err := os.Remove(l.readyFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	fmt.Println("starting a private hypervisor in", l.dir)
	logFile := filepath.Join(l.dir, "lab.log")
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	holder := namespace.Command(l.holderArgs()...)
	holder.Stdout, holder.Stderr = log, log
	holder.SysProcAttr.Setsid = true // it outlives this terminal
	if err := holder.Start(); err != nil {
		return fmt.Errorf("starting the lab: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- holder.Wait() }()
	d, err := l.awaitHolder(ctx, ended)
	if err != nil {
		_ = holder.Process.Kill() // if it has not ended; all of the lab ends with it
		said, _ := os.ReadFile(logFile)
		return fmt.Errorf("starting the lab: %w; %s says:\n%s", err, logFile, said)
	}
	d.PID, d.ImagePath, d.ImageSHA256 = holder.Process.Pid, imagePath, imageSum
	if err := writeJSON(l.file(), d); err != nil {
		return errors.Join(err, holder.Process.Kill())
	}
	fmt.Printf("the lab runs: libvirt at %s, guests by %s\n", d.URI, d.VirtType)
	return nil
}

// awaitHolder waits until the holder says that all is up.
func (l lab) awaitHolder(ctx context.Context, ended <-chan error) (description, error) {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			var d description
			if text, err := os.ReadFile(l.readyFile()); err == nil {
				err = json.Unmarshal(text, &d)
				return d, err
			}
		case err := <-ended:
			return description{}, fmt.Errorf("its process ended: %w", err)
		case <-ctx.Done():
			return description{}, ctx.Err()
		}
	}
}

// hold is the life of the process that the lab runs in.
func (l lab) hold(ctx context.Context) error {
	code := namespace.Run(func() int {
		if err := l.serve(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "egressproxy-lab:", err)
			return 1
		}
		return 0
	})
	if code != 0 {
		return exitError(code)
	}
	return nil
}

// serve starts all of the lab and ends it when ctx ends.
func (l lab) serve(ctx context.Context) (err error) {
	target, err := origin.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	h, err := hypervisor.Start(ctx, hypervisor.Options{Dir: l.dir, Hosts: origin.Hosts})
	if err != nil {
		return err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, h.Stop(stopping))
	}()
	if err := writeJSON(l.readyFile(), description{
		URI: h.URI, Socket: h.Socket, VirtType: h.VirtType, Network: hypervisor.Network, Pool: hypervisor.Pool,
	}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// status shows whether the lab runs.
func (l lab) status() error {
	if _, err := l.running(); err != nil {
		return err
	}
	text, err := os.ReadFile(l.file())
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

// inside returns a command that runs in the lab's namespaces, in the current
// directory.
func (l lab) inside(ctx context.Context, args ...string) (*exec.Cmd, error) {
	d, err := l.running()
	if err != nil {
		return nil, err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	// nsenter starts in the root directory of the mount namespace.
	const changeDirectory = `cd "$1" && shift && exec "$@"`
	enter := []string{"--target", strconv.Itoa(d.PID), "--net", "--mount", "--pid", "--", "sh", "-c", changeDirectory, "sh", cwd}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd, nil
}

// exec runs a command in the lab with the standard streams of this one.
func (l lab) exec(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("exec: no command given")
	}
	cmd, err := l.inside(ctx, args...)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		return exitError(exit.ExitCode())
	} else if err != nil {
		return fmt.Errorf("running %s in the lab: %w", args[0], err)
	}
	return nil
}

// stopDeadline is how long the holder may take to end by itself.
const stopDeadline = 30 * time.Second

// down ends the lab and removes its directory.
func (l lab) down(ctx context.Context) error {
	if d, err := l.running(); err == nil {
		if err := end(ctx, d.PID); err != nil {
			return fmt.Errorf("ending the lab in %s: %w", l.dir, err)
		}
	}
	// Only a directory that is a lab's: -dir may be a slip of the hand.
	if _, err := os.Stat(filepath.Join(l.dir, "lab.log")); errors.Is(err, os.ErrNotExist) {
		fmt.Println("no lab is in", l.dir)
		return nil
	}
	if err := os.RemoveAll(l.dir); err != nil {
		return err
	}
	fmt.Println("the lab has ended;", l.dir, "is removed")
	return nil
}

// end asks a process to end, and kills it when it does not in time.
func end(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, stopDeadline)
	defer cancel()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
				return nil
			}
		case <-ctx.Done():
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// writeJSON writes a file that is never seen half written.
func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
