package kvm

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/digitalocean/go-libvirt"
)

// usableAddresses picks, from what one source reported, the addresses that
// clients can dial: those of interfaces with one of the domain's own MAC
// addresses, without loopback, link-local, multicast and unspecified ones. The
// guest agent reports all of those, and interfaces the guest made up itself.
func usableAddresses(reported []libvirt.DomainInterface, macs []string) []netip.Addr {
	var out []netip.Addr
	for _, iface := range reported {
		if len(iface.Hwaddr) == 0 || !slices.ContainsFunc(macs, func(mac string) bool { return strings.EqualFold(mac, iface.Hwaddr[0]) }) {
			continue
		}
		for _, a := range iface.Addrs {
			addr, err := netip.ParseAddr(a.Addr)
			if err != nil {
				continue
			}
			addr = addr.Unmap().WithZone("")
			if addr.IsGlobalUnicast() {
				out = append(out, addr)
			}
		}
	}
	return out
}

// orderAddresses drops duplicates and puts IPv4 before IPv6, each in numeric
// order, so that two refreshes of an unchanged machine agree whichever source
// answered first.
func orderAddresses(addrs []netip.Addr) []netip.Addr {
	out := slices.Clone(addrs)
	slices.SortFunc(out, func(a, b netip.Addr) int {
		if a.Is4() != b.Is4() {
			if a.Is4() {
				return -1
			}
			return 1
		}
		return a.Compare(b)
	})
	return slices.Compact(out)
}
