// Package guest makes the disk images that the lab's machines start from: the
// Debian image proxies run on, and tiny ones that misbehave in one way each.
package guest

import (
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/packages"
)

// debian is the release in the image.
const debian = "bookworm"

// contents are the packages in the image: a Debian cloud image's, and the
// proxies, so that a machine needs no network to be set up. Without locales,
// cloud-init ends in an error.
var contents = []string{
	"linux-image-cloud-amd64", "systemd-sysv", "udev", "dbus", "cloud-init", "qemu-guest-agent", "netplan.io",
	"ifupdown", "isc-dhcp-client", "openssh-server", "ca-certificates", "curl", "e2fsprogs", "cloud-guest-utils",
	"fdisk", "squid", "dante-server", "nftables", "locales",
}

var (
	//go:embed build.sh
	buildScript string
	//go:embed configure.sh
	configureScript string
)

// CacheDir returns the directory that images are kept in between runs:
// $EGRESSPROXY_LAB_CACHE or else egressproxy-lab below the user's cache
// directory.
func CacheDir() (string, error) {
	if dir := os.Getenv("EGRESSPROXY_LAB_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory: %w; set EGRESSPROXY_LAB_CACHE", err)
	}
	return filepath.Join(dir, "egressproxy-lab"), nil
}

// Image returns the path and the SHA-256 (lower-case hexadecimal) of the
// Debian image, a compressed qcow2. It builds the image when cacheDir has none
// made by this very recipe; that needs root, takes minutes, downloads the
// packages, and writes a line to log at each step. Whoever else wants the same
// image meanwhile waits for it.
//
// Missing packages are an error of the kind packages.ErrMissing that names the
// command to install them.
func Image(ctx context.Context, cacheDir string, log io.Writer) (path, sum string, err error) {
	path = filepath.Join(cacheDir, imageName())
	if sum, err := readSum(path); err == nil {
		return path, sum, nil
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return "", "", fmt.Errorf("building the guest image: %w", err)
	}
	unlock, err := lock(ctx, path+".lock")
	if err != nil {
		return "", "", fmt.Errorf("waiting for another build of the guest image: %w", err)
	}
	defer unlock()
	if sum, err := readSum(path); err == nil { // somebody else's build
		return path, sum, nil
	}
	if sum, err = build(ctx, path, log); err != nil {
		return "", "", fmt.Errorf("building the guest image: %w", err)
	}
	return path, sum, nil
}

// imageName is the image's file name in the cache: another recipe makes
// another image.
func imageName() string {
	recipe := sha256.New()
	for _, part := range []string{debian, strings.Join(contents, ","), buildScript, configureScript} {
		_, _ = fmt.Fprintf(recipe, "%d:%s", len(part), part) // a hash takes everything
	}
	return fmt.Sprintf("debian-12-%s.qcow2", hex.EncodeToString(recipe.Sum(nil))[:16])
}

// readSum returns the checksum kept beside an image. It is written after the
// image is complete, so that its presence vouches for the image.
func readSum(image string) (string, error) {
	if _, err := os.Stat(image); err != nil {
		return "", err
	}
	text, err := os.ReadFile(image + ".sha256")
	return strings.TrimSpace(string(text)), err
}

// lock takes an exclusive lock on a file, see flock(2): it ends with the
// process that holds it.
func lock(ctx context.Context, file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing unlocks
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		}
	}
}

// build makes the image at path and returns its checksum.
func build(ctx context.Context, path string, log io.Writer) (sum string, err error) {
	if os.Geteuid() != 0 {
		return "", errors.New("it needs root for its mounts: run this with sudo")
	}
	if err := packages.Require(packages.Image); err != nil {
		return "", err
	}
	work := strings.TrimSuffix(path, ".qcow2") + ".building"
	if err := os.RemoveAll(work); err != nil { // of a build that was killed
		return "", err
	}
	if err := os.Mkdir(work, 0o755); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	progress := newProgress(log)
	progress.step("downloading Debian's packages")
	// An image half written by a crash is thrown away, so dpkg need not wait
	// for the disk at every file.
	if err := run(ctx, work, progress, "mmdebstrap", "--variant=minbase", "--dpkgopt=force-unsafe-io",
		"--include="+strings.Join(contents, ","), debian, filepath.Join(work, "rootfs.tar")); err != nil {
		return "", err
	}
	scripts := map[string]string{"build.sh": buildScript, "configure.sh": configureScript}
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o755); err != nil { //nolint:gosec // a program
			return "", err
		}
	}
	// In mount and PID namespaces, so that neither a mount nor a loop device
	// outlives the build, however it ends.
	if err := run(ctx, work, progress, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", filepath.Join(work, "build.sh"), work); err != nil {
		return "", err
	}
	return keep(filepath.Join(work, "image.qcow2"), path)
}

// keep moves a finished image to its place in the cache, with its checksum.
func keep(image, path string) (sum string, err error) {
	f, err := os.Open(image)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	sum = hex.EncodeToString(hash.Sum(nil))
	if err := os.Rename(image, path); err != nil {
		return "", err
	}
	if err := os.WriteFile(image+".sha256", []byte(sum+"\n"), 0o644); err != nil {
		return "", err
	}
	return sum, os.Rename(image+".sha256", path+".sha256")
}

// run runs one program of the build with its temporary files in dir. What it
// prints tells the progress, and is kept for the error text.
func run(ctx context.Context, dir string, p *progress, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "LC_ALL=C",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	// mmdebstrap and unshare clean up when they are asked to end.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	lines := make(chan string)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(reader)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
		_, _ = io.Copy(io.Discard, reader) // a line too long to scan must not block the program
	}()
	ended := make(chan error, 1)
	go func() {
		err := cmd.Run()
		_ = writer.Close() // never fails
		ended <- err
	}()
	said := p.follow(lines)
	err := <-ended
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w; it said:\n%s", name, err, strings.Join(said[max(0, len(said)-20):], "\n"))
	}
	return nil
}
