package egress

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestProviderIDSurvivesItsText(t *testing.T) {
	for text, want := range map[string]ProviderID{
		"kvm://hv1/ci-egress-1":             {KVM, "hv1", "ci-egress-1"},
		"gcp://my-project/europe-west1-b/x": {GCP, "my-project/europe-west1-b", "x"},
		"kubernetes://egress/proxy":         {Kubernetes, "egress", "proxy"},
		"kvm://hv.example.com/Old Domain?":  {},
		"kvm://hv1/a_foreign.Domain":        {KVM, "hv1", "a_foreign.Domain"},
	} {
		got, err := ParseProviderID(text)
		if (err != nil) != want.IsZero() || got != want {
			t.Errorf("%q: got %+v, %v; want %+v", text, got, err, want)
		}
		if err == nil && got.String() != text {
			t.Errorf("%q came back as %q", text, got)
		}
	}
}

func TestProviderIDErrorsStateTheForm(t *testing.T) {
	for text, form := range map[string]string{
		"":                 "kvm://HOST/NAME",
		"ci-egress-1":      "kvm://HOST/NAME",
		"qemu://hv1/x":     "kubernetes://NAMESPACE/NAME",
		"kvm://hv1":        "kvm://HOST/NAME",
		"kvm://hv1/a/b":    "kvm://HOST/NAME",
		"kvm:///x":         "kvm://HOST/NAME",
		"gcp://project/x":  "gcp://PROJECT/ZONE/NAME",
		"kvm://hv1/new\nl": "kvm://HOST/NAME",
	} {
		if _, err := ParseProviderID(text); err == nil || !strings.Contains(err.Error(), form) {
			t.Errorf("%q: %v does not state %s", text, err, form)
		}
	}
}

func FuzzProviderIDSurvivesItsText(f *testing.F) {
	f.Add("kvm://hv1/ci")
	f.Add("gcp://p/z/n")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseProviderID(text)
		if err == nil && id.String() != text {
			t.Errorf("%q came back as %q", text, id)
		}
	})
}

func TestSecretsArePrintedAndEncodedAsPlaceholders(t *testing.T) {
	secret := NewSecret("hunter2")
	spec := Spec{UserData: secret, Proxy: &Proxy{Clients: map[string]Client{"ci": {Password: secret}}}}
	encoded, err := json.Marshal(struct{ S any }{secret})
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := json.Marshal(spec.Proxy)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(secret), fmt.Sprintf("%+v", spec), fmt.Sprintf("%#v", spec), fmt.Sprintf("%q", secret), fmt.Sprintf("%x", secret), string(encoded), string(proxy)} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, fmt.Sprintf("%x", "hunter2")) {
			t.Errorf("the secret shows in %s", text)
		}
	}
	if secret.Reveal() != "hunter2" {
		t.Error("the secret is lost")
	}
}

func TestConfigHashIgnoresOrderAndSecrets(t *testing.T) {
	spec := func(edit func(*Spec)) string {
		s := Spec{Proxy: &Proxy{HTTPPort: 3128, Clients: map[string]Client{"a": {PasswordVersion: 1, AllowDomains: []string{"x.org", "y.org"}}},
			Policy: Policy{Default: Deny, AllowDomains: []string{".b.org", "a.org"}, AllowPorts: []int{443, 80}}}}
		edit(&s)
		return s.ConfigHash()
	}
	base := spec(func(*Spec) {})
	for name, edit := range map[string]func(*Spec){
		"order of domains": func(s *Spec) { s.Proxy.Policy.AllowDomains = []string{"a.org", ".b.org"} },
		"order of ports":   func(s *Spec) { s.Proxy.Policy.AllowPorts = []int{80, 443} },
		"order of a client's domains": func(s *Spec) {
			s.Proxy.Clients["a"] = Client{PasswordVersion: 1, AllowDomains: []string{"y.org", "x.org"}}
		},
		"the password itself": func(s *Spec) {
			s.Proxy.Clients["a"] = Client{Password: NewSecret("p"), PasswordVersion: 1, AllowDomains: []string{"x.org", "y.org"}}
		},
		"tags and health check": func(s *Spec) { s.Tags, s.HealthCheck.Target = Tags{"a": "b"}, "a.org:443" },
		"the machine":           func(s *Spec) { s.KVM = &KVMSpec{VCPUs: 2} },
	} {
		if spec(edit) != base {
			t.Errorf("%s changed the hash", name)
		}
	}
	seen := map[string]string{base: "nothing"}
	for name, edit := range map[string]func(*Spec){
		"port": func(s *Spec) { s.Proxy.HTTPPort = 8080 },
		"password version": func(s *Spec) {
			s.Proxy.Clients["a"] = Client{PasswordVersion: 2, AllowDomains: []string{"x.org", "y.org"}}
		},
		"a domain":           func(s *Spec) { s.Proxy.Policy.AllowDomains = nil },
		"the default":        func(s *Spec) { s.Proxy.Policy.Default = Allow },
		"another client":     func(s *Spec) { s.Proxy.Clients["b"] = Client{PasswordVersion: 1} },
		"no proxy":           func(s *Spec) { s.Proxy = nil },
		"user-data":          func(s *Spec) { s.UserData = NewSecret("#cloud-config") },
		"user-data, by hand": func(s *Spec) { s.UserData, s.UserDataVersion = NewSecret("#cloud-config"), 1 },
	} {
		hash := spec(edit)
		if other, ok := seen[hash]; ok {
			t.Errorf("%s has the hash of %s", name, other)
		}
		seen[hash] = name
	}
	secret := func(text string) string {
		return spec(func(s *Spec) { s.UserData, s.UserDataVersion = NewSecret(text), 1 })
	}
	if secret("a") != secret("b") {
		t.Error("write-only user-data enters the hash")
	}
}

func TestTagsContainAndMerge(t *testing.T) {
	tags := Tags{"team": "platform", "env": "prod"}
	for name, test := range map[string]struct {
		want Tags
		ok   bool
	}{
		"nothing":     {nil, true},
		"one":         {Tags{"env": "prod"}, true},
		"other value": {Tags{"env": "dev"}, false},
		"missing":     {Tags{"owner": ""}, false},
		"one of two":  {Tags{"env": "prod", "owner": "x"}, false},
		"all":         {tags, true},
	} {
		if got := tags.Contains(test.want); got != test.ok {
			t.Errorf("%s: got %t", name, got)
		}
	}
	merged := Tags{"env": "dev"}.Merge(tags)
	if merged["env"] != "dev" || merged["team"] != "platform" || tags["env"] != "prod" {
		t.Errorf("merged %v over %v", merged, tags)
	}
}

func TestFaultSaysWhatWhereAndWhy(t *testing.T) {
	fault := &Fault{Kind: ErrTransient, Doing: "creating overlay x", Host: "hv1", Cause: io.ErrUnexpectedEOF}
	err := fmt.Errorf("wrapped: %w", fault)
	if want := "wrapped: creating overlay x on host hv1: unexpected EOF"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if !errors.Is(err, ErrTransient) || !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrNotFound) {
		t.Errorf("the kinds of %v are wrong", err)
	}
	if got := (&Fault{Kind: ErrNotFound, Doing: "looking up domain x"}).Error(); got != "looking up domain x: not found" {
		t.Errorf("got %q", got)
	}
}
