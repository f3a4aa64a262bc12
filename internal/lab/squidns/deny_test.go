package squidns

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// want is how a request must end.
type want int

const (
	// arrives: the origin answers.
	arrives want = iota
	// refused: 403, nothing arrives.
	refused
	// unauthorized: 407, nothing arrives.
	unauthorized
	// nothing: whatever the proxy says, nothing arrives.
	nothing
)

func (w want) met(o Outcome) bool {
	switch w {
	case arrives:
		return o.Status == 200 && o.Reached != ""
	case refused:
		return o.Status == 403 && o.Reached == ""
	case unauthorized:
		return o.Status == 407 && o.Reached == ""
	default:
		return o.Status != 200 && o.Reached == ""
	}
}

func (w want) String() string {
	return [...]string{"it arrives", "403", "407", "nothing arrives"}[w]
}

// try asks for host:port by CONNECT and by plain HTTP: both must end alike.
func try(t *testing.T, s *Squid, who Credentials, host string, port int, w want) {
	t.Helper()
	target := fmt.Sprintf("%s:%d", host, port)
	got, err := Connect(t.Context(), s.Addr, who, target)
	hold(t, err == nil && w.met(got), "CONNECT %s as %q: %v (%v), want %v", target, who.User, got, err, w)
	get(t, s, who, "http://"+target+"/", w)
}

func get(t *testing.T, s *Squid, who Credentials, url string, w want) {
	t.Helper()
	got, err := Get(t.Context(), s.Addr, who, url)
	hold(t, err == nil && w.met(got), "GET %s as %q: %v (%v), want %v", url, who.User, got, err, w)
}

// Without this, the refusals below could all be unreachable addresses.
func TestEveryForbiddenAddressAnswersThroughAnOpenProxy(t *testing.T) {
	internet(t)
	s := openSquid(t)
	for i, addr := range forbidden {
		try(t, s, Credentials{}, bracketed(addr), 443, arrives)
		try(t, s, Credentials{}, fmt.Sprintf("rebind%d.allowed.test", i), 443, arrives)
	}
	for _, spelling := range spellings {
		try(t, s, Credentials{}, spelling, 80, arrives)
	}
}

// spellings are other ways of writing forbidden addresses that reach them
// through an open Squid.
var spellings = []string{
	"0x7f.1", "0x7f000001", "2130706433", "017700000001", "127.1", "127.0.1", "0177.0.0.1", "127.0.0.1.", "localhost",
	"2852039166", "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "169.254.43518", "169.16689662",
	"[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[0:0:0:0:0:ffff:10.0.0.5]", "[::ffff:127.0.0.1]",
	"[0000:0000:0000:0000:0000:0000:0000:0001]", "[FD00:EC2::254]", "metadata.google.internal", "METADATA.google.Internal", "metadata.google.internal.",
}

// neverReached are spellings that no policy may let through either, whether
// or not Squid takes them for an address.
var neverReached = []string{
	"0.0.0.0", "0", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
	"[::]", "[::169.254.169.254]", "[::a9fe:a9fe]", "[::127.0.0.1]", "[ff02::1]", "[ff0e::1]", "[fe80::1]", "[fe80::1%25lo]", "[fe80::1%lo]",
	"169.254.169.254%00.allowed.test", "169%2e254%2e169%2e254", "www.allowed.test@169.254.169.254", "169.254.169.254#.allowed.test", "169.254.169.254\\.allowed.test",
	"①⑥⑨.②⑤④.①⑥⑨.②⑤④", "１６９.254.169.254",
}

func TestDenyMatrixForbiddenDestinationsAreRefusedWhateverThePolicy(t *testing.T) {
	for name, p := range map[string]egress.Proxy{
		"deny by default":  denyByDefault(),
		"allow by default": allowByDefault(),
	} {
		t.Run(name, func(t *testing.T) {
			internet(t)
			s := squid(t, p)
			for i, addr := range forbidden {
				for _, port := range []int{80, 443} {
					try(t, s, ci, bracketed(addr), port, refused)
				}
				try(t, s, ci, fmt.Sprintf("rebind%d.allowed.test", i), 443, refused)
				try(t, s, Credentials{}, bracketed(addr), 80, refused)
			}
			for _, spelling := range spellings {
				try(t, s, ci, spelling, 80, refused)
			}
			for _, spelling := range neverReached {
				try(t, s, ci, spelling, 80, nothing)
			}
			try(t, s, ci, "mixed.allowed.test", 443, refused)
			try(t, s, ci, "mixed6.allowed.test", 443, refused)
		})
	}
}

