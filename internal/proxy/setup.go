package proxy

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Where the files of a Setup live on the machine.
const (
	// ConfigPath is Squid's configuration.
	ConfigPath = "/etc/squid/squid.conf"
	// UsersPath holds a "name:hash" line for each client.
	UsersPath = "/etc/squid/egressproxy-users"
	// SetupPath is the script that brings Squid up.
	SetupPath = "/usr/local/lib/egressproxy/setup"
)

// What the set-up script prints on the console, at the start of a line.
const (
	// ReadyLine says that Squid listens with the rendered configuration.
	ReadyLine = "egressproxy: ready"
	// FailedPrefix is followed by the step that failed and the reason.
	FailedPrefix = "egressproxy: FAILED step "
)

// owner of what Squid may read and others may not. Debian's base-passwd has
// the group "proxy" on every machine, with or without Squid.
const owner = "root:proxy"

//go:embed setup.sh
var setupScript string

// File is a file to be written on the machine before Commands run.
type File struct {
	// Path is absolute.
	Path string
	// Owner is "USER:GROUP".
	Owner string
	// Mode holds the permission bits.
	Mode uint32
	// Content is the whole file. It carries no password, only hashes.
	Content string
}

// Setup is all that makes a machine the proxy.
type Setup struct {
	// BootCommands are argument vectors, to be run in order, early in every
	// boot, before Files are written.
	BootCommands [][]string
	// Files must be in place before Commands run.
	Files []File
	// Commands are argument vectors, to be run in order, once, at first boot.
	Commands [][]string
}

// Render gives what makes a machine the proxy p. Every client needs its
// password, which only the hash of leaves this function; the hashes are salted
// at random, so two calls differ in the users file.
//
// Errors are *egress.Fault and name the attribute.
func Render(p egress.Proxy) (Setup, error) {
	config, err := SquidConfig(p)
	if err != nil {
		return Setup{}, err
	}
	users, err := usersFile(p.Clients)
	if err != nil {
		return Setup{}, err
	}
	return Setup{
		BootCommands: [][]string{{"sh", "-c", syncBeforeSquid}},
		Files: []File{
			{Path: ConfigPath, Owner: owner, Mode: 0o640, Content: config},
			{Path: UsersPath, Owner: owner, Mode: 0o640, Content: users},
			{Path: SetupPath, Owner: "root:root", Mode: 0o755, Content: setupScript},
		},
		Commands: [][]string{{SetupPath, strconv.Itoa(p.HTTPPort)}},
	}, nil
}

// syncBeforeSquid makes systemd write everything to disk before it starts Squid,
// so that a proxy that answers also comes back when its machine loses power the
// next moment. Without it ext4 leaves the new users file empty then, and Squid
// refuses every password.
const syncBeforeSquid = `[ -d /run/systemd/system ] || exit 0
mkdir -p /run/systemd/system/squid.service.d
printf '[Service]\nExecStartPre=/bin/sync\n' >/run/systemd/system/squid.service.d/egressproxy-sync.conf
systemctl daemon-reload
`

// usersFile renders the file that Squid's basic_ncsa_auth reads, one
// "name:hash" line a client, by name.
func usersFile(clients map[string]egress.Client) (string, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(clients)) {
		attribute := clientAttribute(name) + ".password_wo"
		password := clients[name].Password
		if password.IsZero() {
			return "", fault(attribute, errors.New("the client has no password"),
				"Set password_wo, and password_wo_version with it.")
		}
		hash, err := HashPassword(password)
		if err != nil {
			return "", fault(attribute, fmt.Errorf("the password of client %q %w", name, err), "Choose another password.")
		}
		fmt.Fprintf(&b, "%s:%s\n", name, hash)
	}
	return b.String(), nil
}
