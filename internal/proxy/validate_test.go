package proxy

import (
	"strings"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

func TestValidateDomainSaysWhatIsWrong(t *testing.T) {
	long := strings.Repeat("a", 63)
	for pattern, want := range map[string]string{
		"example.org": "", ".example.org": "", "a.example.org": "", "xn--mnchen-3ya.example": "", "_acme.example.org": "", "my_bucket.example.org": "",
		"localhost": "", ".org": "", "1.example.org": "", "3com.example": "", "a--b.test": "", long + ".test": "", ".metadata.google.internal": "",
		"":                         "names nothing",
		".":                        "names nothing",
		"..":                       "ends with a dot",
		"..example.org":            "two dots",
		"a..example.org":           "two dots",
		"*":                        "wildcards",
		"*.example.org":            "wildcards",
		"a.*.org":                  "wildcards",
		"https://example.org":      "URL",
		"example.org/path":         "path",
		"10.0.0.0/8":               "path",
		"example.org:443":          "allow_ports",
		"192.0.2.1":                "IP address",
		".192.0.2.1":               "IP address",
		"127.1":                    "IP address",
		"0x7f.1":                   "IP address",
		"0x7f000001":               "IP address",
		"2130706433":               "IP address",
		"::1":                      "IP address",
		"[2001:db8::1]":            "IP address",
		"example.123":              "IP address",
		"münchen.example":          "punycode",
		"Example.org":              `write "example.org"`,
		"example.org.":             "ends with a dot",
		"a b.org":                  "white space",
		"a\tb.org":                 "white space",
		"a\nhttp_access allow all": "white space",
		"example.org\n":            "white space",
		"a\x7fb.org":               "control character",
		"-a.org":                   "hyphens",
		"a-.org":                   "hyphens",
		"-n":                       "hyphens",
		"a,b":                      "may hold only",
		`"/etc/passwd"`:            "path",
		`"a"`:                      "may hold only",
		"#comment":                 "may hold only",
		"${process_number}":        "may hold only",
		long + "a.test":            "at most 63",
		strings.Repeat("a.", 127):  "at most 253",
		strings.Repeat("abc.", 64): "at most 253",
		"metadata.google.internal": "metadata",
	} {
		err := ValidateDomain(pattern)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v, want it valid", pattern, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			// Long names that also end with a dot fail by either reason.
			if err == nil || !strings.HasPrefix(want, "at most 253") {
				t.Errorf("%q: %v, want an error about %q", pattern, err, want)
			}
		}
	}
}

func TestValidateUserRefusesWhatSquidOrTheUsersFileWouldMisread(t *testing.T) {
	for name, ok := range map[string]bool{
		"ci": true, "CI": true, "a.b_c-d@example.org": true, "x+y": true, "0": true, strings.Repeat("u", 64): true,
		"": false, "a:b": false, "a b": false, "a\n": false, "a\tb": false, "-i": false, "#x": false, `"f"`: false, "'f'": false, "ü": false,
		"REQUIRED": false, "required": false, "%61": false, `a\b`: false, "${x}": false, "a,b": false, "a/b": false, "a\x00": false, strings.Repeat("u", 65): false,
	} {
		if err := ValidateUser(name); (err == nil) != ok {
			t.Errorf("%q: %v, want valid %t", name, err, ok)
		}
	}
}

// FuzzValidateDomain checks that what is accepted is one plain word.
func FuzzValidateDomain(f *testing.F) {
	for _, seed := range []string{"a.test", ".a.test", "a b", "a\nb", "*", "1.2.3.4", "::1", "ü", "a.", "0x1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		if ValidateDomain(pattern) != nil {
			return
		}
		if pattern != strings.ToLower(pattern) || strings.Trim(pattern, "abcdefghijklmnopqrstuvwxyz0123456789_-.") != "" || strings.HasPrefix(pattern, "-") {
			t.Errorf("%q was accepted", pattern)
		}
		if _, isAddr := parseAddress(strings.TrimPrefix(pattern, ".")); isAddr {
			t.Errorf("the address %q was accepted as a domain", pattern)
		}
	})
}

// FuzzSquidConfig checks that no input can add a line, or a word to a line, to
// the configuration.
func FuzzSquidConfig(f *testing.F) {
	f.Add(3128, "ci", "a.test", ".b.test", "deny", 443)
	f.Add(3128, "ci\nhttp_access allow all", "a.test\nhttp_port 1", "#", "allow", 0)
	f.Add(3128, "REQUIRED", "a.test b.test", "-n", "", 443)
	f.Fuzz(func(t *testing.T, port int, user, shared, own, verdict string, allowed int) {
		config, err := SquidConfig(egress.Proxy{
			HTTPPort: port,
			Clients:  map[string]egress.Client{user: {AllowDomains: []string{own}}},
			Policy:   egress.Policy{Default: egress.Verdict(verdict), AllowDomains: []string{shared}, AllowPorts: []int{allowed}},
		})
		if err != nil {
			return
		}
		plain, err := SquidConfig(egress.Proxy{
			HTTPPort: 3128,
			Clients:  map[string]egress.Client{"user": {AllowDomains: []string{"own.test"}}},
			Policy:   egress.Policy{Default: egress.Verdict(verdict), AllowDomains: []string{"shared.test"}, AllowPorts: []int{443}},
		})
		if err != nil {
			t.Fatal(err)
		}
		got, want := strings.Split(config, "\n"), strings.Split(plain, "\n")
		if len(got) != len(want) {
			t.Fatalf("the configuration has %d lines, want %d:\n%s", len(got), len(want), config)
		}
		for i := range got {
			g, w := strings.Fields(got[i]), strings.Fields(want[i])
			if len(g) != len(w) || (len(g) > 1 && g[0] != w[0]) {
				t.Errorf("line %q, want the form of %q", got[i], want[i])
			}
		}
	})
}
