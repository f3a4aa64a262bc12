// Command egressproxy-lab keeps a lab running for a person to try the provider
// on: a private hypervisor, its network and pool, a web server to reach through
// a proxy, and the image that proxies run on. It is behind make quickstart.
//
// It needs root. Nothing of the machine's own network or libvirt is touched.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/guest"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/packages"
)

const usage = `usage: egressproxy-lab [-dir DIR] COMMAND

  packages             install what is missing (apt-get; needs root)
  image                build the guest image, or find it in the cache
  up                   start the lab in DIR; does nothing when it runs
  status               say whether the lab runs, and show DIR/lab.json
  exec -- CMD ARG...   run CMD where it reaches the lab's guests
  down                 end the lab and remove DIR; cached images stay
  quickstart -cli CLI -config DIR
                       up, then apply the configuration and show that it works
  quickstart-destroy -cli CLI
                       destroy it, check that nothing is left, and down

DIR is where the lab keeps its files (default: %s).
`

// exitError carries the exit code of a command that has said itself what is
// wrong.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var exit exitError
	if errors.As(err, &exit) {
		os.Exit(int(exit))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "egressproxy-lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("egressproxy-lab", flag.ContinueOnError)
	dir := flags.String("dir", "", "the lab's directory")
	cache, err := guest.CacheDir()
	if err != nil {
		return err
	}
	flags.Usage = func() { _, _ = fmt.Fprintf(flags.Output(), usage, filepath.Join(cache, "run")) }
	if err := flags.Parse(args); err != nil {
		return exitError(2)
	}
	if *dir == "" {
		*dir = filepath.Join(cache, "run")
	}
	if *dir, err = filepath.Abs(*dir); err != nil {
		return err
	}
	lab := lab{dir: *dir, cache: cache}
	command, rest := flags.Arg(0), flags.Args()
	if len(rest) > 0 {
		rest = rest[1:]
	}
	switch command {
	case "packages":
		return installPackages(ctx)
	case "image":
		return lab.image(ctx)
	case "up":
		return lab.up(ctx)
	case holdCommand:
		return lab.hold(ctx)
	case "status":
		return lab.status()
	case "exec":
		if len(rest) > 0 && rest[0] == "--" {
			rest = rest[1:]
		}
		return lab.exec(ctx, rest)
	case "down":
		return lab.down(ctx)
	case "quickstart", "quickstart-destroy":
		return lab.runQuickstart(ctx, command, rest)
	}
	flags.Usage()
	return exitError(2)
}

// installPackages installs what the lab needs and the machine lacks.
func installPackages(ctx context.Context) error {
	missing := packages.Missing(packages.Hypervisor, packages.Image)
	if len(missing) == 0 {
		return nil
	}
	install := packages.Install(missing)
	if os.Geteuid() != 0 {
		return fmt.Errorf("packages are missing, and installing them needs root; type: sudo %s", strings.Join(install, " "))
	}
	fmt.Printf("installing %d missing packages: %s\n", len(missing), strings.Join(missing, " "))
	for _, args := range [][]string{{"apt-get", "update", "--quiet=2"}, install} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
		}
	}
	return packages.Require(packages.Hypervisor, packages.Image)
}
