package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/hypervisor"
)

// user is the proxy's client in the quickstart's configuration.
const user = "quickstart"

// planChanges is the exit code of plan -detailed-exitcode for a plan that is
// not empty.
const planChanges = 2

// quickstart applies the example configuration to the lab.
type quickstart struct {
	lab lab
	// cli is the absolute path of terraform or tofu.
	cli string
	// work is the working directory: the configuration's copy and its state.
	work string
	// password is the client's.
	password string
}

func (l lab) runQuickstart(ctx context.Context, command string, args []string) error {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	cli := flags.String("cli", "terraform", "terraform or tofu")
	config := flags.String("config", filepath.Join("examples", "quickstart"), "the configuration's directory")
	if err := flags.Parse(args); err != nil {
		return exitError(2)
	}
	path, err := exec.LookPath(*cli)
	if err != nil {
		return fmt.Errorf("finding terraform or tofu: %w", err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	q := quickstart{lab: l, cli: path, work: filepath.Join(l.dir, "terraform")}
	if command == "quickstart-destroy" {
		return q.destroy(ctx)
	}
	return q.show(ctx, *config)
}

// show brings the proxy up and shows what it lets through and what not.
func (q quickstart) show(ctx context.Context, config string) error {
	if err := installPackages(ctx); err != nil {
		return err
	}
	if err := q.lab.up(ctx); err != nil {
		return err
	}
	if err := q.prepare(config); err != nil {
		return err
	}
	started := time.Now()
	for _, args := range [][]string{{"init", "-input=false"}, {"apply", "-input=false", "-auto-approve"}} {
		if err := q.terraform(ctx, os.Stdout, args...); err != nil {
			return err
		}
	}
	fmt.Printf("\nthe proxy came up in %d s\n", int(time.Since(started).Seconds()))

	var output bytes.Buffer
	if err := q.terraform(ctx, &output, "output", "-raw", "http_url"); err != nil {
		return err
	}
	proxy := strings.TrimSpace(output.String())
	for _, request := range []struct {
		what, url string
		user      bool
		want      int
	}{
		{"with credentials, to an allowed domain", "http://www.allowed.test/", true, 200},
		{"without credentials", "http://www.allowed.test/", false, 407},
		{"with credentials, to another domain", "http://other.test/", true, 403},
	} {
		status, err := q.request(ctx, proxy, request.url, request.user)
		if err != nil {
			return err
		}
		fmt.Printf("a request %s: %d\n", request.what, status)
		if status != request.want {
			return fmt.Errorf("a request %s got HTTP status %d from the proxy, want %d", request.what, status, request.want)
		}
	}
	if err := q.terraform(ctx, os.Stdout, "plan", "-input=false", "-detailed-exitcode"); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == planChanges {
			return errors.New("the plan after the apply is not empty")
		}
		return err
	}
	fmt.Printf("\nTry it yourself: sudo sh -c '%s -dir %s exec -- curl --proxy %s --proxy-user %s:$(cat %s) http://www.allowed.test/'\n"+
		"Take it away:    make quickstart-destroy\n", program(), q.lab.dir, proxy, user, q.passwordFile())
	return nil
}

// program is how a person calls this program.
func program() string {
	if path, err := os.Executable(); err == nil {
		return path
	}
	return os.Args[0]
}

// prepare copies the configuration into the working directory and gives its
// variables their values. What is there already, the state above all, stays.
func (q *quickstart) prepare(config string) error {
	d, err := q.lab.running()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(q.work, 0o755); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(config, "*.tf"))
	if err != nil || len(files) == 0 {
		return errors.Join(fmt.Errorf("no configuration is in %s", config), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(q.work, filepath.Base(file)), text, 0o644); err != nil {
			return err
		}
	}
	if err := writeJSON(filepath.Join(q.work, "lab.auto.tfvars.json"), map[string]string{
		"libvirt_uri": d.URI, "image_path": d.ImagePath, "image_sha256": d.ImageSHA256,
		"network": d.Network, "pool": d.Pool, "virt_type": d.VirtType,
	}); err != nil {
		return err
	}
	return q.readPassword()
}

