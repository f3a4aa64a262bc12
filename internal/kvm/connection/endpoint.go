package connection

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/digitalocean/go-libvirt"
)

// way is how the bytes get to a daemon.
type way int

// The ways to a daemon.
const (
	byUnix way = iota // a unix socket of this machine
	bySSH             // a unix socket of another machine, through its SSH server
	byTLS
	byTCP // neither encrypted nor authenticated
)

// endpoint is a host's URI taken apart.
type endpoint struct {
	// uri is what the daemon is asked to open: the URI without its way there.
	uri libvirt.ConnectURI
	way way
	// sockets are the daemon's sockets in the order in which to try them.
	sockets []string
	// hops are the SSH servers on the way, the host's own last.
	hops []hop
	// host and port are the other machine's, as the URI gives them.
	host string
	port string
}

// address gives host:port of the other machine's server.
func (e endpoint) address() string { return net.JoinHostPort(e.host, e.port) }

// String names the endpoint for error texts.
func (e endpoint) String() string {
	switch e.way {
	case bySSH:
		last := len(e.hops) - 1
		bastions := make([]string, last)
		for i, bastion := range e.hops[:last] {
			bastions[i] = bastion.String()
		}
		if last == 0 {
			return e.hops[last].String()
		}
		return e.hops[last].String() + " through " + strings.Join(bastions, ", then ")
	case byTLS:
		return e.address() + " by TLS"
	case byTCP:
		return e.address() + " by TCP"
	case byUnix:
	}
	return "the local daemon"
}

const uriRemedy = `Use qemu:///system, qemu:///session, qemu+unix:///system?socket=/path, qemu+ssh://user@host:port/system, qemu+tls://host:port/system or qemu+tcp://host:port/system.`

// The ports of the ways over a network; libvirt's are in libvirtd.conf.
var defaultPorts = map[way]string{bySSH: "22", byTLS: "16514", byTCP: "16509"}

// parseEndpoint reads a host's URI. Its error is an *egress.Fault.
func parseEndpoint(h Host) (endpoint, error) {
	refuse := func(remedy, format string, args ...any) (endpoint, error) {
		return endpoint{}, invalid(h, "uri", fmt.Errorf(format, args...), remedy)
	}
	u, err := url.Parse(h.URI)
	switch {
	case h.URI == "":
		return refuse(uriRemedy, "the URI is empty")
	case err != nil:
		// the parser's own text may repeat a password
		return refuse(uriRemedy, "the URI cannot be parsed")
	}
	if _, ok := u.User.Password(); ok {
		return refuse("Take the password out of the URI and use ssh.private_key_file, ssh.private_key or an SSH agent.",
			"the URI holds a password")
	}
	driver, transport, explicit := strings.Cut(u.Scheme, "+")
	// libvirt's own test driver is reachable this way too: it makes thousands
	// of domains without a guest
	if driver != "qemu" && driver != "test" {
		return refuse(uriRemedy, "the URI %s does not name the QEMU driver", h.URI)
	}
	if driver == "qemu" && u.Path != "/system" && u.Path != "/session" {
		return refuse(uriRemedy, "the URI %s ends in %q, not in /system or /session", h.URI, u.Path)
	}
	socket, err := socketParameter(u)
	if err != nil {
		return refuse(uriRemedy, "the URI %s %w", h.URI, err)
	}
	e := endpoint{uri: libvirt.ConnectURI(driver + "://" + u.Path)}
	switch {
	case transport == "ssh":
		e.way = bySSH
	case transport == "tls", !explicit && u.Host != "": // libvirt's default for another machine
		e.way = byTLS
	case transport == "tcp":
		e.way = byTCP
	case explicit && transport != "unix":
		return refuse(uriRemedy, "the URI %s asks for the transport %q, which is not supported", h.URI, transport)
	}

	session := u.Path == "/session"
	if e.way == byUnix {
		if u.Host != "" {
			return refuse("Leave the host name out, or use qemu+ssh.", "the URI %s names a host, but a unix socket is local", h.URI)
		}
		e.sockets = localSockets(session)
	} else if e.host, e.port, err = target(u, defaultPorts[e.way]); err != nil {
		return refuse(uriRemedy, "the URI %s %w", h.URI, err)
	}
	switch e.way {
	case bySSH:
		if session && socket == "" {
			return refuse("Add the socket's path: qemu+ssh://user@host/session?socket=/run/user/1000/libvirt/libvirt-sock.",
				"the URI %s does not say where the remote user's session daemon listens", h.URI)
		}
		name, err := loginName(u)
		if err != nil {
			return refuse(uriRemedy, "the URI %s %w", h.URI, err)
		}
		e.sockets = systemSockets()
		e.hops = hops(h, name, e.host, e.port)
	case byTLS, byTCP:
		if u.User != nil || socket != "" {
			return refuse(fmt.Sprintf("Leave them out, or use qemu+ssh://user@%s%s.", e.host, u.Path),
				"the URI %s names a user or a socket, and a daemon reached by TLS or TCP has neither", h.URI)
		}
		if session {
			return refuse(fmt.Sprintf("Use qemu+%s://%s/system, or qemu+ssh with the socket of the user's daemon.", transportNames[e.way], u.Host),
				"the URI %s ends in /session, and no user's daemon listens for TLS or TCP", h.URI)
		}
	case byUnix:
	}
	if socket != "" {
		e.sockets = []string{socket}
	}
	return e, nil
}

