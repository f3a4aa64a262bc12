package image

import (
	"strings"
	"testing"
)

func TestParseLocationAcceptsURLsAndPaths(t *testing.T) {
	for _, s := range []string{
		"https://images.example.com/debian-12.qcow2",
		"http://[2001:db8::1]:8080/a.raw",
		"HTTPS://user:pw@images.example.com/a?sig=1",
		"https://images.example.com/download?id=7",
		"file:///srv/images/a.qcow2",
		"file://localhost/srv/a.qcow2",
		"file:/srv/a.qcow2",
		"/srv/images/a.qcow2",
		"images/a b.qcow2",
		"images/a.raw.xz",
		"https://images.example.com/a.qcow2.gz",
		"./~/a.qcow2",
		`C:\images\a.qcow2`,
	} {
		if err := ParseLocation(s); err != nil {
			t.Errorf("ParseLocation(%q): %v", s, err)
		}
	}
}

func TestParseLocationRefusesWithAReason(t *testing.T) {
	tests := map[string]string{
		"":                                     "empty",
		"ftp://host/a.qcow2":                   `unknown scheme "ftp"`,
		"git::https://u:hunter2@host/a.qcow2":  `unknown scheme "git::https"`,
		"https:///a.qcow2":                     "without a host",
		"https://:443/a.qcow2":                 "without a host",
		"https:images/a.qcow2":                 "without a host",
		"https://host:port/a.qcow2":            `invalid port ":port"`,
		"https://u:hunter2@host:port/a":        "not a valid URL",
		"https://u:hunter2/x@host/a":           "not a valid URL",
		"file://srv/a.qcow2":                   "file:///path",
		"file:a.qcow2":                         "file:///path",
		"~/a.qcow2":                            "pathexpand",
		"a\nb":                                 "control character",
		"https://host/a.qcow2.lz4":             "compressed with lz4; give a qcow2 disk",
		"https://u:hunter2@host/a.ZIP?hunter2": "compressed with zip",
		"/srv/a.raw.7z":                        "compressed with 7z",
	}
	for s, want := range tests {
		err := ParseLocation(s)
		wantText(t, err, want)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseLocation(%q) repeats the secret: %v", s, err)
		}
	}
}

func TestRedactTakesSecretsFromURLsInTexts(t *testing.T) {
	tests := map[string]string{
		`Get "https://u:p@h/a?sig=x#f": EOF`: `Get "https://h/a?...": EOF`,
		"proxy http://p:w@h:3128 refused":    "proxy http://h:3128 refused",
		"two: http://a@b/c, https://d/e?f":   "two: http://b/c, https://d/e?...",
		"no address in it, is there? a@b":    "no address in it, is there? a@b",
	}
	for in, want := range tests {
		if got := redact(in); got != want {
			t.Errorf("redact(%q) = %q, want %q", in, got, want)
		}
	}
}