func (q quickstart) passwordFile() string { return filepath.Join(q.lab.dir, "password") }

// readPassword reads the client's password, or makes one and keeps it: the
// next apply must not find another.
func (q *quickstart) readPassword() error {
	file := q.passwordFile()
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(rand.Text())
		err = os.WriteFile(file, text, 0o600)
	}
	q.password = string(text)
	return err
}

// terraform runs the CLI in the lab, where it reaches the guests.
func (q quickstart) terraform(ctx context.Context, stdout io.Writer, args ...string) error {
	cmd, err := q.lab.inside(ctx, append([]string{q.cli, "-chdir=" + q.work}, args...)...)
	if err != nil {
		return err
	}
	// Not on the command line, where every user of the machine could read it.
	cmd.Env = append(os.Environ(), "TF_VAR_client_password="+q.password, "CHECKPOINT_DISABLE=1")
	cmd.Stdout, cmd.Stderr = stdout, os.Stderr
	fmt.Printf("\n$ %s %s\n", filepath.Base(q.cli), strings.Join(args, " "))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(q.cli), args[0], err)
	}
	return nil
}

// request asks for url through the proxy and returns the HTTP status.
func (q quickstart) request(ctx context.Context, proxy, url string, credentials bool) (status int, err error) {
	args := []string{"curl", "--silent", "--show-error", "--max-time", "30", "--output", "/dev/null", "--write-out", "%{http_code}", "--proxy", proxy}
	if credentials {
		args = append(args, "--config", "-")
	}
	cmd, err := q.lab.inside(ctx, append(args, url)...)
	if err != nil {
		return 0, err
	}
	if credentials {
		cmd.Stdin = strings.NewReader("proxy-user = " + strconv.Quote(user+":"+q.password) + "\n")
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("asking for %s through %s: %w: %s", url, proxy, err, strings.TrimSpace(stderr.String()))
	}
	return strconv.Atoi(string(out))
}

// destroy takes the proxy away, checks that nothing of it is left on the
// hypervisor, and ends the lab.
func (q quickstart) destroy(ctx context.Context) error {
	d, err := q.lab.running()
	if err != nil {
		return q.lab.down(ctx)
	}
	if _, err := os.Stat(filepath.Join(q.work, "terraform.tfstate")); err == nil {
		if err := q.readPassword(); err != nil {
			return err
		}
		if err := q.terraform(ctx, os.Stdout, "destroy", "-input=false", "-auto-approve"); err != nil {
			return err
		}
	}
	domains, err := virsh(ctx, d.URI, "list", "--all", "--name")
	if err != nil {
		return err
	}
	listing, err := virsh(ctx, d.URI, "vol-list", hypervisor.Pool)
	if err != nil {
		return err
	}
	if left := slices.Concat(domains, volumesOfInstances(listing)); len(left) > 0 {
		return fmt.Errorf("the destroy left behind: %s", strings.Join(left, ", "))
	}
	fmt.Println("\nno domain, overlay or seed is left")
	return q.lab.down(ctx)
}

// volumesOfInstances returns the names in virsh's list of volumes, one "NAME
// PATH" a line, without base images: those are the host's, for the next
// instance.
func volumesOfInstances(listing []string) []string {
	var names []string
	for _, line := range listing {
		if name, _, _ := strings.Cut(line, " "); !strings.HasPrefix(name, "egressproxy-base-") {
			names = append(names, name)
		}
	}
	return names
}

// virsh returns the lines that virsh prints, without empty ones.
func virsh(ctx context.Context, uri string, args ...string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "virsh", append([]string{"--quiet", "--connect", uri}, args...)...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("virsh %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}