var transportNames = map[way]string{byUnix: "unix", bySSH: "ssh", byTLS: "tls", byTCP: "tcp"}

// socketParameter gives the URI's socket parameter, and refuses all others:
// silently ignored they would be believed.
func socketParameter(u *url.URL) (string, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", errors.New("has a malformed query")
	}
	for name := range query {
		if name != "socket" {
			return "", fmt.Errorf("has the parameter %q, which is not supported (keys and certificates are set in ssh and tls)", name)
		}
	}
	socket := query.Get("socket")
	if query.Has("socket") && !filepath.IsAbs(socket) {
		return "", fmt.Errorf("has the socket %q, which is not an absolute path", socket)
	}
	if u.Fragment != "" {
		return "", errors.New("has a fragment")
	}
	return socket, nil
}

// target gives the machine and the port that the URI names.
func target(u *url.URL, defaultPort string) (host, port string, err error) {
	if host = u.Hostname(); host == "" {
		return "", "", errors.New("names no host")
	}
	if port = u.Port(); port == "" {
		port = defaultPort
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", "", fmt.Errorf("has the port %s, which is not between 1 and 65535", port)
	}
	return host, port, nil
}

// loginName gives the user that the URI names, or the current one.
func loginName(u *url.URL) (string, error) {
	if name := u.User.Username(); name != "" {
		return name, nil
	}
	current, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("names no user, and the current one is not known: %w", err)
	}
	return current.Username, nil
}

// The names of the sockets that daemons listen on: libvirtd or, with modular
// daemons, virtproxyd first, since it serves all drivers; then virtqemud
// (libvirt.org/daemons.html).
var socketNames = []string{"libvirt-sock", "virtqemud-sock"}

// systemSockets gives the system daemon's sockets in the order in which to
// try them.
func systemSockets() []string {
	return socketsIn("/run/libvirt", "/var/run/libvirt")
}

// localSockets gives the sockets of this machine's daemon. The session daemon
// listens in the user's runtime directory, or in the cache directory where
// there is none.
func localSockets(session bool) []string {
	if !session {
		return systemSockets()
	}
	var dirs []string
	if runtime := os.Getenv("XDG_RUNTIME_DIR"); runtime != "" {
		dirs = append(dirs, filepath.Join(runtime, "libvirt"))
	} else {
		dirs = append(dirs, fmt.Sprintf("/run/user/%d/libvirt", os.Getuid()))
	}
	if cache, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(cache, "libvirt"))
	}
	return socketsIn(dirs...)
}

func socketsIn(dirs ...string) []string {
	var paths []string
	for _, name := range socketNames {
		for _, dir := range dirs {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
}
