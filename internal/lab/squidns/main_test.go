package squidns

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
	"github.com/egressproxy/terraform-provider-egressproxy/internal/proxy"
)

func TestMain(m *testing.M) {
	os.Exit(Run(func() int {
		code := m.Run()
		fmt.Printf("squid: %d points, %d held\n", points.Load(), held.Load())
		return code
	}))
}

// points counts the requests whose outcome was judged, held those that ended
// as they must.
var points, held atomic.Int64

// hold counts one point and reports it when it did not hold.
func hold(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	points.Add(1)
	if ok {
		held.Add(1)
		return
	}
	t.Errorf(format, args...)
}

const (
	port    = 3128
	public  = "203.0.113.10"
	public6 = "2600:1f18::10"
)

// forbidden are addresses the proxy must never lead to, one of every range
// that a local route can answer for.
var forbidden = []string{
	"10.0.0.5", "100.64.0.9", "100.100.100.200", "127.0.0.1", "127.1.2.3", "169.254.169.254", "169.254.0.1",
	"172.16.0.1", "172.31.255.254", "192.0.0.192", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.254",
	"::1", "64:ff9b::a9fe:a9fe", "64:ff9b::a00:5", "64:ff9b:1::a00:5", "100::1", "2001::1", "2001:2::1",
	"2002:a9fe:a9fe::1", "5f00::1", "fc00::1", "fd00::5", "fd00:ec2::254", "fdff::1", "fec0::1",
}

// internet starts the made-up internet of most tests.
func internet(t *testing.T) *Internet {
	t.Helper()
	in := &Internet{Names: map[string][][]netip.Addr{
		"www.allowed.test":         Addresses(public),
		"allowed.test":             Addresses(public),
		"deep.sub.allowed.test":    Addresses(public),
		"six.allowed.test":         Addresses(public6),
		"exact.test":               Addresses(public),
		"sub.exact.test":           Addresses(public),
		"notallowed.test":          Addresses(public),
		"other.test":               Addresses(public),
		"own.ci.test":              Addresses(public),
		"own.dev.test":             Addresses(public),
		"metadata.google.internal": Addresses("169.254.169.254"),
		"mixed.allowed.test":       {append(Addresses(public)[0], Addresses("10.0.0.5")[0]...)},
		"mixed6.allowed.test":      {append(Addresses(public)[0], Addresses("fd00::5")[0]...)},
		"flip.allowed.test":        Addresses(public, "169.254.169.254"),
	}}
	for i, addr := range forbidden {
		in.Names[fmt.Sprintf("rebind%d.allowed.test", i)] = Addresses(addr)
	}
	if err := in.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Errorf("closing the internet: %v", err)
		}
	})
	return in
}

// squid renders p, has the real Squid check it, and runs it.
func squid(t *testing.T, p egress.Proxy) *Squid {
	t.Helper()
	setup, err := proxy.Render(p)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, setup.Files)
}

// openSquid runs a Squid that allows everything to everyone.
func openSquid(t *testing.T) *Squid {
	t.Helper()
	config := "http_port 3128\nhttp_access allow all\ncache deny all\npinger_enable off\nvisible_hostname open\n"
	return run(t, []proxy.File{{Path: proxy.ConfigPath, Owner: "root:proxy", Mode: 0o640, Content: config}})
}

func run(t *testing.T, files []proxy.File) *Squid {
	t.Helper()
	if err := Install(files); err != nil {
		t.Fatal(err)
	}
	if err := Parse(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ci and dev are the clients of most tests.
var (
	ci  = Credentials{"ci", "p%41ss word:ü\"'\\"}
	dev = Credentials{"dev", "another"}
)

func clients() map[string]egress.Client {
	return map[string]egress.Client{
		ci.User:  {Password: egress.NewSecret(ci.Password), AllowDomains: []string{"own.ci.test"}},
		dev.User: {Password: egress.NewSecret(dev.Password), AllowDomains: []string{".dev.test"}},
	}
}

func denyByDefault() egress.Proxy {
	return egress.Proxy{HTTPPort: port, Clients: clients(), Policy: egress.Policy{
		Default: egress.Deny,
		// The last two are covered by the first, which Squid would warn about.
		AllowDomains: []string{".allowed.test", "exact.test", "www.allowed.test", ".sub.allowed.test"},
	}}
}

func allowByDefault() egress.Proxy {
	return egress.Proxy{HTTPPort: port, Clients: clients(), Policy: egress.Policy{Default: egress.Allow}}
}

// bracketed writes an address as the host of a URL.
func bracketed(addr string) string {
	if strings.Contains(addr, ":") {
		return "[" + addr + "]"
	}
	return addr
}

func withoutDomains(p egress.Proxy, client string) egress.Client {
	c := p.Clients[client]
	c.AllowDomains = nil
	return c
}
