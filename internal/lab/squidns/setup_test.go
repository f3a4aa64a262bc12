package squidns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/proxy"
)

// setUp runs the set-up commands as a machine without systemd does, and gives
// their output.
func setUp(t *testing.T, commands [][]string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	for _, argv := range commands {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.WaitDelay = time.Second
		// Squid in the background keeps the output open; that is no failure.
		if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
			return out.String(), err
		}
	}
	return out.String(), nil
}

// pid gives the process that Squid's pid file names.
func pid(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/run/squid.pid")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

func TestSetUpStartsSquidOnceAndAgainOnlyForANewConfiguration(t *testing.T) {
	internet(t)
	setup, err := proxy.Render(denyByDefault())
	if err != nil {
		t.Fatal(err)
	}
	if err := Install(setup.Files); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove("/run/squid.pid"); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		out, err := exec.Command("squid", "-k", "shutdown", "-f", proxy.ConfigPath).CombinedOutput()
		if err != nil {
			t.Errorf("ending squid: %v: %s", err, out)
		}
	})
	ready := func() int {
		t.Helper()
		out, err := setUp(t, setup.Commands)
		if err != nil || lastLine(out) != proxy.ReadyLine {
			t.Fatalf("set-up: %v\n%s", err, out)
		}
		return pid(t)
	}
	first := ready()
	s := &Squid{Addr: localhost(port)}
	try(t, s, ci, "www.allowed.test", 443, arrives)
	hold(t, ready() == first, "a second set-up restarted a Squid that was up to date")

	changed := denyByDefault()
	changed.Policy.AllowDomains = []string{"other.test"}
	setup, err = proxy.Render(changed)
	if err != nil {
		t.Fatal(err)
	}
	if err := Install(setup.Files); err != nil {
		t.Fatal(err)
	}
	second := ready()
	hold(t, second != first, "a new configuration did not restart Squid")
	try(t, s, ci, "www.allowed.test", 443, refused)
	try(t, s, ci, "other.test", 443, arrives)
	// A process that has ended has no command line, even when nobody waited for it.
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", first)); err == nil && len(line) > 0 {
		t.Errorf("the first Squid, process %d, still runs", first)
	}
}

func TestSetUpNamesTheStepThatFailed(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func([]proxy.File) []proxy.File
		want  string
		names string
	}{
		"no configuration": {func(f []proxy.File) []proxy.File { return f[1:] }, proxy.FailedPrefix + "files: ", proxy.ConfigPath},
		"empty users": {func(f []proxy.File) []proxy.File {
			f[1].Content = ""
			return f
		}, proxy.FailedPrefix + "files: ", proxy.UsersPath},
		"unknown directive": {func(f []proxy.File) []proxy.File {
			f[0].Content += "no_such_directive on\n"
			return f
		}, proxy.FailedPrefix + "parse: ", "no_such_directive"},
		"unknown ACL": {func(f []proxy.File) []proxy.File {
			f[0].Content += "http_access allow no_such_acl\n"
			return f
		}, proxy.FailedPrefix + "parse: ", "no_such_acl"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.RemoveAll(proxy.ConfigPath); err != nil {
				t.Fatal(err)
			}
			setup, err := proxy.Render(denyByDefault())
			if err != nil {
				t.Fatal(err)
			}
			if err := Install(c.spoil(setup.Files)); err != nil {
				t.Fatal(err)
			}
			out, err := setUp(t, setup.Commands)
			var exit *exec.ExitError
			hold(t, errors.As(err, &exit) && strings.HasPrefix(lastLine(out), c.want) && strings.Contains(lastLine(out), c.names),
				"set-up: %v\n%s\nwant %q and %q", err, out, c.want, c.names)
		})
	}
}
