package proxy

import (
	"strings"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

func TestAllowsFollowsThePolicy(t *testing.T) {
	deny := example()
	allow := example()
	allow.Policy.Default = egress.Allow
	ports := example()
	ports.Policy.AllowPorts = []int{8443}
	for _, c := range []struct {
		p      egress.Proxy
		client string
		host   string
		port   int
		want   bool
	}{
		{deny, "ci", "www.example.net", 443, true},
		{deny, "ci", "www.example.net", 80, true},
		{deny, "ci", "WWW.Example.NET.", 443, true},
		{deny, "ci", "www.example.net", 25, false},
		{deny, "ci", "www.example.net", 53, false},
		{deny, "ci", "sub.www.example.net", 443, false},
		{deny, "ci", "example.org", 443, true},
		{deny, "ci", "x.y.example.org", 443, true},
		{deny, "ci", "badexample.org", 443, false},
		{deny, "ci", "github.com", 443, true},
		{deny, "dev", "github.com", 443, false},
		{deny, "nobody", "www.example.net", 443, false},
		{deny, "ci", "8.8.8.8", 443, false},
		{deny, "ci", "", 443, false},
		{deny, "ci", "a..example.org", 443, false},
		{ports, "ci", "www.example.net", 443, false},
		{ports, "ci", "www.example.net", 8443, true},
		{allow, "dev", "anything.test", 443, true},
		{allow, "dev", "anything.test", 22, false},
		{allow, "dev", "8.8.8.8", 443, true},
		{allow, "dev", "2606:4700::1111", 443, true},
		{allow, "dev", "169.254.169.254", 80, false},
		{allow, "dev", "metadata.google.internal", 80, false},
		{allow, "dev", "Metadata.Google.Internal.", 80, false},
		{allow, "dev", "100.100.100.200", 80, false},
		{allow, "dev", "fd00:ec2::254", 80, false},
		{allow, "dev", "[fd00:ec2::254]", 80, false},
		{allow, "dev", "::ffff:169.254.169.254", 80, false},
		{allow, "dev", "64:ff9b::a9fe:a9fe", 80, false},
		{allow, "dev", "2002:a9fe:a9fe::1", 80, false},
		{allow, "dev", "2852039166", 80, false},
		{allow, "dev", "0x7f.1", 80, false},
		{allow, "dev", "0177.0.0.1", 80, false},
		{allow, "dev", "10.5", 80, false},
		{allow, "dev", "fe80::1%eth0", 80, false},
		{allow, "dev", "134744072", 80, true},
	} {
		if got := Allows(c.p, c.client, c.host, c.port); got != c.want {
			t.Errorf("default %s, %s to %s:%d: got %t, want %t", c.p.Policy.Default, c.client, c.host, c.port, got, c.want)
		}
	}
}

func TestDefaultTargetIsTheFirstHostThatIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		shared, own []string
		ports       []int
		want        string
		client      string
	}{
		"first by name":          {[]string{".a.test", "z.test", "b.test"}, nil, nil, "b.test:443", "ci"},
		"443 among others":       {[]string{"b.test"}, nil, []int{80, 8443, 443}, "b.test:443", "ci"},
		"first port without 443": {[]string{"b.test"}, nil, []int{8443, 80}, "b.test:80", "ci"},
		"a client's own":         {[]string{".a.test"}, []string{"own.test"}, nil, "own.test:443", "ci"},
		"none":                   {[]string{".a.test"}, []string{".own.test"}, nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := egress.Proxy{
				HTTPPort: 3128,
				Clients:  map[string]egress.Client{"ci": {AllowDomains: c.own}},
				Policy:   egress.Policy{Default: egress.Deny, AllowDomains: c.shared, AllowPorts: c.ports},
			}
			got, ok := DefaultTarget(p)
			if got != c.want || ok != (c.want != "") {
				t.Errorf("got %q, %t", got, ok)
			}
			if client, _ := TargetClient(p, got); client != c.client {
				t.Errorf("the target is for client %q, want %q", client, c.client)
			}
		})
	}
}

func TestSplitTargetRefusesWhatIsNoHostAndPort(t *testing.T) {
	for target, want := range map[string]string{
		"a.test:443": "", "1.2.3.4:80": "", "[2001:db8::1]:443": "",
		"a.test": "port is missing", "a.test:": "not a number", "a.test:0": "not a number", "a.test:65536": "not a number", "a.test:https": "not a number",
		":443": "names nothing", ".a.test:443": "begins with a dot", "2001:db8::1:443": "IP address", "[a.test]:443": "brackets", "[::1:443": "brackets",
		"http://a.test:443": "URL", "a.test/x:443": "path", "a b.test:443": "white space",
	} {
		_, _, err := SplitTarget(target)
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", target, err, want)
		}
	}
}
