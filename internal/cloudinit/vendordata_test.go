package cloudinit

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeGuest is a directory that is all of a guest's PATH. Each of its programs
// notes how it was called, without the text of a script it was to run.
type fakeGuest struct {
	dir, calls, script string
}

// newFakeGuest makes programs that do what their bodies say, in shell.
func newFakeGuest(t *testing.T, programs map[string]string) fakeGuest {
	t.Helper()
	g := fakeGuest{dir: t.TempDir()}
	g.calls = filepath.Join(t.TempDir(), "calls")
	g.script = filepath.Join(t.TempDir(), "vendor-data")
	for name, body := range programs {
		text := "#!/bin/sh\ncall=\"" + name + " $*\"\necho \"${call%% /bin/sh -c *}\" >>'" + g.calls + "'\n" + body + "\n"
		if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(g.script, DefaultVendorData(), 0o755); err != nil {
		t.Fatal(err)
	}
	return g
}

// run runs the vendor-data as cloud-init does, and gives the calls it made.
func (g fakeGuest) run(t *testing.T) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.script)
	cmd.Env = []string{"PATH=" + g.dir}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("cloud-init would call its own boot failed, or its log get %q: %v", out, err)
	}
	return g.called(t)
}

func (g fakeGuest) called(t *testing.T) (calls []string) {
	t.Helper()
	text, err := os.ReadFile(g.calls)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		calls = append(calls, strings.TrimSpace(line))
	}
	return calls
}

// What programs of a guest do.
const (
	works = "exit 0"
	fails = "exit 1"
	// runsNow is systemd-run, but in the foreground and telling how it ended.
	runsNow = `while [ "$1" != /bin/sh ]; do shift; done
"$@"; echo "systemd-run ended $?" >>"${0%/*}/ended"`
)

func TestVendorDataHasTheGuestAgentRunningWhateverTheGuestIs(t *testing.T) {
	const (
		queued  = "systemd-run --quiet --no-block --unit=egressproxy-guest-agent"
		waited  = "cloud-init status --wait"
		started = "systemctl --no-block enable --now qemu-guest-agent"
	)
	openRC := []string{"rc-update -q add qemu-guest-agent", "rc-service -q qemu-guest-agent start"}
	apt := []string{"apt-get -q -o DPkg::Lock::Timeout=300 update", "apt-get -qy -o DPkg::Lock::Timeout=300 --no-install-recommends install qemu-guest-agent"}
	for name, test := range map[string]struct {
		programs map[string]string
		want     []string
	}{
		"agent there":                  {map[string]string{"qemu-ga": works, "systemctl": works, "systemd-run": runsNow, "apt-get": works}, []string{started}},
		"agent there, OpenRC":          {map[string]string{"qemu-ga": works, "rc-update": works, "rc-service": works, "apk": works}, openRC},
		"agent there, cannot start":    {map[string]string{"qemu-ga": works, "systemctl": fails}, []string{started}},
		"apt":                          {map[string]string{"systemd-run": runsNow, "cloud-init": works, "systemctl": works, "apt-get": works}, append([]string{queued, waited}, append(apt, started)...)},
		"dnf":                          {map[string]string{"systemd-run": runsNow, "cloud-init": works, "systemctl": works, "dnf": works}, []string{queued, waited, "dnf -qy install qemu-guest-agent", started}},
		"zypper":                       {map[string]string{"systemd-run": runsNow, "cloud-init": works, "systemctl": works, "zypper": works}, []string{queued, waited, "zypper -nq install qemu-guest-agent", started}},
		"no network":                   {map[string]string{"systemd-run": runsNow, "cloud-init": works, "systemctl": fails, "apt-get": fails}, append([]string{queued, waited}, append(apt, started)...)},
		"cloud-init ended in an error": {map[string]string{"systemd-run": runsNow, "cloud-init": fails, "systemctl": works, "dnf": works}, []string{queued, waited, "dnf -qy install qemu-guest-agent", started}},
		"no package manager":           {map[string]string{"systemd-run": runsNow, "cloud-init": works, "systemctl": fails}, []string{queued, waited, started}},
		"jobs are refused":             {map[string]string{"systemd-run": fails, "apt-get": works}, []string{queued}},
		"nothing":                      {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := newFakeGuest(t, test.programs)
			if diff := cmp.Diff(test.want, g.run(t)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			// A unit that failed would leave the machine "degraded".
			if ended, err := os.ReadFile(filepath.Join(g.dir, "ended")); err == nil && string(ended) != "systemd-run ended 0\n" {
				t.Errorf("%s", ended)
			}
		})
	}
}

func TestVendorDataNeverWaitsForTheInstallation(t *testing.T) {
	dir := t.TempDir()
	booted, installed := filepath.Join(dir, "booted"), filepath.Join(dir, "installed")
	for _, fifo := range []string{booted, installed} {
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nohup, err := exec.LookPath("nohup")
	if err != nil {
		t.Fatal(err)
	}
	// As Alpine is: without systemd.
	g := newFakeGuest(t, map[string]string{
		"nohup":      "exec " + nohup + ` "$@"`,
		"cloud-init": "read -r line <'" + booted + "'",
		"apk":        "echo >'" + installed + "'",
		"rc-update":  works, "rc-service": works,
	})
	g.run(t) // ends though cloud-init has not
	for _, call := range g.called(t) {
		if strings.HasPrefix(call, "apk") {
			t.Error("the package manager was called while cloud-init ran")
		}
	}
	// Opened for both directions, neither FIFO blocks here (fifo(7)).
	boot, err := os.OpenFile(booted, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer boot.Close()
	if _, err := boot.WriteString("done\n"); err != nil {
		t.Fatal(err)
	}
	end, err := os.OpenFile(installed, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	if err := end.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := end.Read(make([]byte, 1)); err != nil {
		t.Fatalf("waiting for the installation: %v; called were %q", err, g.called(t))
	}
}

func TestVendorDataIsAScriptOfItsOwnForEachCaller(t *testing.T) {
	first := DefaultVendorData()
	if kind, err := DetectContentType(first); err != nil || kind != "text/x-shellscript" {
		t.Errorf("cloud-init takes it for %q, %v", kind, err)
	}
	clear(first)
	if bytes.Equal(first, DefaultVendorData()) {
		t.Error("what one caller did to it another one gets")
	}
	script := exec.Command("/bin/sh", "-n")
	script.Stdin = bytes.NewReader(DefaultVendorData())
	if out, err := script.CombinedOutput(); err != nil {
		t.Errorf("the shell refuses it: %v\n%s", err, out)
	}
}
