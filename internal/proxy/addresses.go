package proxy

import (
	"net/netip"
	"slices"
	"strings"
)

// forbiddenNames are the names of cloud metadata services.
var forbiddenNames = []string{"metadata.google.internal"}

// forbiddenPrefixes are never reachable through the proxy, whatever the policy
// says: the special-purpose ranges of IANA's registries that lead into a
// private network, to the machine itself, to a metadata service
// (169.254.169.254, 100.100.100.200, fd00:ec2::254 are all within one) or, as
// an IPv6 address that embeds an IPv4 one, to any of these. Multicast and
// reserved ranges are in it because nothing there is a TCP server.
//
// Not in it: the documentation ranges, which are routed nowhere, and
// IPv4-mapped IPv6 addresses, which Squid itself treats as IPv4.
var forbiddenPrefixes = prefixes(
	"0.0.0.0/8",      // this network (RFC 791)
	"10.0.0.0/8",     // private (RFC 1918)
	"100.64.0.0/10",  // carrier-grade NAT (RFC 6598); Alibaba Cloud's metadata
	"127.0.0.0/8",    // loopback (RFC 1122)
	"169.254.0.0/16", // link-local (RFC 3927); metadata of most clouds
	"172.16.0.0/12",  // private (RFC 1918)
	"192.0.0.0/24",   // protocol assignments (RFC 6890); Oracle Cloud's metadata
	"192.88.99.0/24", // 6to4 relays (RFC 7526)
	"192.168.0.0/16", // private (RFC 1918)
	"198.18.0.0/15",  // benchmarking (RFC 2544)
	"224.0.0.0/4",    // multicast (RFC 5771)
	"240.0.0.0/4",    // reserved, and broadcast (RFC 1112)
	"::/96",          // unspecified, loopback, IPv4-compatible (RFC 4291)
	"64:ff9b::/96",   // NAT64 (RFC 6052)
	"64:ff9b:1::/48", // NAT64 for local use (RFC 8215)
	"100::/64",       // discard (RFC 6666)
	"2001::/32",      // Teredo (RFC 4380)
	"2001:2::/48",    // benchmarking (RFC 5180)
	"2002::/16",      // 6to4 (RFC 3056)
	"5f00::/16",      // segment routing (RFC 9602)
	"fc00::/7",       // unique local (RFC 4193); AWS's metadata
	"fe80::/10",      // link-local (RFC 4291)
	"fec0::/10",      // site-local (RFC 3879)
	"ff00::/8",       // multicast (RFC 4291)
)

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		out[i] = netip.MustParsePrefix(text)
	}
	return out
}

// forbiddenAddress tells whether addr is in one of forbiddenPrefixes.
func forbiddenAddress(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(forbiddenPrefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// forbiddenName tells whether host is the name of a metadata service.
func forbiddenName(host string) bool {
	return slices.Contains(forbiddenNames, strings.ToLower(host))
}
