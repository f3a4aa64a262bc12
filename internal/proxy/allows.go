package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/egressproxy/terraform-provider-egressproxy/internal/egress"
)

// Allows tells whether the policy lets a client, known by name, reach host on
// a TCP port, be it by CONNECT or plain HTTP. host is a name or an address in
// any spelling that Squid takes. A name is judged by its text alone: Squid
// also refuses one that resolves to a forbidden address, which cannot be known
// here.
func Allows(p egress.Proxy, client, host string, port int) bool {
	c, known := p.Clients[client]
	if !known || !slices.Contains(allowedPorts(p.Policy), port) {
		return false
	}
	host = strings.TrimRight(strings.ToLower(host), ".")
	if addr, ok := parseAddress(host); ok {
		return p.Policy.Default == egress.Allow && !forbiddenAddress(addr)
	}
	if host == "" || strings.HasPrefix(host, ".") || strings.Contains(host, "..") || forbiddenName(host) {
		return false
	}
	if p.Policy.Default == egress.Allow {
		return true
	}
	listed := func(pattern string) bool { return matches(pattern, host) }
	return slices.ContainsFunc(p.Policy.AllowDomains, listed) || slices.ContainsFunc(c.AllowDomains, listed)
}

// DefaultTarget gives the HOST:PORT that a health check asks for when none is
// configured: the first, sorted, of the policy's and the clients' domains that
// names a single host, on port 443 or, when that is not allowed, on the first
// port that is. It returns false when the policy names no such host.
//
// Domains of single clients count only when no shared one names a host, and
// are then reachable for that client alone: see TargetClient.
func DefaultTarget(p egress.Proxy) (string, bool) {
	hosts := exactHosts(p.Policy.AllowDomains)
	for _, name := range slices.Sorted(maps.Keys(p.Clients)) {
		if len(hosts) > 0 {
			break
		}
		hosts = exactHosts(p.Clients[name].AllowDomains)
	}
	if len(hosts) == 0 {
		return "", false
	}
	ports := allowedPorts(p.Policy)
	port := ports[0]
	if slices.Contains(ports, 443) {
		port = 443
	}
	return fmt.Sprintf("%s:%d", hosts[0], port), true
}

// TargetClient gives the first client, by name, that the policy lets reach
// target, a HOST:PORT as in health_check.target; false when it lets none.
func TargetClient(p egress.Proxy, target string) (string, bool) {
	host, port, err := SplitTarget(target)
	if err != nil {
		return "", false
	}
	for _, name := range slices.Sorted(maps.Keys(p.Clients)) {
		if Allows(p, name, host, port) {
			return name, true
		}
	}
	return "", false
}

// SplitTarget takes a HOST:PORT apart; an IPv6 address is in brackets.
func SplitTarget(target string) (host string, port int, err error) {
	refuse := func(why string) error { return fmt.Errorf("%q is not HOST:PORT: %s", target, why) }
	colon := strings.LastIndex(target, ":")
	if colon < 0 {
		return "", 0, refuse("the port is missing")
	}
	port, err = strconv.Atoi(target[colon+1:])
	if err != nil || validatePort(port) != nil {
		return "", 0, refuse("the port is not a number from 1 to 65535")
	}
	host = target[:colon]
	if inner, ok := strings.CutPrefix(host, "["); ok {
		host, ok = strings.CutSuffix(inner, "]")
		if addr, err := netip.ParseAddr(host); !ok || err != nil || !addr.Is6() {
			return "", 0, refuse("what is in brackets is not an IPv6 address")
		}
		return host, port, nil
	}
	if _, isAddr := parseAddress(host); isAddr && !strings.Contains(host, ":") {
		return host, port, nil
	}
	if strings.HasPrefix(host, ".") {
		return "", 0, refuse("the host begins with a dot")
	}
	if err := ValidateDomain(host); err != nil {
		return "", 0, refuse(err.Error())
	}
	return host, port, nil
}

func exactHosts(patterns []string) []string {
	return slices.DeleteFunc(slices.Sorted(slices.Values(patterns)), func(pattern string) bool {
		return strings.HasPrefix(pattern, ".")
	})
}

// parseAddress reads an address as Squid does by way of getaddrinfo(3): IPv6
// with or without brackets, and IPv4 in inet_aton(3)'s spellings, of one to
// four numbers that are decimal, octal or hexadecimal.
func parseAddress(host string) (netip.Addr, bool) {
	if addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err == nil {
		return addr, true
	}
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var value uint64
	for i, part := range parts {
		if !numberForm.MatchString(part) {
			return netip.Addr{}, false
		}
		n, err := strconv.ParseUint(part, 0, 32)
		if err != nil {
			return netip.Addr{}, false
		}
		width := 1
		if i == len(parts)-1 {
			width = 4 - i
		}
		if n >= 1<<(8*width) {
			return netip.Addr{}, false
		}
		value = value<<(8*width) | n
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}
