// Package hypervisor starts private libvirt daemons: real libvirtd and QEMU
// whose configuration, state, sockets and logs are in a directory of their
// own. The machine's own libvirt is neither used nor touched.
//
// It must run inside the namespaces of package namespace: the bridges and the
// mounts it makes go away with them.
package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/lab/packages"
)

// The names of what every hypervisor has.
const (
	// Network is the libvirt network.
	Network = "egressproxy"
	// Pool is the storage pool.
	Pool = "egressproxy"
)

// DefaultSubnet is the network's, unless Options say otherwise. The host is
// its first address, DHCP gives out the others.
var DefaultSubnet = netip.MustParsePrefix("192.168.197.0/24")

// Options say what a hypervisor is to be.
type Options struct {
	// Dir is where everything of the hypervisor is kept; it is made if need
	// be. No longer than 80 bytes, since the socket is in it.
	Dir string
	// Name tells hypervisors in the same namespaces apart: 1 to 10 lower-case
	// letters and digits. Empty means "lab".
	Name string
	// Subnet is the network's IPv4 subnet, /24 or larger; each hypervisor in
	// the same namespaces needs another. The zero Prefix means DefaultSubnet.
	Subnet netip.Prefix
	// Hosts maps the names that the network's DNS answers to their addresses.
	Hosts map[string]netip.Addr
}

// Hypervisor is a running private libvirtd. Start, Restart and Stop are not for
// concurrent use; the rest is.
type Hypervisor struct {
	// URI reaches the daemon from every process that sees Dir:
	// qemu+unix:///system?socket=PATH.
	URI string
	// Socket is the path of the daemon's socket.
	Socket string
	// VirtType is "kvm" or "qemu", as the machine can do.
	VirtType string
	// PoolDir is the directory of the storage pool.
	PoolDir string

	options  Options
	virtlogd *daemon
	deaths   atomic.Int64

	mu       sync.Mutex // over libvirtd and mounts
	libvirtd *daemon
	mounts   map[string]bool // the mount namespaces its daemons have had

	leaseMutex sync.Mutex
}

// bridgePrefix and a hypervisor's name make the name of its bridge.
const bridgePrefix = "lab-"

// validName is what fits into an interface name behind bridgePrefix.
var validName = regexp.MustCompile(`^[a-z0-9]{1,10}$`)

// Start starts a hypervisor and, on it, its network and its pool. Beside an
// error nothing is left running. Missing packages are an error of the kind
// packages.ErrMissing that names the command to install them.
func Start(ctx context.Context, options Options) (*Hypervisor, error) {
	if options.Name == "" {
		options.Name = "lab"
	}
	if options.Subnet == (netip.Prefix{}) {
		options.Subnet = DefaultSubnet
	}
	switch {
	case !validName.MatchString(options.Name):
		return nil, fmt.Errorf("hypervisor name %q: want 1 to 10 lower-case letters and digits", options.Name)
	case !options.Subnet.Addr().Is4() || options.Subnet.Bits() > 24:
		return nil, fmt.Errorf("hypervisor %s: subnet %s: want an IPv4 subnet of /24 or larger", options.Name, options.Subnet)
	case len(options.Dir) > 80:
		return nil, fmt.Errorf("hypervisor %s: directory %s is longer than 80 bytes; the path of a unix socket in it would be too long", options.Name, options.Dir)
	}
	if err := packages.Require(packages.Hypervisor); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("hypervisor %s: %w", options.Name, err)
	}
	options.Dir = dir
	h := &Hypervisor{
		Socket:   filepath.Join(dir, "run", "libvirt-sock"),
		VirtType: virtType(),
		PoolDir:  filepath.Join(dir, "pool"),
		options:  options,
		mounts:   map[string]bool{},
	}
	// Slashes may stand in a query as they are, and read better.
	h.URI = "qemu+unix:///system?socket=" + strings.ReplaceAll(url.QueryEscape(h.Socket), "%2F", "/")
	if err := h.start(ctx); err != nil {
		// The caller's context may be what ended the start.
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return nil, fmt.Errorf("starting hypervisor %s in %s: %w", options.Name, dir, errors.Join(err, h.Stop(stopping)))
	}
	return h, nil
}