func TestDenyMatrixDenyByDefault(t *testing.T) {
	in := internet(t)
	s := squid(t, denyByDefault())
	for _, host := range []string{
		"www.allowed.test", "allowed.test", "deep.sub.allowed.test", "six.allowed.test", "exact.test",
		"WWW.Allowed.TEST", "www.allowed.test.",
	} {
		try(t, s, ci, host, 443, arrives)
		try(t, s, dev, host, 80, arrives)
		try(t, s, ci, host, 22, refused)
		try(t, s, ci, host, 25, refused)
		try(t, s, ci, host, 8080, refused)
		try(t, s, Credentials{}, host, 443, unauthorized)
		try(t, s, Credentials{}, host, 22, unauthorized)
	}
	for _, host := range []string{"other.test", "notallowed.test", "sub.exact.test", "xallowed.test", "allowed.test.other.test", public, bracketed(public6)} {
		try(t, s, ci, host, 443, refused)
		try(t, s, dev, host, 80, refused)
		try(t, s, Credentials{}, host, 443, unauthorized)
	}
	for _, name := range []string{"other.test", "notallowed.test", "sub.exact.test", "xallowed.test", "allowed.test.other.test"} {
		hold(t, in.Asked(name) == 0, "the name %s, which is not allowed, was looked up", name)
	}
}

func TestDenyMatrixAllowByDefault(t *testing.T) {
	internet(t)
	s := squid(t, allowByDefault())
	for _, host := range []string{"www.allowed.test", "other.test", "own.dev.test", public, bracketed(public6), "8.8.8.8", "0x08.8.8.8"} {
		try(t, s, ci, host, 443, arrives)
		try(t, s, ci, host, 80, arrives)
		try(t, s, ci, host, 22, refused)
		try(t, s, ci, host, 8443, refused)
		try(t, s, Credentials{}, host, 443, unauthorized)
	}
}

func TestDenyMatrixClientsHaveDomainsOfTheirOwn(t *testing.T) {
	internet(t)
	p := denyByDefault()
	p.Policy.AllowPorts = []int{8443}
	s := squid(t, p)
	try(t, s, ci, "own.ci.test", 8443, arrives)
	try(t, s, dev, "own.dev.test", 8443, arrives)
	try(t, s, ci, "own.dev.test", 8443, refused)
	try(t, s, dev, "own.ci.test", 8443, refused)
	try(t, s, ci, "www.allowed.test", 8443, arrives)
	try(t, s, ci, "www.allowed.test", 443, refused)
	try(t, s, ci, "www.allowed.test", 80, refused)
}

func TestDenyMatrixWithoutListsNothingIsReached(t *testing.T) {
	internet(t)
	p := denyByDefault()
	p.Policy.AllowDomains = nil
	p.Clients[ci.User], p.Clients[dev.User] = withoutDomains(p, ci.User), withoutDomains(p, dev.User)
	s := squid(t, p)
	for _, host := range []string{"www.allowed.test", "own.ci.test", public, "169.254.169.254"} {
		try(t, s, ci, host, 443, refused)
		try(t, s, dev, host, 80, refused)
	}
	try(t, s, Credentials{}, "www.allowed.test", 443, unauthorized)
}

func TestDenyMatrixWrongCredentialsAreRefused(t *testing.T) {
	internet(t)
	s := squid(t, denyByDefault())
	for _, who := range []Credentials{
		{"ci", "wrong"}, {"ci", ""}, {"ci", dev.Password}, {"dev", ci.Password}, {"CI", ci.Password}, {"nobody", "x"},
		{"", ci.Password}, {"ci", ci.Password + " "}, {"ci", "p%41ss word:ü\"'"}, {"ci", "pAss word:ü\"'\\"}, {"REQUIRED", "x"}, {"ci\ndev", dev.Password},
	} {
		try(t, s, who, "www.allowed.test", 443, unauthorized)
	}
	try(t, s, ci, "www.allowed.test", 443, arrives)
}

func TestDenyMatrixOnlyHTTPAndTunnelsAreServed(t *testing.T) {
	internet(t)
	s := squid(t, allowByDefault())
	for _, url := range []string{
		"ftp://www.allowed.test/", "ftp://www.allowed.test:80/", "gopher://www.allowed.test:80/", "https://www.allowed.test/",
		"urn:www.allowed.test", "wais://www.allowed.test:80/", "whois://www.allowed.test:80/", "cache_object://www.allowed.test/info", "file:///etc/passwd",
		"http://egressproxy:3128/squid-internal-mgr/info", "http://127.0.0.1:3128/squid-internal-mgr/config", "/squid-internal-mgr/info", "/",
		"http://user:pass@169.254.169.254/", "http://www.allowed.test:80@169.254.169.254/", "http://169.254.169.254?@www.allowed.test/", "http:///169.254.169.254/",
		"http://[::ffff:169.254.169.254]/latest/meta-data/", "//169.254.169.254/", "HTTP://169.254.169.254/",
	} {
		get(t, s, ci, url, nothing)
	}
}

// A name may mean a public address when it is judged and a private one when
// it is connected.
func TestDenyMatrixAChangingNameNeverLeadsToMetadata(t *testing.T) {
	in := internet(t)
	s := squid(t, denyByDefault())
	for range 20 {
		got, err := Connect(t.Context(), s.Addr, ci, "flip.allowed.test:80")
		ok := err == nil && (got.Reached == "" || netip.MustParseAddrPort(got.Reached).Addr().Unmap() == netip.MustParseAddr(public))
		hold(t, ok, "CONNECT flip.allowed.test:80: %v (%v)", got, err)
	}
	hold(t, in.Asked("flip.allowed.test") > 0, "the name was never looked up")
}
