package cloudinit

import (
	"encoding/base64"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// parsed is a cloud-config as cloud-init reads it.
type parsed struct {
	Hostname string     `yaml:"hostname"`
	Boot     [][]string `yaml:"bootcmd"`
	Run      [][]string `yaml:"runcmd"`
	Files    []struct {
		Path, Owner, Permissions, Encoding, Content string
	} `yaml:"write_files"`
}

func parse(t testing.TB, config []byte) parsed {
	t.Helper()
	if !strings.HasPrefix(string(config), "#cloud-config\n") {
		t.Fatalf("cloud-init would not know this for a cloud-config:\n%s", config)
	}
	var p parsed
	dec := yaml.NewDecoder(strings.NewReader(string(config)))
	dec.KnownFields(true)
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("%v in\n%s", err, config)
	}
	return p
}

func content(t testing.TB, encoding, text string) string {
	t.Helper()
	if encoding != "b64" {
		return text
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestCloudConfigKeepsEveryByteOfAFile(t *testing.T) {
	for name, text := range map[string]string{
		"text": "a\n  b\n\tc: d # e\n", "no end": "a", "empty": "", "two ends": "a\n\n", "leading space": "  a\nb\n", "leading line": "\na\n",
		"binary": "\x00\xff\r\n", "umlaut": "ü\n", "carriage return": "a\r\nb\n", "trailing space": "a  \nb\n", "yaml": "--- |\n...\n%TAG\n",
		"long line": strings.Repeat("word ", 500) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			config, err := CloudConfig(Config{Files: []File{{Path: "/etc/x", Owner: "root:root", Mode: 0o640, Content: text}}})
			if err != nil {
				t.Fatal(err)
			}
			p := parse(t, config)
			if len(p.Files) != 1 || content(t, p.Files[0].Encoding, p.Files[0].Content) != text {
				t.Errorf("%q came back as %+v", text, p.Files)
			}
			if p.Files[0].Permissions != "0640" {
				t.Errorf("permissions %q", p.Files[0].Permissions)
			}
		})
	}
}

func TestCloudConfigWritesTextForPeopleToRead(t *testing.T) {
	config, err := CloudConfig(Config{Files: []File{{Path: "/etc/x", Owner: "root:root", Mode: 0o755, Content: "#!/bin/sh\necho hi\n"}}, Commands: [][]string{{"/etc/x", "1"}}})
	if err != nil {
		t.Fatal(err)
	}
	want := `#cloud-config
write_files:
  - path: "/etc/x"
    owner: "root:root"
    permissions: "0755"
    content: |
      #!/bin/sh
      echo hi
runcmd:
  - ["/etc/x", "1"]
`
	if diff := cmp.Diff(want, string(config)); diff != "" {
		t.Error(diff)
	}
}

func TestCloudConfigPassesCommandsWithoutAShell(t *testing.T) {
	words := []string{"echo", "yes", "1_000", "12:30:45", "a: b", "#c", "", "it's \"q\" \\", "$HOME", "ü\n\x01", "=", "<<", "~"}
	config, err := CloudConfig(Config{Commands: [][]string{words}, Hostname: "on"})
	if err != nil {
		t.Fatal(err)
	}
	p := parse(t, config)
	if diff := cmp.Diff([][]string{words}, p.Run); diff != "" {
		t.Error(diff)
	}
	if p.Hostname != "on" {
		t.Errorf("host name %q", p.Hostname)
	}
}

func TestCloudConfigMakesAGroupOnceBeforeItsFiles(t *testing.T) {
	file := func(path, owner string) File { return File{Path: path, Owner: owner, Mode: 0o600, Content: "x\n"} }
	config, err := CloudConfig(Config{Files: []File{file("/a", "root:proxy"), file("/b", "root:root"), file("/c", "root:proxy"), file("/d", "root:other")}})
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	for _, command := range parse(t, config).Boot {
		groups = append(groups, command[len(command)-1])
	}
	if diff := cmp.Diff([]string{"proxy", "other"}, groups); diff != "" {
		t.Error(diff)
	}
}

func TestCloudConfigRefusesWhatCannotBeWritten(t *testing.T) {
	for name, f := range map[string]File{
		"relative path": {Path: "etc/x", Owner: "root:root"}, "no path": {Owner: "root:root"}, "dots": {Path: "/etc/../x", Owner: "root:root"},
		"line break": {Path: "/etc/x\ny", Owner: "root:root"}, "no group": {Path: "/x", Owner: "root"}, "no owner": {Path: "/x"},
		"shell in the group": {Path: "/x", Owner: "root:a;b"}, "mode": {Path: "/x", Owner: "root:root", Mode: 0o100644},
	} {
		if _, err := CloudConfig(Config{Files: []File{f}}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, command := range [][]string{nil, {}, {""}, {"", "x"}} {
		_, late := CloudConfig(Config{Commands: [][]string{command}})
		if _, early := CloudConfig(Config{BootCommands: [][]string{command}}); early == nil || late == nil {
			t.Errorf("command %q: no error", command)
		}
	}
}

func FuzzCloudConfig(f *testing.F) {
	f.Add("a\n", "yes", "x: y")
	f.Add("  - a\n\tb\n", "#", "\x00")
	f.Add("\n\n", "'", "\"")
	f.Fuzz(func(t *testing.T, text, word, host string) {
		config, err := CloudConfig(Config{Files: []File{{Path: "/x", Owner: "root:root", Content: text}}, Commands: [][]string{{"echo", word}}, Hostname: host})
		if valid := utf8.ValidString(word) && utf8.ValidString(host); valid != (err == nil) {
			t.Fatalf("valid UTF-8 %t, error %v", valid, err)
		}
		if err != nil {
			return
		}
		p := parse(t, config)
		if p.Run[0][1] != word || p.Hostname != host {
			t.Errorf("command %q and host name %q came back as %q and %q", word, host, p.Run[0][1], p.Hostname)
		}
		if content(t, p.Files[0].Encoding, p.Files[0].Content) != text {
			t.Errorf("file %q came back as %+v", text, p.Files[0])
		}
	})
}
