package proxy

import (
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/bcrypt"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func example() egress.Proxy {
	return egress.Proxy{
		HTTPPort: 3128,
		Clients: map[string]egress.Client{
			"ci":  {Password: egress.NewSecret("one"), AllowDomains: []string{".github.com", "api.github.com"}},
			"dev": {Password: egress.NewSecret("two")},
		},
		Policy: egress.Policy{
			Default:      egress.Deny,
			AllowDomains: []string{"www.example.net", ".example.org", "a.example.org", ".b.example.org", "example.org"},
		},
	}
}

func TestSquidConfigMatchesGoldenFiles(t *testing.T) {
	allow := example()
	allow.Policy.Default = egress.Allow
	allow.Policy.AllowPorts = []int{8443, 443, 443}
	nothing := example()
	nothing.Policy.AllowDomains = nil
	nothing.Clients = map[string]egress.Client{"ci": {}}
	own := example()
	own.Policy.AllowDomains = nil
	for name, p := range map[string]egress.Proxy{
		"deny": example(), "allow": allow, "nothing": nothing, "own": own,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := SquidConfig(p)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".squid.conf")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("squid.conf differs from %s (-want +got); run with -update when it is meant to:\n%s", path, diff)
			}
		})
	}
}

func TestSquidConfigDropsOnlyDomainsThatAnotherCovers(t *testing.T) {
	for list, want := range map[string]string{
		"example.org .example.org":             ".example.org",
		".example.org a.example.org":           ".example.org",
		".example.org .a.example.org":          ".example.org",
		"example.org a.example.org":            "a.example.org example.org",
		".example.org badexample.org":          ".example.org badexample.org",
		"a.example.org .a.example.org x.a.org": ".a.example.org x.a.org",
		"x.test x.test":                        "x.test",
		".x.test .x.test":                      ".x.test",
		"":                                     "",
	} {
		if got := strings.Join(withoutCovered(strings.Fields(list)), " "); got != want {
			t.Errorf("%q becomes %q, want %q", list, got, want)
		}
	}
}

func TestSquidConfigDoesNotDependOnTheOrderOfLists(t *testing.T) {
	p, q := example(), example()
	q.Policy.AllowDomains = slices.Clone(p.Policy.AllowDomains)
	slices.Reverse(q.Policy.AllowDomains)
	a, err := SquidConfig(p)
	if err != nil {
		t.Fatal(err)
	}
	b, err := SquidConfig(q)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
}

func TestSquidConfigDeniesBeforeItAllowsOnce(t *testing.T) {
	for _, verdict := range []egress.Verdict{egress.Deny, egress.Allow} {
		p := example()
		p.Policy.Default = verdict
		config, err := SquidConfig(p)
		if err != nil {
			t.Fatal(err)
		}
		var rules []string
		for line := range strings.Lines(config) {
			if strings.HasPrefix(line, "http_access ") {
				rules = append(rules, strings.TrimSpace(line))
			}
			if strings.Contains(line, " dstdomain ") && !strings.Contains(line, " dstdomain -n ") {
				t.Errorf("%s without -n lets an IP literal through by its reverse name", line)
			}
		}
		allow := slices.IndexFunc(rules, func(r string) bool { return strings.HasPrefix(r, "http_access allow") })
		if allow != len(rules)-2 || rules[len(rules)-1] != "http_access deny all" {
			t.Errorf("default %s: the one rule that allows must come after all others but the final deny:\n%s", verdict, strings.Join(rules, "\n"))
		}
	}
}

