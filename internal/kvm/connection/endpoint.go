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

// endpoint is a host's URI taken apart.
type endpoint struct {
	// uri is what the daemon is asked to open: the URI without its way there.
	uri libvirt.ConnectURI
	// sockets are the daemon's sockets in the order in which to try them.
	sockets []string
	// ssh tells whether the sockets are on another machine.
	ssh  bool
	user string
	host string
	port string
}

// address gives host:port of the SSH server.
func (e endpoint) address() string { return net.JoinHostPort(e.host, e.port) }

// String names the endpoint for error texts.
func (e endpoint) String() string {
	if e.ssh {
		return e.user + "@" + e.address()
	}
	return "the local daemon"
}

const uriRemedy = `Use qemu:///system, qemu:///session, qemu+unix:///system?socket=/path or qemu+ssh://user@host:port/system.`

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
	session := u.Path == "/session"
	switch {
	case !explicit && u.Host != "":
		return refuse(fmt.Sprintf("Write qemu+ssh://%s%s.", u.Host, u.Path),
			"the URI %s means TLS, which is not supported", h.URI)
	case !explicit || transport == "unix":
		if u.Host != "" {
			return refuse("Leave the host name out, or use qemu+ssh.", "the URI %s names a host, but a unix socket is local", h.URI)
		}
		e.sockets = localSockets(session)
	case transport == "ssh":
		e.ssh = true
		if e.user, e.host, e.port, err = sshTarget(u); err != nil {
			return refuse(uriRemedy, "the URI %s %w", h.URI, err)
		}
		if session && socket == "" {
			return refuse("Add the socket's path: qemu+ssh://user@host/session?socket=/run/user/1000/libvirt/libvirt-sock.",
				"the URI %s does not say where the remote user's session daemon listens", h.URI)
		}
		e.sockets = systemSockets()
	default:
		return refuse(uriRemedy, "the URI %s asks for the transport %q, which is not supported", h.URI, transport)
	}
	if socket != "" {
		e.sockets = []string{socket}
	}
	return e, nil
}

// socketParameter gives the URI's socket parameter, and refuses all others:
// silently ignored they would be believed.
func socketParameter(u *url.URL) (string, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", errors.New("has a malformed query")
	}
	for name := range query {
		if name != "socket" {
			return "", fmt.Errorf("has the parameter %q, which is not supported (keys and host keys are set in ssh)", name)
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

func sshTarget(u *url.URL) (name, host, port string, err error) {
	host, port, name = u.Hostname(), u.Port(), u.User.Username()
	if host == "" {
		return "", "", "", errors.New("names no host")
	}
	if port == "" {
		port = "22"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", "", "", fmt.Errorf("has the port %s, which is not between 1 and 65535", port)
	}
	if name == "" {
		current, err := user.Current()
		if err != nil {
			return "", "", "", fmt.Errorf("names no user, and the current one is not known: %w", err)
		}
		name = current.Username
	}
	return name, host, port, nil
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
