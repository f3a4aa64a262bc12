package cloudinit

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// File is a file to be written on the machine.
type File struct {
	// Path is absolute.
	Path string
	// Owner is "USER:GROUP". A group that the image does not have is made as a
	// system group before files are written.
	Owner string
	// Mode holds the permission bits.
	Mode uint32
	// Content is the whole file.
	Content string
}

// Config is what a machine is to be told on its first boot.
type Config struct {
	// Hostname is the machine's host name; empty leaves it alone.
	Hostname string
	// BootCommands are argument vectors that run early in every boot, before
	// Files are written.
	BootCommands [][]string
	// Files are written early in the first boot, before packages are installed.
	Files []File
	// Commands are argument vectors that run late in the first boot.
	Commands [][]string
}

// CloudConfig renders c as a "#cloud-config" part.
//
// The error names the file that cannot be written as wanted: a path that is
// not absolute and clean, an owner that is not "USER:GROUP", a mode beyond the
// permission bits; or a command without a program. Files can hold any bytes,
// all else is UTF-8.
func CloudConfig(c Config) ([]byte, error) {
	if !utf8.ValidString(c.Hostname) {
		return nil, fmt.Errorf("setting the host name %q by cloud-init: it is not UTF-8", c.Hostname)
	}
	doc := document{Hostname: c.Hostname}
	var err error
	if doc.BootCommands, err = argvs(c.BootCommands); err != nil {
		return nil, err
	}
	if doc.Commands, err = argvs(c.Commands); err != nil {
		return nil, err
	}
	groups := map[string]bool{"root": true}
	for _, f := range c.Files {
		group, err := check(f)
		if err != nil {
			return nil, fmt.Errorf("writing file %q by cloud-init: %w", f.Path, err)
		}
		if !groups[group] {
			groups[group] = true
			doc.BootCommands = append(doc.BootCommands, argv("sh", "-c", ensureGroup, "sh", group))
		}
		doc.Files = append(doc.Files, entry(f))
	}
	var b bytes.Buffer
	b.WriteString("#cloud-config\n")
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		return nil, fmt.Errorf("encoding cloud-config: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("encoding cloud-config: %w", err)
	}
	return b.Bytes(), nil
}

// ensureGroup runs in bootcmd, which comes before write_files: an unknown
// group would end the writing of files there. Alpine has no groupadd.
const ensureGroup = `grep -q "^$1:" /etc/group || groupadd --system "$1" || addgroup -S "$1"`

// document is a cloud-config, with keys in the order cloud-init acts on them.
type document struct {
	Hostname     string       `yaml:"hostname,omitempty"`
	BootCommands []*yaml.Node `yaml:"bootcmd,omitempty"`
	Files        []fileEntry  `yaml:"write_files,omitempty"`
	Commands     []*yaml.Node `yaml:"runcmd,omitempty"`
}

type fileEntry struct {
	Path        *yaml.Node `yaml:"path"`
	Owner       *yaml.Node `yaml:"owner"`
	Permissions *yaml.Node `yaml:"permissions"`
	Encoding    string     `yaml:"encoding,omitempty"`
	Content     *yaml.Node `yaml:"content"`
}

// The mode is a string: cloud-init reads it as octal, while a YAML number
// would have been read as decimal by some versions.
func entry(f File) fileEntry {
	e := fileEntry{Path: quoted(f.Path), Owner: quoted(f.Owner), Permissions: quoted(fmt.Sprintf("%04o", f.Mode))}
	if legible(f.Content) {
		e.Content = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.LiteralStyle, Value: f.Content}
	} else {
		e.Encoding = "b64"
		e.Content = quoted(base64.StdEncoding.EncodeToString([]byte(f.Content)))
	}
	return e
}

// legible tells whether content survives as a YAML block that people can
// read, whatever YAML reader sees it: printable ASCII and tabs, ending with
// one line break and not beginning with white space.
func legible(content string) bool {
	if content == "" || strings.ContainsAny(content[:1], " \t\n") || !strings.HasSuffix(content, "\n") || strings.HasSuffix(content, "\n\n") {
		return false
	}
	return !strings.ContainsFunc(content, func(r rune) bool {
		return (r < ' ' && r != '\n' && r != '\t') || r > '~'
	})
}

// quoted is a string that no YAML reader takes for anything else.
func quoted(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: text}
}

func argvs(commands [][]string) ([]*yaml.Node, error) {
	var out []*yaml.Node
	for _, command := range commands {
		if len(command) == 0 || command[0] == "" {
			return nil, errors.New("running commands by cloud-init: a command has no program")
		}
		if !utf8.ValidString(strings.Join(command, "")) {
			return nil, fmt.Errorf("running %q by cloud-init: the command is not UTF-8, so YAML cannot hold it", command)
		}
		out = append(out, argv(command...))
	}
	return out, nil
}

func argv(words ...string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, w := range words {
		n.Content = append(n.Content, quoted(w))
	}
	return n
}

var accountForm = regexp.MustCompile(`^[a-z_][a-z0-9_-]*$`)

// check tells why a file cannot be written as wanted, and gives its group.
func check(f File) (group string, err error) {
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || strings.ContainsFunc(f.Path, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
		return "", errors.New("the path is not absolute and clean")
	}
	user, group, ok := strings.Cut(f.Owner, ":")
	if !ok || !accountForm.MatchString(user) || !accountForm.MatchString(group) {
		return "", fmt.Errorf("the owner %q is not USER:GROUP", f.Owner)
	}
	if f.Mode > 0o7777 {
		return "", fmt.Errorf("%o is not a file mode", f.Mode)
	}
	return group, nil
}