func (h *Hypervisor) start(ctx context.Context) error {
	if err := h.writeConfiguration(); err != nil {
		return err
	}
	var err error
	if h.virtlogd, err = h.startDaemon("virtlogd", filepath.Join(h.options.Dir, "run", "virtlogd-sock")); err != nil {
		return err
	}
	if err = h.await(ctx, h.virtlogd); err != nil {
		return err
	}
	if h.libvirtd, err = h.startDaemon("libvirtd", h.Socket); err != nil {
		return err
	}
	if err = h.await(ctx, h.libvirtd); err != nil {
		return err
	}
	go h.supervise(h.libvirtd) //nolint:contextcheck // for as long as the daemon lives, which is longer than ctx
	return h.define(ctx)
}

// define makes and starts the network and the pool.
func (h *Hypervisor) define(ctx context.Context) error {
	for object, definition := range map[string]string{"net": networkXML(h.options), "pool": poolXML(h.PoolDir)} {
		file := filepath.Join(h.options.Dir, object+".xml")
		if err := os.WriteFile(file, []byte(definition), 0o644); err != nil {
			return err
		}
		if _, err := h.Virsh(ctx, object+"-define", file); err != nil {
			return err
		}
		name := Network
		if object == "pool" {
			name = Pool
		}
		if _, err := h.Virsh(ctx, object+"-start", name); err != nil {
			return err
		}
	}
	return nil
}

// Virsh runs virsh with args against the hypervisor and returns its standard
// output. It is a second opinion on what is there, beside the provider's own
// client.
func (h *Hypervisor) Virsh(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "virsh", append([]string{"--quiet", "--connect", h.URI}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// PID is libvirtd's, to look at the world from its namespaces. Restart gives it
// another.
func (h *Hypervisor) PID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.libvirtd.process.Pid
}

// Deaths is how often libvirtd has ended without being told to. It is started
// again each time, as its systemd unit does (Restart=on-failure).
func (h *Hypervisor) Deaths() int { return int(h.deaths.Load()) }

// Restart kills libvirtd and starts it again, as a crash or a package upgrade
// would; guests and network go on. It returns when the new daemon answers.
func (h *Hypervisor) Restart(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.libvirtd.kill()
	return h.startAgain(ctx)
}

// supervise starts libvirtd again when it ends without being told to.
func (h *Hypervisor) supervise(d *daemon) {
	<-d.exited
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.ending.Load() {
		return
	}
	h.deaths.Add(1)
	if err := h.startAgain(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// startAgain starts libvirtd in place of one that is gone; h.mu is held.
func (h *Hypervisor) startAgain(ctx context.Context) error {
	d, err := h.startDaemon("libvirtd", h.Socket)
	if err == nil {
		h.libvirtd = d
		err = h.await(ctx, d)
	}
	if err != nil {
		return fmt.Errorf("restarting libvirtd of hypervisor %s: %w", h.options.Name, err)
	}
	go h.supervise(d) //nolint:contextcheck // likewise
	return nil
}

// Stop destroys the guests and the network and ends the daemons. What is
// gone already is no error, nor is a second Stop. It leaves Dir as it is.
func (h *Hypervisor) Stop(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.libvirtd.alive() {
		if list, err := h.Virsh(ctx, "list", "--uuid"); err == nil {
			for _, uuid := range strings.Fields(list) {
				// One that ends by itself meanwhile is what was wanted; one
				// that does not is killed by its PID below.
				_, _ = h.Virsh(ctx, "destroy", uuid)
			}
		}
		_, _ = h.Virsh(ctx, "net-destroy", Network) // likewise
	}
	h.libvirtd.stop(ctx)
	h.virtlogd.stop(ctx)
	return errors.Join(
		h.killLeftovers(filepath.Join("run", "qemu", "*.pid")),
		h.killLeftovers(filepath.Join("run", "network", "*.pid")),
		h.removeBridge(),
	)
}

// removeBridge removes the network's bridge where no daemon was left to do so.
func (h *Hypervisor) removeBridge() error {
	bridge := bridgePrefix + h.options.Name
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("looking for bridge %s: %w", bridge, err)
	}
	if !slices.ContainsFunc(interfaces, func(i net.Interface) bool { return i.Name == bridge }) {
		return nil
	}
	if out, err := exec.Command("ip", "link", "delete", bridge).CombinedOutput(); err != nil {
		return fmt.Errorf("removing bridge %s: %w: %s", bridge, err, out)
	}
	return nil
}