func TestRenderWritesHashesAndNoPassword(t *testing.T) {
	p := example()
	p.Clients["ci"] = egress.Client{Password: egress.NewSecret("correct horse")}
	setup, err := Render(p)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]File{}
	for _, f := range setup.Files {
		files[f.Path] = f
		if strings.Contains(f.Content, "correct horse") {
			t.Errorf("%s holds the password", f.Path)
		}
	}
	for path, want := range map[string]File{
		ConfigPath: {Owner: "root:proxy", Mode: 0o640}, UsersPath: {Owner: "root:proxy", Mode: 0o640}, SetupPath: {Owner: "root:root", Mode: 0o755},
	} {
		if got := files[path]; got.Owner != want.Owner || got.Mode != want.Mode {
			t.Errorf("%s is %s %o, want %s %o", path, got.Owner, got.Mode, want.Owner, want.Mode)
		}
	}
	users := strings.Split(strings.TrimSpace(files[UsersPath].Content), "\n")
	if len(users) != 2 {
		t.Fatalf("users file has %d lines, want 2", len(users))
	}
	hash, ok := strings.CutPrefix(users[0], "ci:$2y$")
	if !ok || bcrypt.CompareHashAndPassword([]byte("$2a$"+hash), []byte("correct horse")) != nil {
		t.Errorf("the users file's first line is not ci's bcrypt hash: %s", users[0])
	}
	if diff := cmp.Diff([][]string{{SetupPath, "3128"}}, setup.Commands); diff != "" {
		t.Error(diff)
	}
}

func TestFaultsNameTheAttributeAndNoPassword(t *testing.T) {
	long := strings.Repeat("x", 73)
	for name, c := range map[string]struct {
		change    func(*egress.Proxy)
		attribute string
	}{
		"no clients":      {func(p *egress.Proxy) { p.Clients = nil }, "proxy.clients"},
		"port 0":          {func(p *egress.Proxy) { p.HTTPPort = 0 }, "proxy.http_port"},
		"port 65536":      {func(p *egress.Proxy) { p.HTTPPort = 65536 }, "proxy.http_port"},
		"verdict":         {func(p *egress.Proxy) { p.Policy.Default = "maybe" }, "proxy.policy.default"},
		"domain":          {func(p *egress.Proxy) { p.Policy.AllowDomains = []string{"*.x.test"} }, "proxy.policy.allow_domains"},
		"allow_ports":     {func(p *egress.Proxy) { p.Policy.AllowPorts = []int{80, -1} }, "proxy.policy.allow_ports"},
		"client's domain": {func(p *egress.Proxy) { p.Clients["ci"] = egress.Client{AllowDomains: []string{"a b"}} }, "proxy.clients.ci.allow_domains"},
		"client's name":   {func(p *egress.Proxy) { p.Clients["a:b"] = egress.Client{} }, "proxy.clients.a:b"},
		"no password":     {func(p *egress.Proxy) { p.Clients["ci"] = egress.Client{} }, "proxy.clients.ci.password_wo"},
		"long password": {func(p *egress.Proxy) {
			p.Clients["ci"] = egress.Client{Password: egress.NewSecret(long)}
		}, "proxy.clients.ci.password_wo"},
	} {
		t.Run(name, func(t *testing.T) {
			p := example()
			p.Clients = maps.Clone(p.Clients)
			c.change(&p)
			_, err := Render(p)
			var fault *egress.Fault
			if !errors.As(err, &fault) || fault.Attribute != c.attribute || !errors.Is(err, egress.ErrPermanent) {
				t.Fatalf("got %#v, want a permanent fault of %s", err, c.attribute)
			}
			if fault.Remedy == "" || strings.Contains(err.Error(), long) {
				t.Errorf("fault %q with remedy %q", err, fault.Remedy)
			}
		})
	}
}

func TestHashPasswordTakes72BytesAndNoMore(t *testing.T) {
	for text, ok := range map[string]bool{
		strings.Repeat("x", 72): true, strings.Repeat("x", 73): false, strings.Repeat("ü", 36): true, strings.Repeat("ü", 37): false,
		"": false, "a\nb": false, "a\rb": false, "a\x00b": false, " ": true, `quo"te`: true,
	} {
		if err := ValidatePassword(egress.NewSecret(text)); (err == nil) != ok {
			t.Errorf("%q: %v, want valid %t", text, err, ok)
		}
	}
	if _, err := HashPassword(egress.NewSecret(strings.Repeat("x", 73))); err == nil {
		t.Error("a password whose end bcrypt would ignore was hashed")
	}
}
